"""The journal of a host: of whichever launch is open on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.store.journal import LaunchJournal
from tuner.store.rows import StoredLaunch
from tuner.values.launch import Phase
from tuner.values.measurement import Window


class HostJournal:
    """A `tuner.ports.Journal` that writes to the launch under way on one host: one at a time.

    Args:
        make: makes the journal of one launch.
        on_phase: told when a phase begins, for live progress.
    """

    def __init__(
        self, make: Callable[[StoredLaunch], LaunchJournal], on_phase: Callable[[Phase], None] = lambda _: None
    ) -> None:
        self._make = make
        self._on_phase = on_phase
        self._launch: StoredLaunch | None = None
        self._journal: LaunchJournal | None = None
        self.phase = Phase.CLEAN

    def open(self, launch: StoredLaunch) -> None:
        """From now on everything is written to this launch."""
        self._launch = launch
        self._journal = self._make(launch)
        self.phase = Phase.CLEAN

    @property
    def _current(self) -> LaunchJournal:
        if self._journal is None:
            raise RuntimeError("no launch is open on this host: open() comes first")
        return self._journal

    @property
    def nonce(self) -> str:
        """See `tuner.ports.Journal`."""
        return self._current.nonce

    async def begin(self, phase: Phase) -> None:
        """See `tuner.ports.Journal`."""
        await self._current.begin(phase)
        self.phase = phase
        self._on_phase(phase)

    async def record(self, **evidence: Any) -> None:
        """See `tuner.ports.Journal`."""
        await self._current.record(**evidence)

    async def window(self, window: Window) -> None:
        """See `tuner.ports.Journal`."""
        await self._current.window(window)
