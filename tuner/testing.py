"""Doubles, shipped: a host without a machine, so that studies can be tried, taught and tested in milliseconds."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tuner.errors import LaunchFailed
from tuner.values.canary import CanaryAnswer
from tuner.values.failure import Failure
from tuner.values.host import Gpu, HostFacts
from tuner.values.launch import (
    CleanReport,
    EffectReport,
    GoneReport,
    LaunchCommand,
    Phase,
    ServerIdentity,
    ServerStatus,
)
from tuner.values.measurement import RequestSample, TunnelLag, Window
from tuner.values.workload import Workload

GIB = 2**30

Surface = Callable[[LaunchCommand], float | Failure]
"""The truth of a double: tokens per second of a command, or why it fails."""


class SurfaceHost:
    """A host whose speed is a function: `tuner.ports.HostSteps` without SSH, processes or waiting.

    Args:
        surface: the truth.
        launch_cv: relative spread between launches (log-normal).
        window_cv: relative spread between windows of a launch.
        seed: of the noise.
        before: told the name of each step before it is done; may raise, or end the process, to play a fault.
        facts: what preflight finds.
        lag: of its port-forward.
        corrupted: which commands serve wrong outputs.
    """

    def __init__(
        self,
        surface: Surface,
        *,
        launch_cv: float = 0.0,
        window_cv: float = 0.0,
        seed: int = 0,
        before: Callable[[str], None] = lambda _: None,
        facts: HostFacts | None = None,
        lag: TunnelLag | None = None,
        corrupted: Callable[[LaunchCommand], bool] = lambda _: False,
    ) -> None:
        self._surface = surface
        self._launch_cv = launch_cv
        self._window_cv = window_cv
        self._random = random.Random(seed)  # noqa: S311
        self._before = before
        self._facts = facts or two_gpus("double")
        self._lag = lag
        self._corrupted = corrupted
        self._command: LaunchCommand | None = None
        self._factor = 1.0
        self.launches: list[LaunchCommand] = []
        """Every command that was started, in order."""

    async def preflight(self) -> HostFacts:
        """See `tuner.ports.HostSteps`."""
        self._before("preflight")
        return self._facts

    async def clean(self, port: int | None, nonces: Sequence[str]) -> CleanReport:
        """See `tuner.ports.HostSteps`."""
        self._before("clean")
        return CleanReport(port or 30000, "", tuple(0 for _ in self._facts.gpus))

    async def start(self, command: LaunchCommand) -> ServerIdentity:
        """See `tuner.ports.HostSteps`."""
        self._before("start")
        self._command = command
        self.launches.append(command)
        self._factor = math.exp(self._launch_cv * self._random.gauss(0, 1))
        return ServerIdentity(command.nonce, 1, 1, self._facts.boot_id, "", "")

    async def wait_ready(self, start_deadline_s: float, no_progress_s: float) -> None:
        """See `tuner.ports.HostSteps`."""
        self._before("wait_ready")
        assert self._command is not None
        truth = self._surface(self._command)
        if isinstance(truth, Failure):
            raise LaunchFailed(truth)

    async def took_effect(self, command: LaunchCommand, names: Sequence[str]) -> EffectReport:
        """See `tuner.ports.HostSteps`."""
        self._before("took_effect")
        return EffectReport((1,), tuple((n, v) for n, v in command.env if n in names), (), ())

    async def window(self, workload: Workload, index: int) -> Window:
        """See `tuner.ports.HostSteps`."""
        self._before("warm_up" if index < 0 else "window")
        assert self._command is not None
        truth = self._surface(self._command)
        if isinstance(truth, Failure):
            raise LaunchFailed(truth)
        rate = truth * self._factor * math.exp(self._window_cv * self._random.gauss(0, 1))
        return even_window(workload, index, rate)

    async def canaries(self) -> tuple[CanaryAnswer, ...]:
        """See `tuner.ports.HostSteps`."""
        self._before("canaries")
        assert self._command is not None
        return greedy_answers("corrupted" if self._corrupted(self._command) else "")

    async def tunnel_lag(self) -> TunnelLag | None:
        """See `tuner.ports.HostSteps`."""
        return self._lag

    async def status(self) -> ServerStatus:
        """See `tuner.ports.HostSteps`."""
        return ServerStatus(self._command is not None, None, False, 0, "")

    async def stop(self, grace_s: float) -> GoneReport:
        """See `tuner.ports.HostSteps`."""
        self._before("stop")
        self._command = None
        return GoneReport(0, (), (), True, tuple(0 for _ in self._facts.gpus), True, (), 0.0)

    async def close(self) -> None:
        """See `tuner.ports.HostSteps`."""


class MemoryJournal:
    """A `tuner.ports.Journal` that keeps everything in lists.

    Attributes:
        phases: as they began.
        evidence: of all phases together.
        windows: as they were measured.
    """

    def __init__(self, nonce: str = "") -> None:
        self.nonce = nonce or uuid.uuid4().hex
        self.phases: list[Phase] = []
        self.evidence: dict[str, Any] = {}
        self.windows: list[Window] = []

    async def begin(self, phase: Phase) -> None:
        """See `tuner.ports.Journal`."""
        self.phases.append(phase)

    async def record(self, **evidence: Any) -> None:
        """See `tuner.ports.Journal`."""
        self.evidence |= evidence

    async def window(self, window: Window) -> None:
        """See `tuner.ports.Journal`."""
        self.windows.append(window)


def even_window(workload: Workload, index: int, tok_s: float) -> Window:
    """A window in which every stream gets a token at perfectly even times, `tok_s` tokens per second in all."""
    step = workload.concurrency / tok_s
    arrivals = tuple((step * (n + 1), n + 1) for n in range(workload.output_tokens))
    requests = tuple(
        RequestSample(
            prompt=f"{index}/{stream}",
            sent_s=0.0,
            prompt_tokens=workload.prompt_words,
            cached_tokens=0,
            completion_tokens=workload.output_tokens,
            arrivals=arrivals,
            finish_reason="length",
        )
        for stream in range(workload.concurrency)
    )
    return Window(
        index=index,
        started_unix_s=0.0,
        duration_s=step * workload.output_tokens,
        output_tok_s=tok_s,
        requests=requests,
        client_cpu=0.0,
        loop_lag_p99_s=0.0,
    )


def greedy_answers(model: str = "", canaries: int = 8, tokens: int = 20) -> tuple[CanaryAnswer, ...]:
    """Answers to canaries, always the same from one `model`, and quite other ones from another."""
    found = []
    for number in range(canaries):
        dice = random.Random(f"{model}/{number}")  # noqa: S311 (reproducible, not secret)
        ids = tuple(dice.randrange(100, 100_000) for _ in range(tokens))
        logprobs = tuple(-dice.expovariate(2.0) for _ in range(tokens))
        found.append(CanaryAnswer(f"canary-{number}", ids, logprobs, " ".join(map(str, ids))))
    return tuple(found)


def two_gpus(name: str, **changes: str | None) -> HostFacts:
    """Facts of an unremarkable host with two GPUs; `changes` replace text fields such as ``nccl_version``."""
    gpus = tuple(Gpu(i, f"GPU-{i}", "Double", 80 * GIB, 0) for i in range(2))
    facts: dict[str, str | None] = {
        "hostname": name,
        "boot_id": "boot-1",
        "kernel": "6.1",
        "driver_version": "580.1",
        "links": "",
        "engine": "sglang",
        "engine_version": "0.5.17",
        "nccl_version": "2.28.9",
        "simulated": None,
    } | changes
    return HostFacts(name=name, cpus=2, gpus=gpus, **facts)  # type: ignore[arg-type]
