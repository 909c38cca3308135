"""The journal of one launch, kept in the database."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from typing import Any

from tuner.store.rows import StoredLaunch
from tuner.store.store import Store
from tuner.store.text import Mask, plain, unmasked
from tuner.values.launch import LaunchCommand, Phase, ServerIdentity
from tuner.values.measurement import Window


class LaunchJournal:
    """A `tuner.ports.Journal`: what a launch is about to do is on disk before it does it.

    Evidence named or typed as the command (`LaunchCommand`, or ``command=`` text) and the server's identity
    (`ServerIdentity`) is kept with the launch itself too, where a resume looks for it.

    Database calls are made in a thread, so that a slow one holds no other host up.

    Args:
        launch: as `Store.begin_launch` returned it.
        mask: replaces secrets in every text, on top of `Store.mask`.
        on_phase: called when a phase has been stored and is about to begin, for a live display.
    """

    def __init__(
        self,
        store: Store,
        launch: StoredLaunch,
        *,
        mask: Mask = unmasked,
        on_phase: Callable[[Phase], None] | None = None,
    ) -> None:
        self._store = store
        self._launch = launch
        self._own_mask = mask
        self._on_phase = on_phase

    def _mask(self, text: str) -> str:
        return self._store.mask(self._own_mask(text))

    @property
    def nonce(self) -> str:
        """The launch's nonce, which is in the database already."""
        return self._launch.nonce

    async def begin(self, phase: Phase) -> None:
        """Stores that a phase begins and that the one before it ended. Returns when it is on disk."""
        await asyncio.to_thread(self._store.begin_phase, self._launch.id, phase)
        if self._on_phase is not None:
            self._on_phase(phase)

    async def record(self, **evidence: Any) -> None:
        """Merges evidence into the phase under way: values of `tuner.values`, or JSON types.

        Raises:
            ValueError: no phase has begun.
        """
        await asyncio.to_thread(self._record, evidence)

    def _record(self, evidence: dict[str, Any]) -> None:
        for name, value in evidence.items():
            if isinstance(value, ServerIdentity):
                self._store.describe_launch(self._launch.id, server=value)
            elif isinstance(value, LaunchCommand):
                self._store.describe_launch(self._launch.id, command=_shown(value, self._mask))
            elif name == "command" and isinstance(value, str):
                self._store.describe_launch(self._launch.id, command=self._mask(value))
        self._store.add_evidence(self._launch.id, plain(evidence, self._mask))

    async def window(self, window: Window) -> None:
        """Stores one measured window with its raw samples."""
        await asyncio.to_thread(self._store.add_window, self._launch.id, window, self._mask)


def _shown(command: LaunchCommand, mask: Mask) -> str:
    """The command as a person would type it: environment first, every word masked, then quoted."""
    words = [f"{name}={shlex.quote(mask(value))}" for name, value in command.env]
    return " ".join([*words, shlex.join(map(mask, command.argv))])
