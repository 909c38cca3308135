"""Secrets: references to the driver's environment in place of values, and masks over what is shown.

A value ``$NAME`` of a study file is a *reference*. It stays one in the specification and in the database, and is looked
up where the value is needed. What was looked up is hidden in everything that is logged, stored or shown (`mask`). Only
the study file's own values are ever looked up: a search space may come from a stranger, and ``$NAME`` in it is plain
text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import overload
from urllib.parse import quote, unquote

from tuner.errors import InputError
from tuner.values.configuration import Scalar
from tuner.values.launch import LaunchBase
from tuner.values.study import StudySpec

MASK = "***"

SHORTEST = 4
"""Characters of the shortest value that can be hidden: a shorter one would take half of every log with it."""

_REFERENCE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# User and password as SQLAlchemy splits them: the password ends at the first @. Quotes and spaces end any URL.
_CREDENTIALS = re.compile(r"(?P<before>[A-Za-z][\w+.-]*://[^:/@\s\"<>]*:)(?P<password>[^@\s\"<>]+)(?=@)")
_QUERY = re.compile(r"(?P<before>[?&](?:password|passwd|pwd|token|api_?key|secret)=)(?P<password>[^&#\s\"<>]+)", re.I)

_SECRET_WORDS = frozenset(
    "token key apikey password passwd passphrase pwd secret secrets credential credentials".split()  # noqa: SIM905
)
_ABOUT_WORDS = frozenset("file path map id index size count limit length".split())  # noqa: SIM905
"""Last words of names that tell where, which or how many: ``speculative-token-map``, ``AWS_ACCESS_KEY_ID``."""


def reference(value: Scalar) -> str | None:
    """The variable's name if the value is a reference as a whole, else ``None``."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else None


def references(spec: StudySpec) -> tuple[str, ...]:
    """Names of all environment variables that a study refers to, sorted; the storage's URL is not part of it."""
    launch = spec.engine.launch
    found = (reference(value) for _, value in (*launch.env, *launch.args))
    return tuple(sorted({name for name in found if name is not None}))


@overload
def resolve(value: str, environ: Mapping[str, str]) -> str: ...
@overload
def resolve(value: Scalar, environ: Mapping[str, str]) -> Scalar: ...
def resolve(value: Scalar, environ: Mapping[str, str]) -> Scalar:
    """The value itself, or what the environment holds where it is a reference.

    Raises:
        InputError: the variable is not set, is empty, or holds nothing that `mask` could hide.
    """
    name = reference(value)
    if name is None:
        return value
    found = environ.get(name, "")
    if not found:
        state = "is empty" if name in environ else "is not set"
        raise InputError(
            f"environment variable {name} {state}, and the study refers to it as ${name}. "
            f"Type: export {name}=VALUE, then the same command again."
        )
    if len(found) < SHORTEST or not found.strip("*"):
        raise InputError(
            f"environment variable {name} holds a value that cannot be kept secret: what ${name} stands for is hidden "
            f"wherever it is shown, which needs at least {SHORTEST} characters, not all asterisks. If it is no secret, "
            f"write it into the study file as it is."
        )
    return found


def resolve_launch(launch: LaunchBase, environ: Mapping[str, str]) -> LaunchBase:
    """The launch with all its references looked up. Not to be stored or shown.

    Raises:
        InputError: as `resolve`, for all references at once.
    """
    problems: list[str] = []

    def found(value: Scalar) -> Scalar:
        try:
            return resolve(value, environ)
        except InputError as error:
            problems.extend(problem for problem in error.problems if problem not in problems)
            return None

    env = tuple((name, str(found(value))) for name, value in launch.env)
    args = tuple((name, found(value)) for name, value in launch.args)
    if problems:
        raise InputError(problems)
    return replace(launch, env=env, args=args)


def resolve_url(url: str, environ: Mapping[str, str]) -> str:
    """A storage URL with the reference in its password looked up and percent-encoded. Not to be stored or shown.

    Raises:
        InputError: as `resolve`.
    """

    def found(match: re.Match[str]) -> str:
        password = match["password"]
        return match["before"] + (quote(resolve(password, environ), safe="") if reference(password) else password)

    return _QUERY.sub(found, _CREDENTIALS.sub(found, url))


def secret_values(spec: StudySpec, environ: Mapping[str, str], storage: str = "") -> tuple[str, ...]:
    """All that must be hidden when the study is shown: what its references stand for, and the storage's password.

    Args:
        storage: the storage URL as the study file gives it.

    Raises:
        InputError: as `resolve`.
    """
    values = [resolve(f"${name}", environ) for name in references(spec)]
    url = resolve_url(storage, environ)
    values += [unquote(match["password"]) for pattern in (_CREDENTIALS, _QUERY) for match in pattern.finditer(url)]
    return tuple(dict.fromkeys(values))


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text with each secret replaced by ``***``, and with it every password inside a URL, known or not.

    A secret is found as it is, and as URLs, JSON, Python and a shell write it; one of several lines also line by line.
    Values shorter than `SHORTEST` or of asterisks only, which `resolve` does not let through, are left.
    """
    hidden = sorted({form for secret in secrets for form in _written(secret)}, key=len, reverse=True)
    masked = _QUERY.sub(rf"\g<before>{MASK}", _CREDENTIALS.sub(rf"\g<before>{MASK}", text))
    # Again until none is left: a mask can complete another secret that begins or ends with asterisks. It ends, since
    # each round removes characters that are not asterisks.
    while any(form in masked for form in hidden):
        for form in hidden:
            masked = masked.replace(form, MASK)
    return masked


def _written(secret: str) -> set[str]:
    """The ways in which programs write a secret."""
    forms = {
        secret,
        quote(secret, safe=""),
        quote(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        shlex.quote(secret).removeprefix("'").removesuffix("'"),
        *secret.splitlines(),
    }
    return {form for form in forms if len(form) >= SHORTEST and form.strip("*")}


def looks_secret(name: str) -> bool:
    """Whether an environment variable or argument of that name holds a secret, by its words.

    ``HF_TOKEN`` and ``api-key`` do; ``max-total-tokens`` and ``ssl-key-file`` do not.
    """
    words = re.split(r"[-_.]+", name.lower())
    return not _SECRET_WORDS.isdisjoint(words) and words[-1] not in _ABOUT_WORDS
