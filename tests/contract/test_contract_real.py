"""A real SGLang on the CPU, behind a real sshd, keeps the contract that the stand-in is held to.

Only under ``scripts/real-engine``, which installs it and says where.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from contract_bench import Bench
from contract_engine import LaunchContract, ServedContract
from host_helpers import MARK, address_of, marked
from sshd_server import MISSING, Sshd, find_sshd

from tuner.values.launch import LaunchBase
from tuner.values.study import EngineSpec

FOLDER = os.environ.get("TUNER_REAL_ENGINE", "")

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.skipif(not FOLDER, reason="no real engine: scripts/real-engine installs one and runs this"),
    pytest.mark.timeout(300),
]


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    if find_sshd() is None:
        pytest.skip(MISSING)
    sshd = Sshd.make(tmp_path_factory.mktemp("real") / "sshd")
    sshd.env[MARK] = secrets.token_hex(8)
    sshd.start()
    made = Bench(address_of(sshd), EngineSpec("sglang", real_launch(), stop_grace_s=60.0, lease_s=60.0))
    yield made
    sshd.stop()
    assert made.left() == {}
    left = {pid: words for pid, words in marked(sshd.env[MARK]).items() if "tuner-agent" not in words}
    assert not left, f"left behind: {left}"


class TestRealServed(ServedContract):
    """The contract of a running server."""


class TestRealLaunch(LaunchContract):
    """The contract of launches."""


def real_launch() -> LaunchBase:
    """The launch of the engine that `scripts/real-engine` installed."""
    launch = json.loads((Path(FOLDER) / "launch.json").read_text(encoding="utf-8"))
    return LaunchBase(tuple(launch["command"]), tuple(launch["args"].items()), tuple(launch["env"].items()))
