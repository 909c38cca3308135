"""Pydantic's errors in the words of the person who wrote the file."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tuner.documents.tree import Node

MAX_COMPLAINTS = 100

Path = tuple[str | int, ...]

_EXPECTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
}


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest known name; empty when none is near."""
    names = sorted(known)
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(found.casefold()[:80], list(folded), n=1, cutoff=0.6)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""


def shown(value: Any) -> str:
    """A value as a person would write it in YAML, cut short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…" + text[-1]


def dotted(path: Sequence[str | int]) -> str:
    """``env.NCCL_ALGO.choices[2]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def complaints(error: ValidationError, kind: type[BaseModel], root: Node) -> Iterator[tuple[Path, str]]:
    """A path and a message for each fault. The branches of a union are one fault, not several."""
    faults = [_Fault(raw, root) for raw in error.errors(include_url=False)[:MAX_COMPLAINTS]]
    by_place: dict[tuple[Path, bool], list[_Fault]] = {}
    for fault in faults:
        deeper = any(other.goes_deeper(fault) for other in faults)
        if not deeper:  # a mapping is meant for the union's mapping: the scalars' "not a text" says nothing
            by_place.setdefault((fault.path, fault.is_branch), []).append(fault)
    for (path, _), group in by_place.items():
        if group[0].is_branch:
            *others, last = dict.fromkeys(fault.expected for fault in group)
            yield path, f"found {group[0].found}, expected {', '.join(others) + ' or ' if others else ''}{last}"
        else:
            yield from ((path, message) for message in dict.fromkeys(f.message(kind) for f in group))
    if error.error_count() > MAX_COMPLAINTS:
        yield (), f"found {error.error_count() - MAX_COMPLAINTS} more problems after these"


class _Fault:
    """One of pydantic's errors, with its location split into what is in the file and what is not."""

    def __init__(self, raw: Any, root: Node) -> None:
        self.raw = raw
        self.type: str = raw["type"]
        self.loc: Path = raw["loc"]
        node, path, rest = root, [], []
        for part in self.loc:
            below = node.child(part)
            if below is None:
                rest.append(part)
            else:
                node = below
                path.append(part)
        self.path: Path = tuple(path)
        self.rest: Path = tuple(rest)
        self.node = node

    @property
    def is_branch(self) -> bool:
        """Whether it is one branch of a union that a value at `path` does not fit."""
        return self.type != "missing" and bool(self.rest) and self.loc[-1] == self.rest[-1]

    def goes_deeper(self, other: _Fault) -> bool:
        """Whether it is about the inside of a value of which the other says that it does not fit at all."""
        prefix = other.loc[:-1]
        return other.is_branch and self.loc[: len(prefix)] == prefix and len(self.loc) > len(other.loc)

    @property
    def found(self) -> str:
        return shown(self.node.plain())

    @property
    def expected(self) -> str:
        context = self.raw.get("ctx", {})
        if self.type in ("literal_error", "enum"):
            return f"one of {context.get('expected', '')}"
        if self.type in _EXPECTED:
            return _EXPECTED[self.type]
        message: str = self.raw["msg"]
        return message.removeprefix("Input should be ").removeprefix("Value ").removeprefix("String ")

    def message(self, kind: type[BaseModel]) -> str:
        if self.type == "extra_forbidden":
            key, known = str(self.loc[-1]), _field_names(kind, self.loc[:-1])
            return f"found an unknown key, expected one of {', '.join(known)}{did_you_mean(key, known)}"
        if self.type == "missing":
            return f"found no key '{self.loc[-1]}', expected it: it is required"
        if self.type == "value_error":
            return str(self.raw["ctx"]["error"])
        if self.type in ("literal_error", "enum") and isinstance(self.raw["input"], str):
            known = [word.strip("' ") for word in self.raw["ctx"]["expected"].replace(" or ", ",").split(",")]
            return f"found {self.found}, expected {self.expected}{did_you_mean(self.raw['input'], known)}"
        return f"found {self.found}, expected {self.expected}"


def _field_names(kind: type[BaseModel], loc: Path) -> list[str]:
    """Names of the fields of the schema at a location, for the list of what a key may be."""
    candidates: list[Any] = [kind]
    for part in loc:
        branch = [c for c in candidates if isinstance(c, type) and c.__name__ == part]
        candidates = branch or [below for c in candidates for below in _below(c, part)]
    models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _below(annotation: Any, part: str | int) -> Iterator[Any]:
    """The possible types one step further down."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if part in (name, field.alias):
                yield from _members(field.annotation)
    elif get_origin(annotation) in (list, tuple, dict):
        yield from _members(next((a for a in reversed(get_args(annotation)) if a is not Ellipsis), None))


def _members(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the type itself; without ``Annotated``."""
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif hasattr(annotation, "__metadata__"):
        yield from _members(get_args(annotation)[0])
    else:
        yield annotation
