"""One stage of a study: propose, launch, measure, tell; then confirm the winner with fresh launches.

Every decision is made from what the database holds, so that a study that was killed goes on as if it had not been.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tuner.documents.objective import Objective
from tuner.errors import ForeignServer, HostLost, HostRefused, InputError, LaunchFailed, TunerError
from tuner.launch import finish
from tuner.ports import Server, Target
from tuner.search.search import Proposal, Search
from tuner.store.rows import Outcome, StoredLaunch, StoredStudy
from tuner.store.store import Store
from tuner.study.journal import HostJournal
from tuner.study.ledger import CONTROL, Tally, ranked, tallies, values_of
from tuner.study.progress import LaunchLabel, Progress, Standing
from tuner.study.result import StageResult
from tuner.study.verdict import Claim, compare, judge, launches_needed, without_effect
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, Fault
from tuner.values.host import HostFacts
from tuner.values.launch import Role
from tuner.values.measurement import Measurement, TunnelLag
from tuner.values.study import StageSpec

LAG_FACTOR = 5
"""A latency constraint must be this many times coarser than the lag of the port-forward that it is measured through."""
NO_LAUNCH_LIMIT = 50
"""Proposals in a row that cost no launch (rules broken, measured before) after which the space counts as searched."""

KEPT = (Outcome.MEASURED, Outcome.FAILED)
"""Outcomes that answer for a configuration."""

Vet = Callable[[Configuration], tuple[str, ...]]
"""Reasons why the engine would refuse or rewrite a configuration; empty if none. No host is touched."""

Simplify = Callable[[Configuration], tuple[Configuration, tuple[str, ...]]]
"""A configuration without settings that the engine never reads, and a sentence for each that was dropped."""


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


@dataclass(frozen=True)
class Ending:
    """How a launch ended: a measurement, or a failure."""

    measurement: Measurement | None = None
    failure: Failure | None = None

    @property
    def lost(self) -> bool:
        """Nobody's fault that can be held against the configuration."""
        return self.failure is not None and self.failure.fault is Fault.INFRASTRUCTURE


