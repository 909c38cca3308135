"""Stopping by signal: the first one asks, the second one leaves."""

from __future__ import annotations

import asyncio
import os
import signal

from tuner.study.options import EXIT_INTERRUPTED
from tuner.study.progress import Progress


class Interrupt:
    """Ctrl-C, TERM and a closed terminal cancel the study, which stops its servers; a second one leaves them to their
    leases."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._seen = False

    def listen(self) -> None:
        """Installs the handlers for the current task. Again after Ray has started: it installs its own."""
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in self.SIGNALS:
            loop.remove_signal_handler(number)
            loop.add_signal_handler(number, self._stop, task)

    def _stop(self, task: asyncio.Task[object] | None) -> None:
        if self._seen:
            os._exit(EXIT_INTERRUPTED)
        self._seen = True
        self._progress.say(
            "Stopping the server and proving it gone; the study stays resumable. Once more leaves it to its lease."
        )
        if task is not None:
            task.cancel()

    def __enter__(self) -> Interrupt:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number in self.SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
