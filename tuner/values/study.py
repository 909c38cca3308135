"""The specification of a study: everything that decides what it does, as read from its files.

The whole of it is stored in the database, so that a study resumes with nothing but that. Secrets are not part of
it: a value ``$NAME`` in a study file stays a reference and is looked up when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.values.host import HostAddress
from tuner.values.launch import LaunchBase
from tuner.values.workload import Workload


@dataclass(frozen=True)
class HostSpec:
    """A host of the study: an address, or a simulated host that is started on demand.

    Attributes:
        address: how to reach it.
        simulated: preset of a simulated host; the address is then filled in when it has been started.
        port: HTTP port of the server on the host's loopback; ``None``: a free one, chosen for each launch.
    """

    address: HostAddress
    simulated: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class EngineSpec:
    """The engine and how it is launched.

    Attributes:
        name: which adapter, such as ``sglang``.
        launch: the control.
        start_deadline_s: longest time from start to ready.
        no_progress_s: longest silence of the log while starting.
        stop_grace_s: from TERM to KILL.
        lease_s: how long a server lives on when nobody renews its lease.
    """

    name: str
    launch: LaunchBase
    start_deadline_s: float = 1800.0
    no_progress_s: float = 600.0
    stop_grace_s: float = 60.0
    lease_s: float = 60.0


@dataclass(frozen=True)
class Budget:
    """What a study may spend.

    Attributes:
        launches: starts of a server, all roles together; lost and interrupted ones are counted apart.
        hours: wall-clock time over all its runs; ``None``: no limit.
        lost_launches: launches lost to the infrastructure before the study stops.
    """

    launches: int
    hours: float | None = None
    lost_launches: int = 5


@dataclass(frozen=True)
class StageSpec:
    """One stage: a space and an objective.

    Attributes:
        name: such as ``baseline``; the Optuna study is called ``NAME/1-baseline``.
        space: the text of the search space file; its fingerprint decides whether a resume is the same study.
        space_name: the file's name, for messages and reports.
        objective: the text of the objective file.
        objective_name: the file's name.
        confirmation_launches: launches kept for the end: half for the winner, half for the control.
        seed: of the sampler.
    """

    name: str
    space: str
    space_name: str
    objective: str
    objective_name: str
    confirmation_launches: int = 6
    seed: int = 0


@dataclass(frozen=True)
class StudySpec:
    """A study file, whole."""

    name: str
    hosts: tuple[HostSpec, ...]
    engine: EngineSpec
    workload: Workload
    budget: Budget
    stages: tuple[StageSpec, ...]
