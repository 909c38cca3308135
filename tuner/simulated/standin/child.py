"""One process of the stand-in: forked, titled as SGLang titles it, and gone when its parent is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import setproctitle

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def fork(title: str, keep: Iterable[int], body: Callable[[], None], *, outlives: bool = False) -> int:
    """Starts a child that runs `body`, and returns its pid.

    Args:
        title: as ``ps`` shows it. The real library sets it, with the real one's side effect: without ``SPT_NOENV=1`` it
            overwrites the environment that ``/proc/PID/environ`` shows.
        keep: file descriptors that the child keeps beside the standard ones; all others are closed in it.
        outlives: whether it lives on when the parent dies: SGLang's children do not.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # nanoseconds: sleeps that end when they should
        if not outlives:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before that took effect
                os._exit(0)
        _close_all_but({0, 1, 2, *keep})
        setproctitle.setproctitle(title)
        body()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        number = int(name)
        if number not in keep:
            with contextlib.suppress(OSError):  # the directory's own descriptor
                os.close(number)


def prefer() -> None:
    """Asks for a little more of the CPU than others get, where the user may: token times are real time."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)


def start_ticks(pid: int) -> int:
    """Start time of a process, field 22 of ``/proc/PID/stat``; 0 if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])
