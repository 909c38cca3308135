"""Values to JSON text and back, for the database."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The adapter of a kind, built once: building takes milliseconds."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: Any) -> str:
    """The JSON text of a value of this package, or of plain JSON types."""
    return _adapter(type(value)).dump_json(value).decode()


def from_json(kind: type[T], text: str) -> T:
    """A value of the kind from its JSON text.

    Raises:
        ValueError: the text does not describe such a value (pydantic's ``ValidationError``).
    """
    value: T = _adapter(kind).validate_json(text)
    return value
