"""The stand-in on the simulated host keeps the engine's contract."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest_asyncio
from contract_bench import Bench
from contract_engine import LaunchContract, ServedContract

from tuner.simulated.process import start_simulated_host
from tuner.values.configuration import Scalar
from tuner.values.launch import LaunchBase
from tuner.values.study import EngineSpec

_ARGS: dict[str, Scalar] = {
    "model-path": "/models/tiny",
    "tp-size": 2,
    "max-total-tokens": 8192,
    "max-running-requests": 8,
    "skip-server-warmup": True,
    "enable-metrics": True,
    "served-model-name": "tiny",
}


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def bench() -> AsyncIterator[Bench]:
    address, pid = await start_simulated_host("h200x2-shm", load_s=0.5, noise=0, idle_s=60)
    launch = LaunchBase(command=("python3", "-m", "sglang.launch_server"), args=tuple(_ARGS.items()))
    made = Bench(address, EngineSpec("sglang", launch, stop_grace_s=20.0, lease_s=30.0))
    yield made
    assert made.left() == {}
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


_SERVER_INFO = {
    ".body.internal_states[0].simulated_lateness is not in SGLang": "the stand-in's own account of its timing",
    ".body.internal_states[0]._resolved_overrides: 1 elements, SGLang has 3": "which defaults apply is the hardware's",
}


class TestStandInServed(ServedContract):
    """The contract of a running server."""

    may_differ: ClassVar = {"server_info": _SERVER_INFO, "get_server_info": _SERVER_INFO}


class TestStandInLaunch(LaunchContract):
    """The contract of launches."""
