"""The end of a stage: the best of the search and the control are launched again, and only these launches count."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tuner.study.launcher import Job, Launcher, Worker
from tuner.study.ledger import CONTROL, Tally, tallies
from tuner.study.progress import Progress
from tuner.study.result import StageResult
from tuner.study.stage import Stage, geometric_mean
from tuner.study.verdict import Claim, Interval, compare, evidence, judge
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
        self._unspent = ""

    async def run(self) -> StageResult:
        """Launches the candidate and the control in pairs, and judges. A candidate that fails is passed over."""
        self._unspent = self._unspent_by_search()
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
            rows = [row for row in stage.rows() if row.role is Role.CONFIRMATION and row.spent]
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
        if stage.without_effect():
            claim, words = Claim.NO_EFFECT, self._no_effect(interval)
        else:
            claim = judge(interval, stage.objective.margin)
            words = sentence(claim, interval, stage.objective.margin)
        faster = claim is Claim.FASTER
        return StageResult(
            stage=stage.spec.name,
            claim=claim,
            interval=interval,
            configuration=(configuration if faster else CONTROL).key,
            search_value=candidate.value,
            confirmed_value=geometric_mean(fresh),
            control_value=geometric_mean(control),
            sentence=words,
            notes=(*(notes if faster else ()), *self._unspent_notes()),
            confirmed=configuration.key,
            searched=candidate.configuration.key,
        )

    def _nothing_better(self) -> StageResult:
        stage = self._stage
        if not stage.control_values():
            return self._unconfirmed("the budget ended before the default itself was measured")
        if stage.without_effect():
            return self._unconfirmed(self._no_effect(None), Claim.NO_EFFECT)
        failed = len(stage.failed_when_confirmed())
        words = "no configuration was measured faster than the default"
        if failed == 1:
            words = "the one configuration that was faster in the search failed when it was launched again"
        elif failed:
            words = f"the {failed} configurations that were faster in the search failed when they were launched again"
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
            notes=self._unspent_notes(),
        )

    def _no_effect(self, interval: Interval | None) -> str:
        rows = tallies(self._stage.rows(), self._stage.objective.metric, frozenset())
        others = [row for row in rows if row.configuration != CONTROL]
        measured = sum(bool(row.values) for row in others)
        return no_effect(measured, len(others) - measured, self._stage.objective.margin, interval)

    def _unspent_by_search(self) -> str:
        """Why the search ended with launches left; empty if it has used its share."""
        stage = self._stage
        kept = stage.spec.confirmation_launches
        left = stage.launches - kept - stage.begun(search_only=True)
        if left <= 0:
            return ""
        why = "its last proposals had all been measured before, or break rules"
        if not stage.time_for(kept + 1):
            why = "the time was up"
        return f"the search left {left} of its {stage.launches - kept} launches unspent: {why}"

    def _unspent_notes(self) -> tuple[str, ...]:
        """Why the stage ended with launches left, a sentence each for search and confirmation."""
        stage = self._stage
        kept = stage.spec.confirmation_launches // 2 * 2
        made = stage.begun() - stage.begun(search_only=True)
        notes = [self._unspent] if self._unspent else []
        if made < kept and stage.begun() < stage.launches:
            why = "the time was up" if not stage.time_for(1) else "there was nothing to confirm"
            which = f"{kept - made} of the {kept}" if made else f"the {kept}"
            notes.append(f"{which} launches kept for confirmation were not made: {why}")
        return tuple(notes)


def sentence(claim: Claim, interval: Interval, margin: float) -> str:
    """What an interval of fresh launches says, in words."""
    against = evidence(claim, interval, margin)
    if claim is Claim.FASTER:
        return f"faster than the default: {against}"
    if claim is Claim.NO_DIFFERENCE:
        return f"no significant difference from the default: {against}"
    return f"not enough launches to tell: {against}"


def no_effect(measured: int, failed: int, margin: float, interval: Interval | None) -> str:
    """That nothing which was measured differs from the default, and no more than that.

    Args:
        measured, failed: configurations beside the default.
        interval: of the best of them when it was launched again.
    """
    limit = f"±{100 * margin:g} %"
    words = f"none of the {measured} configurations measured differs from the default by more than {limit}"
    if measured == 1:
        words = f"the one configuration measured does not differ from the default by more than {limit}"
    if failed:
        words += f"; {failed} more failed"
    return f"{words}; the best of them, launched again: {interval}" if interval is not None else words
