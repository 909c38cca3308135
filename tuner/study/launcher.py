"""A launch on behalf of a stage: written down before it begins, stored as it ends, made again when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tuner.documents.objective import Objective
from tuner.errors import ForeignServer, HostLost, HostRefused, InputError, LaunchFailed
from tuner.launch import finish
from tuner.ports import Server, Target
from tuner.search.search import Proposal
from tuner.store.rows import StoredLaunch
from tuner.study.journal import HostJournal
from tuner.study.progress import LaunchLabel, Progress
from tuner.study.stage import Stage
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure
from tuner.values.host import HostFacts
from tuner.values.launch import Role
from tuner.values.measurement import Measurement, TunnelLag

LAG_FACTOR = 5
"""A latency constraint must be this many times coarser than the lag of the port-forward that it is measured through."""
LOST_IN_A_ROW = 3
LONGEST_PAUSE_S = 30.0
"""Between launches of a job that is lost again and again."""


@dataclass(frozen=True)
class Worker:
    """A host of the study, ready for launches."""

    name: str
    target: Target
    journal: HostJournal
    facts: HostFacts


@dataclass(frozen=True)
class Job:
    """A launch to make."""

    role: Role
    configuration: Configuration
    proposal: Proposal | None = None

    @property
    def trial(self) -> int | None:
        """Optuna's number; ``None`` for a launch that is no trial."""
        return self.proposal.number if self.proposal is not None else None


class Launcher:
    """Makes the launches of a stage.

    Args:
        hosts: how many work side by side, for the time left.
        pause: sleeps between attempts on a lost host.
    """

    def __init__(
        self, stage: Stage, progress: Progress, hosts: int, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._stage = stage
        self._store = stage.store
        self._progress = progress
        self._hosts = hosts
        self._pause = pause

    async def launch(self, worker: Worker, job: Job) -> StoredLaunch:
        """Launches until nothing takes the launch away; returns it as stored, measured or failed.

        Raises:
            BudgetSpent: no launch is left, or too many were lost.
            HostLost: `LOST_IN_A_ROW` launches were lost, one after the other: something is wrong with the host.
            ForeignServer, HostRefused: the host cannot be used; stored with the launch.
            InputError: the objective asks for what cannot be measured through this host's port-forward.
        """
        attempt = 0
        while True:
            row = await self._once(worker, job)
            if row.spent:
                return row
            if attempt + 1 >= LOST_IN_A_ROW:
                raise HostLost(worker.name, f"{LOST_IN_A_ROW} launches in a row were lost, the last: {row.failure}")
            await self._pause(min(LONGEST_PAUSE_S, 2.0**attempt))
            attempt += 1

    async def _once(self, worker: Worker, job: Job) -> StoredLaunch:
        begun = self._store.begin_launch(
            self._stage.study.id,
            stage=self._stage.spec.name,
            host=worker.name,
            role=job.role,
            configuration=job.configuration,
            trial=job.trial,
            budget=self._stage.study.spec.budget,
        )
        number = self._store.counts(self._stage.study.id).spent
        label = LaunchLabel(worker.name, number, job.role, job.trial, job.configuration)
        worker.journal.open(begun)
        self._progress.began(label)
        ending = await self._ending(worker, job, begun)
        if isinstance(ending, Failure):
            row = self._store.end_launch(begun.id, failure=ending)
        else:
            row = self._store.end_launch(begun.id, measurement=ending)
        self._progress.ended(label, self._words(row), self._stage.standing(self._hosts))
        if isinstance(ending, Measurement) and ending.tunnel_lag is not None:
            check_lag(self._stage.objective, worker.name, ending.tunnel_lag)
        return row

    async def _ending(self, worker: Worker, job: Job, begun: StoredLaunch) -> Measurement | Failure:
        """What the launch gave. Errors that end the study are stored with the launch, then raised."""
        try:
            return await self._measure(worker, job)
        except LaunchFailed as error:
            return error.failure
        except HostLost as error:
            return error.failure(worker.journal.phase.value)
        except ForeignServer as error:
            self._store.end_launch(begun.id, failure=error.failure)
            raise
        except HostRefused as error:
            self._store.mark_lost(begun.id, str(error))
            raise
        except asyncio.CancelledError:
            self._store.mark_interrupted(begun.id, "the study was stopped while this launch was under way")
            raise

    async def _measure(self, worker: Worker, job: Job) -> Measurement:
        server = await worker.target.launch(job.configuration)
        try:
            measurement = await server.measure(self._stage.study.spec.workload)
        except BaseException:
            await finish(stop_after_failure(server))
            raise
        await finish(server.stop())
        return measurement

    def _words(self, row: StoredLaunch) -> str:
        """How a launch ended, in words."""
        value = self._stage.value(row)
        if value is not None:
            return f"{value:.2f} {self._stage.objective.unit}"
        if row.failure is None:
            return f"measured, but not {self._stage.objective.metric}"
        return f"{row.outcome}: {row.failure}"


async def stop_after_failure(server: Server) -> None:
    """Stops a server whose measurement failed; a lost host is no second error."""
    try:
        await server.stop()
    except HostLost:
        return


def check_lag(objective: Objective, host: str, lag: TunnelLag) -> None:
    """Refuses a latency constraint that the way through SSH cannot resolve.

    Raises:
        InputError: a bound is finer than `LAG_FACTOR` times the port-forward's lag.
    """
    least = LAG_FACTOR * lag.p99_s
    problems = [
        f"{objective.name}: constraint {rule!r} asks for {bound * 1e3:.3g} ms, but host {host} is reached through an "
        f"SSH port-forward whose own lag is {lag.p99_s * 1e3:.3g} ms at p99 (n = {lag.samples}); nothing finer than "
        f"{LAG_FACTOR} times that can be told. Ask for at least {least:.3g} s, or run the tuner nearer to the host; "
        f"then give the same command with --accept-changes."
        for rule, bound in objective.latency_bounds()
        if bound < least
    ]
    if problems:
        raise InputError(problems)
