"""Whatever is killed or cut, wherever: no server outlives its lease, and none is lost that need not be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from host_engine import launch
from host_helpers import MakeSession, alive
from sshd_server import Sshd
from test_host_life_cycle import GetLoad

from tuner.errors import HostLost
from tuner.host.session import LEASE_GRACE_S
from tuner.values.host import HostAddress
from tuner.values.measurement import Window
from tuner.values.study import EngineSpec
from tuner.values.workload import Workload


async def until(condition: Callable[[], bool], limit_s: float) -> float:
    """Waits for a condition; how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, f"not within {limit_s} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def supervisor_of(sshd: Sshd, nonce: str) -> int:
    return int(json.loads((sshd.records / nonce / "supervisor.json").read_text())["pid"])


@contextlib.contextmanager
def killed_driver(address: HostAddress, nonce: str, port: int, lease_s: float, *options: str):  # type: ignore[no-untyped-def]
    """The pid of a ready server whose driver has just been killed with -9."""
    arguments = {"address": asdict(address), "nonce": nonce, "port": port, "lease_s": lease_s, "options": options}
    root = Path(__file__).resolve().parents[2]
    driver = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("small_driver.py")), json.dumps(arguments)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert driver.stdout is not None
        pid = int(json.loads(driver.stdout.readline())["pid"])
        driver.kill()
        driver.wait()
        yield pid
    finally:
        driver.kill()
        driver.wait()


async def test_a_driver_killed_leaves_no_server_beyond_its_lease(
    address: HostAddress, sshd: Sshd, nonce: str, port: int, tmp_path: Path
) -> None:
    pids_file = tmp_path / "pids"
    lease_s = 1.5
    with killed_driver(address, nonce, port, lease_s, "--escapees", "1", "--pids", str(pids_file)):
        pids = [*json.loads(pids_file.read_text()), supervisor_of(sshd, nonce)]
        assert all(map(alive, pids))
        await until(lambda: not any(map(alive, pids)), lease_s + LEASE_GRACE_S + 3)
    assert (sshd.records / nonce / "lapsed").exists()


async def test_a_driver_killed_and_started_again_cleans_up_by_nonce(
    address: HostAddress, make_session: MakeSession, sshd: Sshd, nonce: str, port: int
) -> None:
    with killed_driver(address, nonce, port, 60.0, "--workers", "1") as pid:
        supervisor = supervisor_of(sshd, nonce)
        report = await make_session().clean(port, ["test-another", nonce])
        assert report.stopped_nonces == (nonce,) and report.port_holder == "" and report.port == port
        assert not alive(pid) and not alive(supervisor)


async def test_a_launch_whose_record_was_removed_is_found_by_its_environment(
    address: HostAddress, make_session: MakeSession, sshd: Sshd, nonce: str, port: int
) -> None:
    with killed_driver(address, nonce, port, 60.0, "--workers", "1") as pid:
        supervisor = supervisor_of(sshd, nonce)
        shutil.rmtree(sshd.records / nonce)
        report = await make_session().clean(port, [nonce])
        assert report.stopped_nonces == (nonce,) and report.port_holder == ""
        assert not alive(pid) and not alive(supervisor)


async def test_a_supervisor_without_its_record_ends_all_the_same(
    address: HostAddress, sshd: Sshd, nonce: str, port: int, tmp_path: Path
) -> None:
    pids_file = tmp_path / "pids"
    lease_s = 1.0
    hidden = ("--escapees", "1", "--retitled", "1", "--workers", "1", "--child-session")
    with killed_driver(address, nonce, port, lease_s, *hidden, "--pids", str(pids_file)):
        pids = [*json.loads(pids_file.read_text()), supervisor_of(sshd, nonce)]
        shutil.rmtree(sshd.records / nonce)
        await until(lambda: not any(map(alive, pids)), lease_s + LEASE_GRACE_S + 8)


async def test_a_renewed_lease_does_not_lapse(
    make_session: MakeSession, spec: EngineSpec, nonce: str, port: int
) -> None:
    session = make_session(spec=replace(spec, lease_s=1.0))
    await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    await asyncio.sleep(2.5)
    assert (await session.status()).alive
    await session.stop(5)


@pytest.mark.parametrize("victim", ["connection", "agent"])
async def test_a_broken_link_does_not_lose_the_launch(
    make_session: MakeSession, sshd: Sshd, nonce: str, port: int, victim: str
) -> None:
    session = make_session()
    identity = await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    if victim == "connection":
        sshd.drop_connections()
    else:
        os.kill(agent_of(sshd), signal.SIGKILL)
    status = await session.status()
    assert status.alive and not status.lease_lapsed and alive(identity.pid)
    report = await session.stop(5)
    assert report.gone and report.exit_status == 0


def agent_of(sshd: Sshd) -> int:
    """Pid of the one agent that is a child of this sshd's sessions."""
    found = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"tuner-agent" in path.read_bytes()
        and int((path.parent / "stat").read_text().rpartition(")")[2].split()[1]) in sshd.session_pids()
    ]
    assert len(found) == 1, found
    return found[0]


