"""The supervisor of one launch: starts the server, keeps its log, and ends it when nobody renews its lease.

It outlives the connection that started it. It is the subreaper of the server's descendants, so that orphans come to
it, and it does not reap the server's parent process before everything else is gone: as long as that zombie stays, the
kernel gives its number, which is the session's id, to nobody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.host.remote.log import LogWriter
from tuner.host.remote.processes import (
    NONCE_VARIABLE,
    SUPERVISES_VARIABLE,
    Marks,
    boot_id,
    keys,
    make_cgroup,
    own,
    pid_namespace,
    process_table,
    read_process,
    remove_cgroup,
)
from tuner.host.remote.record import Record, read_json, write_atomically
from tuner.host.remote.stopping import end_all

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""From include/uapi/linux/prctl.h."""
_F_SETPIPE_SZ = 1031
_CANNOT_EXECUTE = 127
"""The shell's status for a command that cannot be run."""
_HANDLED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD),
    *(signal.SIGPIPE, signal.SIGXFSZ),
)
"""Signals that are handled here, and those that Python ignores: the server gets the defaults."""
_LOOKS_S = (0.5, 0.5, 1.0, 2.0, *[4.0] * 30)
_LOOK_EVERY_S = 15.0
"""Pauses between looks at what is ours: short while a server comes up, long while it is measured."""
_SEARCH_EVERY_S = 0.1
"""How often a launch whose server has ended is searched for what is left of it."""


def main(folder: str) -> None:
    """Runs the launch recorded in the folder to its end."""
    path = Path(folder)
    Supervisor(Record(path.name, path)).run()


