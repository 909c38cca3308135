"""Which processes belong to a launch, and signals that reach those and no other.

A process is ours by what it is, never by its name: by pid *and* start time, by the session or cgroup made for the
launch, by the nonce in its environment, or as a descendant of such a process (or of the supervisor, to which orphans
are re-parented). One mark alone does not do: a child can call setsid, retitle itself over its environment, or both.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

PROC = Path("/proc")
NONCE_VARIABLE = "TUNER_NONCE"
SUPERVISES_VARIABLE = "TUNER_SUPERVISES"
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of /proc/PID/stat (include/linux/sched.h)."""


@dataclass(frozen=True)
class Process:
    """A row of the process table.

    `start_ticks` is field 22 of /proc/PID/stat: with the pid it names a process until the next boot.
    """

    pid: int
    parent: int
    session: int
    start_ticks: int
    state: str

    @property
    def alive(self) -> bool:
        """Whether it still holds anything. A zombie does not, unless other threads of it are still ending."""
        if self.state not in "ZXx":
            return True
        try:
            return len(os.listdir(PROC / str(self.pid) / "task")) > 1
        except OSError:
            return False

    @property
    def key(self) -> tuple[int, int]:
        """(pid, start ticks)."""
        return self.pid, self.start_ticks


@dataclass(frozen=True)
class Marks:
    """What the processes of one launch are known by; an absent mark is empty or ``None``.

    Attributes:
        boot_id, pid_namespace: where the pids below mean something.
        server: (pid, start ticks) of the server's parent process; the pid is its session id, too.
        supervisor: (pid, start ticks) of the supervisor; not itself one of `own`.
        cgroup: directory of the cgroup made for the launch.
        seen: (pid, start ticks) of processes known to be ours from earlier looks.
    """

    nonce: str
    boot_id: str = ""
    pid_namespace: str = ""
    server: tuple[int, int] | None = None
    supervisor: tuple[int, int] | None = None
    cgroup: str = ""
    seen: tuple[tuple[int, int], ...] = ()

    @property
    def of_this_boot(self) -> bool:
        """Whether recorded pids can be compared with the process table at hand."""
        return (self.boot_id or boot_id()) == boot_id() and (self.pid_namespace or pid_namespace()) == pid_namespace()


def boot_id() -> str:
    """The kernel's id of this boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """The namespace in which our pids count: a container's differ from its host's."""
    try:
        return os.readlink(PROC / "self/ns/pid")
    except OSError:
        return ""


def read_process(pid: int) -> Process | None:
    """One row of the process table; ``None`` for no such process, and for threads of the kernel."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The second field is the title in parentheses, which may hold spaces and parentheses of its own.
    fields = text[text.rindex(b")") + 2 :].split()
    if int(fields[6]) & _KERNEL_THREAD:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0].decode())


def process_table() -> dict[int, Process]:
    """All processes of this namespace, by pid."""
    rows = (read_process(int(name)) for name in os.listdir(PROC) if name.isdigit())
    return {row.pid: row for row in rows if row is not None}


def is_running(key: tuple[int, int] | None) -> bool:
    """Whether the process of that pid and start time still lives."""
    row = read_process(key[0]) if key is not None else None
    return row is not None and row.key == key and row.alive


def environment(pid: int) -> dict[str, str] | None:
    """The environment a process was started with; ``None`` when it may not be read or the process is gone.

    A process that retitled itself may have overwritten it: then there are few entries or none.
    """
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals and name}


def own(marks: Marks, environ: bool = True) -> list[Process]:
    """The live processes of a launch, the supervisor not among them.

    Args:
        environ: also look for the nonce in every environment that may be read: dearer, and the only way to find
            processes when all records are lost.
    """
    if not marks.of_this_boot:
        return []
    table = process_table()
    found = _marked(marks, table)
    if environ:
        found |= {pid for pid in table if (environment(pid) or {}).get(NONCE_VARIABLE) == marks.nonce}
    children: dict[int, list[int]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row.pid)
    if marks.supervisor is not None and _same(table, marks.supervisor):
        found |= set(children.get(marks.supervisor[0], ()))
    untouchable = _ourselves(table) | ({marks.supervisor[0]} if marks.supervisor else set())
    found -= untouchable
    frontier = list(found)
    while frontier:
        for pid in children.get(frontier.pop(), ()):
            if pid not in found and pid not in untouchable:
                found.add(pid)
                frontier.append(pid)
    return [table[pid] for pid in sorted(found) if table[pid].alive]


