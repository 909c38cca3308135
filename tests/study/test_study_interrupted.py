"""Ctrl-C again and again, at any step: a study that was interrupted goes on, whatever its budget of lost launches."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from study_double import Bench, spec, url

from tuner.store.rows import Outcome
from tuner.study.verdict import Claim
from tuner.values.failure import FailureClass
from tuner.values.study import Budget

STEPS = ("clean", "start", "wait_ready", "took_effect", "warm_up", "window")


async def test_interruptions_cost_no_launch_and_are_no_loss(tmp_path: Path) -> None:
    """One more than `lost_launches` allows, each in another step of a launch."""
    specification = replace(spec(), budget=Budget(16, lost_launches=1))
    for step in STEPS:

        def interrupt(_: str, name: str, step: str = step) -> None:
            if name == step:
                raise asyncio.CancelledError  # as the signal handler's task.cancel() shows in whatever is awaited

        with pytest.raises(asyncio.CancelledError):
            await Bench(url(tmp_path), specification, before=interrupt).run()
    bench = Bench(url(tmp_path), specification)
    result = await bench.run()
    assert result.claim is Claim.FASTER
    with bench.store() as store:
        rows = store.launches(1)
        counts = store.counts(1)
    assert (counts.spent, counts.interrupted, counts.lost) == (16, len(STEPS), 0)
    interrupted = [row for row in rows if row.outcome is Outcome.INTERRUPTED]
    assert interrupted == list(rows[: len(STEPS)])
    assert {row.failure.failure_class for row in interrupted if row.failure} == {FailureClass.INTERRUPTED}
    made_again = rows[len(STEPS)]
    assert made_again.outcome is Outcome.MEASURED
    assert {(row.trial, row.configuration) for row in interrupted} == {(made_again.trial, made_again.configuration)}
