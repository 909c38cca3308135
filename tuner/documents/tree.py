"""A YAML document as a tree of nodes that know their lines."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Node:
    """One value of the file.

    Attributes:
        line: where it begins, counted from 1.
        content: a scalar, a list of nodes, or a mapping of keys to nodes.
        key_lines: of a mapping: the line of each key.
    """

    line: int
    content: Any
    key_lines: dict[str, int] = field(default_factory=dict)

    def plain(self) -> Any:
        """The value as JSON types."""
        if isinstance(self.content, dict):
            return {key: node.plain() for key, node in self.content.items()}
        if isinstance(self.content, list):
            return [node.plain() for node in self.content]
        return self.content

    def child(self, key: str | int) -> Node | None:
        """The value under a key or an index; ``None`` if there is none."""
        if isinstance(self.content, dict) and isinstance(key, str):
            return self.content.get(key)
        if isinstance(self.content, list) and isinstance(key, int) and 0 <= key < len(self.content):
            node: Node = self.content[key]
            return node
        return None

    def line_of(self, path: Sequence[str | int]) -> int:
        """The line of the key at the path, or of the last part of the path that is in the file."""
        node, line = self, self.line
        for key in path:
            below = node.child(key)
            if below is None:
                break
            line = node.key_lines.get(str(key), below.line)
            node = below
        return line


_NOT_PRINTED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def unprintable(text: str, allowed: str) -> str:
    """The first character of the text that does not print (control, format, surrogate, …) and is not allowed."""
    return next((c for c in text if c not in allowed and unicodedata.category(c) in _NOT_PRINTED), "")
