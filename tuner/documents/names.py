"""Texts of a study file that end up in a path, an SSH session or a process: what they may look like.

None of them is ever put through a shell. They are narrow all the same, so that a mistake is told where it was made.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator


def _like(pattern: str, expected: str) -> AfterValidator:
    """A validator for texts that match a pattern as a whole."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            shown = text if len(text) <= 60 else f"{text[:60]}…"
            raise ValueError(f"found {shown!r}, expected {expected}")
        return text

    return AfterValidator(check)


Name = Annotated[
    str, _like(r"[a-z0-9][a-z0-9._-]{0,63}", "a name: small letters, digits and '. _ -', at most 64, no sign first")
]
"""Of a study, a host, a stage, an objective."""

Hostname = Annotated[
    str, _like(r"[A-Za-z0-9:][A-Za-z0-9._:%-]{0,254}", "a DNS name, an address or an alias of ~/.ssh/config")
]
User = Annotated[str, _like(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", "a login name")]
Jump = Annotated[
    str, _like(r"([A-Za-z_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?", "HOST or USER@HOST:PORT")
]
File = Annotated[str, _like(r"[^\0-\x1f-][^\0-\x1f]{0,1023}", "a path of one file")]
Python = Annotated[
    str, _like(r"[A-Za-z0-9_/.~][A-Za-z0-9_/.~+-]{0,255}", "a program or its path, such as python3, without arguments")
]

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
ARG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
PATTERN = re.compile(r"(--)?[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(=[^\0]{0,256})?", re.ASCII)
"""An entry of `forbid`: ``NAME``, ``NAME=value``, ``--flag``, ``--flag=value``; ``*`` stands for any text."""