class ControlFailed(TunerError):
    """The launch of the study file itself gives no number: there is nothing to compare with."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure)

    def __str__(self) -> str:
        return (
            f"the control failed, the launch exactly as the study file gives it: {self.failure}\n"
            "Mend the engine's arguments or environment in the study file, then start afresh with --new."
        )


class StageRunner:
    """Runs one stage to its result.

    Args:
        launches: how many launches this stage may have begun in all, confirmation included.
        seconds_left: how much of the study's time is left; ``None``: no limit.
        pause: sleeps between attempts on a lost host.
    """

    def __init__(
        self,
        *,
        store: Store,
        study: StoredStudy,
        stage: StageSpec,
        launches: int,
        search: Search,
        objective: Objective,
        workers: Sequence[Worker],
        progress: Progress,
        vet: Vet = lambda _: (),
        simplify: Simplify = lambda configuration: (configuration, ()),
        seconds_left: Callable[[], float | None] = lambda: None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._study = study
        self._stage = stage
        self._launches = launches
        self._search = search
        self._objective = objective
        self._workers = workers
        self._progress = progress
        self._vet = vet
        self._simplify = simplify
        self._seconds_left = seconds_left
        self._pause = pause
        self._in_flight: set[int] = set()

    @property
    def _maximize(self) -> bool:
        return self._objective.direction == "maximize"

    def _rows(self) -> tuple[StoredLaunch, ...]:
        return self._store.launches(self._study.id, self._stage.name)

    # -- the whole -----------------------------------------------------------------------------------------------

    async def run(self) -> StageResult:
        """Search, then confirmation.

        Raises:
            ControlFailed: the control itself gives no number.
            ForeignServer, HostRefused, HostLost: a host cannot be used; the study can be resumed.
            BudgetSpent: too many launches were lost; the study can be resumed with a larger limit.
        """
        self._recover()
        self._check_control()
        await self._in_parallel(self._search_on, self._workers)
        return await self._confirm()

    def _recover(self) -> None:
        """Settles what a dead driver left: a measured launch is told; an unfinished one is lost, its trial is
        launched again."""
        rows = {row.trial: row for row in self._rows() if row.trial is not None and row.outcome in KEPT}
        for proposal in self._search.running():
            row = rows.get(proposal.number)
            if row is not None:
                self._tell(proposal, row)

    def _check_control(self) -> None:
        failed = [row.failure for row in self._rows() if row.role is Role.CONTROL and row.outcome is Outcome.FAILED]
        if failed and failed[-1] is not None and not self._control_values():
            raise ControlFailed(failed[-1])

    async def _in_parallel(self, work: Callable[[Worker], Awaitable[None]], workers: Sequence[Worker]) -> None:
        """Runs the work on each host; the first error ends the others, each after its server has stopped."""
        tasks = [asyncio.ensure_future(work(worker)) for worker in workers]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- search --------------------------------------------------------------------------------------------------

    async def _search_on(self, worker: Worker) -> None:
        while (job := self._next_search_job()) is not None:
            assert job.proposal is not None
            self._in_flight.add(job.proposal.number)
            try:
                row = await self._launch_until_kept(worker, job)
                self._tell(job.proposal, row)
            finally:
                self._in_flight.discard(job.proposal.number)
            self._check_control()

    def _next_search_job(self) -> Job | None:
        """The next proposal that deserves a launch; those that do not are told at once."""
        for _ in range(NO_LAUNCH_LIMIT):
            if self._search_spent():
                return None
            waiting = [p for p in self._search.running() if p.number not in self._in_flight]
            proposal = waiting[0] if waiting else self._search.ask()
            role = Role.CONTROL if proposal.configuration == CONTROL else Role.SEARCH
            reasons = tuple(proposal.broken_rules) or self._vet(proposal.configuration)
            if reasons:
                self._tell_refused(proposal, reasons)
                continue
            known = self._measured(proposal.configuration)
            if known is not None and proposal.number != known.trial:
                self._tell(proposal, known)
                continue
            return Job(role, proposal.configuration, proposal)
        self._progress.say(f"the last {NO_LAUNCH_LIMIT} proposals were measured before or break rules: space searched")
        return None

    def _search_spent(self) -> bool:
        begun = sum(row.outcome is not Outcome.LOST and row.role is not Role.CONFIRMATION for row in self._rows())
        if begun >= self._launches - self._stage.confirmation_launches:
            return True
        left = self._seconds_left()
        return left is not None and left < (self._stage.confirmation_launches + 1) * (self._launch_seconds() or 0.0)

    def _measured(self, configuration: Configuration) -> StoredLaunch | None:
        """The launch that already answers for a configuration in the search."""
        for row in self._rows():
            if row.configuration == configuration and row.outcome in KEPT:
                return row
        return None

    def _tell(self, proposal: Proposal, row: StoredLaunch) -> None:
        """Tells Optuna, once, what the launch of a proposal gave."""
        value = row.metrics.get(self._objective.metric)
        constraints = {"rules": 0.0, "launch": 0.0 if value is not None else 1.0}
        constraints |= self._violations(row)
        attributes = {"configuration": str(row.configuration), "host": row.host, "launch": row.nonce}
        if proposal.repeat_of is not None:
            attributes["repeat of trial"] = str(proposal.repeat_of)
        if row.failure is not None:
            attributes |= {"failure": row.failure.failure_class.value, "evidence": row.failure.evidence}
        self._search.tell(proposal.number, value=value, constraints=constraints, attributes=attributes)

    def _tell_refused(self, proposal: Proposal, reasons: Sequence[str]) -> None:
        constraints = {"rules": float(len(reasons)), "launch": 0.0} | dict.fromkeys(self._objective.constraints, 0.0)
        attributes = {
            "configuration": str(proposal.configuration),
            "failure": "refused before launch",
            "evidence": "; ".join(reasons),
        }
        self._search.tell(proposal.number, value=None, constraints=constraints, attributes=attributes)

    def _violations(self, row: StoredLaunch) -> dict[str, float]:
        """How far each constraint of the objective is violated; 0 for those that cannot be judged."""
        rules = self._objective.constraints
        if row.outcome is not Outcome.MEASURED:
            return dict.fromkeys(rules, 0.0)
        control = self._control_values()
        violations = self._objective.violations(row.metrics, geometric_mean(control) if control else None)
        return dict(zip(rules, violations, strict=True))

    # -- confirmation --------------------------------------------------------------------------------------------

    async def _confirm(self) -> StageResult:
        """Re-launches the best candidate and the control in turn, and judges from these launches alone."""
        while True:
            candidate, notes = self._candidate()
            if candidate is None:
                return self._nothing_better()
            worker = next((w for w in self._workers if w.name == candidate.host), self._workers[0])
            configuration = self._simplify(candidate.configuration)[0]
            failed = await self._confirm_on(worker, configuration)
            if not failed:
                return self._judged(candidate, configuration, notes)
            self._progress.say(f"{configuration} failed when it was launched again: it cannot win")

    def _candidate(self) -> tuple[Tally | None, tuple[str, ...]]:
        """The best configuration of the search that beats the control there and did not fail in confirmation."""
        rows = self._rows()
        control = self._control_values()
        failed = {
            row.configuration.key for row in rows if row.role is Role.CONFIRMATION and row.outcome is Outcome.FAILED
        }
        for tally in ranked(tallies(rows, self._objective.metric, self._violated_keys(rows)), maximize=self._maximize):
            simple, notes = self._simplify(tally.configuration)
            if simple == CONTROL or simple.key in failed:
                continue
            if control and compare(tally.values, control, maximize=self._maximize).ratio <= 1:
                return None, ()
            return tally, notes
        return None, ()

    def _violated_keys(self, rows: Sequence[StoredLaunch]) -> frozenset[str]:
        return frozenset(
            row.configuration.key
            for row in rows
            if row.outcome is Outcome.MEASURED and any(value > 0 for value in self._violations(row).values())
        )

    async def _confirm_on(self, worker: Worker, configuration: Configuration) -> bool:
        """Launches candidate and control until each has its share; true when the candidate failed."""
        share = self._stage.confirmation_launches // 2
        while True:
            rows = [row for row in self._rows() if row.role is Role.CONFIRMATION and row.outcome is not Outcome.LOST]
            done = {c.key: sum(row.configuration == c for row in rows) for c in (configuration, CONTROL)}
            if any(row.configuration == configuration and row.outcome is Outcome.FAILED for row in rows):
                return True
            left = self._seconds_left()
            spent = sum(row.outcome is not Outcome.LOST for row in self._rows()) >= self._launches
            if min(done.values()) >= share or spent or (left is not None and left < (self._launch_seconds() or 0.0)):
                return False
            # Random order inside each pair, from the seed and the pair's number: a resumed study keeps it.
            pair = min(done.values())
            first, second = random.Random(f"{self._stage.seed}/{pair}").sample([configuration, CONTROL], 2)  # noqa: S311
            await self._launch_until_kept(worker, Job(Role.CONFIRMATION, first if done[first.key] <= pair else second))

    def _confirmed(self, configuration: Configuration) -> tuple[float, ...]:
        return values_of(self._rows(), self._objective.metric, configuration, (Role.CONFIRMATION,))

    def _control_values(self) -> tuple[float, ...]:
        return values_of(self._rows(), self._objective.metric, CONTROL, (Role.CONTROL,))

    def _judged(self, candidate: Tally, configuration: Configuration, notes: tuple[str, ...]) -> StageResult:
        fresh, control = self._confirmed(configuration), self._confirmed(CONTROL)
        if not fresh or not control:
            return self._result(
                Claim.NOT_ENOUGH, "the budget ended before the winner could be confirmed by launches of its own", notes
            )
        interval = compare(fresh, control, maximize=self._maximize)
        margin = self._objective.margin
        claim = judge(interval, margin)
        if self._without_effect():
            claim = Claim.NO_EFFECT
        sentence = {
            Claim.FASTER: f"faster than the default: {interval}, from launches made after it was chosen",
            Claim.NO_DIFFERENCE: f"no significant difference from the default: {interval}",
            Claim.NO_EFFECT: f"nothing in this space has an effect here beyond ±{margin:.0%}: the best is {interval}",
            Claim.NOT_ENOUGH: f"not enough launches to tell: {interval}; about "
            f"{launches_needed(interval, margin)} + {launches_needed(interval, margin)} would be needed",
        }[claim]
        return StageResult(
            stage=self._stage.name,
            claim=claim,
            interval=interval,
            configuration=(configuration if claim is Claim.FASTER else CONTROL).key,
            search_value=candidate.value,
            confirmed_value=geometric_mean(fresh),
            control_value=geometric_mean(control),
            sentence=sentence,
            notes=notes if claim is Claim.FASTER else (),
        )

    def _without_effect(self) -> bool:
        measured = [t.value for t in tallies(self._rows(), self._objective.metric, frozenset()) if t.values]
        return without_effect(measured, self._control_values(), self._objective.margin)

    def _nothing_better(self) -> StageResult:
        if not self._control_values():
            return self._result(Claim.NOT_ENOUGH, "the budget ended before the default itself was measured", ())
        if self._without_effect():
            return self._result(
                Claim.NO_EFFECT, f"nothing in this space has an effect here beyond ±{self._objective.margin:.0%}", ()
            )
        failed = {
            row.configuration.key
            for row in self._rows()
            if row.role is Role.CONFIRMATION and row.outcome is Outcome.FAILED
        }
        sentence = "no configuration was measured faster than the default"
        if failed:
            sentence = f"the {len(failed)} configuration(s) faster in the search failed when they were launched again"
        return self._result(Claim.NO_DIFFERENCE, sentence, ())

    def _result(self, claim: Claim, sentence: str, notes: tuple[str, ...]) -> StageResult:
        control = self._control_values()
        return StageResult(
            stage=self._stage.name,
            claim=claim,
            interval=None,
            configuration=CONTROL.key,
            search_value=None,
            confirmed_value=None,
            control_value=geometric_mean(control) if control else None,
            sentence=sentence,
            notes=notes,
        )

    # -- one launch ----------------------------------------------------------------------------------------------

    async def _launch_until_kept(self, worker: Worker, job: Job) -> StoredLaunch:
        """Launches a job again until it is not lost; the limit on lost launches ends it."""
        attempt = 0
        while True:
            row = await self._launch(worker, job)
            if row.outcome is not Outcome.LOST:
                return row
            await self._pause(min(30.0, 2.0**attempt))
            attempt += 1

    async def _launch(self, worker: Worker, job: Job) -> StoredLaunch:
        begun = self._store.begin_launch(
            self._study.id,
            stage=self._stage.name,
            host=worker.name,
            role=job.role,
            configuration=job.configuration,
            trial=job.proposal.number if job.proposal else None,
            budget=self._study.spec.budget,
        )
        counts = self._store.counts(self._study.id)
        label = LaunchLabel(
            worker.name, counts.spent, job.role, job.proposal.number if job.proposal else None, job.configuration
        )
        worker.journal.open(begun)
        self._progress.began(label)
        ending = await self._ending(worker, job, begun)
        row = self._store.end_launch(begun.id, measurement=ending.measurement, failure=ending.failure)
        self._progress.ended(label, self._words(ending), self._standing())
        if ending.measurement is not None and ending.measurement.tunnel_lag is not None:
            check_lag(self._objective, worker.name, ending.measurement.tunnel_lag)
        return row

    async def _ending(self, worker: Worker, job: Job, begun: StoredLaunch) -> Ending:
        """What the launch gave. Errors that end the study are stored with the launch, then raised."""
        try:
            return Ending(measurement=await self._measure(worker, job))
        except LaunchFailed as error:
            return Ending(failure=error.failure)
        except HostLost as error:
            return Ending(failure=error.failure(worker.journal.phase.value))
        except ForeignServer as error:
            self._store.end_launch(begun.id, failure=error.failure)
            raise
        except HostRefused as error:
            self._store.mark_lost(begun.id, str(error))
            raise
        except asyncio.CancelledError:
            self._store.mark_lost(begun.id, "the study was stopped while this launch was under way")
            raise

    async def _measure(self, worker: Worker, job: Job) -> Measurement:
        server = await worker.target.launch(job.configuration)
        try:
            measurement = await server.measure(self._study.spec.workload)
        except BaseException:
            await finish(stop_after_failure(server))
            raise
        await finish(server.stop())
        return measurement

    # -- words ---------------------------------------------------------------------------------------------------

    def _words(self, ending: Ending) -> str:
        if ending.failure is not None:
            return f"lost: {ending.failure}" if ending.lost else f"failed: {ending.failure}"
        assert ending.measurement is not None
        return f"{ending.measurement.metric(self._objective.metric):.2f} {self._objective.unit}"

    def _launch_seconds(self) -> float | None:
        """Mean length of the launches that ended."""
        lengths = [
            row.ended_unix_s - row.started_unix_s
            for row in self._rows()
            if row.ended_unix_s is not None and row.outcome is not Outcome.LOST
        ]
        return sum(lengths) / len(lengths) if lengths else None

    def _standing(self) -> Standing:
        rows = self._rows()
        best = ranked(tallies(rows, self._objective.metric, self._violated_keys(rows)), maximize=self._maximize)
        counts = self._store.counts(self._study.id)
        control = self._control_values()
        each = self._launch_seconds()
        stage_left = max(0, self._launches - sum(row.outcome is not Outcome.LOST for row in rows))
        return Standing(
            spent=counts.spent,
            budget=self._study.spec.budget.launches,
            lost=counts.lost,
            best=best[0].value if best else None,
            best_label=(f"trial {best[0].trial}" if best[0].trial is not None else "control") if best else "",
            control=geometric_mean(control) if control else None,
            unit=self._objective.unit,
            seconds_left=None if each is None else each * stage_left / len(self._workers),
        )


def check_lag(objective: Objective, host: str, lag: TunnelLag) -> None:
    """Refuses a latency constraint that the way through SSH cannot resolve.

    Raises:
        InputError: a bound is finer than `LAG_FACTOR` times the port-forward's lag.
    """
    least = LAG_FACTOR * lag.p99_s
    problems = [
        f"{objective.name}: constraint {rule!r} asks for {bound * 1e3:.3g} ms, but host {host} is reached through an SSH "
        f"port-forward whose own lag is {lag.p99_s * 1e3:.3g} ms at p99 (n = {lag.samples}); nothing finer than "
        f"{LAG_FACTOR} times that can be told. Ask for at least {least:.3g} s, or run the tuner nearer to the host, then give "
        f"the same command with --accept-changes."
        for rule, bound in objective.latency_bounds()
        if bound < least
    ]
    if problems:
        raise InputError(problems)


async def stop_after_failure(server: Server) -> None:
    """Stops a server whose measurement failed; a lost host is no second error."""
    try:
        await server.stop()
    except HostLost:
        return


def geometric_mean(values: Sequence[float]) -> float:
    """The mean on the scale on which noise is relative."""
    return math.exp(sum(map(math.log, values)) / len(values))


def stage_launches(total: int, stages: int, index: int) -> int:
    """A stage's share of the study's launches: equal parts, the remainder to the first."""
    share, rest = divmod(total, stages)
    return share + (rest if index == 0 else 0)
