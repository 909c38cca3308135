"""What a parameter can be set to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal

from tuner.documents.complaints import shown
from tuner.space.guard import Guard
from tuner.space.rules import same
from tuner.values.configuration import Scalar


@dataclass(frozen=True)
class Choice:
    """One value of a categorical. ``None`` is *unset*.

    Attributes:
        guard: where it may be used.
        why: the fact behind it.
    """

    value: Scalar
    guard: Guard = field(default_factory=Guard)
    why: str = ""

    def __str__(self) -> str:
        return "unset" if self.value is None else shown(self.value).strip("'\"")


@dataclass(frozen=True)
class Categorical:
    """One of some values, without an order."""

    choices: tuple[Choice, ...]

    @property
    def values(self) -> tuple[Scalar, ...]:
        """The values in the file's order."""
        return tuple(choice.value for choice in self.choices)

    @property
    def size(self) -> int:
        """How many values."""
        return len(self.choices)

    def contains(self, value: Scalar) -> bool:
        """Whether the value, kind and all, is one of the choices."""
        return any(same(value, choice.value) for choice in self.choices)

    def __str__(self) -> str:
        return ", ".join(map(str, self.choices))


@dataclass(frozen=True)
class IntRange:
    """Whole numbers ``low, low + step, …, high``; with `log`, sampled evenly on the logarithm."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    @property
    def size(self) -> int:
        """How many values."""
        return (self.high - self.low) // self.step + 1

    def contains(self, value: Scalar) -> bool:
        """Whether the value is a whole number of the range."""
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    def __str__(self) -> str:
        return f"{self.low} … {self.high}" + (f" by {self.step}" if self.step != 1 else "") + " log" * self.log


@dataclass(frozen=True)
class FloatRange:
    """Numbers from low to high; with `step` only ``low + k · step``; with `log` evenly on the logarithm."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def size(self) -> float:
        """How many values; infinite without a step."""
        if self.low == self.high:
            return 1
        return math.inf if self.step is None else int(_steps(self.low, self.high, self.step)) + 1

    def contains(self, value: Scalar) -> bool:
        """Whether the value is a number of the range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high:
            return False
        return self.step is None or abs((k := _steps(self.low, value, self.step)) - round(k)) < Decimal("1e-8")

    def __str__(self) -> str:
        step = "" if self.step is None else f" by {self.step:g}"
        return f"{self.low:g} … {self.high:g}{step}" + " log" * self.log


Distribution = Categorical | IntRange | FloatRange


def range_problem(low: float, high: float, step: float | None, log: bool, whole: bool) -> str | None:
    """What is wrong with the numbers of a range, in words; ``None`` if nothing.

    The same demands that Optuna's distributions make, which would otherwise raise, or adjust `high`, in mid-study.
    """
    if low > high:
        return f"found low {low} above high {high}, expected low <= high"
    if step is not None and step <= 0:
        return f"found step {step}, expected a positive one"
    if log and low < (1 if whole else math.ulp(0)):
        return f"found log with low {low}, expected low {'>= 1' if whole else '> 0'}"
    if log and step not in (None, 1 if whole else None):
        return f"found log with step {step}, expected one of the two"
    if step is not None and _steps(low, high, step) % 1 != 0:
        return f"found step {step} that does not lead from {low} to {high}, expected high = low + k * step"
    return None


def _steps(low: float, high: float, step: float) -> Decimal:
    """Steps from low to high, exact for numbers as they are written: 0.3 / 0.1 is 3."""
    return (Decimal(str(high)) - Decimal(str(low))) / Decimal(str(step))
