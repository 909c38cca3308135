"""One stage of a study: propose, launch, measure, tell; then confirm the winner with fresh launches.

Every decision is made from what the database holds, so that a study that was killed goes on as if it had not been.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tuner.errors import ControlFailed, HostLost
from tuner.search.search import Proposal, Search
from tuner.store.rows import Outcome, StoredLaunch
from tuner.study.confirmation import Confirmation, Simplify
from tuner.study.launcher import Job, Launcher, Worker
from tuner.study.ledger import CONTROL
from tuner.study.progress import Progress
from tuner.study.result import StageResult
from tuner.study.stage import Stage
from tuner.values.configuration import Configuration
from tuner.values.launch import Role

NO_LAUNCH_LIMIT = 50
"""Proposals in a row that cost no launch (rules broken, measured before) after which the space counts as searched."""
KEPT = (Outcome.MEASURED, Outcome.FAILED)
"""Outcomes that answer for a configuration."""

Vet = Callable[[Configuration], tuple[str, ...]]
"""Reasons why the engine would refuse or rewrite a configuration; empty if none. No host is touched."""


class StageRunner:
    """Runs one stage to its result.

    Args:
        vet: what no launch should be spent on.
        simplify: takes out of the winner what the engine never reads.
        pause: sleeps between attempts on a lost host.
    """

    def __init__(
        self,
        stage: Stage,
        search: Search,
        workers: Sequence[Worker],
        progress: Progress,
        *,
        vet: Vet = lambda _: (),
        simplify: Simplify = lambda configuration: (configuration, ()),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._stage = stage
        self._search = search
        self._workers = workers
        self._progress = progress
        self._vet = vet
        self._launcher = Launcher(stage, progress, len(workers), pause)
        self._confirmation = Confirmation(stage, self._launcher, workers, progress, simplify)
        self._in_flight: set[int] = set()
        self._lost_hosts: set[str] = set()

    async def run(self) -> StageResult:
        """Search, then confirmation.

        Raises:
            ControlFailed: the control itself gives no number.
            ForeignServer, HostRefused, HostLost: a host cannot be used; the study can be resumed.
            BudgetSpent: too many launches were lost; the study can be resumed with a larger limit.
        """
        self._recover()
        self._check_control()
        if not self._stage.control_values():
            await self._launch_control()
        await self._in_parallel(self._search_on, self._workers)
        return await self._confirmation.run()

    async def _launch_control(self) -> None:
        """The control before all else: what everything is measured against, and whether it runs at all."""
        for worker in self._workers:
            try:
                await self._launcher.launch(worker, Job(Role.CONTROL, CONTROL))
            except HostLost:
                if worker is self._workers[-1]:
                    raise
            else:
                break
        self._check_control()

    def _recover(self) -> None:
        """Tells what was measured for a trial before its driver died; other open trials are launched again."""
        rows = {row.trial: row for row in self._stage.rows() if row.trial is not None and row.outcome in KEPT}
        for proposal in self._search.running():
            row = rows.get(proposal.number)
            if row is not None:
                self._tell(proposal, row)

    def _check_control(self) -> None:
        rows = self._stage.rows()
        failed = [row.failure for row in rows if row.role is Role.CONTROL and row.outcome is Outcome.FAILED]
        if failed and failed[-1] is not None and not self._stage.control_values():
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

    async def _search_on(self, worker: Worker) -> None:
        while (job := self._next_search_job()) is not None:
            assert job.proposal is not None
            self._in_flight.add(job.proposal.number)
            try:
                row = await self._launcher.launch(worker, job)
                self._tell(job.proposal, row)
            except HostLost as error:
                self._lost_hosts.add(worker.name)
                if len(self._lost_hosts) == len(self._workers):
                    raise
                self._progress.say(f"{error}: set aside, the others go on; its trial is launched elsewhere")
                return
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
        kept_back = self._stage.spec.confirmation_launches
        begun = self._stage.begun(search_only=True)
        return begun >= self._stage.launches - kept_back or not self._stage.time_for(kept_back + 1)

    def _measured(self, configuration: Configuration) -> StoredLaunch | None:
        """The launch that already answers for a configuration in the search."""
        for row in self._stage.rows():
            if row.configuration == configuration and row.outcome in KEPT:
                return row
        return None

    def _tell(self, proposal: Proposal, row: StoredLaunch) -> None:
        """Tells Optuna, once, what the launch of a proposal gave."""
        value = row.metrics.get(self._stage.objective.metric)
        constraints = {"rules": 0.0, "launch": 0.0 if value is not None else 1.0}
        constraints |= self._stage.violations(row)
        attributes = {"configuration": str(row.configuration), "host": row.host, "launch": row.nonce}
        if proposal.repeat_of is not None:
            attributes["repeat of trial"] = str(proposal.repeat_of)
        if row.failure is not None:
            attributes |= {"failure": row.failure.failure_class.value, "evidence": row.failure.evidence}
        self._search.tell(proposal.number, value=value, constraints=constraints, attributes=attributes)

    def _tell_refused(self, proposal: Proposal, reasons: Sequence[str]) -> None:
        constraints = {"rules": float(len(reasons)), "launch": 0.0} | dict.fromkeys(
            self._stage.objective.constraints, 0.0
        )
        attributes = {
            "configuration": str(proposal.configuration),
            "failure": "refused before launch",
            "evidence": "; ".join(reasons),
        }
        self._search.tell(proposal.number, value=None, constraints=constraints, attributes=attributes)
