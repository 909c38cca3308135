"""Live progress on stderr: a line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
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

    @property
    def what(self) -> str:
        """``trial 7``, or the role of a launch that is no trial."""
        return f"trial {self.trial}" if self.trial is not None else self.role.value

    def __str__(self) -> str:
        return f"{self.what}: {self.configuration}"


@dataclass(frozen=True)
class Standing:
    """How the study stands: numbers are in the metric's unit.

    Attributes:
        spent: launches that count against the budget; those lost or interrupted do not.
        best: of the search, the control included.
    """

    spent: int
    budget: int
    lost: int
    best: float | None
    best_label: str
    control: float | None
    unit: str
    seconds_left: float | None
    interrupted: int = 0

    @property
    def words(self) -> tuple[str, ...]:
        """What there is to say, a few words each."""
        words = [f"launches {self.spent}/{self.budget}"]
        if self.lost:
            words.append(f"lost {self.lost}")
        if self.interrupted:
            words.append(f"interrupted {self.interrupted}")
        if self.control is not None:
            words.append(f"control {self.control:.1f} {self.unit}")
        if self.best is not None and self.best != self.control:  # else it is the control itself
            against = f" ({self.best / self.control:.2f} ×)" if self.control else ""
            words.append(f"best so far {self.best:.1f} {self.unit}{against} by {self.best_label}")
        if self.seconds_left is not None:
            words.append(f"about {human_time(self.seconds_left)} left")
        return tuple(words)

    def __str__(self) -> str:
        return " · ".join(self.words)


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


def lines_of(words: Iterable[str], width: int) -> list[str]:
    """The words with dots between them, in lines no wider than the screen where no single one is."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 3 <= width:
            lines[-1] += f" · {word}"
        else:
            lines.append(word)
    return lines


VALUE_WIDTH = 14
"""Columns for a launch's value with its unit, or one word: ``12345.67 tok/s``, ``failed``."""


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


DOING: dict[Phase, str] = {
    Phase.CLEAN: "looking at the host",
    Phase.START: "starting",
    Phase.READY: "loading",
    Phase.TOOK_EFFECT: "checking settings",
    Phase.WARM_UP: "warming up",
    Phase.MEASURE: "measuring",
    Phase.CANARIES: "comparing outputs",
    Phase.STOP: "stopping",
}
"""A phase as what a host is doing: in phase *ready* it is waited for."""


@dataclass
class _HostLine:
    label: LaunchLabel
    phase: Phase | None = None
    detail: str = ""
    since: float = 0.0
    ended: bool = False


class LiveProgress:
    """A terminal's view: finished launches scroll by, a line for each host changes in place."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._lines: dict[str, _HostLine] = {}
        self._standing: tuple[str, ...] = ()
        self._live = Live(console=console, get_renderable=self.__rich__, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __rich__(self) -> Group:
        """A line for each host, none wider than the screen, and how the study stands; nothing before the first."""
        if not self._lines:
            return Group()
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        # Fixed widths: a column that grows and shrinks with its text would make the whole line jump.
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=20, style="bold")
        table.add_column(no_wrap=True, overflow="ellipsis", width=24, style="cyan")
        table.add_column(no_wrap=True, width=5, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for host, line in self._lines.items():
            # A host keeps its line between two launches, so that what is below it stays where it is.
            doing = "" if line.phase is None else DOING[line.phase]
            table.add_row(
                Text(f"{host} [{line.label.number}]"),
                Text("" if line.ended else f"{doing}: {line.detail}" if line.detail else doing),
                Text("" if line.ended else f"{self._clock() - line.since:.0f} s"),
                Text("" if line.ended else str(line.label)),
            )
        return Group(table, *(Text(line, style="dim") for line in lines_of(self._standing, self._console.width)))

    def say(self, message: str) -> None:
        """See `Progress`."""
        self._console.print(Text(message))

    def began(self, label: LaunchLabel) -> None:
        """See `Progress`."""
        self._lines[label.host] = _HostLine(label, since=self._clock())

    def phase(self, host: str, phase: Phase, detail: str = "") -> None:
        """See `Progress`."""
        if host in self._lines:
            line = self._lines[host]
            if line.phase is not phase:
                line.since = self._clock()
            line.phase, line.detail = phase, detail

    def ended(self, label: LaunchLabel, outcome: str, standing: Standing) -> None:
        """See `Progress`. What is too long for the column of values goes below, indented."""
        if label.host in self._lines:
            self._lines[label.host].ended = True
        self._standing = standing.words
        short, _, detail = (outcome, "", "") if len(outcome) <= VALUE_WIDTH else outcome.partition(": ")
        if len(short) > VALUE_WIDTH:
            short, detail = "", outcome
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(no_wrap=True, min_width=3, justify="right")
        row.add_column(no_wrap=True, width=max(len(role) for role in Role))
        row.add_column(no_wrap=True, width=VALUE_WIDTH, justify="right")
        row.add_column(overflow="fold")
        row.add_row(
            Text(str(label.number)),
            Text(label.what),
            Text(short, style="red" * bool(detail)),
            Text(str(label.configuration)),
        )
        self._console.print(row)
        if detail:
            self._console.print(Padding(Text(detail), (0, 0, 0, 5)))
