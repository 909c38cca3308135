"""The machines that can be imitated: what they have, and the constants of the model of their speed.

A `Machine` is data. What NCCL believes of it is computed in `nccl_belief`, how long an all-reduce really takes on it
in `nccl_truth`, and what a decode step takes in `timing`. Where each number comes from: docs/simulator.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.errors import InputError
from tuner.simulated.link_costs import H200X2_SHM, PCIE8
from tuner.simulated.nccl_belief import Belief, Topology
from tuner.simulated.nccl_settings import PATHS, NcclSettings
from tuner.simulated.nccl_truth import LinkCosts
from tuner.simulated.noise import Noise
from tuner.simulated.speculation import DraftCosts

_GIB = 1 << 30


@dataclass(frozen=True)
class Model:
    """The model that is served.

    Attributes:
        path: what ``--model-path`` names.
        layers: decoder layers; each makes two all-reduces a step.
        hidden: hidden size; a token's all-reduce moves `hidden` × `element_bytes` bytes.
        weights_bytes: of the whole model, over all GPUs.
        kv_bytes_per_token: of one GPU's part of the cache.
        context: longest context, tokens.
    """

    path: str
    layers: int
    hidden: int
    element_bytes: int
    weights_bytes: int
    kv_bytes_per_token: int
    architectures: tuple[str, ...]
    model_type: str
    context: int

    @property
    def allreduces_per_step(self) -> int:
        """One after attention and one after the MLP of each layer."""
        return 2 * self.layers

    def message_bytes(self, tokens: int) -> int:
        """Bytes of one all-reduce of a step that carries so many tokens."""
        return tokens * self.hidden * self.element_bytes


@dataclass(frozen=True)
class Machine:
    """One machine with its model, its engine and the constants of its speed.

    Attributes:
        title: one line for a report.
        source: where its numbers come from.
        links: what ``nvidia-smi topo -m`` prints on it.
        topology: what NCCL believes of it.
        hop_paths: kinds of path between neighbours of a ring, as ``NCCL_P2P_LEVEL`` spells them, with the fraction of
            hops of that kind; empty where GPUs cannot reach each other directly at all.
        costs: what all-reduces cost on it in truth.
        inert: the environment has no effect on its speed.
        working_bytes: GPU memory of activations, workspaces and captured graphs.
        compute_s: GPU time of a decode step at batch 1 without all-reduces.
        compute_per_stream_s: more of it for each further stream.
        overhead_s: of the scheduler, each step.
        prefill_tok_s: tokens a second of prefill without all-reduces.
        real_launch_s: what one launch takes on the real machine.
        draft: what speculation costs on it, beside the verify step.
    """

    name: str
    title: str
    source: str
    gpus: int
    gpu_name: str
    gpu_memory_bytes: int
    driver_version: str
    links: str
    nccl_version: str
    engine_version: str
    model: Model
    topology: Topology
    hop_paths: Mapping[str, float]
    costs: LinkCosts
    working_bytes: int
    compute_s: float
    compute_per_stream_s: float
    overhead_s: float
    prefill_tok_s: float
    real_launch_s: float
    noise: Noise
    draft: DraftCosts
    inert: bool = False

    def belief(self, settings: NcclSettings) -> Belief:
        """NCCL's view of a communicator of all its GPUs."""
        return Belief(self.topology, self.gpus, version_of(self.nccl_version), settings)

    def p2p_hops(self, level: str) -> float:
        """Fraction of a ring's hops that go directly from GPU to GPU at an ``NCCL_P2P_LEVEL``.

        The others go through host memory.
        """
        reach = PATHS.index(level)
        return sum(share for path, share in self.hop_paths.items() if PATHS.index(path) <= reach)


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare: ``0.5.21rc1`` → ``(0, 5, 21)``."""
    match = re.match(r"[0-9.]*", text)
    return tuple(int(part) for part in match[0].split(".") if part) if match else ()


def _links(gpus: int, near: str, far: str, socket: int) -> str:
    """The matrix that ``nvidia-smi topo -m`` prints: GPU against GPU, then the CPUs and the NUMA node of each.

    Args:
        near: link between GPUs of the same socket.
        far: link between sockets.
        socket: GPUs on a socket.
    """
    names = [f"GPU{i}" for i in range(gpus)]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for i in range(gpus):
        cells = ["X" if i == j else near if i // socket == j // socket else far for j in range(gpus)]
        node = i // socket
        lines.append(
            f"{names[i]}\t" + "\t".join(f" {c} " for c in cells) + f"\t{32 * node}-{32 * node + 31}\t{node}\tN/A"
        )
    legend = (
        "\nLegend:\n\n"
        "  X    = Self\n"
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
        "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
        "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
        "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
        "  PIX  = Connection traversing at most a single PCIe bridge\n"
        "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    )
    return "\n".join(lines) + "\n" + legend


_KIMI = Model(
    path="moonshotai/Kimi-K2.5",
    layers=61,
    hidden=7168,
    element_bytes=2,
    weights_bytes=554 * _GIB,
    kv_bytes_per_token=61 * 576 * 2,  # MLA: 512 + 64 values a layer, the same on each GPU
    architectures=("KimiK25ForConditionalGeneration",),
    model_type="kimi_k25",
    context=262144,
)
_M61 = Model(
    path="/models/m61",
    layers=61,
    hidden=7168,
    element_bytes=2,
    weights_bytes=int(2 * 4.86 * _GIB),
    kv_bytes_per_token=61 * 2 * 128 * 2,
    architectures=("LlamaForCausalLM",),
    model_type="llama",
    context=8192,
)

_PCIE8 = Machine(
    name="pcie8-failed-search",
    title="8 × RTX PRO 6000 Blackwell on PCIe Gen5, two sockets; NCCL's topology search fails",
    source="as reported by users, not measured",
    gpus=8,
    gpu_name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    gpu_memory_bytes=97887 << 20,
    driver_version="580.95.05",
    links=_links(8, "NODE", "SYS", 4),
    nccl_version="2.28.9",
    engine_version="0.5.17",
    model=_KIMI,
    topology=Topology(bandwidth_gb_s=0.1, tree_bandwidth_gb_s=0.1, channels=1, nvlink=False, compute_capability=120),
    hop_paths={"PHB": 0.75, "SYS": 0.25},  # of 8 hops 6 inside a socket, 2 between the two
    costs=PCIE8,
    working_bytes=int(4.5 * _GIB),
    compute_s=2.6e-3,
    compute_per_stream_s=0.12e-3,
    overhead_s=0.45e-3,
    prefill_tok_s=4000.0,
    real_launch_s=480.0,
    noise=Noise(restart_cv=0.003, window_cv=0.001),
    draft=DraftCosts(
        step_s=0.8e-3,  # with two all-reduces of LL, three steps take the 3 ms of the motivating case
        branch_s=3e-6,
        per_stream_s=0.12e-3,
        weights_bytes=int(0.87 * _GIB),
        graph_bytes=int(0.23 * _GIB),
    ),
)

_H200X2 = Machine(
    name="h200x2-shm",
    title="2 × H200 with P2P disabled: all-reduces through host memory",
    source="fitted to measurements on 2 × H200, NCCL 2.28.9, SGLang 0.5.17",
    gpus=2,
    gpu_name="NVIDIA H200",
    gpu_memory_bytes=143771 << 20,
    driver_version="580.95.05",
    links=_links(2, "PHB", "SYS", 2),
    nccl_version="2.28.9",
    engine_version="0.5.17",
    model=_M61,
    topology=Topology(bandwidth_gb_s=20.0, tree_bandwidth_gb_s=40.0, channels=2, nvlink=False, compute_capability=90),
    hop_paths={},
    costs=H200X2_SHM,
    working_bytes=1 * _GIB,
    compute_s=1.555e-3,  # 1.978 and 1.918 ms of a step at batch 1 and 8 are no all-reduces: the mean, less the overhead
    compute_per_stream_s=0.0,
    overhead_s=0.4e-3,
    prefill_tok_s=45000.0,
    real_launch_s=57.0,
    noise=Noise(restart_cv=0.003, window_cv=0.001),
    draft=DraftCosts(
        step_s=0.695e-3,  # cycle of 7.386 ms at (3, 1, 4) and one stream
        branch_s=3.4e-6,  # cycle of 8.36 ms at (3, 4, 8) and one stream
        per_stream_s=0.122e-3,  # cycle of 11.96 ms at (3, 1, 4) and eight streams
        weights_bytes=int(0.87 * _GIB),
        graph_bytes=int(0.23 * _GIB),  # verify 0.20 instead of 0.10, draft decode 0.05, draft extend 0.08
    ),
)

_FLAT = replace(
    _H200X2,
    name="flat",
    title="a machine on which nothing has any effect",
    source="made up: h200x2-shm with a speed that no setting changes",
    inert=True,
)

MACHINES: dict[str, Machine] = {m.name: m for m in (_PCIE8, _H200X2, _FLAT)}
"""The presets by name; the first is the default."""


def machine(name: str) -> Machine:
    """The preset of that name.

    Raises:
        InputError: there is none; the message lists those there are.
    """
    try:
        return MACHINES[name]
    except KeyError:
        raise InputError(f"simulated machine {name!r}: no such preset; there are {', '.join(MACHINES)}") from None
