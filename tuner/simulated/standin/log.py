"""SGLang's log lines: ``[2026-01-31 12:00:00 TP0] message`` on standard error."""

from __future__ import annotations

import os
import time


class Log:
    """Writes log lines of one process, each in one write, so that lines of several processes do not mix.

    Args:
        rank: of the scheduler; ``None`` for the launcher, whose lines carry no rank.
    """

    def __init__(self, rank: int | None = None) -> None:
        self._tag = "" if rank is None else f" TP{rank}"

    def line(self, message: str) -> None:
        """One message with time and rank."""
        self.raw(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self._tag}] {message}\n")

    def raw(self, text: str, fd: int = 2) -> None:
        """Text as it is: progress bars, warnings, NCCL's lines (which go to standard output)."""
        data = text.encode()
        try:
            while data:
                data = data[os.write(fd, data) :]
        except (BrokenPipeError, BlockingIOError):  # nobody reads the log: no reason to stop serving
            pass
