"""What a stage has measured so far, read from the launches in the database: the ground of every decision.

Pure functions of stored rows, so that a resumed study decides as an unbroken one would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.store.rows import Outcome, StoredLaunch
from tuner.values.configuration import Configuration
from tuner.values.launch import Role

CONTROL = Configuration()
"""The control: nothing set on top of the study file's launch."""


@dataclass(frozen=True)
class Tally:
    """One configuration and what its launches of the search gave.

    Attributes:
        values: the metric of each measured launch.
        failed: launches that failed by the configuration's fault.
        feasible: no launch failed and no constraint of the objective was violated.
        trial: the first trial that proposed it.
        host: where its best launch was made.
    """

    configuration: Configuration
    values: tuple[float, ...]
    failed: int
    feasible: bool
    trial: int | None
    host: str

    @property
    def value(self) -> float:
        """Geometric mean over its launches; NaN without one."""
        if not self.values:
            return math.nan
        return math.exp(sum(map(math.log, self.values)) / len(self.values))


def values_of(
    launches: Sequence[StoredLaunch], metric: str, configuration: Configuration, roles: Sequence[Role]
) -> tuple[float, ...]:
    """The metric of each measured launch of a configuration in the given roles, in order."""
    return tuple(
        launch.metrics[metric]
        for launch in launches
        if launch.configuration == configuration and launch.role in roles and metric in launch.metrics
    )


def tallies(launches: Sequence[StoredLaunch], metric: str, violated: frozenset[str]) -> tuple[Tally, ...]:
    """A tally for each configuration of the search, in the order of their first launch.

    Args:
        launches: of one stage.
        metric: the objective's.
        violated: keys of configurations that violate a constraint of the objective.
    """
    rows: dict[str, list[StoredLaunch]] = {}
    for launch in launches:
        if launch.role is not Role.CONFIRMATION and launch.outcome in (Outcome.MEASURED, Outcome.FAILED):
            rows.setdefault(launch.configuration.key, []).append(launch)
    result = []
    for key, group in rows.items():
        measured = [launch for launch in group if metric in launch.metrics]
        failed = sum(launch.outcome is Outcome.FAILED for launch in group)
        result.append(
            Tally(
                configuration=group[0].configuration,
                values=tuple(launch.metrics[metric] for launch in measured),
                failed=failed,
                feasible=bool(measured) and not failed and key not in violated,
                trial=next((launch.trial for launch in group if launch.trial is not None), None),
                host=(measured or group)[0].host,
            )
        )
    return tuple(result)


def ranked(rows: Sequence[Tally], *, maximize: bool) -> tuple[Tally, ...]:
    """The feasible tallies, best first; among equals the one with fewer settings."""
    feasible = [row for row in rows if row.feasible]
    sign = -1.0 if maximize else 1.0
    return tuple(sorted(feasible, key=lambda row: (sign * row.value, row.configuration.settings)))
