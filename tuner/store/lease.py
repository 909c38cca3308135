"""A driver's lease on a study: one driver runs a study at a time, and a dead one does not hold it up.

The lease is a row that its holder renews. Whoever else wants the study takes it over

- at once, if the holder was a process of this machine, boot and pid namespace, and is no more;
- else when the lease has lapsed: the holder gave no sign of life for as long as it promised to.

*Lapsed* compares the clock of the one who wants the study with the time that the holder wrote by its own. On one
machine these are one clock. Between machines, a clock that is S seconds ahead of the holder's takes over S seconds too
early, one that is behind S seconds too late: clocks must agree better than the lease less the time between renewals.
Taking over too early is found out and does no silent harm: the old holder's next renewal says so, and it can begin no
launch from then on (`require`).
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.errors import StoreError, StudyHeld
from tuner.store.tables import LeaseRow, StudyRow

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DEAD_STATES = (b"Z", b"X")
"""Of /proc/PID/stat (proc_pid_stat(5)): a zombie runs nothing any more, its parent only has not looked yet."""


@dataclass(frozen=True)
class Holder:
    """A driver process, told apart from every other one anywhere.

    Attributes:
        boot_id: the kernel's, new with each boot; empty where there is no ``/proc``, and then nobody calls it dead.
        pid_namespace: in which `pid` means this process, such as ``pid:[4026531836]``: containers of one machine
            share its boot id, and may share a host name.
        start_ticks: field 22 of ``/proc/PID/stat``: with the pid it names a process until the next boot.
        token: random; two holders of one process are two.
    """

    hostname: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
    token: str

    @classmethod
    def of_this_process(cls) -> Holder:
        """The process that calls, with a fresh token."""
        boot_id, pid_namespace = _machine()
        stat = _stat("self")
        return cls(
            hostname=socket.gethostname(),
            boot_id=boot_id,
            pid_namespace=pid_namespace,
            pid=os.getpid(),
            start_ticks=stat[1] if stat else 0,
            token=secrets.token_hex(16),
        )

    def is_dead(self) -> bool:
        """Whether the process is known to be no more; false for one that cannot be seen from here."""
        boot_id, pid_namespace = _machine()
        here = (socket.gethostname(), boot_id, pid_namespace)
        if not all(here) or here != (self.hostname, self.boot_id, self.pid_namespace):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # another user's, and there
        # With the mount option hidepid another user's process has no /proc/PID: it counts as alive.
        stat = _stat(str(self.pid))
        return stat is not None and (stat[0] in _DEAD_STATES or stat[1] != self.start_ticks)


def _machine() -> tuple[str, str]:
    """Boot id and pid namespace; empty where the system has no such thing."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip(), str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "", ""


def _stat(pid: str) -> tuple[bytes, int] | None:
    """State and start time, in ticks since boot, of a process; ``None`` if they cannot be read."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 1 :].split()  # the name before it may hold anything, ")" and blanks too
    return fields[0], int(fields[19])


def take(session: Session, study: StudyRow, holder: Holder, lease_s: float, now: float) -> None:
    """Makes the holder the study's driver, or renews it if it is. The caller holds the study's lock.

    Raises:
        StudyHeld: another driver holds the study.
    """
    row = _lease(session, study.id)
    if row is None:
        row = LeaseRow(study_id=study.id)
        session.add(row)
    elif row.token != holder.token and now < row.lapses and not _holder(row).is_dead():
        raise _held(study, row, now)
    if row.token != holder.token:
        row.since = now
    row.hostname, row.boot_id, row.pid_namespace = holder.hostname, holder.boot_id, holder.pid_namespace
    row.pid, row.start_ticks, row.token = holder.pid, holder.start_ticks, holder.token
    row.renewed, row.lapses = now, now + lease_s


def extend(session: Session, study_id: int, holder: Holder, lease_s: float, now: float) -> bool:
    """Gives a sign of life. A lease that lapsed and that nobody took is still the holder's; false if it is not."""
    row = _lease(session, study_id)
    if row is None or row.token != holder.token:
        return False
    row.renewed, row.lapses = now, now + lease_s
    return True


def give_up(session: Session, study_id: int, holder: Holder) -> None:
    """Ends the lease if it is still the holder's."""
    row = _lease(session, study_id)
    if row is not None and row.token == holder.token:
        session.delete(row)


def require(session: Session, study: StudyRow, holder: Holder, now: float) -> None:
    """Sees that the holder has not lost the study. The caller holds the study's lock, so this stays true.

    Raises:
        StudyHeld: another driver took it over.
        StoreError: another driver took it over and has ended since.
    """
    row = _lease(session, study.id)
    if row is None:
        raise StoreError(
            f"study {study.name} was taken over by another driver, which has ended since: this one had given no sign "
            "of life for longer than its lease (was it suspended, or is the database slow?)."
        )
    if row.token != holder.token:
        raise _held(study, row, now)


def _lease(session: Session, study_id: int) -> LeaseRow | None:
    return session.scalar(select(LeaseRow).where(LeaseRow.study_id == study_id).with_for_update())


def _holder(row: LeaseRow) -> Holder:
    return Holder(row.hostname, row.boot_id, row.pid_namespace, row.pid, row.start_ticks, row.token)


def _held(study: StudyRow, row: LeaseRow, now: float) -> StudyHeld:
    return StudyHeld(study.name, row.hostname, row.pid, row.since, max(0.0, now - row.renewed), row.lapses - now)
