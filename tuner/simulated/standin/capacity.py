"""What fits on the GPUs, in SGLang's terms: tokens of the KV cache, requests at a time, memory free at each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.simulated import memory
from tuner.simulated.machine import Machine
from tuner.simulated.nccl_settings import NcclRefuses, NcclSettings
from tuner.simulated.standin.server_args import model_args

_GRAPH_BYTES = int(0.1 * (1 << 30))
"""Of the working memory, what SGLang names at the end of graph capture: "mem usage=0.10 GB" at tp 2 on H200."""


@dataclass(frozen=True)
class Capacity:
    """Memory of one rank, and what follows from it.

    Attributes:
        plan: the GPU's memory.
        tokens: of the KV cache, after what ``--max-total-tokens`` allows; 0 where the weights do not fit.
        context: longest request in tokens.
        running: requests decoded at a time.
    """

    plan: memory.MemoryPlan
    gpu_bytes: int
    kv_bytes: int
    tokens: int
    context: int
    running: int

    @classmethod
    def of(cls, machine: Machine, args: Mapping[str, Any], env: Mapping[str, str]) -> Capacity:
        """Computed as SGLang does: the static fraction holds weights and KV cache.

        Args:
            args: resolved server arguments.
            env: of the schedulers, for NCCL's buffers.
        """
        try:
            settings = NcclSettings.of(env)
        except NcclRefuses:  # the start fails at NCCL's communicators, before memory counts
            settings = NcclSettings.of({})
        tree = settings.algorithms.get("AllReduce", {}).get("Tree", False)
        plan = memory.plan(machine, settings, model_args(args), tree=tree)
        tokens = max(0, plan.kv_bytes) // plan.kv_bytes_per_token
        if args["max_total_tokens"]:
            tokens = min(tokens, args["max_total_tokens"])
        context = args["context_length"] or machine.model.context
        running = args["max_running_requests"] or min(max(int(tokens / context * 512), 2048), 4096)
        kv_bytes = tokens * plan.kv_bytes_per_token
        return cls(plan, machine.gpu_memory_bytes, kv_bytes, tokens, context, running)

    @property
    def max_input(self) -> int:
        """Longest prompt that the scheduler takes."""
        return max(1, min(self.context, self.tokens) - 6)

    @property
    def weight_bytes(self) -> int:
        """The rank's part of the weights."""
        return self.plan.weights_bytes

    @property
    def before_weights_bytes(self) -> int:
        """Free when the weights begin to load."""
        return self.plan.start_bytes

    @property
    def after_weights_bytes(self) -> int:
        """Free when they are loaded."""
        return self.plan.start_bytes - self.plan.weights_bytes

    @property
    def after_pool_bytes(self) -> int:
        """Free when the KV cache is allocated."""
        return self.after_weights_bytes - self.plan.draft_bytes - self.kv_bytes

    @property
    def after_capture_bytes(self) -> int:
        """Free when the graphs are captured: what the server leaves."""
        return max(0, self.after_pool_bytes - self.plan.working_bytes - self.plan.nccl_bytes)

    @property
    def used_bytes(self) -> int:
        """What the rank holds while it serves."""
        return self.gpu_bytes - self.after_capture_bytes

    @property
    def graph_gb(self) -> float:
        """Memory of the captured graphs as SGLang reports it."""
        return _GRAPH_BYTES / (1 << 30)
