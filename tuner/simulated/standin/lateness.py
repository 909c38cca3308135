"""How late the stand-in's own tokens are: what a busy machine adds to the modelled times."""

from __future__ import annotations

from typing import Any

REBASE_S = 0.25
"""A step later than this was a stall (a stopped process, a suspended machine), not jitter: time goes on from there."""


class Lateness:
    """Lateness of one busy stretch: from an idle server to an idle server, about one window of load.

    Deadlines are absolute, so a late step does not make the next one late. What counts for tok/s is how late the *last*
    token is, beside the time lost in stalls, relative to the stretch.
    """

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        """A stretch begins."""
        self._begun_s = now_s
        self._steps = 0
        self._sum_s = 0.0
        self._lost_s = 0.0
        self._last_s = 0.0
        self._elapsed_s = 0.0

    def step(self, deadline_s: float, now_s: float) -> float:
        """A step ended; returns the deadline from which the next one counts."""
        late = max(0.0, now_s - deadline_s)
        self._steps += 1
        self._sum_s += late
        self._last_s = late
        self._elapsed_s = now_s - self._begun_s
        if late > REBASE_S:
            self._lost_s += late
            self._last_s = 0.0
            return now_s
        return deadline_s

    @property
    def report(self) -> dict[str, Any]:
        """Steps, mean lateness of a step in seconds, and lateness of the last token relative to the stretch."""
        total = self._lost_s + self._last_s
        return {
            "steps": self._steps,
            "late_mean_s": self._sum_s / self._steps if self._steps else 0.0,
            "late_fraction": total / self._elapsed_s if self._elapsed_s else 0.0,
        }
