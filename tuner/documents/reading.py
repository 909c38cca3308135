"""The one strict YAML reader: spaces, objectives and study files all come in through it.

    class Objective(Document):
        metric: str
        direction: Literal["maximize", "minimize"] = "maximize"

    objective = read(Path("objectives/throughput.yaml"), Objective, "throughput.yaml")

A file may come from somebody else, so it is data and nothing more: no tags, no anchors or aliases (no "billion
laughs"), no duplicate keys, no control characters, at most 256 KiB and 16 levels. Plain words mean what YAML 1.2 says:
``null``, ``true``, ``false`` and numbers; ``yes``, ``on`` and ``2024-01-01`` are texts.

Every problem is reported at once, in the form ``FILE:LINE: path.to.key: found …, expected …; did you mean '…'?``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from tuner.documents.complaints import complaints, dotted
from tuner.documents.tree import Node, unprintable
from tuner.errors import InputError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_KEY_CHARACTERS = 256
INT64 = 2**63

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NULLS = ("", "~", "null", "Null", "NULL")
_FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_AMBIGUOUS = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9][0-9]*_[0-9_]*|0[oO][0-7]+|[-+]?\.(inf|nan)", re.IGNORECASE)


class Document(BaseModel):
    """Base of every schema: frozen, strict, an unknown key is an error.

    Sequences are declared as ``tuple[X, ...]``, mappings as ``dict[str, X]``. A validator that raises ``ValueError``
    becomes a problem at its key, with the error's text as the message.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


D = TypeVar("D", bound=BaseModel)


@dataclass(frozen=True)
class Places:
    """Where the keys of a document stand in its file, for problems that are found after reading.

    Attributes:
        source: the file's name, as messages show it.
    """

    source: str
    _root: Node

    def problem(self, path: Sequence[str | int], message: str) -> str:
        """The message with file, line and path before it; a path that is not in the file gets the line of what is."""
        where = dotted(path)
        return f"{self.source}:{self._root.line_of(path)}: {where + ': ' if where else ''}{message}"


def read(path_or_text: Path | str, kind: type[D], source: str) -> D:
    """Reads a document.

    Args:
        path_or_text: a `Path` is read from disk, a `str` is the YAML text itself.
        kind: the schema, a subclass of `Document`.
        source: the name of the file in messages.

    Raises:
        InputError: the file cannot be read, is not strict YAML, or does not fit the schema; with all its problems.
    """
    return read_with_places(path_or_text, kind, source)[0]


def read_with_places(path_or_text: Path | str, kind: type[D], source: str) -> tuple[D, Places]:
    """Like `read`, with the places of all keys, so that later checks can name the line as well."""
    text = read_text(path_or_text, source) if isinstance(path_or_text, Path) else path_or_text
    root, problems = _parse_tree(text, source)
    places = Places(source, root)
    try:
        # Strict validation of JSON, not of Python objects: there a list is a good tuple, and a text a good enum.
        document = kind.model_validate_json(json.dumps(root.plain()))
    except ValidationError as error:
        problems += [places.problem(path, message) for path, message in complaints(error, kind, root)]
    else:
        if not problems:
            return document, places
    raise InputError(tuple(problems))


def read_text(path: Path, source: str) -> str:
    """The text of a file of at most 256 KiB of UTF-8.

    Raises:
        InputError: it is missing, not a regular file, not readable, too large or not UTF-8.
    """
    try:
        if not path.exists():
            raise InputError(f"{source}: found no such file, expected a YAML file; check the path")
        if not path.is_file():  # a FIFO would be waited for, a device read for ever
            raise InputError(f"{source}: found something that is not a regular file, expected a YAML file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{source}: cannot be read: {reason}; check the path and its permissions") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{source}: found more than {MAX_BYTES} bytes, expected a file of at most 256 KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"{source}:{line}: found bytes that are not UTF-8, expected a UTF-8 text; convert it"
        ) from error


