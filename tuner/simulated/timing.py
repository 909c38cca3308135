"""How long a step of the imitated server takes, and which starts do not succeed.

    step  = compute + all-reduces a step × time of an all-reduce + scheduler overhead
    cycle = a step of streams × draft tokens + draft steps × (draft step + 2 all-reduces of streams × topk tokens)
            + more for each further stream, with speculation (`speculation`)

`nccl_belief` says what NCCL launches in an environment, `nccl_truth` how long that takes; `noise` varies the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.simulated import memory
from tuner.simulated.link_costs import PCIE_IPC_S
from tuner.simulated.machine import Machine, version_of
from tuner.simulated.nccl_belief import Belief, CollectiveLaunch
from tuner.simulated.nccl_settings import NcclRefuses, NcclSettings
from tuner.simulated.nccl_truth import allreduce_s
from tuner.simulated.noise import NoiseFactors
from tuner.simulated.speculation import Speculation

FailureKind = Literal["nccl_refused", "out_of_memory_load", "out_of_memory_capture", "hang_load", "draft_tree"]
FailureStage = Literal["init", "load", "capture"]

_PCIE_IPC_SINCE = (0, 5, 21)
_PCIE_IPC_RANKS = (2, 4, 8)
_INVALID_USAGE = "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)"
_DRAFT_ALLREDUCES = 2  # the drafter is one decoder layer
_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True)
class ModelledFailure:
    """A start that does not succeed, and what the real engine says about it.

    Attributes:
        stage: where it shows: ``init`` (NCCL's communicators), ``load`` (weights, KV cache) or ``capture`` (graphs; a
            ``hang_load`` shows there too, when the first collectives run).
        nccl_warning: NCCL's own line, without time, host, rank and source line; empty if it says nothing.
        message: text of the exception that ends the scheduler; empty for a hang.
    """

    kind: FailureKind
    stage: FailureStage
    nccl_warning: str
    message: str


class StepTimes:
    """Step times of one launch on a machine. Pure: no clock, no I/O. Nothing in an environment makes it raise.

    Every GPU of the machine takes part; ``--tp-size`` is not modelled.

    Args:
        env: environment of the server's processes.
        args: server arguments, names without dashes, ``True`` for a bare flag.
        seed: of this launch's noise; ``None``: a different one each time.
        noise: multiplier of the machine's noise, ≥ 0; 0: exactly deterministic.
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
        self._env = _environment(env, args)
        self._args = dict(args)
        self.speculation = Speculation.of(args)
        self._noise = NoiseFactors(machine.noise, seed, noise)
        self._refusal = ""
        try:
            self._belief = machine.belief(NcclSettings.of(self._env))
        except NcclRefuses as refuses:
            self._refusal = str(refuses)
            self._belief = machine.belief(NcclSettings.of(_without_words(self._env)))
        self._timed = machine.belief(NcclSettings.of({})) if machine.inert else self._belief
        self._steps: dict[int, float] = {}

    @property
    def p2p_hops(self) -> float:
        """Fraction of the ring's hops that go directly from GPU to GPU; the others go through host memory."""
        return self.machine.p2p_hops(self._belief.settings.p2p_level)

    @property
    def channels(self) -> int:
        """Channels of the communicator; an all-reduce may use fewer."""
        return self._belief.channels

    def chosen(self, message_bytes: int) -> tuple[str, str, int]:
        """What NCCL picks for an all-reduce: (algorithm, protocol, channels)."""
        launch = _launch(self._belief, max(1, message_bytes))
        return launch.algorithm, launch.protocol, launch.channels

    def allreduce_s(self, message_bytes: int) -> float:
        """True time of one all-reduce, without noise."""
        message_bytes = max(1, message_bytes)
        ipc = self._pcie_ipc_s(message_bytes)
        if ipc is not None:
            return ipc
        settings = self._timed.settings
        return allreduce_s(
            self.machine.costs,
            _launch(self._timed, message_bytes),
            message_bytes,
            ranks=self.machine.gpus,
            buffer_bytes=settings.buffer_bytes["Simple"],
            p2p_hops=self.machine.p2p_hops(settings.p2p_level),
        )

    def steady_step_s(self, batch: int) -> float:
        """A decode step of that many running streams, ≥ 1, without noise.

        With speculation a cycle of draft and verify, which yields several tokens a stream.
        """
        step = self._steps.get(batch)
        if step is None:
            step = self._forward_s(batch) if self.speculation is None else self._cycle_s(batch, self.speculation)
            self._steps[batch] = step
        return step

    def _forward_s(self, tokens: int) -> float:
        """A pass of the model over that many tokens of running streams."""
        m = self.machine
        compute = m.compute_s + m.compute_per_stream_s * (tokens - 1)
        allreduces = m.model.allreduces_per_step * self.allreduce_s(m.model.message_bytes(tokens))
        return compute + m.overhead_s + allreduces

    def _cycle_s(self, batch: int, speculation: Speculation) -> float:
        """Draft steps and the verify step after them."""
        costs, topk = self.machine.draft, speculation.topk
        allreduce_s = self.allreduce_s(self.machine.model.message_bytes(batch * topk))
        draft_s = costs.step_s + costs.branch_s * (topk - 1) + _DRAFT_ALLREDUCES * allreduce_s
        verify_s = self._forward_s(batch * speculation.tokens)
        return verify_s + speculation.steps * draft_s + costs.per_stream_s * (batch - 1)

    def step_s(self, batch: int, now_s: float) -> float:
        """A decode step of that many running streams that begins at a time of the caller's monotonic clock.

        The same seed and the same time give the same answer.
        """
        return self.steady_step_s(batch) * self._noise.at(now_s)

    def prefill_s(self, tokens: int) -> float:
        """A prefill step of that many tokens, without noise inside the launch."""
        m = self.machine
        allreduces = m.model.allreduces_per_step * self.allreduce_s(m.model.message_bytes(tokens))
        return (m.overhead_s + tokens / m.prefill_tok_s + allreduces) * self._noise.restart

    def failure(self) -> ModelledFailure | None:
        """Why this start does not succeed, the first thing that goes wrong; ``None`` if it does."""
        if self._refusal:
            return ModelledFailure("nccl_refused", "init", self._refusal, _INVALID_USAGE)
        return self._out_of_memory("load") or self._collective_failure() or self._out_of_memory("capture")

    def _collective_failure(self) -> ModelledFailure | None:
        """What the first collectives do: an all-reduce of each layer, then the AllGather of the logits."""
        for function, datatype in (("AllReduce", "ncclBfloat16"), ("AllGather", "ncclInt8")):
            refusal = self._belief.refusal(function, datatype)
            if refusal is not None:
                return ModelledFailure("nccl_refused", "capture", refusal, _INVALID_USAGE)
        algorithm, protocol, _ = self.chosen(self.machine.model.message_bytes(1))
        running = (algorithm, protocol, self.channels, self._belief.settings.threads)
        if self.p2p_hops < 1.0 and running in self.machine.costs.unfinished:
            return ModelledFailure("hang_load", "capture", "", "")
        if self.speculation is not None and not self.speculation.fits:
            return ModelledFailure("draft_tree", "capture", "", "selected index k out of range")
        return None

    def _out_of_memory(self, stage: FailureStage) -> ModelledFailure | None:
        tree = not self._refused and self.chosen(self.machine.model.message_bytes(1))[0] == "Tree"
        planned = memory.plan(self.machine, self._belief.settings, self._args, tree=tree)
        if stage == "load":
            if planned.weights_bytes > planned.start_bytes:
                message = "torch.OutOfMemoryError: " + self._cuda_out_of_memory(planned, planned.start_bytes)
                return ModelledFailure("out_of_memory_load", "load", "", message)
            if planned.kv_bytes < planned.kv_bytes_per_token:
                return ModelledFailure(
                    "out_of_memory_load",
                    "load",
                    "",
                    "Not enough memory. Please try to increase --mem-fraction-static. "
                    f"Current value: self.server_args.mem_fraction_static={memory.fraction_of(self._args)}",
                )
        elif planned.left_bytes < 0:
            message = self._cuda_out_of_memory(planned, planned.start_bytes - planned.static_bytes)
            return ModelledFailure("out_of_memory_capture", "capture", "", message)
        return None

    @property
    def _refused(self) -> bool:
        return self._belief.refusal("AllReduce", "ncclBfloat16") is not None

    def _cuda_out_of_memory(self, planned: memory.MemoryPlan, room_bytes: int) -> str:
        """The allocator's words, for an allocation that finds less than it asks for."""
        total = self.machine.gpu_memory_bytes
        asked = max(2 * _MIB, planned.working_bytes // 8)
        free = max(0, min(asked - _MIB, room_bytes))
        return (
            f"CUDA out of memory. Tried to allocate {asked / _MIB:.2f} MiB. GPU 0 has a total capacity of "
            f"{total / _GIB:.2f} GiB of which {free / _MIB:.2f} MiB is free. Including non-PyTorch memory, this "
            f"process has {(total - free) / _GIB:.2f} GiB memory in use."
        )

    def _pcie_ipc_s(self, message_bytes: int) -> float | None:
        """Time by SGLang's PCIe-IPC all-reduce; ``None`` where NCCL does it.

        The engine must have it, be asked for it, and have GPUs that reach each other. Beyond the largest message that
        its source gives a time for, NCCL is taken to do it.
        """
        asked = self._env.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "").strip().lower() in ("1", "true", "yes", "on")
        m = self.machine
        able = version_of(m.engine_version) >= _PCIE_IPC_SINCE and m.gpus in _PCIE_IPC_RANKS and m.hop_paths
        if not asked or not able or m.inert or message_bytes > PCIE_IPC_S[-1][0]:
            return None
        (x0, t0), (x1, t1) = PCIE_IPC_S[:2] if message_bytes <= PCIE_IPC_S[1][0] else PCIE_IPC_S[1:]
        if message_bytes <= x0:
            return t0
        part = math.log(message_bytes / x0) / math.log(x1 / x0)
        return t0 * math.exp(part * math.log(t1 / t0))


def _environment(env: Mapping[str, str], args: Mapping[str, str | bool]) -> dict[str, str]:
    """The environment as the engine leaves it to NCCL."""
    if args.get("enable-deterministic-inference"):
        return {**env, "NCCL_ALGO": "allreduce:tree"}  # SGLang overwrites it
    return dict(env)


def _without_words(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in ("NCCL_ALGO", "NCCL_PROTO")}


def _launch(belief: Belief, message_bytes: int) -> CollectiveLaunch:
    """What NCCL launches; where it refuses, what it would launch if it read no words."""
    try:
        return belief.launch(message_bytes)
    except NcclRefuses:
        return belief.launch_of("Ring", "Simple", message_bytes)
