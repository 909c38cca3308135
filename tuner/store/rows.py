"""What the store hands out: frozen values, no longer tied to the database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tuner.store.tables import LaunchRow, PhaseRow, StudyRow
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass, Fault
from tuner.values.json import from_json
from tuner.values.launch import Phase, Role
from tuner.values.study import StudySpec


class StudyState(StrEnum):
    """What a study is doing, as far as the database knows. A killed driver leaves ``running`` behind."""

    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"


class Outcome(StrEnum):
    """How a launch ended.

    LOST: the infrastructure took it, counted against `Budget.lost_launches`. INTERRUPTED: the user stopped it, or its
    driver died; counted against nothing. Both are kept as rows, never told to the sampler, and made again.
    """

    MEASURED = "measured"
    FAILED = "failed"
    LOST = "lost"
    INTERRUPTED = "interrupted"

    @classmethod
    def of(cls, failure: Failure) -> Outcome:
        """*Failed* by the configuration's fault, *interrupted* by nobody's, *lost* by anybody else's."""
        match failure.fault:
            case Fault.CONFIGURATION:
                return cls.FAILED
            case Fault.INTERRUPTION:
                return cls.INTERRUPTED
            case Fault.INFRASTRUCTURE | Fault.FOREIGN:
                return cls.LOST


@dataclass(frozen=True)
class StoredStudy:
    """A study as stored.

    Attributes:
        result: JSON of how it ended; ``None`` while it has not.
        spent_s: seconds spent over all its runs.
    """

    id: int
    name: str
    spec: StudySpec
    state: StudyState
    result: str | None
    created_unix_s: float
    updated_unix_s: float
    spent_s: float

    @classmethod
    def of(cls, row: StudyRow) -> StoredStudy:
        """The value of a row."""
        return cls(
            id=row.id,
            name=row.name,
            spec=from_json(StudySpec, row.spec),
            state=StudyState(row.state),
            result=row.result,
            created_unix_s=row.created,
            updated_unix_s=row.updated,
            spent_s=row.spent_s,
        )


@dataclass(frozen=True)
class StoredLaunch:
    """A launch as stored.

    Attributes:
        trial: number of the Optuna trial that it serves; ``None`` for a control or a confirmation.
        nonce: what marks its processes; in the database before they are started.
        ended_unix_s: ``None`` while it has no outcome.
        failure: for an outcome other than *measured*.
        metrics: of its windows; empty unless measured.
        command: the command line as shown to people, secrets masked; empty until it is known.
        pid: of the server's parent process; with `start_ticks` and `boot_id` its identity. ``None`` until started.
    """

    id: int
    study_id: int
    stage: str
    host: str
    role: Role
    configuration: Configuration
    trial: int | None
    nonce: str
    started_unix_s: float
    ended_unix_s: float | None
    outcome: Outcome | None
    failure: Failure | None
    metrics: Mapping[str, float]
    command: str
    pid: int | None
    start_ticks: int | None
    boot_id: str | None

    @property
    def spent(self) -> bool:
        """Whether it counts against `Budget.launches`: under way, measured or failed. Others are made again."""
        return self.outcome not in (Outcome.LOST, Outcome.INTERRUPTED)

    @classmethod
    def of(cls, row: LaunchRow) -> StoredLaunch:
        """The value of a row."""
        return cls(
            id=row.id,
            study_id=row.study_id,
            stage=row.stage,
            host=row.host,
            role=Role(row.role),
            configuration=Configuration.from_key(row.configuration),
            trial=row.trial,
            nonce=row.nonce,
            started_unix_s=row.started,
            ended_unix_s=row.ended,
            outcome=None if row.outcome is None else Outcome(row.outcome),
            failure=_failure(row),
            metrics=json.loads(row.metrics) if row.metrics else {},
            command=row.command,
            pid=row.pid,
            start_ticks=row.start_ticks,
            boot_id=row.boot_id,
        )


def _failure(row: LaunchRow) -> Failure | None:
    if row.failure_class is None:
        return None
    return Failure(
        failure_class=FailureClass(row.failure_class),
        phase=row.failure_phase or "",
        evidence=row.evidence or "",
        remedy=row.remedy or "",
        exit_status=row.exit_status,
        log_tail=row.log_tail or "",
    )


@dataclass(frozen=True)
class StoredPhase:
    """A phase of a launch as stored; `ended_unix_s` is ``None`` for the one under way, or cut short."""

    phase: Phase
    begun_unix_s: float
    ended_unix_s: float | None
    evidence: Mapping[str, Any]

    @classmethod
    def of(cls, row: PhaseRow) -> StoredPhase:
        """The value of a row."""
        return cls(Phase(row.phase), row.begun, row.ended, json.loads(row.evidence))


@dataclass(frozen=True)
class LaunchCounts:
    """How many launches of a study ended in which way."""

    under_way: int
    measured: int
    failed: int
    lost: int
    interrupted: int

    @property
    def spent(self) -> int:
        """What counts against `Budget.launches`: all but the lost and the interrupted."""
        return self.under_way + self.measured + self.failed
