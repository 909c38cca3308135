"""The lines that NCCL prints on each rank with ``NCCL_DEBUG=INFO``, in its order.

What it took from the environment is announced by it alone ("NCCL_ALGO set by environment to …"), and a name that it
does not know is not: that is how a typo shows.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.simulated.nccl_settings import strtoll
from tuner.simulated.timing import StepTimes

_TEXT = frozenset(
    {
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_SHM_DISABLE",
        "NCCL_GRAPH_FILE",
        "NCCL_TOPO_FILE",
    }
)
"""Read as text: announced as they are."""

_NUMBERS = frozenset(
    {
        "NCCL_BUFFSIZE",
        "NCCL_CGA_CLUSTER_SIZE",
        "NCCL_CTA_POLICY",
        "NCCL_CUMEM_ENABLE",
        "NCCL_CUMEM_HOST_ENABLE",
        "NCCL_GRAPH_MIXING_SUPPORT",
        "NCCL_GRAPH_REGISTER",
        "NCCL_IGNORE_CPU_AFFINITY",
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_LL128_NTHREADS",
        "NCCL_LL_BUFFSIZE",
        "NCCL_LOCAL_REGISTER",
        "NCCL_MAX_CTAS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MEM_SYNC_DOMAIN",
        "NCCL_MIN_CTAS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_NTHREADS",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DIRECT_DISABLE",
        "NCCL_P2P_READ_ENABLE",
        "NCCL_P2P_USE_CUDA_MEMCPY",
        "NCCL_RUNTIME_CONNECT",
        "NCCL_SHM_LOCALITY",
        "NCCL_SHM_USE_CUDA_MEMCPY",
        "NCCL_WIN_ENABLE",
    }
)
"""Read as integers: announced as parsed (``garbage`` is 0, ``4M`` is 4), with a full stop."""


class NcclLog:
    """NCCL's lines of one rank.

    Args:
        env: environment of the rank.
        times: for what NCCL picks.
    """

    def __init__(self, env: Mapping[str, str], pid: int, rank: int, ranks: int, times: StepTimes) -> None:
        self._env = env
        self._rank = rank
        self._ranks = ranks
        self._times = times
        self._prefix = f"host:{pid}:{pid} [{rank}] NCCL "
        level = env.get("NCCL_DEBUG", "").upper()
        subsystems = env.get("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV").upper().split(",")
        self._info = level in ("INFO", "TRACE")
        self._environment = self._info and bool({"ENV", "ALL"} & set(subsystems))
        self._init = self._info and bool({"INIT", "ALL"} & set(subsystems))
        self._tuning = self._info and bool({"TUNING", "ALL"} & set(subsystems))
        self._warn = level in ("WARN", "INFO", "TRACE")

    def init(self) -> str:
        """The communicator's initialization."""
        machine, me, ranks = self._times.machine, self._rank, self._ranks
        lines = []
        if self._init:
            lines += [f"NCCL version {machine.nccl_version}+cuda13.0"]
            lines += [
                f"ncclCommInitRank comm 0x1e70cd50 rank {me} nranks {ranks} cudaDev {me} nvmlDev {me} - Init START"
            ]
        if self._environment:
            lines += self.announced()
        if self._init:
            after, channels = (me + 1) % ranks, self._times.channels
            via = "P2P/IPC" if self._times.p2p_hops > 0 else "SHM/direct/direct"
            order = " ".join(str(i) for i in range(ranks))
            if me == 0:
                lines += [f"Channel {c:02d}/{channels:02d} : {order}" for c in range(channels)]
            lines += [f"Channel {c:02d} : {me}[{me}] -> {after}[{after}] via {via}" for c in range(channels)]
            lines += ["Connected all rings", "Connected all trees"]
            lines += [
                f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, {channels} p2p channels"
            ]
            lines += [
                f"ncclCommInitRank comm 0x1e70cd50 rank {me} nranks {ranks} cudaDev {me} nvmlDev {me} - Init COMPLETE"
            ]
        return self._text(lines)

    def announced(self) -> list[str]:
        """What was taken from the environment, as far as NCCL knows the name."""
        taken = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", **self._env}  # SGLang sets these two when unset
        lines = []
        for name, value in sorted(taken.items()):
            if name in _TEXT:
                lines.append(f"{name} set by environment to {value}")
            elif name in _NUMBERS:
                lines.append(f"{name} set by environment to {strtoll(value) or 0}.")
        return lines

    def chosen(self, tokens: list[int]) -> str:
        """What it picks for the all-reduces of steps of so many tokens, with the TUNING subsystem."""
        if not self._tuning:
            return ""
        lines = []
        for count in tokens:
            size = self._times.machine.model.message_bytes(count)
            algorithm, protocol, channels = self._times.chosen(size)
            where = f"channel{{Lo..Hi}}={{0..{channels - 1}}}"
            lines.append(f"AllReduce: {size} Bytes -> Algo {algorithm.upper()} proto {protocol.upper()} {where}")
        return self._text(lines)

    def warning(self, stamp: str, text: str) -> str:
        """A warning, which NCCL prints from ``NCCL_DEBUG=WARN`` on."""
        if not text or not self._warn:
            return ""
        return f"\n[{stamp}] {self._prefix.removesuffix('NCCL ')}enqueue.cc:1859 NCCL WARN {text}\n"

    def _text(self, lines: list[str]) -> str:
        return "".join(f"{self._prefix}INFO {line}\n" for line in lines)
