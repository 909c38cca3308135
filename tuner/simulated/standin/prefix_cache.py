"""The prefix cache: which leading tokens of a prompt the server has seen before."""

from __future__ import annotations

from collections.abc import Sequence


class PrefixCache:
    """Remembers token sequences by the hashes of their prefixes, as a radix cache of page size 1 does.

    Args:
        capacity: tokens that it holds; when it overflows it starts afresh (SGLang evicts the least recently used).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: set[int] = set()

    def match(self, ids: Sequence[int]) -> int:
        """How many leading tokens are known: at most all but the last, which is always computed."""
        prefix = 0
        for count, token in enumerate(ids[:-1]):
            prefix = hash((prefix, token))
            if prefix not in self._known:
                return count
        return max(0, len(ids) - 1)

    def insert(self, ids: Sequence[int]) -> None:
        """Remembers a sequence."""
        if len(self._known) + len(ids) > self._capacity:
            self._known.clear()
        prefix = 0
        for token in ids:
            prefix = hash((prefix, token))
            self._known.add(prefix)

    def clear(self) -> None:
        """Forgets all."""
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)
