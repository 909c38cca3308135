"""The life of a server on a host behind a real sshd: start, ready, stop, and everything gone."""

from __future__ import annotations

import json
from pathlib import Path

from host_engine import launch
from host_helpers import MakeSession, alive
from sshd_server import Sshd


async def test_start_ready_stop_and_everything_gone(
    make_session: MakeSession, nonce: str, sshd: Sshd, tmp_path: Path
) -> None:
    session = make_session()
    facts = await session.preflight()
    assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    clean = await session.clean(None, [])
    assert clean.port_holder == ""
    pids_file = tmp_path / "pids"
    command = launch(clean.port, nonce, "--workers", "2", "--pids", str(pids_file))
    identity = await session.start(command)
    await session.wait_ready(20, 20)
    pids = json.loads(pids_file.read_text())
    assert pids[0] == identity.pid and all(map(alive, pids))
    assert (await session.status()).alive
    report = await session.stop(5)
    assert report.gone and report.exit_status == 0, report
    assert not any(map(alive, pids))