async def test_a_link_that_breaks_while_a_start_is_awaited_loses_nothing(
    make_session: MakeSession, sshd: Sshd, nonce: str, port: int
) -> None:
    session = make_session()
    await session.start(launch(port, nonce, "--load-s", "1.0"))
    waiting = asyncio.create_task(session.wait_ready(20, 20))
    await asyncio.sleep(0.3)
    sshd.drop_connections()
    await waiting
    assert (await session.stop(5)).gone


async def test_a_window_with_a_broken_link_is_run_again_with_other_prompts(
    make_session: MakeSession, sshd: Sshd, nonce: str, port: int
) -> None:
    asked: list[int] = []

    class Cut(GetLoad):
        async def window(self, workload: Workload, index: int) -> Window:
            asked.append(index)
            if len(asked) == 1:
                sshd.drop_connections()
                await asyncio.sleep(0.2)
            return await super().window(workload, index)

    session = make_session(load=Cut)
    await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    window = await session.window(Workload(), 3)
    assert window.index == 3 and window.requests[0].prompt == nonce and not window.requests[0].error
    assert len(asked) == 2 and asked[0] == 3 and asked[1] > 1000
    await session.stop(5)


async def test_a_host_that_stays_away_is_lost_and_its_server_ends_by_itself(
    make_session: MakeSession, spec: EngineSpec, sshd: Sshd, nonce: str, port: int
) -> None:
    session = make_session(spec=replace(spec, lease_s=1.0))
    identity = await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    sshd.stop()
    try:
        with pytest.raises(HostLost, match=r"gpu1: the SSH connection broke and did not come back in 1 s.*refused"):
            await session.status()
        await until(lambda: not alive(identity.pid), 8)
    finally:
        sshd.start()
    assert (await session.status()).lease_lapsed
    with pytest.raises(HostLost, match="lease lapsed"):
        await session.wait_ready(20, 20)
    assert (await session.stop(1)).gone


async def test_a_killed_supervisor_takes_its_server_along_and_the_rest_is_found(
    make_session: MakeSession, sshd: Sshd, nonce: str, port: int, tmp_path: Path
) -> None:
    session = make_session()
    hidden = ("--escapees", "1", "--retitled", "1", "--workers", "1")
    identity = await session.start(launch(port, nonce, *hidden, "--pids", str(tmp_path / "pids")))
    await session.wait_ready(20, 20)
    pids = json.loads((tmp_path / "pids").read_text())
    await until(lambda: (sshd.records / nonce / "seen.json").exists(), 5)
    os.kill(supervisor_of(sshd, nonce), signal.SIGKILL)
    await until(lambda: not alive(identity.pid), 2)
    with pytest.raises(HostLost, match="supervisor was killed"):
        await session.wait_ready(20, 20)
    assert (await session.stop(5)).gone
    assert not any(map(alive, pids))


async def test_a_peer_that_freezes_is_noticed_and_the_launch_goes_on(
    make_session: MakeSession, spec: EngineSpec, sshd: Sshd, nonce: str, port: int
) -> None:
    """No packet says that the connection is gone: only keep-alive messages that nobody answers."""
    session = make_session(spec=replace(spec, lease_s=6.0))
    identity = await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    frozen = sshd.session_pids()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        status = await session.status()
        assert status.alive and not status.lease_lapsed and alive(identity.pid)
        assert time.monotonic() - began < 6
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGKILL)
    assert (await session.stop(5)).gone


async def test_a_rebooted_host_has_lost_the_launch(
    make_session: MakeSession, sshd: Sshd, nonce: str, port: int
) -> None:
    session = make_session()
    identity = await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    path = sshd.records / nonce / "supervisor.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "boot_id": "00000000-the-boot-before"}))
    with pytest.raises(HostLost, match="it was rebooted"):
        await session.wait_ready(20, 20)
    path.write_text(json.dumps(record))
    assert (await session.stop(5)).gone and not alive(identity.pid)


async def test_a_session_goes_on_after_a_stop_that_failed(
    make_session: MakeSession, spec: EngineSpec, sshd: Sshd, nonce: str, port: int
) -> None:
    session = make_session(spec=replace(spec, lease_s=1.0))
    await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    sshd.stop()
    try:
        with pytest.raises(HostLost):
            await session.stop(5)
    finally:
        sshd.start()
    assert (await session.clean(port, [])).port_holder == ""
    await session.start(launch(port, f"{nonce}-2"))
    await session.wait_ready(20, 20)
    assert (await session.stop(5)).gone


async def test_closing_a_session_leaves_the_server_to_its_lease(
    make_session: MakeSession, spec: EngineSpec, nonce: str, port: int
) -> None:
    session = make_session(spec=replace(spec, lease_s=1.0))
    identity = await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    await session.close()
    assert alive(identity.pid)
    await until(lambda: not alive(identity.pid), 8)


async def test_a_stop_that_loses_its_connection_is_brought_to_its_end(
    make_session: MakeSession, sshd: Sshd, nonce: str, port: int
) -> None:
    session = make_session()
    identity = await session.start(launch(port, nonce, "--drain-s", "0.8"))
    await session.wait_ready(20, 20)
    stopping = asyncio.create_task(session.stop(10))
    await asyncio.sleep(0.3)
    sshd.drop_connections()
    report = await stopping
    assert report.gone and report.exit_status == 0 and not alive(identity.pid)
