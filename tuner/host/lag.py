"""The lag that the tunnel adds, measured while the load runs through it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

from tuner.values.measurement import TunnelLag

_PER_S = 20
_PING = struct.Struct("!d")


class TunnelLagProbe:
    """Sends a small message through the forward to the host's echo 20 times a second, at absolute times.

    A message is sent when it is due, whether or not the one before has come back: all that a stall holds up see it.
    """

    def __init__(self) -> None:
        self._half_trips_s: list[float] = []

    @contextlib.asynccontextmanager
    async def through(self, port: int) -> AsyncIterator[None]:
        """Measures while the block runs. A tunnel that breaks ends the measurement, not the block.

        Args:
            port: of our loopback, forwarded to the echo.
        """
        task = asyncio.create_task(self._measure(port))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _measure(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        receiver = asyncio.create_task(self._receive(reader))
        due = loop.time()
        try:
            while not receiver.done():
                writer.write(_PING.pack(loop.time()))
                due += 1 / _PER_S
                await asyncio.sleep(due - loop.time())
        finally:
            receiver.cancel()
            writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                (sent,) = _PING.unpack(await reader.readexactly(_PING.size))
                self._half_trips_s.append((loop.time() - sent) / 2)

    @property
    def lag(self) -> TunnelLag | None:
        """What has been seen so far; ``None`` if nothing has."""
        if not self._half_trips_s:
            return None
        ordered = sorted(self._half_trips_s)
        last = len(ordered) - 1
        return TunnelLag(p50_s=ordered[last // 2], p99_s=ordered[round(last * 0.99)], samples=len(ordered))
