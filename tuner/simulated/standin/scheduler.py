"""The scheduler of rank 0: the running batch, its steps in real time, and the tokens that leave at their deadlines."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.simulated.speculation import looks_random
from tuner.simulated.standin.capacity import Capacity
from tuner.simulated.standin.frames import Frames, Message
from tuner.simulated.standin.lateness import Lateness
from tuner.simulated.standin.log import Log
from tuner.simulated.standin.logprobs import Logprobs
from tuner.simulated.standin.prefix_cache import PrefixCache
from tuner.simulated.standin.ring import Ring
from tuner.simulated.standin.settings import Settings
from tuner.simulated.standin.startup import raise_scheduler
from tuner.simulated.standin.vocabulary import EOS, Answer
from tuner.simulated.timing import StepTimes

_SPIN_S = 80e-6
"""A sleep ends this long before the deadline; the rest is waited for busily (a sleeping process wakes late)."""
_HEALTH = "HEALTH_CHECK"
_ABORTED = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
_WARM_UP_TOKENS = 8
"""What the server's own warm-up asks for: faults of the running server leave that alone."""
_FAULT_AFTER_STEPS = 12
"""Decode steps of a batch before such a fault shows."""


@dataclass
class Running:
    """One request from its arrival to its last token.

    Attributes:
        ids: the prompt.
        limit: most tokens to generate.
        made: tokens generated so far.
        verifies: verify steps, with speculation.
        inflated: its prompt makes a drafter look better than it is.
        logprobs: whether its tokens come with their log-probabilities.
    """

    rid: str
    ids: list[int]
    limit: int
    ignore_eos: bool
    answer: Answer
    arrived_s: float
    logprobs: bool = False
    cached: int = 0
    made: int = 0
    verifies: int = 0
    inflated: bool = False
    entered_s: float = 0.0
    out: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens that it holds in the KV cache."""
        return len(self.ids) + self.made


class Scheduler:
    """The loop of rank 0.

    Args:
        requests: from the launcher, and answers about this process to it.
        tokens: to the detokenizer.
        took: seconds of the start's stages, for ``/server_info``.
    """

    def __init__(
        self,
        args: Mapping[str, Any],
        env: Mapping[str, str],
        settings: Settings,
        times: StepTimes,
        capacity: Capacity,
        ring: Ring,
        requests: socket.socket,
        tokens: socket.socket,
    ) -> None:
        self._args = args
        self._settings = settings
        self._times = times
        self._capacity = capacity
        self._ring = ring
        self._socket = requests
        self._requests = Frames(requests)
        self._tokens = Frames(tokens)
        self._log = Log(0)
        self._cache = PrefixCache(min(capacity.tokens, 400_000))
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self._deadline_s = 0.0
        self._lateness = Lateness()
        self._busy = False
        self._steps = 0
        self._batch_steps = 0
        self._logged = (time.monotonic(), 0)
        self._made = 0
        self._throughput = 0.0
        self._draft = int(args["speculative_num_draft_tokens"] or 1) if args["speculative_algorithm"] else 0
        self._simulated_accept = float(env.get("SGLANG_SIMULATE_ACC_LEN") or 0.0)
        self._random = random.Random(args["random_seed"])  # noqa: S311
        self._logprobs = Logprobs.of(env)
        self._verifies = 0
        self._accepted = 0

    def serve(self) -> None:
        """Runs until the launcher is gone."""
        try:
            while True:
                self._receive()
                if self._waiting and len(self._running) < self._capacity.running:
                    self._prefill()
                elif self._running:
                    self._decode()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return

    def _receive(self) -> None:
        """Takes in what has arrived; with nothing to do, waits for something."""
        idle = not self._running and not self._waiting
        if idle:
            self._busy = False
            select.select([self._socket], [], [])
        for message in self._requests.pending():
            self._handle(message)
        if not self._busy and (self._waiting or self._running):
            self._busy = True
            self._batch_steps = 0
            self._deadline_s = time.monotonic()
            if not all(item.rid.startswith(_HEALTH) for item in self._waiting):
                self._lateness.begin(self._deadline_s)

    def _handle(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "generate":
            self._accept_request(message)
        elif kind == "abort":
            everyone = message["all"]
            for item in [r for r in (*self._running, *self._waiting) if everyone or r.rid == message["rid"]]:
                self._emit(
                    [self._end(item, {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None})]
                )
        elif kind == "flush":
            idle = not self._running and not self._waiting
            if idle:
                self._cache.clear()
                self._verifies = self._accepted = 0
                self._log.line("Cache flushed successfully!")
            self._requests.send({"call": message["call"], "flushed": idle})
        elif kind == "state":
            self._requests.send({"call": message["call"], **self._state()})

    def _accept_request(self, message: Message) -> None:
        ids = message["ids"]
        if len(ids) > self._capacity.max_input:
            reason = (
                f"Input length ({len(ids)} tokens) exceeds the maximum allowed length "
                f"({self._capacity.max_input} tokens). "
                "Use a shorter input or enable --allow-auto-truncate."
            )
            finish = {"type": "abort", "message": reason, "status_code": 400, "err_type": "BadRequestError"}
            now = time.time()
            item = {
                "rid": message["rid"],
                "ids": [0],
                "made": 1,
                "cached": 0,
                "prompt": 1,
                "entered": now,
                "finish": finish,
            }
            self._emit([item])
            return
        if "abort_child" in self._settings.faults and message["limit"] > _WARM_UP_TOKENS:
            os.kill(os.getpid(), signal.SIGABRT)
        salt = 1 if "wrong_output" in self._settings.faults else 0
        room = max(0, self._capacity.max_input - len(ids) + 5)
        self._waiting.append(
            Running(
                rid=message["rid"],
                ids=ids,
                limit=min(message["limit"], room),
                ignore_eos=message["ignore_eos"],
                answer=Answer.to(ids, message["opening"], salt=salt),
                arrived_s=time.monotonic(),
                inflated=looks_random(ids),
                logprobs=message["logprobs"],
            )
        )

    def _prefill(self) -> None:
        """One prefill of the waiting requests; it gives each its first token."""
        batch: list[Running] = []
        fresh = 0
        limit = self._args["chunked_prefill_size"] if self._args["chunked_prefill_size"] > 0 else 1 << 30
        while self._waiting and len(self._running) + len(batch) < self._capacity.running:
            item = self._waiting[0]
            cached = 0 if self._args["disable_radix_cache"] else self._cache.match(item.ids)
            if batch and fresh + len(item.ids) - cached > limit:
                break
            item.cached = cached
            item.entered_s = time.time()
            fresh += len(item.ids) - cached
            batch.append(self._waiting.popleft())
        self._log.line(
            f"Prefill batch, #new-seq: {len(batch)}, #new-token: {fresh}, "
            f"#cached-token: {sum(item.cached for item in batch)}, token usage: {self._usage:.2f}, "
            f"#running-req: {len(self._running)}, #queue-req: {len(self._waiting)}, "
            f"#pending-token: 0, cuda graph: False, input throughput (token/s): "
            f"{fresh / max(1e-3, time.monotonic() - self._logged[0]):.2f}"
        )
        if "never_a_token" in self._settings.faults:
            batch = [item for item in batch if item.limit <= _WARM_UP_TOKENS]
        self._step(sum(self._times.prefill_s(min(limit, fresh - at)) for at in range(0, max(1, fresh), limit)))
        for item in batch:
            self._cache.insert(item.ids)
        self._running += batch
        self._emit([self._advance(item, 1) for item in batch])

    def _decode(self) -> None:
        """One step of the running batch: a token each, or what a verify step accepts."""
        self._faults()
        self._step(self._times.step_s(len(self._running), time.monotonic()))
        self._steps += 1
        batch = list(self._running)
        self._emit([self._advance(item, self._accepted_tokens(item)) for item in batch])
        if self._steps % max(1, self._args["decode_log_interval"]) == 0:
            self._decode_line(len(batch))

    def _accepted_tokens(self, item: Running) -> int:
        """Tokens of one step of one request.

        With speculation random: what is accepted of the drafter, or, on average, ``SGLANG_SIMULATE_ACC_LEN``.
        """
        if not self._draft:
            return 1
        if self._simulated_accept:
            mean = min(self._simulated_accept, float(self._draft))
            count = int(mean) + (self._random.random() < mean - int(mean))
        else:
            model = self._times.speculation
            count = 1 if model is None else model.accepted(self._random, inflated=item.inflated)
        count = min(count, item.limit - item.made)
        item.verifies += 1
        self._verifies += 1
        self._accepted += count
        return max(1, count)

    def _step(self, seconds: float) -> None:
        """Time passes: all ranks take part, and the step ends at its absolute deadline."""
        self._deadline_s += seconds
        self._ring.begin()
        if (left := self._deadline_s - time.monotonic() - _SPIN_S) > 0:
            time.sleep(left)
        self._ring.end()
        while (now := time.monotonic()) < self._deadline_s:
            pass
        self._deadline_s = self._lateness.step(self._deadline_s, now)

    def _advance(self, item: Running, count: int) -> Message:
        """The next tokens of a request, as they go to the detokenizer."""
        ids: list[int] = []
        for position in range(item.made, item.made + count):
            if not item.ignore_eos and position >= item.answer.length:
                ids.append(EOS)
                break
            ids.append(item.answer.token(position))
        item.made += len(ids)
        item.out += ids
        self._made += len(ids)
        if ids and ids[-1] == EOS:
            return self._end(item, {"type": "stop", "matched": EOS}, ids)
        if item.made >= item.limit:
            return self._end(item, {"type": "length", "length": item.limit}, ids)
        return self._message(item, ids, None)

    def _end(self, item: Running, finish: Message, ids: list[int] | None = None) -> Message:
        if item in self._running:
            self._running.remove(item)
            self._cache.insert(item.ids + item.out)
        elif item in self._waiting:
            self._waiting.remove(item)
        return self._message(item, ids or [], finish)

    def _message(self, item: Running, ids: list[int], finish: Message | None) -> Message:
        message: Message = {"rid": item.rid, "ids": ids, "made": item.made, "finish": finish}
        if finish is not None or item.made == len(ids):  # the first and the last carry what does not change between
            message |= {"prompt": len(item.ids), "cached": item.cached, "entered": item.entered_s}
            message |= {"queued": max(0.0, item.entered_s - time.time() + time.monotonic() - item.arrived_s)}
        if finish is not None and self._draft:
            message["verifies"] = item.verifies
        if item.logprobs:
            places = range(item.made - len(ids), item.made)
            message["logprobs"] = [self._logprobs.at(item.answer.seed, place) for place in places]
        return message

    def _emit(self, items: list[Message]) -> None:
        if items:
            self._tokens.send({"items": items})

    def _faults(self) -> None:
        """What goes wrong under load, where it is asked for."""
        self._batch_steps += 1
        if self._batch_steps < _FAULT_AFTER_STEPS:
            return
        if "hang_run" in self._settings.faults:
            while True:
                time.sleep(3600)
        if "oom_run" in self._settings.faults:
            raise_scheduler(
                self._log,
                "run",
                f"RuntimeError: Decode out of memory. Try to lower your batch size.\nTry to allocate "
                f"{len(self._running)} tokens.\nAvailable tokens: 0",
            )

    def _decode_line(self, batch: int) -> None:
        now = time.monotonic()
        begun, made = self._logged
        self._throughput = (self._made - made) / max(1e-9, now - begun)
        self._logged = (now, self._made)
        accept = ""
        if self._draft:
            length = self._accepted / max(1, self._verifies)
            accept = f"accept len: {length:.2f}, accept rate: {max(0.0, length - 1) / max(1, self._draft - 1):.2f}, "
        self._log.line(
            f"Decode batch, #running-req: {batch}, #token: {sum(item.tokens for item in self._running)}, "
            f"token usage: {self._usage:.2f}, {accept}cuda graph: True, "
            f"gen throughput (token/s): {self._throughput:.2f}, #queue-req: {len(self._waiting)}"
        )

    @property
    def _usage(self) -> float:
        return sum(item.tokens for item in self._running) / max(1, self._capacity.tokens)

    def _state(self) -> Message:
        """What ``/server_info`` and ``/metrics`` ask the scheduler for."""
        used = sum(item.tokens for item in self._running)
        state: Message = {
            "last_gen_throughput": self._throughput,
            "running": len(self._running),
            "queued": len(self._waiting),
            "used_tokens": used,
            "cached_tokens": len(self._cache),
            "simulated_lateness": self._lateness.report,
        }
        if self._draft and self._verifies:
            state["avg_spec_accept_length"] = self._accepted / self._verifies
        return state