class Supervisor:
    """One launch, from its record to the end of its last process."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._terminated = False
        self._server = -1
        self._output = -1
        self._log: LogWriter | None = None
        me = read_process(os.getpid())
        # Kept here as well: whatever becomes of the record, this process must find its own.
        self._marks = Marks(record.nonce, boot_id(), pid_namespace(), supervisor=me.key if me else None)

    def run(self) -> None:
        """Starts the server and stays until everything of it is gone."""
        # Handlers rather than SIG_IGN, which the server would inherit.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the wait below
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

        self._introduce()
        spec = self._read_spec()
        if not self._record.closed and spec is not None:
            self._log = LogWriter(self._record.folder / "log", spec["segment_bytes"], spec["kept_segments"])
            self._start(spec)
            try:
                self._watch(spec, wake_read)
            except Exception:  # a fault here must not set a server free
                traceback.print_exc()
                self._end(float(spec["lease_grace_s"]))
            self._drain()
        remove_cgroup(self._marks.cgroup)
        self._write("ended.json", {"boot_id": boot_id()})

    def _write(self, name: str, value: dict[str, Any]) -> None:
        """Writes a part of the record. A full disk, or a record that somebody removed, does not stop the watch."""
        try:
            write_atomically(self._record.folder / name, value)
        except OSError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)

    def _on_term(self, *_: Any) -> None:
        """The host shuts down, or a person wants us gone: the server goes first."""
        self._terminated = True

    def _introduce(self) -> None:
        """Makes the launch's cgroup and writes who the supervisor is."""
        self._marks = replace(self._marks, cgroup=make_cgroup(self._record.nonce))
        pid, start_ticks = self._marks.supervisor or (os.getpid(), 0)
        self._write(
            "supervisor.json",
            {
                "pid": pid,
                "start_ticks": start_ticks,
                "boot_id": self._marks.boot_id,
                "pid_namespace": self._marks.pid_namespace,
                "cgroup": self._marks.cgroup,
            },
        )

    def _read_spec(self) -> dict[str, Any] | None:
        path = self._record.folder / "launch.json"
        spec = read_json(path)
        if spec is not None:
            path.unlink()  # it holds the environment, secrets included
        return spec

    def _start(self, spec: dict[str, Any]) -> None:
        """Starts the server; its identity is on disk before it runs."""
        output, server_output = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(output, _F_SETPIPE_SZ, 2**20)  # so that a busy moment here does not hold the server up
        os.set_blocking(output, False)
        gate, gate_write = os.pipe2(os.O_CLOEXEC)
        environment = {name: value for name, value in os.environ.items() if name != SUPERVISES_VARIABLE}
        environment.update(spec["env"])
        environment[NONCE_VARIABLE] = self._record.nonce
        pid = os.fork()
        if pid == 0:
            os.close(gate_write)
            _become_server(spec["argv"], environment, self._marks.cgroup, gate, server_output)
        os.close(gate)
        os.close(server_output)
        self._server, self._output = pid, output
        row = read_process(pid)
        self._marks = replace(self._marks, server=(pid, row.start_ticks if row else 0))
        # Without this record no server: an error here ends us, and the child with us.
        write_atomically(
            self._record.folder / "identity.json",
            {
                "nonce": self._record.nonce,
                "pid": pid,
                "start_ticks": row.start_ticks if row else 0,
                "boot_id": self._marks.boot_id,
                "cgroup": self._marks.cgroup,
                "log_path": str(self._record.folder / "log"),
            },
        )
        # Whoever closes a record looks for processes afterwards: either we see it closed, or our child is seen.
        if not self._record.closed:
            with contextlib.suppress(OSError):  # it is dead already; its status will say so
                os.write(gate_write, b"1")
        os.close(gate_write)

    def _watch(self, spec: dict[str, Any], wake: int) -> None:
        """Copies output and keeps the lease, until nothing of the launch is left."""
        lease_s = float(spec["lease_s"])
        step_s = min(1.0, max(0.05, lease_s / 20))
        started = renewed = _now()
        lease = self._record.lease
        looks = list(_LOOKS_S)
        next_look, next_search = started + looks.pop(0), started
        exited = False
        while True:
            self._copy_output(wake, 0.05 if exited else step_s)
            now = _now()
            text = self._record.lease
            if text and text != lease:
                lease, renewed = text, now
            if self._terminated or now - renewed > lease_s:
                if not self._terminated:
                    self._write("lapsed", {"silent_s": now - renewed})
                self._look()
                self._end(float(spec["lease_grace_s"]))
            exited = exited or self._server_exited()
            self._reap_orphans()
            if exited and now >= next_search:
                if not own(self._marks, environ=False) and not own(self._marks, environ=True):
                    return
                next_search = now + _SEARCH_EVERY_S
            if now >= next_look:
                self._look()
                next_look = now + (looks.pop(0) if looks else _LOOK_EVERY_S)

    def _copy_output(self, wake: int, timeout_s: float) -> None:
        """Waits for output, a signal or the time, and copies what there is."""
        watched = [wake] if self._output < 0 else [wake, self._output]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if self._output in ready and not self._read_output():
            os.close(self._output)
            self._output = -1

    def _read_output(self) -> bool:
        """Copies one piece of output; false at its end."""
        try:
            data = os.read(self._output, 2**16)
        except BlockingIOError:
            return True
        if data and self._log is not None:
            self._log.write(data)
        return bool(data)

    def _drain(self) -> None:
        """Copies what is left in the pipe, without waiting for a stranger who may hold its other end."""
        while self._output >= 0 and select.select([self._output], [], [], 0)[0]:
            if not self._read_output():
                return

    def _server_exited(self) -> bool:
        """Whether the server's parent process has ended; then its status is on disk. It is not reaped."""
        result = os.waitid(os.P_PID, self._server, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return False
        status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self._write("exit.json", {"exit_status": status})
        return True

    def _reap_orphans(self) -> None:
        """Reaps what was re-parented to us and ended."""
        me = os.getpid()
        zombies = (pid for pid in _children() if pid != self._server)
        for pid in zombies:
            row = read_process(pid)
            if row is not None and row.parent == me and row.state == "Z":
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def _look(self) -> None:
        """Writes down which processes are ours, for the case that this one is killed, and what memory they share."""
        processes = own(self._marks, environ=False)
        with contextlib.suppress(OSError):
            self._record.attribute_shared_memory([process.pid for process in processes])
        found = keys(processes)
        if found != self._marks.seen:
            self._marks = replace(self._marks, seen=found)
            self._write("seen.json", {"processes": found})

    def _end(self, grace_s: float) -> None:
        """Ends everything of the launch, while its output is still copied by a thread."""
        done = threading.Event()

        def copy() -> None:
            while not done.is_set() and self._output >= 0:
                if select.select([self._output], [], [], 0.05)[0] and not self._read_output():
                    return

        copier = threading.Thread(target=copy)
        copier.start()
        try:
            end_all(lambda: self._marks, grace_s)
        finally:
            done.set()
            copier.join()


def _now() -> float:
    """Seconds since boot, time asleep included, whatever happens to the wall clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _children() -> list[int]:
    """Pids of our children, the cheap way where the kernel has it."""
    me = os.getpid()
    try:
        text = Path(f"/proc/{me}/task/{me}/children").read_text()
        return [int(word) for word in text.split()]
    except OSError:
        return [row.pid for row in process_table().values() if row.parent == me]


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _become_server(argv: list[str], environment: dict[str, str], cgroup: str, gate: int, output: int) -> None:
    """In the forked child: waits until its identity is on disk, then becomes the server. Does not return."""
    try:
        supervisor = os.getppid()
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # without a supervisor there is no lease: then no server either
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        if cgroup:
            with contextlib.suppress(OSError):
                Path(cgroup, "cgroup.procs").write_text("0")
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        if os.read(gate, 1) and os.getppid() == supervisor:
            os.execvpe(argv[0], argv, environment)  # noqa: S606 - without a shell, on purpose
    except OSError as error:
        os.write(2, f"tuner: cannot execute {argv[0]!r}: {error}\n".encode())
    finally:
        os._exit(_CANNOT_EXECUTE)
