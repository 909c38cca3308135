"""What is not ours is never ended and never measured, however much it looks like ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_engine import SERVER, launch
from host_helpers import MakeSession, alive
from sshd_server import Sshd

from tuner.errors import ForeignServer
from tuner.values.failure import FailureClass, Fault


@pytest.fixture
def foreign() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of somebody else, ended after the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def look_alike(port: int, nonce: str, **env: str) -> subprocess.Popen[bytes]:
    """The same program with the same arguments, but not ours."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "--port", str(port), "--nonce", nonce],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **env},
        start_new_session=True,
    )
    deadline = time.monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/nonce", timeout=5):
                return process
        except OSError:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)


async def test_a_port_held_by_others_is_told_and_nothing_is_started(
    make_session: MakeSession, nonce: str, port: int, sshd: Sshd, foreign: list[subprocess.Popen[bytes]]
) -> None:
    foreign.append(look_alike(port, "test-theirs"))
    session = make_session()
    clean = await session.clean(port, [nonce])
    assert f"pid {foreign[0].pid}" in clean.port_holder and "launched_server.py" in clean.port_holder
    with pytest.raises(ForeignServer, match=f"port {port} is held by pid {foreign[0].pid}") as raised:
        await session.start(launch(port, f"{nonce}-2"))
    assert raised.value.failure.failure_class is FailureClass.PORT_TAKEN
    report = await session.stop(5)
    assert report.gone and report.killed_pids == () and report.took_s < 3
    assert foreign[0].poll() is None
    assert not (sshd.records / f"{nonce}-2" / "identity.json").exists()


async def test_a_foreign_server_that_takes_the_port_while_ours_loads_is_not_taken_for_ours(
    make_session: MakeSession, nonce: str, port: int, foreign: list[subprocess.Popen[bytes]]
) -> None:
    """Even one that answers with our own nonce."""
    session = make_session()
    identity = await session.start(launch(port, nonce, "--load-s", "30"))
    foreign.append(look_alike(port, nonce))
    with pytest.raises(ForeignServer, match="a process that is not ours") as raised:
        await session.wait_ready(20, 20)
    assert raised.value.failure.fault is Fault.FOREIGN
    assert alive(identity.pid)
    await session.stop(0.5)
    assert not alive(identity.pid) and foreign[0].poll() is None


async def test_look_alikes_survive_our_stop_and_our_clean(
    make_session: MakeSession, nonce: str, port: int, foreign: list[subprocess.Popen[bytes]]
) -> None:
    session = make_session()
    command = launch(port, nonce)
    await session.start(command)
    await session.wait_ready(20, 20)
    sleep = "import time; time.sleep(3600)"
    same_argv = {**os.environ, "TUNER_NONCE": f"{nonce}0"}  # ours is a prefix of theirs
    hanging = [*command.argv, "--hang"]
    foreign.append(subprocess.Popen(hanging, env=same_argv, stdout=subprocess.DEVNULL, start_new_session=True))
    foreign.append(subprocess.Popen(hanging, stdout=subprocess.DEVNULL))
    foreign.append(subprocess.Popen(["small::worker", "-c", sleep], executable=sys.executable))
    foreign.append(subprocess.Popen([sys.executable, "-c", sleep, nonce, f"TUNER_NONCE={nonce}"]))
    assert (await session.stop(5)).gone
    await session.clean(port, [nonce])
    assert [process.poll() for process in foreign] == [None] * 4


async def test_a_record_of_another_boot_ends_nothing(
    make_session: MakeSession, nonce: str, sshd: Sshd, foreign: list[subprocess.Popen[bytes]]
) -> None:
    """After a reboot the recorded pid is somebody else's."""
    foreign.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True))
    pid = foreign[0].pid
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    record = sshd.records / nonce
    record.mkdir(mode=0o700, parents=True)
    who = {"pid": pid, "start_ticks": int(fields[19]), "boot_id": "00000000-another-boot", "cgroup": ""}
    for name in ("supervisor.json", "identity.json"):
        (record / name).write_text(json.dumps({**who, "nonce": nonce, "log_path": ""}))
    report = await make_session().clean(None, [nonce])
    assert report.stopped_nonces == ()
    assert foreign[0].poll() is None


