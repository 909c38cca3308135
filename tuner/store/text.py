"""What text may be stored: secrets masked, and nothing in it that a database refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

Mask = Callable[[str], str]
"""Replaces secrets in a text."""


def unmasked(text: str) -> str:
    """The mask of a study without secrets."""
    return text


def storable(text: str, mask: Mask = unmasked) -> str:
    """The text as it may be stored: masked, on one condition of databases more than Python's.

    A log is whatever a dying process wrote: PostgreSQL's ``text`` takes no NUL, and neither driver encodes the lone
    surrogates that undecodable bytes become. Both are written out as escapes.
    """
    clean = mask(text).encode("utf-8", "backslashreplace").decode("utf-8")
    return clean.replace("\x00", "\\x00")


def plain(value: Any, mask: Mask = unmasked) -> Any:
    """A value of `tuner.values`, or of JSON types, as plain JSON types with every text made `storable`.

    Raises:
        TypeError: something in it is neither.
    """
    if isinstance(value, Enum):
        return plain(value.value, mask)
    if isinstance(value, str):
        return storable(value, mask)
    if value is None or isinstance(value, bool | int | float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), mask) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {storable(str(key), mask): plain(item, mask) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item, mask) for item in value]
    raise TypeError(f"cannot store a {type(value).__name__} as JSON: {value!r:.200}")


def json_text(value: Any, mask: Mask = unmasked) -> str:
    """JSON of a value, every text in it made `storable`; `tuner.values.json.from_json` reads it back.

    The mask sees each text as it is, before JSON escapes a quote or a backslash of the secret that it looks for.

    Raises:
        TypeError: something in it is neither a value of `tuner.values` nor of a JSON type.
    """
    return json.dumps(plain(value, mask), ensure_ascii=False)
