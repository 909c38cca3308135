"""The ranks' part in a step: a token goes once around all schedulers, as data does in a ring all-reduce.

A rank that is stopped does not pass it on, so the step never ends, as a collective would not.
"""

from __future__ import annotations

import os


class Ring:
    """Pipes from each rank to the next; made before the ranks are forked.

    Args:
        ranks: how many schedulers.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._pipes = [os.pipe() for _ in range(ranks)] if ranks > 1 else []

    def descriptors(self, rank: int) -> list[int]:
        """What a rank reads from and writes to: the pipe to it, and the pipe to the next."""
        if not self._pipes:
            return []
        return [self._pipes[rank - 1][0], self._pipes[rank][1]]

    def close(self) -> None:
        """Closes all of it: for the launcher, which is not part of it."""
        for pipe in self._pipes:
            os.close(pipe[0])
            os.close(pipe[1])

    def begin(self) -> None:
        """Rank 0 starts a round."""
        if self._pipes:
            os.write(self._pipes[0][1], b".")

    def end(self) -> None:
        """Rank 0 waits until the round is complete: at once, where all take part."""
        if self._pipes and not os.read(self._pipes[-1][0], 1):
            raise EOFError("a rank is gone")

    def follow(self, rank: int) -> None:
        """The life of a rank that is not 0: takes part in each round until the ring breaks."""
        source, target = self.descriptors(rank)
        while token := os.read(source, 1):
            os.write(target, token)
