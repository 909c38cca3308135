"""One stage of a study as the database knows it: what was launched, what it gave, what is left to spend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.documents.objective import Objective
from tuner.store.rows import Outcome, StoredLaunch, StoredStudy
from tuner.store.store import Store
from tuner.study.ledger import CONTROL, Tally, ranked, tallies, values_of
from tuner.study.progress import Standing
from tuner.study.verdict import without_effect
from tuner.values.configuration import Configuration
from tuner.values.launch import Role
from tuner.values.study import StageSpec


@dataclass(frozen=True)
class Stage:
    """Reads one stage. Holds nothing of its own: what it answers is what a resumed study would read.

    Attributes:
        launches: how many launches this stage may have begun in all, confirmation included.
        seconds_left: how much of the study's time is left; ``None``: no limit.
    """

    store: Store
    study: StoredStudy
    spec: StageSpec
    objective: Objective
    launches: int
    seconds_left: Callable[[], float | None] = lambda: None

    @property
    def maximize(self) -> bool:
        """Whether more of the metric is better."""
        return self.objective.direction == "maximize"

    def rows(self) -> tuple[StoredLaunch, ...]:
        """All launches of the stage, in order."""
        return self.store.launches(self.study.id, self.spec.name)

    def begun(self, *, search_only: bool = False) -> int:
        """Launches that count against the budget: all but the lost and the interrupted."""
        return sum(row.spent and not (search_only and row.role is Role.CONFIRMATION) for row in self.rows())

    def value(self, row: StoredLaunch) -> float | None:
        """The metric of a launch; ``None`` when it gave none."""
        return row.metrics.get(self.objective.metric)

    def control_values(self) -> tuple[float, ...]:
        """The metric of the control's launches in the search."""
        return values_of(self.rows(), self.objective.metric, CONTROL, (Role.CONTROL,))

    def confirmed(self, configuration: Configuration) -> tuple[float, ...]:
        """The metric of a configuration's confirmation launches."""
        return values_of(self.rows(), self.objective.metric, configuration, (Role.CONFIRMATION,))

    def failed_when_confirmed(self) -> frozenset[str]:
        """Keys of configurations that failed in a confirmation launch."""
        return frozenset(
            row.configuration.key
            for row in self.rows()
            if row.role is Role.CONFIRMATION and row.outcome is Outcome.FAILED
        )

    def violations(self, row: StoredLaunch) -> dict[str, float]:
        """How far each constraint of the objective is violated; 0 for those that cannot be judged."""
        rules = self.objective.constraints
        if row.outcome is not Outcome.MEASURED:
            return dict.fromkeys(rules, 0.0)
        control = self.control_values()
        violations = self.objective.violations(row.metrics, geometric_mean(control) if control else None)
        return dict(zip(rules, violations, strict=True))

    def ranked(self) -> tuple[Tally, ...]:
        """The feasible configurations of the search, best first."""
        rows = self.rows()
        violated = frozenset(
            row.configuration.key for row in rows if any(value > 0 for value in self.violations(row).values())
        )
        return ranked(tallies(rows, self.objective.metric, violated), maximize=self.maximize)

    def without_effect(self) -> bool:
        """Whether nothing that was measured differs from the control by more than the margin."""
        measured = [row.value for row in tallies(self.rows(), self.objective.metric, frozenset()) if row.values]
        return without_effect(measured, self.control_values(), self.objective.margin)

    def launch_seconds(self) -> float | None:
        """Mean length of the launches that ended; ``None`` before the first."""
        lengths = [
            row.ended_unix_s - row.started_unix_s for row in self.rows() if row.ended_unix_s is not None and row.spent
        ]
        return sum(lengths) / len(lengths) if lengths else None

    def time_for(self, launches: int) -> bool:
        """Whether the time that is left is enough for so many launches, as long as those before."""
        left = self.seconds_left()
        return left is None or left >= launches * (self.launch_seconds() or 0.0)

    def standing(self, hosts: int) -> Standing:
        """How things stand, for live progress."""
        best = self.ranked()
        counts = self.store.counts(self.study.id)
        control = self.control_values()
        each = self.launch_seconds()
        left = max(0, self.launches - self.begun())
        return Standing(
            spent=counts.spent,
            budget=self.study.spec.budget.launches,
            lost=counts.lost,
            interrupted=counts.interrupted,
            best=best[0].value if best else None,
            best_label=(f"trial {best[0].trial}" if best[0].trial is not None else "control") if best else "",
            control=geometric_mean(control) if control else None,
            unit=self.objective.unit,
            seconds_left=None if each is None else each * left / hosts,
        )


def geometric_mean(values: Sequence[float]) -> float:
    """The mean on the scale on which noise is relative."""
    return math.exp(sum(map(math.log, values)) / len(values))
