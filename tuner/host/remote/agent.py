"""The agent: answers requests from the driver, one JSON object a line, on standard input and output.

    → {"id": 7, "op": "status", "nonce": "…", …}
    ← {"id": 7, "ok": {…}}     or     {"id": 7, "error": "what was found and what to do"}

Every operation runs in a thread of its own, so that a lease is renewed while another one takes long. The agent ends
with its connection; what it started does not (see `tuner.host.remote.supervisor`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, BinaryIO, Callable, Sequence

from tuner.host.remote import gpus, sockets
from tuner.host.remote.log import log_bytes, read_ends, read_log, read_tail
from tuner.host.remote.processes import (
    NONCE_VARIABLE,
    SUPERVISES_VARIABLE,
    Marks,
    Process,
    boot_id,
    environment,
    is_running,
    own,
    process_table,
    read_process,
    remove_cgroup,
    send_signal,
)
from tuner.host.remote.record import Record, RecordError, write_atomically
from tuner.host.remote.shared_memory import remove_shared_memory, shared_memory
from tuner.host.remote.stopping import Ended, end_all

_START_LIMIT_S = 20.0
_TAIL_BYTES = 8192
_EXIT_STATUS_LIMIT_S = 2.0
_SUPERVISOR_LIMIT_S = 5.0
_FINISHED_ANYWAY = ("start", "clean", "stop")
"""Operations that are brought to their end although the connection is gone."""


def main(source: bytes, requests: BinaryIO, answers: BinaryIO) -> None:
    """Serves until the requests end.

    Args:
        source: the script that this is part of: the supervisor is started from the same text.
    """
    Agent(source, requests, answers).serve()
    os._exit(0)  # threads of operations that nobody waits for may be in the middle of anything


class Agent:
    """One connection's agent."""

    def __init__(self, source: bytes, requests: BinaryIO, answers: BinaryIO) -> None:
        self._source = source
        self._requests = requests
        self._answers = answers
        self._lock = threading.Lock()
        self._echo: sockets.Echo | None = None

    def serve(self) -> None:
        """Says hello, then answers each request as it is done."""
        self._send({"hello": "tuner-agent", "pid": os.getpid(), "boot_id": boot_id()})
        unfinished: list[threading.Thread] = []
        for line in self._requests:
            arguments = json.loads(line)
            number, name = arguments.pop("id"), arguments.pop("op")
            thread = threading.Thread(target=self._answer, args=(number, name, arguments), daemon=True)
            thread.start()
            if name in _FINISHED_ANYWAY:
                unfinished = [*(other for other in unfinished if other.is_alive()), thread]
        for thread in unfinished:
            thread.join()

    def _send(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        with self._lock:
            try:
                self._answers.write(data)
                self._answers.flush()
            except (OSError, ValueError):  # nobody listens any more
                pass

    def _answer(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        operation: Callable[..., dict[str, Any]] | None = getattr(self, f"op_{name}", None)
        try:
            if operation is None:
                raise RecordError(f"no such operation: {name!r}")
            self._send({"id": number, "ok": operation(**arguments)})
        except (RecordError, gpus.GpuError) as error:
            self._send({"id": number, "error": str(error)})
        except Exception as error:  # the driver must hear of it: this is the outermost frame
            self._send({"id": number, "error": f"{type(error).__name__}: {error} (operation {name})"})

    def op_facts(self, command: Sequence[str], env: dict[str, str], distributions: Sequence[str]) -> dict[str, Any]:
        """See `gpus.host_facts`."""
        return gpus.host_facts(command, env, distributions)

    def op_clean(
        self,
        port: int | None,
        nonces: Sequence[str],
        busy_bytes: int,
        gpu_wait_s: float,
        patterns: Sequence[str],
    ) -> dict[str, Any]:
        """Ends what is left of launches of ours, then looks at the port and the GPUs."""
        ended = {nonce: self._end_launch(nonce, 0.0, patterns) for nonce in nonces}
        stopped = [nonce for nonce, end in ended.items() if end["found"]]
        used = gpus.memory_used_bytes()
        holders: list[str] = []
        if any(level > busy_bytes for level in used):
            holders = gpus.memory_holders()
            if stopped or not holders:  # memory comes back a little after the processes are gone
                used, _ = gpus.wait_for_memory([busy_bytes] * len(used), 0, gpu_wait_s)
        port = sockets.free_port() if port is None else port
        sockets.wait_until_released(port, gpu_wait_s if stopped else 0.0)
        return {
            "port": port,
            "port_holder": sockets.holder_in_words(port),
            "gpu_memory_used_bytes": used,
            "gpu_busy": any(level > busy_bytes for level in used),
            "gpu_holders": holders,
            "stopped": stopped,
            "left_pids": [pid for end in ended.values() for pid in end["left"]],
        }

    def op_start(
        self,
        nonce: str,
        argv: Sequence[str],
        env: dict[str, str],
        port: int,
        gpu_memory_used_bytes: Sequence[int],
        patterns: Sequence[str],
        supervisor: dict[str, Any],
    ) -> dict[str, Any]:
        """Starts the supervisor; asked again for the same nonce, returns what the first time began."""
        record, made = Record.make(nonce)
        if made:
            holder = sockets.holder_in_words(port)
            if holder:
                record.close()
                write_atomically(record.folder / "ended.json", {"boot_id": boot_id()})
                return {"identity": None, "port_holder": holder}
            before = {
                "gpu_memory_used_bytes": list(gpu_memory_used_bytes),
                "patterns": list(patterns),
                "shared_memory": shared_memory(patterns),
                "port": port,
            }
            write_atomically(record.folder / "before.json", before)
            write_atomically(record.folder / "launch.json", dict(supervisor, argv=list(argv), env=env))
            record.renew()
            return {"identity": self._wait_for_identity(record, self._spawn_supervisor(record)), "port_holder": ""}
        return {"identity": self._wait_for_identity(record), "port_holder": ""}

    def _spawn_supervisor(self, record: Record) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        environment.pop(NONCE_VARIABLE, None)
        environment[SUPERVISES_VARIABLE] = record.nonce
        bootstrap = "import sys; s = sys.stdin.buffer.read(); exec(compile(s, 'tuner-supervisor', 'exec'))"
        errors = os.open(record.folder / "supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", bootstrap, "supervisor", str(record.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(errors)
        assert process.stdin is not None
        process.stdin.write(self._source)
        process.stdin.close()
        threading.Thread(target=process.wait, daemon=True).start()  # reaps it
        return process

    @staticmethod
    def _wait_for_identity(record: Record, supervisor: subprocess.Popen[bytes] | None = None) -> dict[str, Any]:
        deadline = time.monotonic() + _START_LIMIT_S
        while True:
            dead = supervisor is not None and supervisor.returncode is not None
            identity = record.identity
            if identity is not None:
                return identity
            if record.closed:
                raise RecordError(f"launch {record.nonce} was stopped before it started")
            if dead or record.ended or time.monotonic() > deadline:
                try:
                    why = (record.folder / "supervisor.err").read_text()[-2000:]
                except OSError:
                    why = ""
                raise RecordError(
                    f"the supervisor of launch {record.nonce} did not start a server: {why or 'no reason'}"
                )
            time.sleep(0.01)

    def op_renew(self, nonce: str) -> dict[str, Any]:
        """Renews a lease."""
        record = _find(nonce)
        record.renew()
        return {"lapsed": record.lapsed}

    def op_status(self, nonce: str, tail_bytes: int = _TAIL_BYTES) -> dict[str, Any]:
        """How a launch stands."""
        return _status(_find(nonce), tail_bytes)

    def op_probe(self, nonce: str, port: int, path: str, timeout_s: float) -> dict[str, Any]:
        """One look at a server that may be ready: how it stands, who listens, and what it answers."""
        record = _find(nonce)
        answer = sockets.http_get(port, path, timeout_s)
        listening = None
        if answer["status"] is not None:
            listening = sockets.own_listener(port, [process.pid for process in own(record.marks)])
        return {"http": answer, "listener_is_own": listening, "status": _status(record, _TAIL_BYTES)}

    def op_get(self, port: int, path: str, timeout_s: float) -> dict[str, Any]:
        """GET from the loopback."""
        return dict(sockets.http_get(port, path, timeout_s))

    def op_environ(self, nonce: str, names: Sequence[str]) -> dict[str, Any]:
        """The given variables in the live processes of a launch; ``None`` for one that hides its environment."""
        rows = []
        for process in own(_find(nonce).marks):
            found = environment(process.pid) or {}
            shown = found.get(NONCE_VARIABLE) == nonce
            values = {name: found[name] for name in names if name in found} if shown else None
            rows.append({"pid": process.pid, "env": values, "title": _title(process.pid)})
        return {"processes": rows}

    def op_log(self, nonce: str, offset: int | None = None, limit: int = 2**20) -> dict[str, Any]:
        """The log from an offset on, or both its ends if there is no offset."""
        folder = _find(nonce).folder / "log"
        at, data = (0, read_ends(folder, limit)) if offset is None else read_log(folder, offset, limit)
        return {"offset": at, "text": data.decode(errors="replace"), "log_bytes": log_bytes(folder)}

    def op_stop(
        self, nonce: str, grace_s: float, gpu_wait_s: float, gpu_slack_bytes: int, patterns: Sequence[str]
    ) -> dict[str, Any]:
        """Ends a launch and proves that it is gone."""
        started = time.monotonic()
        ended = self._end_launch(nonce, grace_s, patterns)
        before = ended["before"]
        used, back = gpus.wait_for_memory(before.get("gpu_memory_used_bytes", ()), gpu_slack_bytes, gpu_wait_s)
        port = before.get("port")
        return {
            "exit_status": ended["exit_status"],
            "killed_pids": ended["killed"],
            "left_pids": ended["left"],
            "port_free": port is None or sockets.wait_until_released(port, gpu_wait_s),
            "gpu_memory_used_bytes": used,
            "gpu_memory_back": back,
            "shared_memory_removed": ended["shared_memory_removed"],
            "took_s": time.monotonic() - started,
        }

    @staticmethod
    def _end_launch(nonce: str, grace_s: float, patterns: Sequence[str]) -> dict[str, Any]:
        """Ends all processes of a launch, its supervisor last; with or without a record of it."""
        record, _ = Record.make(nonce)
        record.close()
        left = own(record.marks)
        found = bool(left) or bool(_supervisors(record.marks))
        names = record.attribute_shared_memory([process.pid for process in left])
        ended = end_all(lambda: record.marks, grace_s)
        ended = _end_supervisor(record, ended)
        removed = remove_shared_memory(patterns, names)
        if not ended.left:
            remove_cgroup(record.marks.cgroup)
            with contextlib.suppress(OSError):
                (record.folder / "launch.json").unlink()  # of a supervisor that never read it
            if not record.ended:
                write_atomically(record.folder / "ended.json", {"boot_id": boot_id()})
        return {
            "found": found,
            "exit_status": record.exit_status,
            "killed": list(ended.killed),
            "left": list(ended.left),
            "shared_memory_removed": removed,
            "before": record.before,
        }

    def op_echo(self) -> dict[str, Any]:
        """Port of an echo on the loopback."""
        if self._echo is None:
            self._echo = sockets.Echo()
        return {"port": self._echo.port}

    def op_ping(self) -> dict[str, Any]:
        """Nothing, quickly."""
        return {}


def _find(nonce: str) -> Record:
    record = Record.find(nonce)
    if record is None:
        raise RecordError(f"no record of launch {nonce} on this host")
    return record


def _status(record: Record, tail_bytes: int) -> dict[str, Any]:
    """How a launch stands, by its record and the process table."""
    marks = record.marks
    alive = marks.of_this_boot and is_running(marks.server)
    deadline = time.monotonic() + _EXIT_STATUS_LIMIT_S
    # The supervisor writes down how the server ended a moment after it did.
    while not alive and record.exit_status is None and is_running(marks.supervisor) and time.monotonic() < deadline:
        time.sleep(0.01)
    folder = record.folder / "log"
    return {
        "alive": alive,
        "exit_status": record.exit_status,
        "lease_lapsed": record.lapsed,
        "supervised": marks.of_this_boot and is_running(marks.supervisor),
        "rebooted": not marks.of_this_boot,
        "log_bytes": log_bytes(folder),
        "log_tail": read_tail(folder, tail_bytes).decode(errors="replace"),
    }


def _title(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""
    return words.replace("\0", " ").strip()[:200]


def _supervisors(marks: Marks) -> list[Process]:
    """The supervisor by its record, and by its environment in case the record was lost."""
    if not marks.of_this_boot:
        return []
    found = {}
    if marks.supervisor is not None and is_running(marks.supervisor):
        row = read_process(marks.supervisor[0])
        if row is not None and row.key == marks.supervisor:
            found[row.pid] = row
    for pid, row in process_table().items():
        if row.alive and (environment(pid) or {}).get(SUPERVISES_VARIABLE) == marks.nonce:
            found[pid] = row
    return list(found.values())


def _end_supervisor(record: Record, ended: Ended) -> Ended:
    """Waits for the supervisor to see that all is gone; ends it if it does not."""
    deadline = time.monotonic() + _SUPERVISOR_LIMIT_S
    while True:
        left = _supervisors(record.marks)
        if not left:
            return ended
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for process in left:
        send_signal(process, signal.SIGKILL)
    again = end_all(lambda: record.marks, 0.0)
    return Ended((*ended.killed, *again.killed), again.left)