SMI = """#!/bin/sh
# Stand-in for nvidia-smi: memory held is what living processes have put into the folder, by pid.
used=0; holders=""
for file in {folder}/*; do
    pid=${{file##*/}}
    state=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -c1)
    case "$state" in ""|Z) ;; *) mib=$(cat "$file"); used=$((used + mib)); holders="$holders$pid, $mib
" ;; esac
done
case "$*" in
*compute-apps*) printf '%s' "$holders" ;;
*uuid*) echo "0, GPU-0, Stand-in GPU, 10000, $used, 999.1" ;;
*topo*) echo "GPU0 X" ;;
*) echo "0, $used" ;;
esac
"""


@pytest.fixture
def gpu_dir(tmp_path: Path, sshd: Sshd) -> Iterator[Path]:
    """A folder where processes say how many MiB of the only GPU they hold."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    smi = sshd.bin / "nvidia-smi"
    smi.write_text(SMI.format(folder=folder))
    smi.chmod(0o755)
    yield folder
    smi.unlink()


async def test_gpu_memory_is_back_after_the_stop(
    make_session: MakeSession, nonce: str, port: int, gpu_dir: Path, foreign: list[subprocess.Popen[bytes]]
) -> None:
    (gpu_dir / str(os.getpid())).write_text("100")
    session = make_session()
    facts = await session.preflight()
    assert facts.gpus[0].memory_total_bytes == 10000 * 2**20 and facts.driver_version == "999.1"
    assert (await session.clean(port, [])).gpu_memory_used_bytes == (100 * 2**20,)
    await session.start(launch(port, nonce, "--gpu-dir", str(gpu_dir)))
    await session.wait_ready(20, 20)
    assert (await session.preflight()).gpus[0].memory_used_bytes == 5100 * 2**20
    report = await session.stop(5)
    assert report.gone and report.gpu_memory_back and report.gpu_memory_used_bytes == (100 * 2**20,)


async def test_gpus_held_by_others_stop_the_study_with_their_name(
    make_session: MakeSession, port: int, gpu_dir: Path, foreign: list[subprocess.Popen[bytes]]
) -> None:
    argv = ["theirs", "-c", "import time; time.sleep(3600)", "--api-key", "hush"]
    foreign.append(subprocess.Popen(argv, executable=sys.executable))
    (gpu_dir / str(foreign[0].pid)).write_text("6000")
    with pytest.raises(ForeignServer, match=rf"5.9 GiB, held by pid {foreign[0].pid} \(theirs") as raised:
        await make_session().clean(port, [])
    assert raised.value.failure.failure_class is FailureClass.GPU_BUSY
    assert "hush" not in str(raised.value)
    assert foreign[0].poll() is None


async def test_shared_memory_left_behind_is_removed_and_that_of_others_is_not(
    make_session: MakeSession, nonce: str, port: int
) -> None:
    ours, before, theirs, in_use = (f"psm_{nonce}_{word}" for word in ("ours", "before", "theirs", "in_use"))
    folder = Path("/dev/shm")
    (folder / before).write_bytes(b"x")
    session = make_session()
    await session.clean(port, [])
    await session.start(launch(port, nonce, "--shm", ours))
    await session.wait_ready(20, 20)
    (folder / theirs).write_bytes(b"x")  # held by nobody at the moment
    try:
        with (folder / in_use).open("wb"):
            assert (folder / ours).exists()
            report = await session.stop(5)
        assert report.gone and report.shared_memory_removed == (ours,)
        assert (folder / before).exists() and (folder / theirs).exists() and (folder / in_use).exists()
    finally:
        for name in (before, theirs, in_use, ours):
            (folder / name).unlink(missing_ok=True)
