"""What Optuna is told about a trial."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RULES = "rules"
"""Constraint: number of rules of the space that the configuration breaks."""

LAUNCH = "launch"
"""Constraint: the launch gave no number, by the configuration's fault."""

MAX_ATTRIBUTE = 1000
"""Characters of a user attribute: optuna-dashboard 0.21 cuts some at 1024."""


@dataclass(frozen=True)
class Outcome:
    """The end of a trial, settled before any of it is written, so that a killed driver's half can be finished.

    Attributes:
        measured: the objective's value; ``None``: there is none, the configuration failed.
        value: what Optuna gets; for a failure the worst value measured so far; ``None`` while nothing was measured.
        constraints: every constraint of the study, > 0 where violated.
        attributes: what the dashboard shows, beside values and parameters.
    """

    measured: float | None
    value: float | None
    constraints: Mapping[str, float]
    attributes: Mapping[str, str]

    @property
    def feasible(self) -> bool:
        """No constraint is violated."""
        return feasible(self.constraints)

    @property
    def json(self) -> str:
        """As stored; `from_json` reads it."""
        return json.dumps(
            {
                "measured": self.measured,
                "value": self.value,
                "constraints": dict(self.constraints),
                "attributes": dict(self.attributes),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """The inverse of `json`."""
        return cls(**json.loads(text))


def feasible(constraints: Mapping[str, float]) -> bool:
    """Whether no constraint is violated, by Optuna's convention: > 0 is."""
    return all(value <= 0 for value in constraints.values())


def settled(
    measured: float | None,
    constraints: Mapping[str, float],
    attributes: Mapping[str, str],
    names: Sequence[str],
    earlier: Sequence[Outcome],
    maximize: bool,
) -> Outcome:
    """The outcome of a trial from what its launch gave.

    A failure is told as the worst value measured so far, and made to violate more than every measured trial does:
    samplers rank infeasible trials by the sum of their violations, whose units differ, and a configuration that
    does not start must not look better than one that runs 20 tok/s too slow.

    Args:
        measured: the objective's value; ``None`` for a failure.
        constraints: > 0 where violated. For a failure, `LAUNCH` is violated unless something else is.
        names: of the objective's constraints.
        earlier: outcomes of the study so far.
        maximize: which way is better.

    Raises:
        ValueError: a number is not finite, a name is unknown, or a measured trial lacks one of the objective's.
    """
    known = (RULES, LAUNCH, *names)
    numbers = {"value": 0.0 if measured is None else measured, **constraints}
    if wrong := [f"{name} = {number}" for name, number in numbers.items() if not math.isfinite(number)]:
        raise ValueError(f"only finite numbers can be told to the search: found {', '.join(wrong)}")
    if unknown := [name for name in constraints if name not in known]:
        raise ValueError(f"unknown constraints {unknown}: the study has {list(known)}")
    if measured is not None and (missing := [name for name in names if name not in constraints]):
        raise ValueError(f"a measured trial must say how far it is from {missing}")
    full = {name: float(constraints.get(name, 0.0)) for name in known}
    value = measured
    if measured is None:
        values = [outcome.measured for outcome in earlier if outcome.measured is not None]
        value = (min(values) if maximize else max(values)) if values else None
        cause = max((RULES, LAUNCH), key=lambda name: full[name]) if not feasible(full) else LAUNCH
        full[cause] = max(1.0, full[cause]) + max((_violation(o) for o in earlier if o.measured is not None), default=0)
    words = {
        name: text if len(text) <= MAX_ATTRIBUTE else f"{text[: MAX_ATTRIBUTE - 1]}…"
        for name, text in attributes.items()
    }
    words |= {f"constraint {name}": _in_words(constraints.get(name, 0.0), full[name]) for name in known}
    words["feasible"] = "yes" if feasible(full) else "no"
    return Outcome(measured, value, full, words)


def _violation(outcome: Outcome) -> float:
    """By how much an outcome violates constraints, as samplers add it up."""
    return sum(value for value in outcome.constraints.values() if value > 0)


def _in_words(given: float, told: float) -> str:
    if told <= 0:
        return "holds" if told == 0 else f"holds, {-told:.6g} to spare"
    return f"violated by {given:.6g}" if given > 0 else "violated"
