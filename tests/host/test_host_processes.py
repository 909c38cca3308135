"""Which processes are ours: each mark on its own, and what must never be matched."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tuner.host.remote import processes
from tuner.host.remote.processes import Marks, Process, is_running, own, read_process, send_signal
from tuner.host.remote.stopping import end_all

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]

Spawn = Callable[..., Process]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts processes as given and ends them after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str] = SLEEP, **options: object) -> Process:
        started.append(subprocess.Popen(argv, **options))  # type: ignore[call-overload]
        row = read_process(started[-1].pid)
        assert row is not None
        return row

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def marks() -> Marks:
    return Marks(secrets.token_hex(8), processes.boot_id(), processes.pid_namespace())


def pids(found: list[Process]) -> set[int]:
    return {process.pid for process in found}


def test_the_recorded_process_is_ours_only_with_its_start_time(spawn: Spawn, marks: Marks) -> None:
    row = spawn()
    assert pids(own(replace(marks, server=row.key))) == {row.pid}
    reused = (row.pid, row.start_ticks - 1)  # what the record says when the pid has been given to another
    assert own(replace(marks, server=reused)) == []
    assert own(replace(marks, seen=(reused,))) == []
    assert pids(own(replace(marks, seen=(row.key,)))) == {row.pid}


def test_another_boot_or_pid_namespace_matches_nothing(spawn: Spawn, marks: Marks) -> None:
    row = spawn(env={**os.environ, "TUNER_NONCE": marks.nonce})
    full = replace(marks, server=row.key, seen=(row.key,))
    assert own(replace(full, boot_id="another")) == []
    assert own(replace(full, pid_namespace="pid:[1]")) == []
    assert pids(own(full)) == {row.pid}


def test_the_nonce_must_be_equal_not_alike(spawn: Spawn, marks: Marks) -> None:
    ours = spawn(env={**os.environ, "TUNER_NONCE": marks.nonce})
    spawn(env={**os.environ, "TUNER_NONCE": marks.nonce + "0"})
    spawn(env={**os.environ, "XTUNER_NONCE": marks.nonce})
    spawn([*SLEEP, f"TUNER_NONCE={marks.nonce}"])
    assert pids(own(marks)) == {ours.pid}
    assert own(marks, environ=False) == []


def test_a_session_whose_leader_lives_is_ours(spawn: Spawn, marks: Marks) -> None:
    shell = spawn(
        ["sh", "-c", f"{sys.executable} -S -c 'import time; time.sleep(3600)' & wait"], start_new_session=True
    )
    deadline = time.monotonic() + 5
    while len(found := own(replace(marks, server=shell.key), environ=False)) < 2:
        assert time.monotonic() < deadline
    assert all(process.session == shell.pid for process in found)
    end_all(lambda: replace(marks, server=shell.key), 0.0)


def test_a_session_number_given_to_another_is_not_ours(spawn: Spawn, marks: Marks) -> None:
    """The leader's pid lives, with another start time: the session is somebody else's."""
    row = spawn(start_new_session=True)
    assert own(replace(marks, server=(row.pid, row.start_ticks - 5))) == []


def orphan_in_session(env: dict[str, str]) -> tuple[int, Process]:
    """The number of a session whose leader is gone and reaped, and its only member."""
    child = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(3600)"
    leader = subprocess.Popen(
        [
            sys.executable,
            "-S",
            "-c",
            f"import os\nif os.fork() == 0: os.execve({sys.executable!r}, ['x', '-S', '-c', {child!r}], {env!r})",
        ],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert leader.stdout is not None
    pid = int(leader.stdout.readline())
    leader.wait()
    row = read_process(pid)
    assert row is not None and row.session == leader.pid
    return leader.pid, row


@pytest.mark.parametrize(
    ("env", "ours"),
    [({}, True), ({"TUNER_NONCE": "ours"}, True), ({"PATH": "/bin"}, False), ({"TUNER_NONCE": "theirs"}, False)],
)
def test_a_session_without_a_leader_is_looked_at_more_closely(marks: Marks, env: dict[str, str], ours: bool) -> None:
    """Its number may have been used again: an environment that is whole and without our nonce is a stranger's."""
    session, row = orphan_in_session(env)
    try:
        found = own(replace(marks, nonce="ours", server=(session, row.start_ticks - 1)), environ=False)
        assert pids(found) == ({row.pid} if ours else set())
    finally:
        os.kill(row.pid, signal.SIGKILL)


