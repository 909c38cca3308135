"""One SSH connection with the agent at its far end: requests out, answers back, ports forwarded."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from tuner.errors import HostLost, HostRefused
from tuner.host import bundle
from tuner.host.ssh import SshConnection, SshProcess, connect
from tuner.values.host import HostAddress

_HELLO_LIMIT_S = 30.0


class LinkLost(HostLost):
    """The connection broke while an answer was awaited; whether the request was done is not known."""


class AgentError(HostLost):
    """The agent answered that it could not do what it was asked to, by nobody's fault."""


class AgentLink:
    """A connection and its agent. Made by `open_link`, gone for good once it breaks.

    Attributes:
        boot_id: the host's, at the time of connecting.
    """

    def __init__(self, name: str, connection: SshConnection, process: SshProcess, boot_id: str) -> None:
        self.name = name
        self.boot_id = boot_id
        self._connection = connection
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._forwarded: dict[int, int] = {}
        self._broken = False
        self._reader = asyncio.create_task(self._read())

    @property
    def broken(self) -> bool:
        """Whether it can no longer be used."""
        return self._broken or self._connection.closed.is_set()

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Asks the agent for an operation and returns its answer.

        Raises:
            LinkLost: the connection broke before the answer came.
            AgentError: the operation failed on the host.
        """
        if self.broken:
            raise LinkLost(self.name, "the SSH connection broke")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._process.write(json.dumps({"id": number, "op": op, **arguments}).encode() + b"\n")
            await self._process.drain()
            return await answer
        except ConnectionError as error:
            raise LinkLost(self.name, f"the SSH connection broke: {error}") from None
        finally:
            self._waiting.pop(number, None)

    async def forward(self, port: int) -> int:
        """A port of our loopback that leads to `port` of the host's; the same one when asked again.

        Raises:
            LinkLost: the connection is gone.
        """
        if port not in self._forwarded:
            try:
                self._forwarded[port] = await self._connection.forward(port)
            except HostLost as error:
                raise LinkLost(error.host, error.what) from None
        return self._forwarded[port]

    async def close(self) -> None:
        """Closes agent and connection."""
        self._broken = True
        self._process.close()
        await self._connection.close()
        await self._reader

    async def _read(self) -> None:
        """Hands answers to those who wait for them, until the connection ends."""
        while line := await self._process.read_line():
            try:
                answer = json.loads(line)
                waiting = self._waiting.get(answer["id"])
            except (ValueError, KeyError, TypeError):
                continue
            if waiting is None or waiting.done():
                continue
            if "error" in answer:
                waiting.set_exception(AgentError(self.name, answer["error"]))
            else:
                waiting.set_result(answer["ok"])
        self._broken = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(LinkLost(self.name, "the SSH connection broke"))


async def open_link(address: HostAddress, *, keep_alive_s: float, keep_alive_misses: int) -> AgentLink:
    """Connects and starts the agent.

    Raises:
        HostRefused: key, login or interpreter are not as needed; the message says what to do.
        HostLost: the host cannot be reached now.
    """
    connection = await connect(address, keep_alive_s=keep_alive_s, keep_alive_misses=keep_alive_misses)
    try:
        process = await connection.open_process(bundle.command(address.python))
        try:
            async with asyncio.timeout(_HELLO_LIMIT_S):
                hello = await _greet(address, connection, process)
        except TimeoutError:
            raise HostLost(address.name, f"the agent did not start within {_HELLO_LIMIT_S:g} s") from None
    except BaseException:
        await connection.close()
        raise
    return AgentLink(address.name, connection, process, hello["boot_id"])


async def _greet(address: HostAddress, connection: SshConnection, process: SshProcess) -> dict[str, Any]:
    """Sends the script and waits for the agent's hello; a login shell may print things of its own before it."""
    try:
        process.write(bundle.script())
        await process.drain()
    except ConnectionError:
        pass  # the shell ended at once: its error says why
    said: list[str] = []
    while line := await process.read_line():
        try:
            hello = json.loads(line)
            if isinstance(hello, dict) and hello.get("hello") == "tuner-agent":
                return hello
        except ValueError:
            pass
        said.append(line.decode(errors="replace").rstrip())
    if connection.closed.is_set():
        raise HostLost(address.name, "the SSH connection broke while the agent started")
    errors = (await process.read_errors()).strip()
    status = await process.exit_status()
    told = (errors or "\n".join(said))[-500:] or "nothing"
    raise HostRefused(
        address.name,
        f"the agent did not start: {address.python!r} ended with status {status} and said: {told}. Needed is "
        "Python 3.8 or later; name its path as `python` of the host in the study file.",
    )
