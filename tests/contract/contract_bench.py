"""Where the contract is tried: a host reached by SSH, an engine on it, and what is launched there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tuner.engines.sglang import SGLang
from tuner.host.session import SshSession
from tuner.launch import EngineTarget
from tuner.testing import MemoryJournal
from tuner.values.configuration import Configuration
from tuner.values.host import HostAddress
from tuner.values.launch import LaunchCommand, ServerIdentity
from tuner.values.study import EngineSpec

SETTINGS = Configuration.of(env={"NCCL_PROTO": "LL"}, args={"stream-interval": 1, "schedule-policy": "lpm"})
"""What the shared server is launched with."""
START_S = 120.0
"""Longest start: a real SGLang takes 20 s on an idle core."""


@dataclass
class Bench:
    """A host with an engine that can be launched.

    Attributes:
        nonces: of all launches made here.
    """

    address: HostAddress
    spec: EngineSpec
    engine: SGLang = field(default_factory=SGLang)
    nonces: list[str] = field(default_factory=list)

    def nonce(self) -> str:
        self.nonces.append(f"contract-{secrets.token_hex(8)}")
        return self.nonces[-1]

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[SshSession]:
        """A session; what it left running is stopped at its end."""
        session = SshSession(self.address, self.engine, self.spec)
        try:
            yield session
        finally:
            await session.stop(1.0)
            await session.close()

    def target(self, session: SshSession, port: int | None = None) -> tuple[EngineTarget, MemoryJournal]:
        """The host as what a study launches, and the journal of one launch."""
        notes = MemoryJournal(self.nonce())
        target = EngineTarget("bench", session, self.engine, self.spec, self.spec.launch, port, notes)
        return target, notes

    @contextlib.asynccontextmanager
    async def started(
        self, configuration: Configuration | None = None, *, port: int | None = None
    ) -> AsyncIterator[Launched]:
        """A server that was started and is not waited for."""
        async with self.session() as session:
            clean = await session.clean(port, [])
            assert clean.port_holder == ""
            command = self.engine.command(
                self.spec.launch, configuration or Configuration.of(), port=clean.port, nonce=self.nonce()
            )
            yield Launched(self, session, command, await session.start(command))

    @contextlib.asynccontextmanager
    async def serving(
        self, configuration: Configuration | None = None, *, port: int | None = None
    ) -> AsyncIterator[Launched]:
        """A server that is ready."""
        async with self.started(configuration, port=port) as launched:
            await launched.session.wait_ready(START_S, START_S)
            yield launched

    def left(self) -> dict[int, str]:
        """Living processes of any launch made here, with their titles; empty if all are gone."""
        return {pid: title for nonce in self.nonces for pid, title in processes_of(nonce).items()}


@dataclass
class Launched:
    """One server on a bench."""

    bench: Bench
    session: SshSession
    command: LaunchCommand
    identity: ServerIdentity

    @property
    def http(self) -> httpx.AsyncClient:
        """A client for the server's port, which is on the loopback of this machine too."""
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.command.port}", timeout=30, trust_env=False, verify=False
        )

    def processes(self) -> dict[int, str]:
        """Its living processes and their titles."""
        return processes_of(self.command.nonce)

    async def until_busy(self) -> None:
        """Returns once a request is being decoded, by the server's own metrics."""
        async with self.http as http:
            for _ in range(600):
                text = (await http.get("/metrics")).text
                running = [line for line in text.splitlines() if line.startswith("sglang:num_running_reqs{")]
                if any(float(line.rsplit(" ", 1)[1]) > 0 for line in running):
                    return
                await asyncio.sleep(0.05)
        raise AssertionError("no request was being decoded within 30 s")


async def events(http: httpx.AsyncClient, path: str, body: Any) -> AsyncIterator[Any]:
    """The events of a streamed answer as they come: parsed JSON, ``"[DONE]"`` as it stands."""
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield "[DONE]" if line == "data: [DONE]" else json.loads(line[6:])


def processes_of(nonce: str) -> dict[int, str]:
    """Living processes that carry a launch's nonce in their environment; zombies hold nothing and do not count."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if f"TUNER_NONCE={nonce}".encode() not in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                continue
            if Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                words = Path(f"/proc/{name}/cmdline").read_bytes().rstrip(b"\0")
                found[int(name)] = words.replace(b"\0", b" ").decode()
    return found


def can_bind(port: int) -> bool:
    """Whether the port is free, by binding it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def titled(processes: dict[int, str], title: str) -> Sequence[int]:
    """Pids of the processes whose title begins so."""
    return [pid for pid, words in processes.items() if words.startswith(title)]
