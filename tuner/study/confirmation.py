"""The end of a stage: the best of the search and the control are launched again, and only these launches count."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tuner.store.rows import Outcome
from tuner.study.launcher import Job, Launcher, Worker
from tuner.study.ledger import CONTROL, Tally
from tuner.study.progress import Progress
from tuner.study.result import StageResult
from tuner.study.stage import Stage, geometric_mean
from tuner.study.verdict import Claim, Interval, compare, judge, launches_needed
from tuner.values.configuration import Configuration
from tuner.values.launch import Role

Simplify = Callable[[Configuration], tuple[Configuration, tuple[str, ...]]]
"""A configuration without settings that the engine never reads, and a sentence for each that was dropped."""


class Confirmation:
    """Confirms the winner of a stage's search.

    The candidate is chosen by the search's launches and judged by fresh ones, so that choosing the luckiest of many
    does not flatter it.
    """

    def __init__(
        self, stage: Stage, launcher: Launcher, workers: Sequence[Worker], progress: Progress, simplify: Simplify
    ) -> None:
        self._stage = stage
        self._launcher = launcher
        self._workers = workers
        self._progress = progress
        self._simplify = simplify

    async def run(self) -> StageResult:
        """Launches the candidate and the control in pairs, and judges. A candidate that fails is passed over."""
        while True:
            candidate = self._candidate()
            if candidate is None:
                return self._nothing_better()
            worker = next((w for w in self._workers if w.name == candidate.host), self._workers[0])
            configuration, notes = self._simplify(candidate.configuration)
            if await self._launch_pairs(worker, configuration):
                return self._judged(candidate, configuration, notes)
            self._progress.say(f"{configuration} failed when it was launched again: it cannot win")

    def _candidate(self) -> Tally | None:
        """The best configuration of the search that beats the control there and did not fail since."""
        stage = self._stage
        control = stage.control_values()
        failed = stage.failed_when_confirmed()
        for tally in stage.ranked():
            simple, _ = self._simplify(tally.configuration)
            if simple == CONTROL or simple.key in failed:
                continue
            if control and compare(tally.values, control, maximize=stage.maximize).ratio <= 1:
                return None
            return tally
        return None

    async def _launch_pairs(self, worker: Worker, configuration: Configuration) -> bool:
        """Launches candidate and control until each has its share or nothing is left; false if the candidate failed.

        All on one host: a pair shares what the host does to both.
        """
        stage = self._stage
        share = stage.spec.confirmation_launches // 2
        while configuration.key not in stage.failed_when_confirmed():
            rows = [row for row in stage.rows() if row.role is Role.CONFIRMATION and row.outcome is not Outcome.LOST]
            done = {each.key: sum(row.configuration == each for row in rows) for each in (configuration, CONTROL)}
            pair = min(done.values())
            if pair >= share or stage.begun() >= stage.launches or not stage.time_for(1):
                return True
            # Random order inside each pair, from the seed and the pair's number: a resumed study keeps it.
            first, second = random.Random(f"{stage.spec.seed}/{pair}").sample([configuration, CONTROL], 2)  # noqa: S311
            await self._launcher.launch(worker, Job(Role.CONFIRMATION, first if done[first.key] <= pair else second))
        return False

    def _judged(self, candidate: Tally, configuration: Configuration, notes: tuple[str, ...]) -> StageResult:
        stage = self._stage
        fresh, control = stage.confirmed(configuration), stage.confirmed(CONTROL)
        if not fresh or not control:
            return self._unconfirmed("the budget ended before the winner could be confirmed by launches of its own")
        interval = compare(fresh, control, maximize=stage.maximize)
        claim = Claim.NO_EFFECT if stage.without_effect() else judge(interval, stage.objective.margin)
        faster = claim is Claim.FASTER
        return StageResult(
            stage=stage.spec.name,
            claim=claim,
            interval=interval,
            configuration=(configuration if faster else CONTROL).key,
            search_value=candidate.value,
            confirmed_value=geometric_mean(fresh),
            control_value=geometric_mean(control),
            sentence=sentence(claim, interval, stage.objective.margin),
            notes=notes if faster else (),
        )

    def _nothing_better(self) -> StageResult:
        stage = self._stage
        if not stage.control_values():
            return self._unconfirmed("the budget ended before the default itself was measured")
        if stage.without_effect():
            return self._unconfirmed(sentence(Claim.NO_EFFECT, None, stage.objective.margin), Claim.NO_EFFECT)
        failed = len(stage.failed_when_confirmed())
        words = "no configuration was measured faster than the default"
        if failed:
            words = f"the {failed} configuration(s) faster in the search failed when they were launched again"
        return self._unconfirmed(words, Claim.NO_DIFFERENCE)

    def _unconfirmed(self, words: str, claim: Claim = Claim.NOT_ENOUGH) -> StageResult:
        """A result without confirmation launches."""
        control = self._stage.control_values()
        return StageResult(
            stage=self._stage.spec.name,
            claim=claim,
            interval=None,
            configuration=CONTROL.key,
            search_value=None,
            confirmed_value=None,
            control_value=geometric_mean(control) if control else None,
            sentence=words,
        )


def sentence(claim: Claim, interval: Interval | None, margin: float) -> str:
    """A claim in words."""
    if claim is Claim.FASTER:
        return f"faster than the default: {interval}, from launches made after it was chosen"
    if claim is Claim.NO_DIFFERENCE:
        return f"no significant difference from the default: {interval}"
    if claim is Claim.NO_EFFECT:
        best = f": the best is {interval}" if interval is not None else ""
        return f"nothing in this space has an effect here beyond ±{margin:.0%}{best}"
    assert interval is not None
    needed = launches_needed(interval, margin)
    return f"not enough launches to tell: {interval}; about {needed} + {needed} would be needed"
