"""Ending all that belongs to a launch, and nothing else."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Callable

from tuner.host.remote.processes import Marks, Process, kill_cgroup, own, read_process, send_signal

_STEP_S = 0.05
_SETTLE_S = 1.0
"""How long children may take to end by themselves once their parent is gone, before they get a TERM of their own."""
_TERM_S = 4.0
"""How long those that are left get between TERM and KILL."""
_KILL_LIMIT_S = 30.0
"""A process in the middle of a GPU driver's call ends when that returns."""


@dataclass(frozen=True)
class Ended:
    """How a launch's processes were ended: pids that needed KILL, pids that are left."""

    killed: tuple[int, ...]
    left: tuple[int, ...]


def end_all(marks: Callable[[], Marks], grace_s: float) -> Ended:
    """TERM to the server's parent process, which drains; then TERM, then KILL for whatever is left.

    Args:
        marks: read anew at each look, since a supervisor may still be writing them.
        grace_s: for the parent to end after TERM.
    """
    known: dict[tuple[int, int], Process] = {}

    def look(environ: bool) -> list[Process]:
        """Ours, including those known from earlier looks: a re-parented child may have lost its marks since."""
        now = marks()
        found = own(now, environ)
        known.update((process.key, process) for process in found)
        alive = {process.key: process for process in found}
        for key in list(known):
            row = read_process(key[0])
            if row is None or row.key != key or not row.alive:
                known.pop(key)
            else:
                alive.setdefault(key, row)
        return list(alive.values())

    started = time.monotonic()
    left = look(environ=True)
    parent = next((process for process in left if process.key == marks().server), None)
    if parent is not None:
        send_signal(parent, signal.SIGTERM)
        left = _wait(lambda: look(False), started + grace_s, lambda rest: parent.key not in {p.key for p in rest})
        if parent.key not in {process.key for process in left}:
            left = _wait(lambda: look(False), min(time.monotonic() + _SETTLE_S, started + grace_s))
    others = [process for process in look(environ=True) if parent is None or process.key != parent.key]
    for process in others:
        send_signal(process, signal.SIGTERM)
    if others:
        _wait(lambda: look(False), time.monotonic() + _TERM_S)
    last = marks()
    return _kill(look, last.cgroup if last.of_this_boot else "")


def _wait(
    look: Callable[[], list[Process]], deadline: float, enough: Callable[[list[Process]], bool] = lambda rest: not rest
) -> list[Process]:
    while True:
        left = look()
        if not left or enough(left) or time.monotonic() >= deadline:
            return left
        time.sleep(_STEP_S)


def _kill(look: Callable[[bool], list[Process]], cgroup: str) -> Ended:
    """KILL until two looks in a row find nothing: first all are stopped, so that none can fork away meanwhile."""
    killed = kill_cgroup(cgroup)
    deadline = time.monotonic() + _KILL_LIMIT_S
    empty = 0
    left: list[Process] = []
    while empty < 2:
        left = look(True)
        empty = empty + 1 if not left else 0
        if left and time.monotonic() > deadline:
            break
        stopped: set[tuple[int, int]] = set()
        while any(process.key not in stopped for process in left):
            for process in left:
                if process.key not in stopped:
                    send_signal(process, signal.SIGSTOP)
                    stopped.add(process.key)
            left = look(False)
        for process in left:
            if send_signal(process, signal.SIGKILL):
                killed.add(process.pid)
        if left:
            time.sleep(_STEP_S)
    return Ended(tuple(sorted(killed)), tuple(sorted(process.pid for process in left)))
