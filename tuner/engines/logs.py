"""Reading an engine's log: lines, and the exceptions in it. What they mean is the engine's own business."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::.*)?")
_FRAME = re.compile(r'\s+File "([^"]+)", line (\d+)')

TAIL_LINES = 40
_TAIL_CHARACTERS = 8000


def lines_of(log: str) -> list[str]:
    """The lines of a log as a terminal would have left them: without colours, each state of a progress bar a line."""
    return [_ESCAPES.sub("", line).rstrip() for line in re.split(r"\r\n|\n|\r", log)]


def last_line(lines: Sequence[str]) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def tail_of(lines: Sequence[str]) -> str:
    """The last lines, at most `TAIL_LINES` and about 8,000 characters."""
    text = "\n".join(line for line in lines if line.strip())
    return "\n".join(text.splitlines()[-TAIL_LINES:])[-_TAIL_CHARACTERS:]


@dataclass(frozen=True)
class Raised:
    """One traceback with all that is chained to it.

    Attributes:
        first: index of the line with the first ``Traceback``.
        last: index of the line with the last exception.
        header: what stands before ``Traceback`` in its line.
        exception: the last exception's line, as it stands.
        files: the files of all frames.
        where: file, line and source text of the innermost frame.
    """

    first: int
    last: int
    header: str
    exception: str
    files: tuple[str, ...]
    where: str


def raised_in(lines: Sequence[str]) -> list[Raised]:
    """The tracebacks of a log, in order; one whose exception was cut off is left out."""
    found: list[Raised] = []
    index = 0
    while index < len(lines):
        if not lines[index].endswith(_TRACEBACK):
            index += 1
            continue
        raised = _chain_at(lines, index)
        if raised is not None:
            found.append(raised)
        index = raised.last + 1 if raised is not None else index + 1
    return found


def _chain_at(lines: Sequence[str], first: int) -> Raised | None:
    files: list[str] = []
    exception, last, where = "", first, ""
    index = first
    while index < len(lines) and lines[index].endswith(_TRACEBACK):
        index += 1
        while index < len(lines) and (lines[index].startswith(" ") or not lines[index]):
            frame = _FRAME.match(lines[index])
            if frame:
                files.append(frame[1])
                source = lines[index + 1].strip() if index + 1 < len(lines) else ""
                where = f"{frame[1].rsplit('/', 1)[-1]}:{frame[2]}: {source}"
            index += 1
        if index == len(lines) or not _EXCEPTION.fullmatch(lines[index]):
            break
        exception, last = lines[index], index
        index = _next_of_chain(lines, index + 1)
    if not exception:
        return None
    header = lines[first].removesuffix(_TRACEBACK).strip()
    return Raised(first, last, header, exception, tuple(files), where)


def _next_of_chain(lines: Sequence[str], start: int) -> int:
    """Index of the chained ``Traceback`` after an exception's line, whose message may run on; else of the end."""
    index = start
    while index < len(lines) and lines[index] not in _CHAINED:
        if lines[index].startswith("[") or lines[index].endswith(_TRACEBACK):
            return len(lines)
        index += 1
    while index < len(lines) and not lines[index].endswith(_TRACEBACK):
        index += 1
    return index
