"""The objective: which metric counts, which way, and within what.

objective = load_objective(text, "objectives/throughput.yaml")
objective.violations({"output_tok_s": 61.0, "ttft_p50_s": 0.4}, baseline=60.0)      # () or one number a constraint
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from pydantic import Field

from tuner.documents.complaints import did_you_mean
from tuner.documents.names import Name
from tuner.documents.reading import Document, read_with_places
from tuner.errors import InputError
from tuner.space.rules import parse_comparison
from tuner.values.measurement import METRICS, Direction, Metric

BASELINE = "baseline"
"""In a constraint: the control's value of the objective's metric, as in ``output_tok_s >= 1.0 * baseline``."""


@dataclass(frozen=True)
class Objective:
    """What a study tries to improve.

    Attributes:
        name: such as ``throughput``.
        metric: a name of `tuner.values.measurement.METRICS`.
        direction: which way is better.
        unit: the metric's, for reports.
        constraints: comparisons that a measurement must keep to be feasible, such as ``ttft_p50_s <= 1.5``. Names are
            metrics and `BASELINE`; the grammar is that of `tuner.space.rules`.
        margin: practical equivalence: a relative difference up to this is called none.
    """

    name: str
    metric: str
    direction: Direction
    unit: str
    constraints: tuple[str, ...] = ()
    margin: float = 0.01

    def violations(self, metrics: Mapping[str, float], baseline: float | None = None) -> tuple[float, ...]:
        """How far each constraint is from holding: ≤ 0 when it holds, in the unit of its sides.

        Args:
            metrics: of one measurement. One that is missing violates nothing.
            baseline: the control's value of the objective's metric; ``None`` while it is not known.
        """
        values = {**metrics, BASELINE: baseline}
        return tuple(parse_comparison(rule, _names()).violation(values) for rule in self.constraints)

    def latency_bounds(self) -> tuple[tuple[str, float], ...]:
        """(constraint, seconds) for each constraint that bounds a latency from above by a number."""
        bounds = []
        for rule in self.constraints:
            comparison = parse_comparison(rule, _names())
            used = comparison.names
            if used and all(name in METRICS and METRICS[name].unit == "s" for name in used):
                bound = -comparison.violation(dict.fromkeys(used, 0.0))
                if bound > 0:
                    bounds.append((rule, bound))
        return tuple(bounds)


class _Document(Document):
    """The file. Defaults: the metric's own direction, no constraints, a margin of one percent."""

    metric: str
    name: Name | None = None
    direction: Literal["maximize", "minimize"] | None = None
    constraints: tuple[str, ...] = Field(default=(), max_length=20)
    margin: float = Field(default=Objective.margin, ge=0, lt=1)


def load_objective(text: str, source: str) -> Objective:
    """Reads an objective.

    Args:
        source: the file's name, for messages, and for the objective's name where the file gives none.

    Raises:
        InputError: with all problems of the text, each with its line.
    """
    document, places = read_with_places(text, _Document, source)
    metric = METRICS.get(document.metric)
    if metric is None:
        known = f"one of {', '.join(METRICS)}{did_you_mean(document.metric, METRICS)}"
        raise InputError(places.problem(("metric",), f"found the unknown metric {document.metric!r}, expected {known}"))
    problems = []
    if document.direction not in (None, metric.direction):
        problems.append(
            places.problem(
                ("direction",),
                f"found {document.direction}, expected {metric.direction}, as {metric.name} means {metric.meaning}; "
                f"leave the key out",
            )
        )
    for index, rule in enumerate(document.constraints):
        if problem := _problem(rule, metric):
            problems.append(places.problem(("constraints", index), problem))
    if problems:
        raise InputError(problems)
    return Objective(
        name=document.name or PurePath(source).stem,
        metric=metric.name,
        direction=metric.direction,
        unit=metric.unit,
        constraints=document.constraints,
        margin=document.margin,
    )


def _problem(rule: str, metric: Metric) -> str | None:
    """What is wrong with a constraint."""
    try:
        used = parse_comparison(rule, _names()).names
    except InputError as error:
        return str(error)
    if not used & set(METRICS):
        return f"found no metric in {rule!r}, expected one of {', '.join(METRICS)}"
    if BASELINE in used and used != {BASELINE, metric.name}:
        others = ", ".join(sorted(used - {BASELINE, metric.name}))
        return (
            f"found '{BASELINE}' beside {others or 'nothing'} in {rule!r}, expected it beside {metric.name} alone: "
            f"it is the control's {metric.name}"
        )
    return None


def _names() -> set[str]:
    """What a constraint may name."""
    return {*METRICS, BASELINE}
