"""JSON messages between the processes of the stand-in, over socket pairs: four bytes of length, then the text."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from typing import Any

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """One message as it goes over the socket."""
    data = json.dumps(message, separators=(",", ":")).encode()
    return len(data).to_bytes(4, "big") + data


class Frames:
    """The blocking end of a pair, for processes without an event loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()

    def send(self, message: Message) -> None:
        """Sends one message; blocks while the reader does not read."""
        self._sock.sendall(pack(message))

    def receive(self) -> Message:
        """The next message; blocks until there is one.

        Raises:
            EOFError: the other end is gone.
        """
        while (message := self._take()) is None:
            self._fill()
        return message

    def pending(self) -> list[Message]:
        """All messages that have arrived, without blocking."""
        messages = []
        while True:
            while (message := self._take()) is not None:
                messages.append(message)
            if not select.select([self._sock], [], [], 0)[0]:
                return messages
            self._fill()

    def _take(self) -> Message | None:
        if len(self._buffer) < 4:
            return None
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        if len(self._buffer) < end:
            return None
        message: Message = json.loads(self._buffer[4:end])
        del self._buffer[:end]
        return message

    def _fill(self) -> None:
        data = self._sock.recv(1 << 16)
        if not data:
            raise EOFError("the other process is gone")
        self._buffer += data


async def receive(reader: asyncio.StreamReader) -> Message:
    """The next message at the end that has an event loop.

    Raises:
        asyncio.IncompleteReadError: the other end is gone.
    """
    size = int.from_bytes(await reader.readexactly(4), "big")
    message: Message = json.loads(await reader.readexactly(size))
    return message
