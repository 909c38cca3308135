"""What NCCL believes: the cost model by which it picks an algorithm, a protocol, channels and threads.

This is no statement about speed, only about NCCL's choice; `nccl_truth` has the speed. The model is NCCL's own, for
one node and all-reduce: src/graph/tuning.cc (latencies, bandwidths, times) and src/enqueue.cc (channels and threads),
read at 2.27.7, 2.28.9, 2.29.2, 2.29.7 and 2.30.7. Times are in µs and bandwidths in GB/s here, as NCCL has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.simulated.nccl_settings import PROTOCOLS, NcclRefuses, NcclSettings

Choice = tuple[str, str]
"""(algorithm, protocol)."""

_MODELLED = (
    "Tree",
    "Ring",
)  # the others need NVSwitch, a network or more nodes; in NCCL's order: the first of equals wins

# tuning.cc, baseLatencies and hwLatencies: LL, LL128, Simple
_BASE_US = {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4)}
_HOP_US = {
    ("Tree", True): (0.6, 1.25, 4.0),
    ("Ring", True): (0.6, 1.9, 3.4),
    ("Tree", False): (1.0, 1.9, 4.0),
    ("Ring", False): (1.0, 2.5, 5.7),
}
# tuning.cc, treeCorrectionFactor: by power of two of the message from 64 B on
_TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *6 * (0.6,), 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (*7 * (0.9,), 0.8, 0.7, 0.6, 0.6, *4 * (0.5,), 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
_THREAD_THRESHOLD_BYTES = {"LL": 8, "LL128": 8, "Simple": 64}
_PCI_GEN3_GB_S = 12.0


def _ceil(dividend: int, divisor: int) -> int:
    """Division of whole numbers, rounded up."""
    return (dividend + divisor - 1) // divisor


@dataclass(frozen=True)
class _Caps:
    """Bandwidth caps of a GPU generation on one node, GB/s; `ring_ll128` … are for each channel."""

    ll: float
    ring_ll128: float
    tree_ll128: float
    tree: float


def _caps(compute_capability: int, version: tuple[int, ...]) -> _Caps:
    """tuning.cc: llMaxBws, perChMaxRingLL128Bws, perChMaxTreeLL128Bws, perChMaxTreeBws, first column."""
    if compute_capability >= 100:
        tree_ll128, tree = (73.4, 77.4) if version < (2, 28) else (55.6, 70.0)
        ring_ll128 = 73.4 if version < (2, 29) else 34.5 if version < (2, 29, 7) else 40.0
        return _Caps(282.0, ring_ll128, tree_ll128, tree)
    if compute_capability >= 90:
        return _Caps(141.0, 36.7, 36.7, 38.7)
    return _Caps(87.7, 20.0, 20.0, 24.0)


@dataclass(frozen=True)
class Topology:
    """What NCCL's topology search comes back with: the input of its belief.

    Attributes:
        bandwidth_gb_s: bandwidth of one searched channel of a ring, GB/s (10⁹ bytes).
        tree_bandwidth_gb_s: the same of a tree; the two are searched apart.
        channels: channels that the search found; twice as many are used.
        nvlink: whether the paths inside the node are NVLink (else PCI, and LL128 is off by default).
        compute_capability: of the GPUs, 90 for Hopper, 120 for RTX PRO 6000 Blackwell.
    """

    bandwidth_gb_s: float
    tree_bandwidth_gb_s: float
    channels: int
    nvlink: bool
    compute_capability: int


@dataclass(frozen=True)
class CollectiveLaunch:
    """What an all-reduce is launched with.

    Attributes:
        channels: blocks that share the message.
        threads: of each block.
        busiest_bytes: of the message, on the channel that got most: shares are uneven.
    """

    algorithm: str
    protocol: str
    channels: int
    threads: int
    busiest_bytes: int


@dataclass(frozen=True)
class Belief:
    """NCCL's view of one communicator.

    Attributes:
        topology: what its search found.
        ranks: GPUs of the communicator, ≥ 2.
        version: of NCCL, such as ``(2, 28, 9)``.
        settings: its environment.
    """

    topology: Topology
    ranks: int
    version: tuple[int, ...]
    settings: NcclSettings

    def enabled(self, function: str) -> list[Choice]:
        """The pairs that the environment leaves for a function, in NCCL's order.

        LL128 is off by default unless all paths are NVLink; naming it forces it on. On one node Tree exists for
        all-reduce alone, everything else is Ring's.
        """
        algorithms = self.settings.algorithms.get(function)
        protocols = self.settings.protocols.get(function)
        possible = _MODELLED if function == "AllReduce" else ("Ring",)
        return [
            (algorithm, protocol)
            for algorithm in possible
            for protocol in PROTOCOLS
            if (algorithms is None or algorithms[algorithm])
            and (protocols[protocol] if protocols is not None else protocol != "LL128" or self.topology.nvlink)
        ]

    def predicted_us(self, algorithm: str, protocol: str, message_bytes: int) -> float:
        """The time that NCCL expects of an all-reduce (tuning.cc, ncclTopoGetAlgoTime)."""
        p = PROTOCOLS.index(protocol)
        hops = 2 * (self.ranks - 1)  # on one node a tree is a chain, up and down
        latency = _BASE_US[algorithm][p] + hops * _HOP_US[algorithm, self.topology.nvlink][p]
        return latency + message_bytes / (1000 * self._bandwidth(algorithm, protocol, message_bytes))

    def _bandwidth(self, algorithm: str, protocol: str, message_bytes: int) -> float:
        """Algorithm bandwidth in GB/s (tuning.cc, ncclTopoTuneModel)."""
        caps = _caps(self.topology.compute_capability, self.version)
        channels = self.topology.channels
        if algorithm == "Ring":
            bus = channels * self.topology.bandwidth_gb_s
            if protocol == "LL":
                bus = min(caps.ll, bus * 0.5)
            elif protocol == "LL128":
                bus = min(bus * 0.92, channels * caps.ring_ll128)
            return bus * self.ranks / (2 * (self.ranks - 1))
        bus = min(channels * self.topology.tree_bandwidth_gb_s * 0.92, channels * caps.tree)
        if protocol == "LL":
            bus = min(bus / 3.8, caps.ll)
        elif protocol == "LL128":
            bus = min(bus * 7 / 9, channels * caps.tree_ll128)
        power = (message_bytes >> 6).bit_length() - 1
        factors = _TREE_CORRECTION[protocol]
        return 0.5 * bus * (factors[power] if 0 <= power < len(factors) else 1.0)

    def refusal(self, function: str, datatype: str) -> str | None:
        """The warning with which NCCL refuses a function; ``None`` where the environment leaves it a pair."""
        if self.enabled(function):
            return None
        text = f"Error : no algorithm/protocol available for function {function} with datatype {datatype}."
        for name, words in (("NCCL_ALGO", self.settings.algorithm_text), ("NCCL_PROTO", self.settings.protocol_text)):
            text += f" {name} was set to {words}." if words is not None else ""
        return text

    def choose(self, message_bytes: int) -> Choice:
        """The pair with the least predicted time.

        Raises:
            NcclRefuses: the environment leaves none for all-reduce.
        """
        refusal = self.refusal("AllReduce", "ncclBfloat16")
        if refusal is not None:
            raise NcclRefuses(refusal)
        return min(self.enabled("AllReduce"), key=lambda pair: self.predicted_us(pair[0], pair[1], message_bytes))

    @property
    def channels(self) -> int:
        """Channels of the communicator: twice those found, then the maximum, then the minimum (connect.cc)."""
        return max(min(2 * self.topology.channels, self.settings.max_channels), self.settings.min_channels)

    def launch(self, message_bytes: int) -> CollectiveLaunch:
        """What an all-reduce of so many bytes is launched with.

        Raises:
            NcclRefuses: see `choose`.
        """
        algorithm, protocol = self.choose(message_bytes)
        return self.launch_of(algorithm, protocol, message_bytes)

    def launch_of(self, algorithm: str, protocol: str, message_bytes: int) -> CollectiveLaunch:
        """The same for a given pair: fewer channels, then fewer threads, for small messages (enqueue.cc)."""
        slow = self.topology.bandwidth_gb_s * self.topology.channels <= _PCI_GEN3_GB_S
        threads = self.settings.max_threads(algorithm, protocol, ring_simple_default=256 if slow else 512)
        threshold = self._thread_threshold(algorithm, protocol)
        channels = self.channels
        while channels > 1 and message_bytes < channels * threads * threshold:
            channels -= 1
        while threads % 128 == 0 and message_bytes < channels * threads * threshold:
            threads //= 2
        used, busiest = self._shares(protocol, message_bytes, channels)
        if protocol == "Simple":
            threads += 32 if algorithm == "Ring" else 128  # warps that only synchronise
        threads = 640 if algorithm == "Tree" else max(96, threads)
        return CollectiveLaunch(algorithm, protocol, used, threads, busiest)

    def _thread_threshold(self, algorithm: str, protocol: str) -> int:
        default = _THREAD_THRESHOLD_BYTES[protocol] * (self.ranks if (algorithm, protocol) == ("Ring", "LL") else 1)
        thresholds: Mapping[tuple[str, str], int] = self.settings.thread_thresholds
        return thresholds.get((algorithm, protocol), default)

    def _shares(self, protocol: str, message_bytes: int, wanted: int) -> tuple[int, int]:
        """Channels used, and bytes of the busiest (enqueue.cc, scheduleCollTasksToPlan).

        The message is cut into cells of a least traffic. The first channel gets its part, and where the rest would
        need more channels than there are, it is spread over those that remain: the first is then left with little.
        """
        least_traffic = 16384 if self.version < (2, 29) else 32768
        traffic_per_byte = 2 * (4 if protocol == "LL" else 1)
        cell = _ceil(_ceil(least_traffic, traffic_per_byte), 16) * 16
        cells = max(1, _ceil(message_bytes, cell))
        traffic = max(least_traffic, message_bytes * traffic_per_byte)
        per_channel = _ceil(max(least_traffic, traffic // wanted), cell * traffic_per_byte)
        available = self.channels
        first = cells if available == 1 else min(cells, per_channel)
        rest = cells - first
        per_channel = min(cells, per_channel)
        used = 1 + _ceil(rest, per_channel)
        busiest = max(first, min(rest, per_channel))
        if used > available:
            used = available
            middle = available - 2
            share = rest // (middle + 1)
            busiest = max(first, share + rest % (middle + 1))
        return used, min(message_bytes, busiest * cell)