def test_children_of_the_supervisor_are_ours_and_it_is_not(spawn: Spawn, marks: Marks) -> None:
    supervisor = spawn(["sh", "-c", f"{sys.executable} -S -c 'import time; time.sleep(3600)' & wait"])
    with_supervisor = replace(marks, supervisor=supervisor.key)
    deadline = time.monotonic() + 5
    while not (found := own(with_supervisor, environ=False)):
        assert time.monotonic() < deadline
    assert supervisor.pid not in pids(found) and all(process.parent == supervisor.pid for process in found)
    assert end_all(lambda: with_supervisor, 0.0).left == ()
    assert not any(is_running(process.key) for process in found)


def test_we_and_our_ancestors_are_never_matched(marks: Marks) -> None:
    rows = [row for row in (read_process(os.getpid()), read_process(os.getppid())) if row is not None]
    everything = replace(marks, seen=tuple(row.key for row in rows))
    assert not pids(own(everything, environ=False)) & {os.getpid(), os.getppid()}


def test_a_signal_reaches_the_very_process_or_none(spawn: Spawn) -> None:
    row = spawn()
    assert not send_signal(replace(row, start_ticks=row.start_ticks - 1), signal.SIGKILL)
    assert is_running(row.key)
    assert send_signal(row, signal.SIGKILL)


def test_without_pidfd_the_check_is_the_same(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Python 3.8."""
    monkeypatch.delattr(os, "pidfd_open")
    row = spawn()
    assert not send_signal(replace(row, start_ticks=row.start_ticks - 1), signal.SIGKILL)
    assert is_running(row.key)
    assert send_signal(row, signal.SIGKILL)


def test_a_zombie_is_gone(spawn: Spawn) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    row = read_process(process.pid)
    assert row is not None and row.state == "Z" and not row.alive
    process.wait()
    assert read_process(process.pid) is None


def test_a_title_with_spaces_and_parentheses_is_read(spawn: Spawn, tmp_path_factory: pytest.TempPathFactory) -> None:
    program = tmp_path_factory.mktemp("odd") / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    row = spawn([str(program), "3600"])
    assert row.parent == os.getpid() and row.session == os.getsid(0)


FORKS = (
    "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "while True:\n    time.sleep(0.02)\n    if os.fork() == 0:\n        os.setsid()\n"
    "        time.sleep(1)\n        os._exit(0)\n"
)
"""A process that ignores TERM and has a child every 20 ms, each in a session of its own."""
COMET = (
    "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "for _ in range(3000):\n    time.sleep(0.01)\n    if os.fork(): os._exit(0)\n    os.setsid()\n"
)
"""A process that lives for 10 ms and leaves a successor, on and on: a scan of the process table may miss it."""


def test_processes_that_fork_all_the_time_are_ended(spawn: Spawn, marks: Marks) -> None:
    spawn([sys.executable, "-S", "-c", FORKS], env={**os.environ, "TUNER_NONCE": marks.nonce})
    deadline = time.monotonic() + 5
    while len(own(marks)) < 5:
        assert time.monotonic() < deadline
    ended = end_all(lambda: marks, 0.0)
    assert ended.left == () and ended.killed
    assert own(marks) == []


def test_a_cgroup_is_ended_at_once(spawn: Spawn, marks: Marks) -> None:
    cgroup = processes.make_cgroup(marks.nonce)
    if not cgroup or not os.path.exists(f"{cgroup}/cgroup.kill"):
        pytest.skip("this login may not make a cgroup of version 2 here")
    enter = f"open({cgroup + '/cgroup.procs'!r}, 'w').write('0')\n"
    try:
        spawn([sys.executable, "-S", "-c", enter + COMET])
        deadline = time.monotonic() + 5
        while not processes.cgroup_pids(cgroup):
            assert time.monotonic() < deadline
        assert end_all(lambda: replace(marks, cgroup=cgroup), 0.0).left == ()
        assert processes.cgroup_pids(cgroup) == set()
    finally:
        processes.kill_cgroup(cgroup)
        processes.remove_cgroup(cgroup)
    assert not os.path.exists(cgroup)
