"""Live progress on stderr: a line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuner.values.configuration import Configuration
from tuner.values.launch import Phase, Role


@dataclass(frozen=True)
class LaunchLabel:
    """What a person wants to know about a launch under way.

    Attributes:
        number: of this launch in the study's budget, from 1.
        trial: Optuna's number; ``None`` for launches that are no trials.
    """

    host: str
    number: int
    role: Role
    trial: int | None
    configuration: Configuration

    def __str__(self) -> str:
        what = f"trial {self.trial}" if self.trial is not None else self.role.value
        return f"{what}: {self.configuration}"


@dataclass(frozen=True)
class Standing:
    """How the study stands: numbers are in the metric's unit."""

    spent: int
    budget: int
    lost: int
    best: float | None
    best_label: str
    control: float | None
    unit: str
    seconds_left: float | None

    def __str__(self) -> str:
        words = [f"launches {self.spent}/{self.budget}"]
        if self.lost:
            words.append(f"lost {self.lost}")
        if self.control is not None:
            words.append(f"control {self.control:.1f} {self.unit}")
        if self.best is not None:
            against = f" ({self.best / self.control:.2f} ×)" if self.control else ""
            words.append(f"best so far {self.best:.1f} {self.unit}{against} by {self.best_label}")
        if self.seconds_left is not None:
            words.append(f"about {human_time(self.seconds_left)} left")
        return " · ".join(words)


class Progress(Protocol):
    """What the study loop tells while it works."""

    def say(self, message: str) -> None:
        """A line of its own."""
        ...

    def began(self, label: LaunchLabel) -> None:
        """A launch began on a host."""
        ...

    def phase(self, host: str, phase: Phase, detail: str = "") -> None:
        """A launch entered a phase."""
        ...

    def ended(self, label: LaunchLabel, outcome: str, standing: Standing) -> None:
        """A launch ended; the outcome in words."""
        ...


def human_time(seconds: float) -> str:
    """``45 s``, ``3 min``, ``2 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class PlainProgress:
    """Lines for logs and pipes: one when a launch begins, one when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def say(self, message: str) -> None:
        """See `Progress`."""
        self._line(message)

    def began(self, label: LaunchLabel) -> None:
        """See `Progress`."""
        self._line(f"[{label.number}] {label.host}: {label}")

    def phase(self, host: str, phase: Phase, detail: str = "") -> None:
        """Phases are too many for a log: they are in the database."""

    def ended(self, label: LaunchLabel, outcome: str, standing: Standing) -> None:
        """See `Progress`."""
        self._line(f"[{label.number}] {label.host}: {outcome} | {standing}")


@dataclass
class _HostLine:
    label: LaunchLabel
    phase: str = ""
    since: float = field(default=0.0)


class LiveProgress:
    """A terminal's view: finished launches scroll by, a line for each host changes in place."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._lines: dict[str, _HostLine] = {}
        self._standing = ""
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for host, line in self._lines.items():
            seconds = self._clock() - line.since
            table.add_row(
                Text(f"{host} [{line.label.number}]", style="bold"),
                Text(line.phase, style="cyan"),
                Text(f"{seconds:.0f} s"),
                Text(str(line.label), overflow="ellipsis", no_wrap=True),
            )
        return Group(table, Text(self._standing, style="dim"))

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style))

    def say(self, message: str) -> None:
        """See `Progress`."""
        self._print(message)

    def began(self, label: LaunchLabel) -> None:
        """See `Progress`."""
        self._lines[label.host] = _HostLine(label, "", self._clock())

    def phase(self, host: str, phase: Phase, detail: str = "") -> None:
        """See `Progress`."""
        if host in self._lines:
            line = self._lines[host]
            if not line.phase.startswith(phase.value):
                line.since = self._clock()
            line.phase = f"{phase.value}: {detail}" if detail else phase.value

    def ended(self, label: LaunchLabel, outcome: str, standing: Standing) -> None:
        """See `Progress`."""
        self._lines.pop(label.host, None)
        self._standing = str(standing)
        self._print(f"{label.number:>3}  {outcome:<24}  {label}")
