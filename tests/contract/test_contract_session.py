"""The SSH session on the simulated host keeps the contract of a host's steps."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator

import pytest_asyncio
from contract_host_steps import BASE, HostStepsContract

from tuner.engines.sglang import SGLang
from tuner.host.session import SshSession
from tuner.ports import HostSteps
from tuner.simulated.process import start_simulated_host
from tuner.values.study import EngineSpec


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def steps() -> AsyncIterator[HostSteps]:
    address, pid = await start_simulated_host("h200x2-shm", load_s=0.3, noise=0, idle_s=60)
    session = SshSession(address, SGLang(), EngineSpec("sglang", BASE, lease_s=30.0))
    yield session
    await session.stop(1.0)
    await session.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


class TestSshSession(HostStepsContract):
    """The contract."""
