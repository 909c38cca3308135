"""How step times of a simulated machine vary: between launches, and slowly inside one."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Noise:
    """Coefficients of variation (standard deviation / mean) of step times.

    Attributes:
        restart_cv: between launches of the same configuration.
        window_cv: between windows inside one launch.
        correlation_s: how long a deviation inside a launch lasts: about a window, so that it does not average out.
    """

    restart_cv: float
    window_cv: float
    correlation_s: float = 4.0


class NoiseFactors:
    """Factors of one launch: a constant one, and one that wanders with time. The logarithms of both are normal.

    Args:
        seed: of this launch; ``None``: a different one each time.
        multiplier: of the machine's coefficients of variation; 0: every factor is exactly 1.
    """

    def __init__(self, noise: Noise, seed: int | None, multiplier: float) -> None:
        self._window_cv = noise.window_cv * multiplier
        self._correlation_s = noise.correlation_s
        self._seed = random.SystemRandom().getrandbits(64) if seed is None else seed
        self.restart = math.exp(noise.restart_cv * multiplier * self._gauss("restart"))
        self._knots: dict[int, float] = {}

    def at(self, now_s: float) -> float:
        """The factor of a step that begins at a time: restart times window.

        Between knots `correlation_s` apart the window's deviation is interpolated so that its variance stays the same.
        """
        if self._window_cv == 0.0:
            return self.restart
        place = now_s / self._correlation_s
        before = math.floor(place)
        angle = (place - before) * math.pi / 2
        deviation = math.cos(angle) * self._knot(before) + math.sin(angle) * self._knot(before + 1)
        return self.restart * math.exp(self._window_cv * deviation)

    def _knot(self, index: int) -> float:
        value = self._knots.get(index)
        if value is None:
            if len(self._knots) > 16:  # time goes forward: old ones are not asked for again
                self._knots.clear()
            value = self._knots[index] = self._gauss(str(index))
        return value

    def _gauss(self, name: str) -> float:
        return random.Random(f"{self._seed}/{name}").gauss(0.0, 1.0)  # noqa: S311
