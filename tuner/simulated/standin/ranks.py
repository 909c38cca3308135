"""The schedulers as processes: one for each GPU, of which rank 0 leads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.simulated.machine import Machine
from tuner.simulated.standin import child, detokenizer
from tuner.simulated.standin.capacity import Capacity
from tuner.simulated.standin.log import Log
from tuner.simulated.standin.ring import Ring
from tuner.simulated.standin.scheduler import Scheduler
from tuner.simulated.standin.server_args import model_args
from tuner.simulated.standin.settings import Settings
from tuner.simulated.standin.startup import Startup
from tuner.simulated.timing import StepTimes


@dataclass(frozen=True)
class Children:
    """The children of a launcher.

    Attributes:
        schedulers: pids by rank.
        ready: for each rank, where it says that it is ready, as a line of JSON.
        requests: to and from rank 0.
        texts: from the detokenizer.
    """

    schedulers: tuple[int, ...]
    detokenizer: int
    ready: tuple[int, ...]
    requests: socket.socket
    texts: socket.socket

    @property
    def names(self) -> dict[int, str]:
        """pid → the name that the launcher's watchdog uses."""
        named = {pid: f"scheduler_{rank}" for rank, pid in enumerate(self.schedulers)}
        return {**named, self.detokenizer: "detokenizer"}


def start(args: Mapping[str, Any], env: Mapping[str, str], settings: Settings, machine: Machine, seed: int) -> Children:
    """Forks all children. To be called while the launcher has no other thread."""
    ranks = args["tp_size"]
    ring = Ring(ranks)
    requests, requests_child = socket.socketpair()
    tokens, tokens_child = socket.socketpair()
    texts, texts_child = socket.socketpair()
    pids, ready = [], []
    for rank in range(ranks):
        ready_read, ready_write = os.pipe()
        keep = [ready_write, *ring.descriptors(rank)]
        if rank == 0:
            keep += [requests_child.fileno(), tokens.fileno()]
        body = _body(rank, args, env, settings, machine, seed, ring, ready_write, requests_child, tokens)
        outlives = "zombie_scheduler" in settings.faults and rank == ranks - 1
        title = f"sglang::scheduler_TP{rank}" if ranks > 1 else "sglang::scheduler"
        pids.append(child.fork(title, keep, body, outlives=outlives))
        os.close(ready_write)
        ready.append(ready_read)
    keep = [tokens_child.fileno(), texts_child.fileno()]
    words = child.fork("sglang::detokenizer", keep, lambda: _detokenize(tokens_child, texts_child))
    ring.close()
    for sock in (requests_child, tokens, tokens_child, texts_child):
        sock.close()
    return Children(tuple(pids), words, tuple(ready), requests, texts)


def _detokenize(tokens: socket.socket, texts: socket.socket) -> None:
    child.prefer()
    detokenizer.serve(tokens, texts)


def _body(
    rank: int,
    args: Mapping[str, Any],
    env: Mapping[str, str],
    settings: Settings,
    machine: Machine,
    seed: int,
    ring: Ring,
    ready: int,
    requests: socket.socket,
    tokens: socket.socket,
) -> Callable[[], None]:
    """What the process of a rank does, from its start to its end."""

    def body() -> None:
        times = StepTimes(machine, env, model_args(args), seed=seed, noise=settings.noise)
        capacity = Capacity.of(machine, args, env)
        startup = Startup(rank, args, env, settings, times, capacity)
        startup.run()
        log = Log(rank)
        if rank == 0:
            log.line(
                f"max_total_num_tokens={capacity.tokens}, chunked_prefill_size={args['chunked_prefill_size']}, "
                f"max_prefill_tokens={args['max_prefill_tokens']}, max_running_requests={capacity.running}, "
                f"context_len={capacity.context}, available_gpu_mem={capacity.after_capture_bytes / (1 << 30):.2f} GB"
            )
        log.line("Tree cache initialized: source=default impl=RadixCache hybrid_swa=False hybrid_ssm=False")
        os.write(ready, json.dumps(startup.took).encode() + b"\n")
        if rank == 0:
            child.prefer()
            Scheduler(args, env, settings, times, capacity, ring, requests, tokens).serve()
        elif "zombie_scheduler" in settings.faults and rank == args["tp_size"] - 1:
            _outlive(ring, rank)
        else:
            ring.follow(rank)

    return body


def _outlive(ring: Ring, rank: int) -> None:
    """Takes part until the ring breaks, then goes on as a process that nobody waits for."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        ring.follow(rank)
    while True:
        time.sleep(3600)
