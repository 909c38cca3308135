"""What fits on the GPUs: tokens of the KV cache, requests at a time, memory in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.simulated.machine import Machine

_GIB = 1 << 30
_CONTEXT_BYTES = int(0.45 * _GIB)
"""CUDA context and NCCL of a rank before the weights: "mem usage=0.45 GB" at tp 2 on H200."""
_GRAPH_BYTES = int(0.1 * _GIB)
"""Graph capture of four batch sizes: "mem usage=0.10 GB" at tp 2 on H200."""


@dataclass(frozen=True)
class Capacity:
    """Memory of one rank, bytes, and what follows from it.

    Attributes:
        tokens: of the KV cache, after what ``--max-total-tokens`` allows.
        context: longest request in tokens.
        running: requests decoded at a time.
    """

    gpu_bytes: int
    weight_bytes: int
    kv_bytes: int
    tokens: int
    context: int
    running: int

    @classmethod
    def of(cls, machine: Machine, args: Mapping[str, Any]) -> Capacity:
        """Computed as SGLang does: the static fraction holds weights and KV cache."""
        weights = machine.model.weights_bytes // args["tp_size"]
        free = machine.gpu_memory_bytes - _CONTEXT_BYTES
        pool = max(0, int(free * args["mem_fraction_static"]) - weights)
        tokens = pool // machine.model.kv_bytes_per_token
        if args["max_total_tokens"]:
            tokens = min(tokens, args["max_total_tokens"])
        context = args["context_length"] or machine.model.context
        running = args["max_running_requests"] or min(max(int(tokens / context * 512), 2048), 4096)
        return cls(
            gpu_bytes=machine.gpu_memory_bytes,
            weight_bytes=weights,
            kv_bytes=tokens * machine.model.kv_bytes_per_token,
            tokens=tokens,
            context=context,
            running=running,
        )

    @property
    def max_input(self) -> int:
        """Longest prompt that the scheduler takes."""
        return max(1, min(self.context, self.tokens) - 6)

    @property
    def before_weights_bytes(self) -> int:
        """Free on the GPU when the weights begin to load."""
        return self.gpu_bytes - _CONTEXT_BYTES

    @property
    def after_weights_bytes(self) -> int:
        """Free when they are loaded."""
        return self.before_weights_bytes - self.weight_bytes

    @property
    def after_pool_bytes(self) -> int:
        """Free when the KV cache is allocated."""
        return self.after_weights_bytes - self.kv_bytes

    @property
    def after_capture_bytes(self) -> int:
        """Free when the graphs are captured: what the server leaves."""
        return self.after_pool_bytes - _GRAPH_BYTES

    @property
    def used_bytes(self) -> int:
        """What the rank holds while it serves."""
        return self.gpu_bytes - max(0, self.after_capture_bytes)

    @property
    def graph_gb(self) -> float:
        """Memory of the captured graphs as SGLang reports it."""
        return _GRAPH_BYTES / _GIB
