"""Names and values as words of a command, and a command as text for a shell: the same for every engine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from tuner.values.configuration import Scalar

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
ARG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_REFERENCE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_RESERVED_WORDS = frozenset(
    "! { } [[ ]] case coproc do done elif else esac fi for function if in select then time until while".split()  # noqa: SIM905
)


def env_text(value: Scalar) -> str:
    """A value as an environment variable holds it: switches are 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def laid_over(
    below: Iterable[tuple[str, Scalar]], above: Iterable[tuple[str, Scalar]], aliases: Mapping[str, str]
) -> dict[str, tuple[str, Scalar]]:
    """Arguments under their canonical names → (name as it was written, value).

    What is above replaces what is below in its place, also where the two spell an argument differently.

    Args:
        aliases: spelling → canonical name.
    """
    merged: dict[str, tuple[str, Scalar]] = {}
    for name, value in (*below, *above):
        merged[aliases.get(name, name)] = (name, value)
    return merged


def argument_words(name: str, value: Scalar, lists: Collection[str]) -> tuple[str, ...]:
    """The words of one argument: ``--name value``, ``--name`` for ``True``, nothing for ``False`` and ``None``.

    A value that begins with a dash is joined to its name (``--name=-1``): by itself an argument parser could take it
    for a flag, so that the value of a harmless argument would switch another one on.

    Args:
        lists: names whose values are several words, written with blanks between them.
    """
    if value is True:
        return (f"--{name}",)
    if value is None or value is False:
        return ()
    text = str(value)
    if name in lists and not any(item.startswith("-") for item in text.split()):
        return (f"--{name}", *text.split())
    return (f"--{name}={text}",) if text.startswith("-") else (f"--{name}", text)


def arguments_in(argv: Sequence[str]) -> dict[str, list[str] | None]:
    """The inverse of `argument_words`: name → its words, ``None`` for a bare flag. What stands before is skipped."""
    found: dict[str, list[str] | None] = {}
    name: str | None = None
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else None
        elif name is not None:
            found[name] = [*(found[name] or []), word]
    return found


def shell_words(env: Iterable[tuple[str, str]], words: Sequence[str], references: Collection[str] = ()) -> str:
    """One line for a POSIX shell that runs the words with the environment, everything quoted.

    Args:
        env: names must match `ENV_NAME`.
        references: texts of the form ``$NAME`` that the shell is to fill in itself: secrets that must not be written
            out. Any other text, ``$NAME`` included, reaches the command as it is.

    Raises:
        ValueError: a name that no shell could assign to.
    """
    known = {text for text in references if _REFERENCE.fullmatch(text)}

    def quoted(text: str) -> str:
        return f'"{text}"' if text in known else shlex.quote(text)

    line = []
    for name, value in env:
        if not ENV_NAME.fullmatch(name):
            raise ValueError(f"not the name of an environment variable: {name!r}")
        line.append(f"{name}={quoted(value)}")
    for index, word in enumerate(words):
        # In first place even plain text can mean something: an assignment, or a word of the shell's own.
        special = index == 0 and ("=" in word or word in _RESERVED_WORDS)
        line.append(f"'{word}'" if special and shlex.quote(word) == word else quoted(word))
    return " ".join(line)