def _marked(marks: Marks, table: dict[int, Process]) -> set[int]:
    """Pids that carry a mark which needs no look into the environment (but for one case of a session)."""
    found = {key[0] for key in marks.seen if _same(table, key)}
    found |= cgroup_pids(marks.cgroup) & set(table)
    if marks.server is None:
        return found
    pid, start_ticks = marks.server
    if _same(table, marks.server):
        # While the leader exists, if only as a zombie, its number cannot be given to another session.
        found |= {pid} | {row.pid for row in table.values() if row.session == pid}
    elif pid not in table:
        # The number may have been given to a foreign session whose leader is gone as well: look closer.
        members = (row for row in table.values() if row.session == pid and row.start_ticks >= start_ticks)
        found |= {row.pid for row in members if _may_be_ours(row.pid, marks.nonce)}
    return found


def _same(table: dict[int, Process], key: tuple[int, int]) -> bool:
    row = table.get(key[0])
    return row is not None and row.key == key


def _may_be_ours(pid: int, nonce: str) -> bool:
    """Of our user, with our nonce, or with an environment that was cleared or overwritten by a title."""
    try:
        if os.stat(PROC / str(pid)).st_uid != os.geteuid():
            return False
    except OSError:
        return False
    found = environment(pid)
    return found is not None and (not found or found.get(NONCE_VARIABLE) == nonce)


def _ourselves(table: dict[int, Process]) -> set[int]:
    """This process and its ancestors: whatever the marks say, these are never ended."""
    pids = {0, 1}
    pid = os.getpid()
    while pid not in pids:
        pids.add(pid)
        pid = table[pid].parent if pid in table else 0
    return pids


def send_signal(process: Process, number: int) -> bool:
    """Sends a signal to that very process, not to another that got its pid since. False if it is gone."""
    if process.pid <= 1:
        return False
    if not hasattr(os, "pidfd_open"):  # Python 3.8: the check and the signal are microseconds apart
        row = read_process(process.pid)
        if row is None or row.key != process.key:
            return False
        return _kill(process.pid, number)
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel before 5.3
        row = read_process(process.pid)
        return row is not None and row.key == process.key and _kill(process.pid, number)
    try:
        row = read_process(process.pid)
        if row is None or row.key != process.key:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def cgroup_home() -> str:
    """Directory of the cgroup (version 2) that this process is in; empty where there is none."""
    try:
        own_path = next(line[3:] for line in (PROC / "self/cgroup").read_text().splitlines() if line.startswith("0::/"))
        for line in (PROC / "self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            if right.startswith("cgroup2 "):
                root, mount = left.split()[3:5]
                inside = own_path[len(root) :] if root != "/" and own_path.startswith(root) else own_path
                return os.path.join(mount, inside.strip("/"))
    except (OSError, StopIteration):
        pass
    return ""


def make_cgroup(nonce: str) -> str:
    """Makes the cgroup of a launch below our own; its directory, or empty where that is not allowed."""
    home = cgroup_home()
    if not home:
        return ""
    path = Path(home) / f"tuner-{nonce}"
    try:
        path.mkdir()
        if not os.access(path / "cgroup.procs", os.W_OK):
            path.rmdir()
            return ""
    except OSError:
        return ""
    return str(path)


def cgroup_pids(path: str) -> set[int]:
    """Pids in the cgroup and in those below it; empty for no cgroup."""
    pids: set[int] = set()
    if path:
        for folder, _, _ in os.walk(path):
            try:
                pids |= {int(word) for word in (Path(folder) / "cgroup.procs").read_text().split()}
            except OSError:
                continue
    return pids


def kill_cgroup(path: str) -> set[int]:
    """KILL for all in a cgroup at once, which no fork outruns (Linux 5.14); pids that were in it."""
    pids = cgroup_pids(path)
    if pids:
        try:
            (Path(path) / "cgroup.kill").write_text("1")
        except OSError:
            return set()
    return pids


def remove_cgroup(path: str) -> None:
    """Removes an empty cgroup and those below it."""
    for folder, _, _ in os.walk(path, topdown=False) if path else ():
        try:
            os.rmdir(folder)
        except OSError:
            return


def keys(processes: Iterable[Process]) -> tuple[tuple[int, int], ...]:
    """(pid, start ticks) of each."""
    return tuple(process.key for process in processes)
