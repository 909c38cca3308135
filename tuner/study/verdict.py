"""What a stage may claim, from launches alone. Windows never enter: restarts are the unit of noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, geometric_mean

CONFIDENCE = 0.95


class Claim(StrEnum):
    """The possible ends of a stage."""

    FASTER = "faster"
    NO_DIFFERENCE = "no significant difference"
    NO_EFFECT = "no effect"
    NOT_ENOUGH = "not enough launches"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class Interval:
    """A ratio of means of two sets of launches, > 1 when the candidate is better.

    Attributes:
        low, high: limits of the two-sided interval at `CONFIDENCE`; NaN when either side has one launch only.
        candidates, controls: launches on each side.
    """

    ratio: float
    low: float
    high: float
    candidates: int
    controls: int

    def __str__(self) -> str:
        n = f"n = {self.candidates} + {self.controls} launches"
        if math.isnan(self.low):
            return f"{self.ratio:.3f} × ({n}, no interval)"
        return f"{self.ratio:.3f} × ({CONFIDENCE:.0%} interval {self.low:.3f} to {self.high:.3f}, {n})"


def compare(candidate: Sequence[float], control: Sequence[float], *, maximize: bool = True) -> Interval:
    """The ratio candidate / control (control / candidate when less is better) with its interval.

    Welch's t interval on the logarithms of the launches' values (B. L. Welch, Biometrika 34, 1947), by
    `scipy.stats.ttest_ind`; the geometric means' ratio, so that noise is relative.

    Args:
        candidate: one positive value for each launch of the candidate.
        control: the same for the control.

    Raises:
        ValueError: a side is empty or a value is not positive.
    """
    from scipy import stats  # takes most of a second: only who compares needs it

    if not candidate or not control or min(*candidate, *control) <= 0:
        raise ValueError(f"a ratio needs positive values on both sides; got {candidate!r} and {control!r}")
    sign = 1.0 if maximize else -1.0
    a, b = [sign * math.log(value) for value in candidate], [sign * math.log(value) for value in control]
    ratio = math.exp(fmean(a) - fmean(b))
    if len(a) < 2 or len(b) < 2:
        return Interval(ratio, math.nan, math.nan, len(a), len(b))
    if len(set(a)) == len(set(b)) == 1:
        return Interval(ratio, ratio, ratio, len(a), len(b))
    limits = stats.ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
    return Interval(ratio, math.exp(limits.low), math.exp(limits.high), len(a), len(b))


def judge(interval: Interval, margin: float) -> Claim:
    """The claim that an interval of *fresh* launches supports.

    Args:
        interval: from launches made after the candidate was chosen, so that choosing the luckiest costs nothing.
        margin: differences below it count as none (0.01 = 1 %).
    """
    if math.isnan(interval.low):
        return Claim.NOT_ENOUGH
    if interval.low > 1 + margin:
        return Claim.FASTER
    if interval.low <= 1 or interval.high <= 1 + margin:
        return Claim.NO_DIFFERENCE
    return Claim.NOT_ENOUGH


def without_effect(values: Sequence[float], control: Sequence[float], margin: float) -> bool:
    """Whether no configuration of the search differed from the control by more than the margin, either way.

    Args:
        values: one value for each configuration measured.
        control: the control's launches.
    """
    if len(values) < 2 or not control:
        return False
    middle = geometric_mean(control)
    return all(abs(math.log(value / middle)) <= math.log1p(margin) for value in values)


def evidence(claim: Claim, interval: Interval, margin: float) -> str:
    """The interval behind a claim, in words that go after "against the default:"."""
    if claim is Claim.FASTER:
        return f"{interval}, from launches made after it was chosen"
    if claim is Claim.NOT_ENOUGH:
        needed = launches_needed(interval, margin)
        return f"{interval}; about {needed} + {needed} would be needed to tell"
    return str(interval)


def launches_needed(interval: Interval, margin: float) -> int:
    """About how many launches on each side would decide, if the ratio stays and noise is as seen.

    The half-width of the interval shrinks with the square root of the number of launches (normal approximation).
    """
    if math.isnan(interval.low):
        return 2
    half = (math.log(interval.high) - math.log(interval.low)) / 2
    distance = abs(math.log(interval.ratio) - math.log1p(margin))
    if distance == 0:
        return 1000
    n = (interval.candidates + interval.controls) / 2
    return min(1000, max(math.ceil(n * (half / distance) ** 2), math.ceil(n) + 1))
