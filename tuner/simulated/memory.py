"""What fits on a GPU of a simulated machine.

    memory at the start = GPU − driver and CUDA context
    static part         = memory at the start × --mem-fraction-static = weights + drafter's weights + KV cache
    what is left        = working memory (activations, workspaces, graphs) + NCCL's buffers

Too little for the weights fails while loading; too little of what is left fails at graph capture, when the first
collectives run. NCCL's buffers lie on the GPU only where GPUs reach each other directly: through host memory they are
in host memory, and cost a GPU nothing (src/transport/p2p.cc and shm.cc of NCCL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.simulated.machine import Machine
from tuner.simulated.nccl_belief import Belief
from tuner.simulated.nccl_settings import NcclSettings
from tuner.simulated.speculation import Speculation

_CONTEXT_BYTES = int(1.56 * (1 << 30))  # measured on H200: 140.40 GiB in all, 138.84 GB "avail mem" before the weights
_DEFAULT_FRACTION = 0.88  # SGLang computes one where none is given; about this on such GPUs
_COMMUNICATORS = 2  # torch's and PyNccl's, of the tensor-parallel group
_RING_CONNECTIONS = 1  # receive buffers of a channel: from the previous rank
_TREE_CONNECTIONS = 2  # from the child, and from the parent on the way down; on one node a tree is a chain


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of one GPU, bytes.

    Attributes:
        start_bytes: free before the weights are loaded.
        static_bytes: what ``--mem-fraction-static`` gives to weights and KV cache.
        nccl_bytes: NCCL's buffers on the GPU.
        kv_bytes_per_token: of the cache; a drafter adds its layer.
        draft_bytes: the drafter's weights.
    """

    start_bytes: int
    static_bytes: int
    weights_bytes: int
    working_bytes: int
    nccl_bytes: int
    kv_bytes_per_token: int
    draft_bytes: int = 0

    @property
    def kv_bytes(self) -> int:
        """For the KV cache; negative where the weights do not fit."""
        return self.static_bytes - self.weights_bytes - self.draft_bytes

    @property
    def left_bytes(self) -> int:
        """Free when all is allocated; negative where it does not fit."""
        return self.start_bytes - self.static_bytes - self.working_bytes - self.nccl_bytes


def nccl_bytes(machine: Machine, belief: Belief, *, tree: bool) -> int:
    """NCCL's buffers on one GPU: communicators × channels × connections × buffers of all three protocols.

    Args:
        tree: whether trees are connected too; the ring always is, since AllGather needs it.
    """
    settings = belief.settings
    connections = _RING_CONNECTIONS + (_TREE_CONNECTIONS if tree else 0)
    buffers = sum(settings.buffer_bytes.values())
    whole = _COMMUNICATORS * belief.channels * connections * buffers
    return int(whole * machine.p2p_hops(settings.p2p_level))


def fraction_of(args: Mapping[str, str | bool]) -> float:
    """``--mem-fraction-static``; SGLang's own choice, about 0.88, where it is absent or no fraction."""
    try:
        fraction = float(args.get("mem-fraction-static", _DEFAULT_FRACTION))
    except ValueError:
        return _DEFAULT_FRACTION
    return fraction if 0.0 < fraction <= 1.0 else _DEFAULT_FRACTION


def plan(machine: Machine, settings: NcclSettings, args: Mapping[str, str | bool], *, tree: bool) -> MemoryPlan:
    """The memory of each GPU with these settings; all GPUs are alike.

    Args:
        args: server arguments, names without dashes.
        tree: whether an all-reduce of a decode step uses Tree.
    """
    start = machine.gpu_memory_bytes - _CONTEXT_BYTES
    model, speculation = machine.model, Speculation.of(args)
    drafts = speculation is not None and speculation.steps > 0
    return MemoryPlan(
        start_bytes=start,
        static_bytes=int(start * fraction_of(args)),
        weights_bytes=model.weights_bytes // machine.gpus,
        working_bytes=machine.working_bytes + (machine.draft.graph_bytes if drafts else 0),
        nccl_bytes=nccl_bytes(machine, machine.belief(settings), tree=tree),
        kv_bytes_per_token=model.kv_bytes_per_token * (model.layers + drafts) // model.layers,
        draft_bytes=machine.draft.weights_bytes if drafts else 0,
    )
