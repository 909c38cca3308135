"""How long a step of the imitated server takes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.simulated.machine import Machine

FailureKind = Literal["nccl_refused", "out_of_memory_load", "out_of_memory_capture", "hang_load"]
FailureStage = Literal["init", "load", "capture"]


@dataclass(frozen=True)
class ModelledFailure:
    """A start that does not succeed, and what the real engine says about it.

    Attributes:
        stage: where it shows: ``init`` (NCCL's communicators), ``load`` (weights, KV cache) or ``capture`` (graphs).
        nccl_warning: NCCL's own line, without time, host and rank; empty if it says nothing.
        message: text of the exception that ends the scheduler; empty for a hang.
    """

    kind: FailureKind
    stage: FailureStage
    nccl_warning: str
    message: str


class StepTimes:
    """Step times of one launch on a machine. Pure: no clock, no I/O.

    Args:
        env: environment of the server's processes.
        args: server arguments, names without dashes, ``True`` for a bare flag.
        seed: of this launch's noise; ``None``: a different one each time.
        noise: multiplier of the machine's noise; 0: exactly deterministic.
    """

    def __init__(
        self,
        machine: Machine,
        env: Mapping[str, str],
        args: Mapping[str, str | bool],
        *,
        seed: int | None,
        noise: float = 1.0,
    ) -> None:
        self.machine = machine
        self._env = dict(env)
        self._args = dict(args)
        random_ = random.Random(seed)  # noqa: S311
        self._restart = math.exp(noise * machine.noise.restart_cv * random_.gauss(0.0, 1.0))
        self._phase = random_.random() * 2 * math.pi
        self._window = noise * machine.noise.window_cv * math.sqrt(2)

    def chosen(self, message_bytes: int) -> tuple[str, str, int]:
        """What NCCL picks for an all-reduce: (algorithm, protocol, channels)."""
        return ("Ring", "Simple", 1)

    def allreduce_s(self, message_bytes: int) -> float:
        """True time of one all-reduce."""
        return {"pcie8-failed-search": 180e-6}.get(self.machine.name, 25e-6) + message_bytes * 0.09e-9

    def steady_step_s(self, batch: int) -> float:
        """A decode step of that many running streams, without noise."""
        m = self.machine
        compute = m.compute_s + m.compute_per_stream_s * (batch - 1)
        return compute + m.overhead_s + m.model.allreduces_per_step * self.allreduce_s(m.model.message_bytes(batch))

    def step_s(self, batch: int, now_s: float) -> float:
        """A decode step of that many running streams that begins at a time of the caller's monotonic clock."""
        drift = 1.0 + self._window * math.sin(self._phase + now_s / self.machine.noise.correlation_s)
        return self.steady_step_s(batch) * self._restart * drift

    def prefill_s(self, tokens: int) -> float:
        """A prefill step of that many tokens."""
        m = self.machine
        allreduces = m.model.allreduces_per_step * self.allreduce_s(m.model.message_bytes(tokens))
        return m.overhead_s + tokens / m.prefill_tok_s + allreduces

    def failure(self) -> ModelledFailure | None:
        """Why this configuration does not start; ``None`` if it does."""
        if self._env.get("NCCL_ALGO", "").lower() == "tree":
            return ModelledFailure(
                "nccl_refused",
                "capture",
                "Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. "
                f"NCCL_ALGO was set to {self._env['NCCL_ALGO']}.",
                "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)",
            )
        return None
