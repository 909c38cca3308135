"""How long an all-reduce really takes on a simulated machine: a model of few constants for each pair.

    time = latency + rounds × round + message × link + further chunks × chunk + further channels × channel

Nothing here knows what NCCL believes; it is asked about what NCCL launches. The form was chosen on, and the constants
of ``h200x2-shm`` are printed by, ``benchmarks/fit_simulator.py``; docs/simulator.md gives errors and sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.simulated.nccl_belief import Choice, CollectiveLaunch

LL_BYTES_PER_THREAD = 8
"""Bytes of payload that a thread moves in one round of the LL protocol: 8 of each 16-byte line."""

UNSEEN_ROUNDS = 2
"""Rounds of a step that hide behind its latency: the model gives no credit for fewer.

One start in the measurements has fewer, at two sizes; without this floor the fit is closer there, by less than
restarts differ. With it no setting is better at one stream than was ever seen of a whole server.
"""

_STEPS = 8  # buffers of a connection are used in that many parts
_RING_SIMPLE_CHUNK_STEPS = 4  # of which a chunk of Ring with Simple takes so many


@dataclass(frozen=True)
class PairCost:
    """Constants of one (algorithm, protocol) on one machine's links, in seconds.

    Attributes:
        latency_s: of the whole all-reduce, all hops together.
        thread_s_per_byte: time for each byte of a thread's share of the busiest channel.
        link_s_per_byte: time for each byte of the message, whatever the channels.
        chunk_s: for each chunk beyond the first, where the buffer is smaller than a channel's part.
        channel_s: for each channel beyond the first.
    """

    latency_s: float
    thread_s_per_byte: float
    link_s_per_byte: float
    chunk_s: float
    channel_s: float


@dataclass(frozen=True)
class LinkCosts:
    """All constants of one machine.

    Attributes:
        pairs: for each (algorithm, protocol).
        p2p_latency_factor: what direct access between all GPUs makes of the latency; 1 where there is none.
        bulk_from_bytes: messages beyond this are pipelined, and cost `bulk_s_per_byte` more for each byte.
        unfinished: (algorithm, protocol, channels, ``NCCL_NTHREADS``) with which a start was seen not to finish.
    """

    pairs: Mapping[Choice, PairCost]
    p2p_latency_factor: float
    bulk_from_bytes: int
    bulk_s_per_byte: float
    unfinished: tuple[tuple[str, str, int, int], ...] = ()


def further_chunks(launch: CollectiveLaunch, ranks: int, buffer_bytes: int) -> int:
    """Chunks beyond the first that the busiest channel needs with Simple; 0 for the other protocols.

    Source: NCCL, src/enqueue.cc, calcCollChunking: a buffer has 8 steps, a ring's chunk takes 4 of them for each
    rank, a tree's chunk 1.
    """
    if launch.protocol != "Simple":
        return 0
    chunk = buffer_bytes // _STEPS
    if launch.algorithm == "Ring":
        chunk *= _RING_SIMPLE_CHUNK_STEPS * ranks
    return max(0, math.ceil(launch.busiest_bytes / chunk) - 1)


def bytes_per_thread(launch: CollectiveLaunch, ranks: int) -> float:
    """A thread's share of the busiest channel; of Ring with LL in whole rounds, at least `UNSEEN_ROUNDS` of them."""
    if (launch.algorithm, launch.protocol) != ("Ring", "LL"):
        return launch.busiest_bytes / launch.threads
    round_bytes = launch.threads * LL_BYTES_PER_THREAD * ranks
    rounds = math.ceil(launch.busiest_bytes / round_bytes)
    return float(max(UNSEEN_ROUNDS, rounds) * LL_BYTES_PER_THREAD * ranks)


def allreduce_s(
    costs: LinkCosts,
    launch: CollectiveLaunch,
    message_bytes: int,
    *,
    ranks: int,
    buffer_bytes: int,
    p2p_hops: float,
) -> float:
    """Time of one all-reduce, without noise.

    Args:
        message_bytes: ≥ 1.
        launch: what NCCL launches for it.
        ranks: GPUs that take part.
        buffer_bytes: ``NCCL_BUFFSIZE``.
        p2p_hops: fraction of the hops that go directly from GPU to GPU.
    """
    pair = costs.pairs[launch.algorithm, launch.protocol]
    direct = min(message_bytes, costs.bulk_from_bytes)
    chunks = further_chunks(launch, ranks, buffer_bytes)
    by_size = (
        pair.thread_s_per_byte * bytes_per_thread(launch, ranks)
        + pair.link_s_per_byte * message_bytes
        + pair.chunk_s * chunks
    )
    return (
        pair.latency_s * (1 + (costs.p2p_latency_factor - 1) * p2p_hops)
        + pair.channel_s * (launch.channels - 1)
        + by_size * direct / message_bytes
        + costs.bulk_s_per_byte * (message_bytes - direct)
    )
