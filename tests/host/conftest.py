"""Fixtures of the host's tests: a real sshd, sessions to it, and a watch over every process that a test starts."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from host_engine import SmallEngine
from host_helpers import MARK, MakeSession, address_of, marked
from sshd_server import MISSING, Sshd, find_sshd

from tuner.host.session import SshSession
from tuner.values.host import HostAddress
from tuner.values.launch import LaunchBase
from tuner.values.study import EngineSpec


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One sshd for all tests."""
    if find_sshd() is None:
        pytest.skip(MISSING)
    server = Sshd.make(tmp_path_factory.mktemp("host") / "sshd")
    server.env[MARK] = secrets.token_hex(8)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def address(sshd: Sshd) -> HostAddress:
    return address_of(sshd)


@pytest.fixture
def spec() -> EngineSpec:
    return EngineSpec("small", LaunchBase(command=("python3", "-m", "http.server")), lease_s=10.0, stop_grace_s=5.0)


@pytest.fixture
async def make_session(address: HostAddress, spec: EngineSpec) -> AsyncIterator[MakeSession]:
    """Makes sessions that are closed at the end."""
    sessions: list[SshSession] = []

    def make(address: HostAddress = address, spec: EngineSpec = spec, **options: object) -> SshSession:
        sessions.append(SshSession(address, SmallEngine(), spec, **options))  # type: ignore[arg-type]
        return sessions[-1]

    yield make
    for session in sessions:
        with contextlib.suppress(Exception):
            await session.close()


@pytest.fixture
def nonce() -> str:
    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a server or a supervisor behind (agents end with their connections), and ends it."""
    yield
    if "sshd" not in request.fixturenames:
        return
    mark = request.getfixturevalue("sshd").env[MARK]
    left = {pid: words for pid, words in marked(mark).items() if "tuner-agent" not in words and "sshd" not in words}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}"
