"""How a study ended, as stored with it and printed."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.study.verdict import Claim, Interval


@dataclass(frozen=True)
class StageResult:
    """The end of one stage.

    Attributes:
        interval: from confirmation launches alone; ``None`` when none were made.
        configuration: key of the winner (`Configuration.key`); for anything but *faster* the control's.
        search_value: what the search had measured for the candidate: the luckiest of many, told apart.
        confirmed_value: geometric mean of its confirmation launches.
        control_value: geometric mean of the control's.
        sentence: the verdict in words.
        notes: what else a reader must know, a sentence each.
        confirmed: key of the configuration that was launched again; ``None`` when none was.
        searched: its key as the search measured it, with what was left out of it since.
    """

    stage: str
    claim: Claim
    interval: Interval | None
    configuration: str
    search_value: float | None
    confirmed_value: float | None
    control_value: float | None
    sentence: str
    notes: tuple[str, ...] = ()
    confirmed: str | None = None
    searched: str | None = None


@dataclass(frozen=True)
class StudyResult:
    """The end of a study: one result for each stage."""

    stages: tuple[StageResult, ...]
