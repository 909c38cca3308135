"""Sockets that stamp bytes when they arrive: a network backend for httpcore, the library below httpx.

When a batch steps, all its streams receive a token in the same moment. A client that stamps a chunk when its task
gets to it adds the work for all streams before it: milliseconds at 64 streams. Here the event loop's own read callback
takes the time, before any task runs; requests are stamped when their last byte is handed to the kernel. It also spares,
for each read, the cancel scope and the two changes of the selector that the default backend makes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import httpcore

HELD_CHUNKS = 4096
"""Chunks received and not yet read at which a socket stops reading, so that memory stays bounded."""


class ReceiptBackend(httpcore.AsyncNetworkBackend):
    """Opens TCP connections whose streams know when bytes came and went.

    Args:
        clock: of the stamps, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects.

        Raises:
            httpcore.ConnectError: refused or unreachable.
            httpcore.ConnectTimeout: no answer in `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, protocol = await loop.create_connection(lambda: _Receiver(self._clock), host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no answer in {timeout:g} s") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return ReceiptStream(transport, protocol, self._clock)


class ReceiptStream(httpcore.AsyncNetworkStream):
    """One connection.

    Attributes:
        written_s: when the last bytes were written.
        received_s: when the bytes that the last `read` returned had arrived.
    """

    def __init__(self, transport: asyncio.Transport, receiver: _Receiver, clock: Callable[[], float]) -> None:
        self.written_s = 0.0
        self.received_s = 0.0
        self._transport = transport
        self._receiver = receiver
        self._clock = clock

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes as one receive call brought them; empty at the end of the connection.

        Raises:
            httpcore.ReadError: the connection broke.
            httpcore.ReadTimeout: nothing came for `timeout` seconds.
        """
        receiver = self._receiver
        if not receiver.chunks and not receiver.ended:
            await receiver.wait(timeout)
        if not receiver.chunks:
            if receiver.broke is not None:
                raise httpcore.ReadError(str(receiver.broke)) from receiver.broke
            return b""
        self.received_s, data = receiver.take()
        if len(data) > max_bytes:
            receiver.chunks.appendleft((self.received_s, data[max_bytes:]))
            data = data[:max_bytes]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Writes all of it.

        Raises:
            httpcore.WriteError: the connection is closed or broke.
            httpcore.WriteTimeout: the peer took nothing for `timeout` seconds.
        """
        if not buffer:
            return
        if self._transport.is_closing():
            raise httpcore.WriteError(str(self._receiver.broke or "the connection is closed"))
        self._transport.write(buffer)
        self.written_s = self._clock()
        if self._receiver.writable.is_set():
            return
        try:
            async with asyncio.timeout(timeout):
                await self._receiver.writable.wait()
        except TimeoutError as error:
            raise httpcore.WriteTimeout(f"nothing taken for {timeout:g} s") from error

    async def aclose(self) -> None:
        """Closes the connection; what was not sent is dropped."""
        self._transport.abort()

    def get_extra_info(self, info: str) -> Any:
        """``is_readable``: whether an idle connection has something to read, which means that the peer closed it."""
        if info == "is_readable":
            return bool(self._receiver.chunks) or self._receiver.ended
        return self._transport.get_extra_info("socket") if info == "socket" else None


class _Receiver(asyncio.Protocol):
    """Takes what a socket brings, with the time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.chunks: deque[tuple[float, bytes]] = deque()
        self.ended = False
        self.broke: Exception | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.chunks.append((self._clock(), data))
        self._wake()
        if len(self.chunks) >= HELD_CHUNKS and self._transport and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self.ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.broke = exc
        self.writable.set()
        if self._timer:
            self._timer.cancel()
        self._wake()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def take(self) -> tuple[float, bytes]:
        """The oldest chunk with its time."""
        chunk = self.chunks.popleft()
        if self._paused and not self.chunks and self._transport:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    async def wait(self, timeout: float | None) -> None:
        """Waits for bytes or the end. One timer for many reads: it looks at the deadline when it fires."""
        self._waiter = self._loop.create_future()
        if timeout is not None:
            self._deadline_s = self._loop.time() + timeout
            if self._timer is None:
                self._timer = self._loop.call_at(self._deadline_s, self._expire)
        else:
            self._deadline_s = float("inf")
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _expire(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() >= self._deadline_s:
            self._waiter.set_exception(httpcore.ReadTimeout("nothing came"))
        elif self._deadline_s != float("inf"):
            self._timer = self._loop.call_at(self._deadline_s, self._expire)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
