"""What a search was started with, so that it is not resumed with something else unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from tuner.space.distribution import Categorical
from tuner.space.offered import OfferedSpace
from tuner.space.parameter import Parameter
from tuner.values.measurement import Direction


class Objective(Protocol):
    """What the search needs of an objective; `tuner.documents.objective.Objective` has it."""

    @property
    def metric(self) -> str:
        """Name of the metric."""
        ...

    @property
    def direction(self) -> Direction:
        """Which way is better."""
        ...

    @property
    def unit(self) -> str:
        """The metric's unit, for people."""
        ...

    @property
    def constraints(self) -> tuple[str, ...]:
        """A name for each constraint."""
        ...


@dataclass(frozen=True)
class Specification:
    """Objective and space of a search, as words.

    The space is the one *offered*: with the same file, a host whose NCCL was upgraded offers another one.

    Attributes:
        objective: what is measured, which way and within what.
        space: parameter, rule or named configuration → what it is.
    """

    objective: Mapping[str, str]
    space: Mapping[str, str]

    @classmethod
    def of(cls, objective: Objective, space: OfferedSpace) -> Specification:
        """The specification of a search about to start."""
        described = {parameter.name: _described(parameter) for parameter in space.parameters}
        described |= {f"rule {rule.expression}": "holds" for rule in space.rules}
        described |= {f"try first '{entry.name}'": str(space.configuration(entry.values)) for entry in space.first}
        return cls(
            {
                "metric": objective.metric,
                "direction": objective.direction,
                "unit": objective.unit,
                "constraints": "; ".join(objective.constraints) or "none",
            },
            described,
        )

    @property
    def json(self) -> str:
        """As stored; `from_json` reads it."""
        return json.dumps({"objective": dict(self.objective), "space": dict(self.space)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Specification:
        """The inverse of `json`."""
        data = json.loads(text)
        return cls(data["objective"], data["space"])

    @property
    def fingerprint(self) -> str:
        """Equal for equal specifications; the order of parameters and rules does not count."""
        parts = {"objective": dict(self.objective), "space": dict(self.space)}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def differences(self, new: Specification) -> tuple[str, ...]:
        """One line for each difference: what it was, what it is in the new one."""
        pairs = chain(
            _changes("objective: ", self.objective, new.objective), _changes("space: ", self.space, new.space)
        )
        return tuple(pairs)


def _described(parameter: Parameter) -> str:
    """A parameter's values, kinds and all, its condition and what it is without.

    ``1``, ``1.0`` and ``true`` are three values.
    """
    distribution = parameter.distribution
    values = json.dumps(distribution.values) if isinstance(distribution, Categorical) else repr(distribution)
    unset = " or unset" if parameter.may_be_unset else ""
    when = f" when {parameter.when}" if parameter.when else ""
    otherwise = f" otherwise {parameter.otherwise}" if parameter.otherwise else ""
    return f"{parameter.kind} {values}{unset}{when}{otherwise}"


def _changes(prefix: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    names = [*old, *(name for name in new if name not in old)]
    return [
        f"{prefix}{name}: {old.get(name, 'absent')} → {new.get(name, 'absent')}"
        for name in names
        if old.get(name) != new.get(name)
    ]
