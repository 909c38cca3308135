"""Outputs decide before speed does: a fast but wrong configuration never wins; a reader is told what was compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from study_double import Bench, spec, url

from tuner.store.rows import Outcome
from tuner.study.canaries import confirmation_reports, outputs_right, reference_answers, sentence
from tuner.study.ledger import CONTROL
from tuner.study.recovery import settle
from tuner.study.verdict import Claim
from tuner.testing import greedy_answers
from tuner.values.canary import CanaryComparison, CanaryReport, Finding
from tuner.values.configuration import Configuration
from tuner.values.failure import FailureClass
from tuner.values.launch import LaunchCommand, Phase, Role
from tuner.values.study import Budget


def fast_and_wrong(command: LaunchCommand) -> float:
    """LL128 doubles the speed (and corrupts, see `corrupted`); LL gains 20 %."""
    return {None: 100.0, "LL128": 200.0, "LL": 120.0, "Simple": 90.0}[dict(command.env).get("NCCL_PROTO")]


def corrupted(command: LaunchCommand) -> bool:
    return dict(command.env).get("NCCL_PROTO") == "LL128"


def comparison(canary: str, finding: Finding, divergence: int | None = None) -> CanaryComparison:
    return CanaryComparison(canary, finding, 20, divergence, 0.01, "a", "b")


async def test_a_corrupted_configuration_that_is_twice_as_fast_never_wins(tmp_path: Path) -> None:
    bench = Bench(url(tmp_path), spec(launches=24), surface=fast_and_wrong, corrupted=corrupted)
    result = await bench.run()
    with bench.store() as store:
        rows = store.launches(1)
        windows = {row.id: store.windows(row.id) for row in rows}
    wrong = [row for row in rows if dict(row.configuration.env).get("NCCL_PROTO") == "LL128"]
    assert wrong, "the search tried it"
    for row in wrong:
        assert row.outcome is Outcome.FAILED and row.metrics == {} and row.failure is not None
        assert (row.failure.failure_class, row.failure.phase) == (FailureClass.WRONG_OUTPUT, Phase.CANARIES.value)
        assert "canary 'canary-0' differs at once from token 1 of 20" in row.failure.evidence
        assert windows[row.id][0].output_tok_s == pytest.approx(200), "it was as fast as it seemed"
    assert result.claim is Claim.FASTER
    assert dict(Configuration.from_key(result.configuration).env)["NCCL_PROTO"] == "LL"


async def test_the_same_study_without_canaries_would_have_chosen_it(tmp_path: Path) -> None:
    """That the one above can fail."""
    result = await Bench(url(tmp_path), spec(launches=24), surface=fast_and_wrong).run()
    assert dict(Configuration.from_key(result.configuration).env)["NCCL_PROTO"] == "LL128"


async def test_the_reference_is_the_first_measured_control_and_what_was_found_is_stored(tmp_path: Path) -> None:
    bench = Bench(url(tmp_path), spec())
    result = await bench.run()
    with bench.store() as store:
        rows = store.launches(1)
        assert reference_answers(store, 1) == greedy_answers()
        assert rows[0].role is Role.CONTROL
        outputs = {
            row.id: phase.evidence["outputs"]
            for row in rows
            for phase in store.phases(row.id)
            if phase.phase is Phase.CANARIES
        }
        assert outputs.pop(rows[0].id) == {"comparisons": [], "corrupted": ""}, "there was nothing to compare with"
        assert all(len(each["comparisons"]) == 8 and not each["corrupted"] for each in outputs.values())
        winner = Configuration.from_key(result.configuration)
        reports = confirmation_reports(store, rows, winner)
        assert len(reports) == 3
        assert sentence(reports) == "Outputs: 8 of 8 canaries agree with the default's, to the last token."
        assert confirmation_reports(store, rows, CONTROL) == ()


async def test_a_resumed_study_compares_with_the_reference_of_its_first_run(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(_: str, step: str) -> None:
        steps.append(step)
        if steps.count("start") == 3:
            raise Stop

    steps: list[str] = []
    with pytest.raises(BaseException) as caught:
        await Bench(url(tmp_path), spec(), before=stop).run()
    assert caught.group_contains(Stop) if isinstance(caught.value, BaseExceptionGroup) else caught.type is Stop
    with Bench(url(tmp_path), spec()).store() as store:
        first = {row.nonce for row in store.launches(1) if row.outcome is Outcome.MEASURED}
    assert first
    # The host answers quite differently from now on: every launch of the second run is found out.
    bench = Bench(url(tmp_path), spec(), corrupted=lambda _: True)
    result = await bench.run()
    assert result.claim is not Claim.FASTER
    with bench.store() as store:
        later = [row.failure for row in store.launches(1) if row.spent and row.nonce not in first]
    assert later and None not in later, "none of them was measured"
    kinds = {failure.failure_class for failure in later if failure is not None}
    assert kinds <= {FailureClass.WRONG_OUTPUT, FailureClass.NCCL_REFUSED} and FailureClass.WRONG_OUTPUT in kinds


async def test_a_driver_that_died_after_wrong_outputs_does_not_keep_the_measurement(tmp_path: Path) -> None:
    """Killed between the finding and the launch's end: the windows are all there, and must not count."""
    bench = Bench(url(tmp_path), spec())
    await bench.run()
    with bench.store() as store:
        done = next(row for row in store.launches(1) if row.role is Role.CONFIRMATION)
        windows = store.windows(done.id)
        study = store.study("double")
        assert study is not None
        for report, outcome in (
            (CanaryReport((), "canary 'weekdays' differs at once"), Outcome.INTERRUPTED),
            (None, Outcome.INTERRUPTED),
            (CanaryReport(()), Outcome.MEASURED),
        ):
            launch = store.begin_launch(
                1,
                stage="baseline",
                host="one",
                role=Role.CONTROL,
                configuration=CONTROL,
                trial=None,
                budget=Budget(100),
            )
            store.begin_phase(launch.id, Phase.MEASURE)
            for window in windows:
                store.add_window(launch.id, window)
            store.begin_phase(launch.id, Phase.CANARIES)
            if report is not None:
                store.add_evidence(launch.id, {"outputs": report})
            store.begin_phase(launch.id, Phase.STOP)
            assert outputs_right(store, launch.id) is (outcome is Outcome.MEASURED)
            settle(store, study)
            assert store.launch(launch.id).outcome is outcome


def test_how_outputs_are_said() -> None:
    same = [comparison(f"c{n}", Finding.SAME) for n in range(6)]
    late = [comparison("c6", Finding.NEAR_TIE, 20), comparison("c7", Finding.NEAR_TIE, 30)]
    assert sentence([]) == sentence([CanaryReport(())]) == ""
    assert sentence([CanaryReport((*same, *late))]) == (
        "Outputs: 6 of 8 canaries agree with the default's to the last token, the earliest difference at token 21: "
        "normal between NCCL algorithms."
    )
    # Over several launches a canary agrees if it does so in each.
    again = replace(late[0], finding=Finding.SAME, divergence=None)
    assert sentence([CanaryReport((*same, *late)), CanaryReport((*same, again, late[1]))]).startswith("Outputs: 6 of 8")
    early = comparison("c7", Finding.AT_ONCE, 1)
    assert "the earliest difference at token 2." in sentence([CanaryReport((*same, late[0], early))])
    assert "1 of these came early" in sentence([CanaryReport((*same, late[0], early))])
