"""The launcher's side of a request: tokens in, text out; what SGLang calls the tokenizer manager."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.simulated.standin import vocabulary
from tuner.simulated.standin.capacity import Capacity
from tuner.simulated.standin.frames import Message, pack, receive

HEALTH_RID = "HEALTH_CHECK"


class BadRequest(Exception):
    """A request that is refused before it reaches the scheduler; SGLang answers with status 400."""


@dataclass
class Pending:
    """One request in flight.

    Attributes:
        text, ids: what has been generated so far, as the JSON text of its inside, grown and never re-encoded.
        made: tokens so far.
        logprobs: (log-probability, token id) of each token so far; ``None`` if they were not asked for.
        finish: SGLang's ``finish_reason`` once there is one.
    """

    rid: str
    prompt_tokens: int
    stream: bool
    received_ts: float
    received_s: float
    dispatched_ts: float = 0.0
    text: str = ""
    text_json: str = ""
    ids_json: str = ""
    made: int = 0
    cached: int = 0
    verifies: int | None = None
    logprobs: list[tuple[float, int]] | None = None
    entered_ts: float = 0.0
    queued_s: float = 0.0
    first_s: float = 0.0
    first_ts: float = 0.0
    last_s: float = 0.0
    finish: Message | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, item: Message, now_s: float) -> None:
        """Adds what the detokenizer sent."""
        if not self.first_s:
            self.first_s, self.first_ts = now_s, time.time()
        self.last_s = now_s
        self.text += item["text"]
        self.text_json += json.dumps(item["text"])[1:-1]
        ids = ",".join(map(str, item["ids"]))
        self.ids_json = f"{self.ids_json},{ids}" if self.ids_json and ids else self.ids_json or ids
        if self.logprobs is not None:
            self.logprobs += zip(item.get("logprobs", ()), item["ids"], strict=False)
        self.made = item["made"]
        if "prompt" in item:
            self.prompt_tokens, self.cached = item["prompt"], item["cached"]
            self.entered_ts, self.queued_s = item["entered"], item.get("queued", 0.0)
        self.verifies = item.get("verifies")
        self.finish = item["finish"]
        self.news.set()


class Totals:
    """Sums over finished requests, for ``/metrics``."""

    def __init__(self) -> None:
        self.requests: dict[bool, int] = {False: 0, True: 0}
        self.prompt: dict[bool, int] = {False: 0, True: 0}
        self.generated: dict[bool, int] = {False: 0, True: 0}
        self.first_s: dict[bool, float] = {False: 0.0, True: 0.0}
        self.e2e_s: dict[bool, float] = {False: 0.0, True: 0.0}
        self.between_s = 0.0
        self.between = 0
        self.cached = 0
        self.verifies = 0

    def add(self, done: Pending) -> None:
        """Counts a finished request."""
        self.requests[done.stream] += 1
        self.prompt[done.stream] += done.prompt_tokens
        self.generated[done.stream] += done.made
        self.first_s[done.stream] += done.first_s - done.received_s
        self.e2e_s[done.stream] += done.last_s - done.received_s
        self.between_s += done.last_s - done.first_s
        self.between += max(0, done.made - 1)
        self.cached += done.cached
        self.verifies += done.verifies or 0


class Frontend:
    """Sends requests to the scheduler and hands out what the detokenizer sends back.

    Args:
        requests: socket to rank 0.
        texts: socket from the detokenizer.
    """

    def __init__(
        self, args: Mapping[str, Any], capacity: Capacity, requests: socket.socket, texts: socket.socket
    ) -> None:
        self.args = args
        self.capacity = capacity
        self.totals = Totals()
        self.last_heard_s = 0.0
        self.pending: dict[str, Pending] = {}
        self._sockets = (requests, texts)
        self._writer: asyncio.StreamWriter | None = None
        self._calls: dict[str, asyncio.Future[Message]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins to read what the other processes send. Call it on the loop that serves."""
        reader, self._writer = await asyncio.open_connection(sock=self._sockets[0])
        texts, self._texts_writer = await asyncio.open_connection(sock=self._sockets[1])
        self._tasks = [
            asyncio.create_task(self._read(reader, self._answered)),
            asyncio.create_task(self._read(texts, self._generated)),
        ]

    async def _read(self, reader: asyncio.StreamReader, take: Any) -> None:
        try:
            while True:
                take(await receive(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # that process is gone; the watchdog says so

    def _generated(self, message: Message) -> None:
        now = self.last_heard_s = time.monotonic()
        for item in message["items"]:
            pending = self.pending.get(item["rid"])
            if pending is None:
                continue
            pending.take(item, now)
            if pending.finish is not None:
                del self.pending[item["rid"]]
                if not pending.rid.startswith(HEALTH_RID):
                    self.totals.add(pending)

    def _answered(self, message: Message) -> None:
        future = self._calls.pop(message["call"], None)
        if future is not None and not future.done():
            future.set_result(message)

    def _send(self, message: Message) -> None:
        assert self._writer is not None
        self._writer.write(pack(message))

    async def call(self, kind: str) -> Message:
        """Asks the scheduler something and waits for its answer, however long a step takes."""
        call = uuid.uuid4().hex
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        self._send({"kind": kind, "call": call})
        return await future

    def submit(
        self,
        text: str | None,
        ids: list[int] | None,
        params: Mapping[str, Any],
        *,
        stream: bool,
        rid: str | None,
        logprobs: bool = False,
    ) -> Pending:
        """Sends one request to the scheduler.

        Args:
            logprobs: whether the log-probabilities of the answer's tokens are wanted.

        Raises:
            BadRequest: its parameters are not such as SGLang takes.
        """
        received_ts, received_s = time.time(), time.monotonic()
        limit = params.get("max_new_tokens", 128)
        limit = self.capacity.context if limit is None else limit
        if not isinstance(limit, int) or limit < 0:
            raise BadRequest(f"max_new_tokens must be at least 0, got {limit}.")
        temperature = params.get("temperature", 1.0)
        if not isinstance(temperature, int | float) or temperature < 0:
            raise BadRequest(f"temperature must be non-negative, got {temperature}.")
        if ids is None:
            if not isinstance(text, str):
                raise BadRequest("Either text, input_ids or input_embeds should be provided.")
            ids = vocabulary.encode(text)
        if len(ids) >= self.capacity.context:
            raise BadRequest(
                f"The input ({len(ids)} tokens) is longer than the model's context length "
                f"({self.capacity.context} tokens)."
            )
        pending = Pending(rid or uuid.uuid4().hex, len(ids), stream, received_ts, received_s)
        pending.logprobs = [] if logprobs else None
        self.pending[pending.rid] = pending
        self._send(
            {
                "kind": "generate",
                "rid": pending.rid,
                "ids": ids,
                "opening": vocabulary.opening(text) if text else [],
                "limit": limit,
                "ignore_eos": bool(params.get("ignore_eos", False)),
                "logprobs": logprobs,
            }
        )
        pending.dispatched_ts = time.time()
        return pending

    async def updates(self, pending: Pending) -> AsyncIterator[Pending]:
        """The request, each time that something new has come; what comes between two looks coalesces, as in SGLang."""
        while True:
            await pending.news.wait()
            pending.news.clear()
            yield pending
            if pending.finish is not None:
                return

    def abort(self, rid: str, *, everyone: bool = False) -> None:
        """Asks the scheduler to end a request, or all."""
        self._send({"kind": "abort", "rid": rid, "all": everyone})
