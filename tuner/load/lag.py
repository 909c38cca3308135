"""How late the event loop is: the client's own honesty."""

from __future__ import annotations

import asyncio
from types import TracebackType

TICK_S = 0.010


class LoopLag:
    """Samples the running event loop's lag while the ``async with`` block runs.

    A tick is due every 10 ms at absolute times; its sample is how late it ran. A stall that swallows many ticks gives
    a sample for each of them, so that one long stall is not counted as one.

    Attributes:
        samples: lag in seconds, one for each tick that was due.
    """

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    async def __aenter__(self) -> LoopLag:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + TICK_S
        self._timer = loop.call_at(self._due_s, self._tick)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._due_s <= now:
            self.samples.append(now - self._due_s)
            self._due_s += TICK_S
        self._timer = loop.call_at(self._due_s, self._tick)
