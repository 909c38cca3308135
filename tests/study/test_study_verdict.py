"""Claims from launches: held against hand-computed and simulated values."""

from __future__ import annotations

import math
import random

import pytest

from tuner.study.verdict import Claim, Interval, compare, judge, launches_needed, without_effect


def test_ratio_of_geometric_means_and_welch_interval() -> None:
    # Worked by hand: 3.12 degrees of freedom; tables give t(0.975) = 3.182 at 3 and 2.776 at 4, so 3.118 between
    # (linear in 1 / df).
    interval = compare([110.0, 112.0, 114.0], [100.0, 101.0, 102.0])
    assert interval.ratio == pytest.approx(1.10886, abs=1e-4)
    a = [math.log(v) for v in (110, 112, 114)]
    b = [math.log(v) for v in (100, 101, 102)]

    def var(x: list[float]) -> float:
        mean = sum(x) / 3
        return sum((v - mean) ** 2 for v in x) / 2

    error = math.sqrt(var(a) / 3 + var(b) / 3)
    df = (var(a) / 3 + var(b) / 3) ** 2 / ((var(a) / 3) ** 2 / 2 + (var(b) / 3) ** 2 / 2)
    assert df == pytest.approx(3.12, abs=0.01)
    half = (math.log(interval.high) - math.log(interval.low)) / 2
    assert half / error == pytest.approx(3.118, abs=0.015)


def test_less_is_better_turns_the_ratio_around() -> None:
    assert compare([0.5], [1.0], maximize=False).ratio == pytest.approx(2.0)
    assert compare([0.5], [1.0], maximize=True).ratio == pytest.approx(0.5)


def test_one_launch_gives_no_interval_and_no_claim() -> None:
    interval = compare([2.0], [1.0, 1.0])
    assert math.isnan(interval.low)
    assert "no interval" in str(interval)
    assert judge(interval, 0.01) is Claim.NOT_ENOUGH


@pytest.mark.parametrize(
    ("low", "high", "claim"),
    [
        (1.02, 1.10, Claim.FASTER),
        (1.005, 1.10, Claim.NOT_ENOUGH),
        (1.002, 1.008, Claim.NO_DIFFERENCE),
        (0.99, 1.03, Claim.NO_DIFFERENCE),
        (0.80, 0.90, Claim.NO_DIFFERENCE),
    ],
)
def test_faster_needs_the_lower_bound_above_the_margin(low: float, high: float, claim: Claim) -> None:
    assert judge(Interval(math.sqrt(low * high), low, high, 4, 4), 0.01) is claim


def test_equal_servers_are_rarely_called_faster() -> None:
    rng = random.Random(7)

    def launch() -> float:
        return 100 * math.exp(rng.gauss(0, 0.005))

    claims = [judge(compare([launch() for _ in range(3)], [launch() for _ in range(3)]), 0.01) for _ in range(400)]
    assert claims.count(Claim.FASTER) <= 8  # at most 2.5 % by the interval's level, far less with the margin


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(11)
    hits = 0
    for _ in range(1000):
        fast = [123 * math.exp(rng.gauss(0, 0.01)) for _ in range(4)]
        slow = [100 * math.exp(rng.gauss(0, 0.003)) for _ in range(4)]
        interval = compare(fast, slow)
        hits += interval.low <= 1.23 <= interval.high
    assert 925 <= hits <= 975


def test_without_effect_asks_every_configuration() -> None:
    assert without_effect([100.2, 99.6, 100.9], [100.0], 0.01)
    assert not without_effect([100.2, 97.0], [100.0], 0.01)
    assert not without_effect([100.0], [100.0], 0.01)
    assert not without_effect([100.0, 100.0], [], 0.01)


def test_launches_needed_grows_with_noise() -> None:
    tight = launches_needed(Interval(1.03, 1.005, 1.056, 3, 3), 0.01)
    wide = launches_needed(Interval(1.03, 0.95, 1.117, 3, 3), 0.01)
    assert 4 <= tight < wide


@pytest.mark.parametrize(("candidate", "control"), [([], [1.0]), ([1.0], []), ([0.0], [1.0])])
def test_values_that_have_no_ratio_are_refused(candidate: list[float], control: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        compare(candidate, control)
