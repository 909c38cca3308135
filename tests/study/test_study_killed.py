"""`kill -9` of the driver at each step of a trial, then the same again: nothing is lost, doubled or overspent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from study_double import Bench, spec, url

from tuner.store.rows import Outcome
from tuner.study.verdict import Claim
from tuner.values.configuration import Configuration
from tuner.values.launch import Phase, Role

DRIVER = Path(__file__).with_name("killed_driver.py")

# (step, which occurrence): in the control, in the search, in the confirmation (16 launches, 3 windows each).
PLACES = [
    ("clean", 1),
    ("start", 4),
    ("wait_ready", 5),
    ("took_effect", 6),
    ("warm_up", 2),
    ("window", 8),
    ("canaries", 5),
    ("stop", 3),
    ("end", 3),
    ("tell", 3),
    ("window", 26),
    ("end", 14),
]


@pytest.mark.parametrize(("step", "nth"), PLACES, ids=[f"{step}-{nth}" for step, nth in PLACES])
async def test_a_killed_driver_loses_only_the_launch_under_way(tmp_path: Path, step: str, nth: int) -> None:
    dead = subprocess.run(
        [sys.executable, str(DRIVER), url(tmp_path), step, str(nth)], capture_output=True, text=True, timeout=60
    )
    assert dead.returncode == -signal.SIGKILL, dead.stderr

    bench = Bench(url(tmp_path), spec())
    with bench.store() as store:
        before = {row.nonce: row for row in store.launches(1)}
    result = await bench.run()

    assert result.claim is Claim.FASTER
    with bench.store() as store:
        rows = store.launches(1)
        counts = store.counts(1)
        windows = {row.id: store.windows(row.id) for row in rows}
        stopped = {row.id for row in rows for phase in store.phases(row.id) if phase.phase is Phase.STOP}
    assert counts.spent == 16
    assert counts.under_way == 0
    assert counts.lost == 0
    assert counts.interrupted <= 1
    # Everything that had an outcome when the driver died has it still.
    after = {row.nonce: row for row in rows}
    assert all(after[nonce] == row for nonce, row in before.items() if row.outcome is not None)
    # A launch that died after its last window keeps its measurement.
    for row in rows:
        if row.outcome is Outcome.INTERRUPTED:
            assert not (row.id in stopped and len(windows[row.id]) == 2)
        elif row.outcome is Outcome.MEASURED:
            assert [window.index for window in windows[row.id]] == [0, 1]
    # The control is not repeated needlessly.
    control = [row for row in rows if row.role is Role.CONTROL and row.outcome is Outcome.MEASURED]
    assert len(control) == 1

    trials = optuna.load_study(study_name="double/1-baseline", storage=url(tmp_path)).trials
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    launched = [row.trial for row in rows if row.trial is not None and row.spent]
    assert len(launched) == len(set(launched))
    confirmed = [row for row in rows if row.role is Role.CONFIRMATION and row.outcome is Outcome.MEASURED]
    assert sum(row.configuration == Configuration() for row in confirmed) == 3
    assert len(confirmed) == 6