def _parse_tree(text: str, source: str) -> tuple[Node, list[str]]:
    """Parses a text.

    Returns:
        The tree, and the problems that did not keep it from being built (duplicate keys, bad scalars).

    Raises:
        InputError: it is too large, empty, not YAML, or uses what is not accepted (aliases, tags, …).
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise InputError(f"{source}: found more than {MAX_BYTES} bytes, expected a file of at most 256 KiB")
    builder = _Builder(source)
    try:
        root = builder.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise InputError(_syntax_problem(source, text, error)) from error
    except (ValueError, OverflowError) as error:  # an escape such as "\UFFFFFFFF" is no character
        raise InputError(f"{source}: found an escape that is no character ({error}), expected valid YAML") from error
    return root, builder.problems


class _Builder:
    """Builds nodes from the parser's events, as they come: what is refused is refused before it can grow."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.problems: list[str] = []

    def document(self, events: Iterator[Any]) -> Node:
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                raise self._refusal(event, "a second document ('---')", "one document in a file")
            if isinstance(event, yaml.NodeEvent):
                root = self._node(event, events, 1)
        if root is None or root.content is None:
            raise InputError(f"{self._source}: found an empty file, expected a mapping (key: value)")
        return root

    def _refusal(self, event: Any, found: str, expected: str) -> InputError:
        return InputError(f"{self._source}:{event.start_mark.line + 1}: found {found}, expected {expected}")

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            mark = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise self._refusal(event, f"the alias or anchor '{mark}{event.anchor}'", "the value written out")
        if event.tag is not None:
            raise self._refusal(event, f"the tag {event.tag!r}", "plain data without tags")
        if depth > MAX_DEPTH:
            raise self._refusal(event, f"more than {MAX_DEPTH} levels", "a flat document")
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(inner := next(events), yaml.SequenceEndEvent):
                items.append(self._node(inner, events, depth + 1))
            return Node(line, items)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(line, events, depth)
        return Node(line, self._scalar(event, line))

    def _mapping(self, line: int, events: Iterator[Any], depth: int) -> Node:
        content: dict[str, Node] = {}
        key_lines: dict[str, int] = {}
        event: Any
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key, key_line = self._key(event), event.start_mark.line + 1
            value = self._node(next(events), events, depth + 1)
            if key in content:
                self._note(
                    key_line, f"found the key {key!r} a second time (first in line {key_lines[key]}), expected once"
                )
                continue
            content[key], key_lines[key] = value, key_line
        return Node(line, content, key_lines)

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None or event.tag is not None:
            raise self._refusal(event, "a key that is not a plain word", "text as the key")
        key: str = event.value
        if len(key) > MAX_KEY_CHARACTERS or unprintable(key, ""):
            expected = f"at most {MAX_KEY_CHARACTERS} printable characters"
            raise self._refusal(event, f"the key {key[:60]!r}", expected)
        return key

    def _note(self, line: int, message: str) -> None:
        self.problems.append(f"{self._source}:{line}: {message}")

    def _scalar(self, event: Any, line: int) -> str | int | float | bool | None:
        text: str = event.value
        if bad := unprintable(text, "\n\t"):
            self._note(line, f"found the control character {bad!r} in a text, expected printable characters")
            return ""
        if event.style is not None:  # quoted or a block: a text, whatever it looks like
            return text
        if text in _NULLS:
            return None
        if text in _FLAGS:
            return _FLAGS[text]
        if _AMBIGUOUS.fullmatch(text):
            self._note(line, f"found {text[:60]}, expected a plain decimal number; quote it if it is a text")
            return text
        if _INT.fullmatch(text) or _HEX.fullmatch(text):
            if len(text) <= 20 and abs(number := int(text, 0)) < INT64:
                return number
            self._note(line, f"found the number {text[:60]}, expected one of 64 bits")
            return 0
        if _FLOAT.fullmatch(text):
            value = float(text)
            if abs(value) != float("inf"):
                return value
            self._note(line, f"found the number {text[:60]}, expected a finite one")
            return 0.0
        return text


def _syntax_problem(source: str, text: str, error: yaml.YAMLError) -> str:
    mark: Any = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not valid YAML"
    if mark is not None:
        return f"{source}:{mark.line + 1}: found a fault in column {mark.column + 1} ({reason}), expected valid YAML"
    line = text[: getattr(error, "position", 0)].count("\n") + 1
    return f"{source}:{line}: found a fault ({reason}), expected valid YAML of printable characters"
