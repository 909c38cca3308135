"""Noise: as much as is said, of both kinds, and none where none is asked for."""

from __future__ import annotations

import itertools
from statistics import fmean, stdev

import pytest

from tuner.simulated.machine import MACHINES, machine
from tuner.simulated.timing import StepTimes

LAUNCHES = 200


def launch(name: str, seed: int | None, noise: float = 1.0) -> StepTimes:
    return StepTimes(machine(name), {}, {}, seed=seed, noise=noise)


def window_s(times: StepTimes, begin_s: float) -> float:
    """Mean step of a window of about two seconds."""
    return fmean(times.step_s(1, begin_s + 0.2 * i) for i in range(10))


@pytest.mark.parametrize("name", MACHINES)
def test_without_noise_launches_are_equal(name: str) -> None:
    times = launch(name, None, noise=0)
    assert {times.step_s(1, now) for now in (0.0, 1.7, 1e6)} == {times.steady_step_s(1)}
    assert launch(name, 1, noise=0).step_s(4, 3.0) == launch(name, 2, noise=0).step_s(4, 9.0)
    assert launch(name, 1, noise=0).prefill_s(64) == launch(name, 2, noise=0).prefill_s(64)


@pytest.mark.parametrize("name", MACHINES)
def test_spread_of_launches(name: str) -> None:
    """The estimate of a CV from 200 launches is itself uncertain by 5 %, so 20 % is four of its deviations."""
    steady = launch(name, 0).steady_step_s(1)
    means = [fmean(window_s(launch(name, seed), 1e4 * seed + 10.0 * i) for i in range(10)) for seed in range(LAUNCHES)]
    assert stdev(means) / steady == pytest.approx(machine(name).noise.restart_cv, rel=0.2)
    assert fmean(means) == pytest.approx(steady, rel=0.001)


@pytest.mark.parametrize("name", MACHINES)
def test_spread_of_windows_inside_a_launch(name: str) -> None:
    spreads = []
    for seed in range(40):
        times = launch(name, seed)
        windows = [window_s(times, 10.0 * i) for i in range(50)]
        spreads.append(stdev(windows) / fmean(windows))
    # an average over two seconds of a deviation that lasts four loses a little of it
    assert machine(name).noise.window_cv * 0.75 < fmean(spreads) < machine(name).noise.window_cv * 1.1


def test_the_measured_ranges() -> None:
    """Whole servers on 2 × H200: restarts 0.1–0.5 %, windows 0.03–0.2 %."""
    for here in MACHINES.values():
        assert 0.001 <= here.noise.restart_cv <= 0.005
        assert 0.0003 <= here.noise.window_cv <= 0.002


def test_a_multiplier_makes_a_noisy_host() -> None:
    """± 4 % from boot to boot, as others report, is a multiplier of 13."""
    factors = [launch("pcie8-failed-search", seed, 13.0).step_s(1, 0.0) for seed in range(LAUNCHES)]
    assert stdev(factors) / fmean(factors) == pytest.approx(13 * 0.00316, rel=0.2)


def test_the_same_seed_gives_the_same_launch() -> None:
    one, other = launch("flat", 7), launch("flat", 7)
    assert [one.step_s(1, now) for now in (0.0, 50.0, 3.0)] == [other.step_s(1, now) for now in (0.0, 50.0, 3.0)]
    assert launch("flat", 7).step_s(1, 0.0) != launch("flat", 8).step_s(1, 0.0)
    assert launch("flat", None).step_s(1, 0.0) != launch("flat", None).step_s(1, 0.0)


def test_noise_changes_slowly() -> None:
    times = launch("h200x2-shm", 3)
    steps = [times.step_s(1, 0.005 * i) for i in range(4000)]
    jumps = max(abs(b / a - 1) for a, b in itertools.pairwise(steps))
    assert jumps < 0.02 * machine("h200x2-shm").noise.window_cv
