"""A server whose token schedule is known: SGLang's streams at absolute deadlines, real sockets, standard library only.

    python schedule_server.py        prints {"port": N}; ends when its standard input closes

How it behaves is in the path, so that one process serves every test: ``POST /{"rate": 50, "fault": "cut"}/generate``
(the JSON percent-encoded), see `Behaviour`. ``GET /log`` returns and forgets what it sent: for each request the
deadline and the time of each write on CLOCK_MONOTONIC (one clock for all processes of a machine) with the cumulative
tokens, which connections served, and the CPU time used since the start. The JSON is that of SGLang 0.5.17.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import unquote


@dataclass
class Behaviour:
    """One request's schedule and form.

    `steps` is the cycle of tokens a chunk brings; the chunk that ends at token n is due at ttft + (n - first) / rate.
    """

    rate: float = 100.0
    ttft: float = 0.05
    steps: tuple[int, ...] = (1,)
    grid: bool = False  # all streams step at the same instants, as a batch does
    coalesce: int = 1  # events in one write
    pieces: int = 1  # writes of one event
    crlf: bool = False
    incremental: bool = False
    done_in_last: bool = False  # last event, [DONE] and the end in one write
    cached: int = 2
    retractions: int = 0
    verify_ct: int | None = None
    usage: bool = True  # chat: usage in each chunk
    fault: str = ""
    after: int = 10  # tokens before the fault
    faulty: int | None = None  # only the first so many requests since the last GET /log; None: all
    keep_alive: bool = True  # False: closes the idle connection after the answer, as uvicorn does after 5 s


@dataclass(order=True)
class Stream:
    """One request being answered; ordered by its next deadline."""

    due: float
    number: int
    writer: asyncio.StreamWriter = field(compare=False)
    behaviour: Behaviour = field(compare=False)
    chat: bool = field(compare=False)
    prompt: str = field(compare=False)
    asked: int = field(compare=False)
    finished: asyncio.Future[None] = field(compare=False)
    sent: int = field(default=0, compare=False)
    chunk: int = field(default=0, compare=False)
    held: bytes = field(default=b"", compare=False)
    arrived: float = field(default=0.0, compare=False)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    log: list[tuple[float, float, int]] = field(default_factory=list, compare=False)


WORDS = ("né", " 🦊", " fox", " 雨", " the")


@cache
def text_of(first: int, last: int) -> str:
    return "".join(WORDS[n % len(WORDS)] for n in range(first, last))


@cache
def text_and_ids(first: int, last: int) -> str:
    """The part of a /generate event that is the same for all streams, as JSON: made once."""
    data = {"text": text_of(first, last), "output_ids": list(range(1000 + first, 1000 + last))}
    return dumps(data).removesuffix("}")


def dumps(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def event(stream: Stream, before: int, finish: Any, error: str = "") -> bytes:
    b = stream.behaviour
    prompt_tokens = 13 + len(stream.prompt.split())
    if error:
        payload: Any = {"error": {"message": error, "type": "internal_error", "code": 500}}
    elif stream.chat:
        usage = {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + stream.sent,
            "completion_tokens": stream.sent,
            "prompt_tokens_details": {"cached_tokens": b.cached},
        }
        payload = {
            "id": f"r{stream.number}",
            "object": "chat.completion.chunk",
            "choices": [
                {
                    "index": 0,
                    "delta": {"reasoning_content": None, "content": text_of(before, stream.sent)},
                    "finish_reason": finish["type"] if finish else None,
                }
            ],
        } | ({"usage": usage} if b.usage else {})
    else:
        start = before if b.incremental else 0
        meta = {
            "id": f"r{stream.number}",
            "finish_reason": finish,
            "prompt_tokens": prompt_tokens,
            "weight_version": "default",
            "num_retractions": b.retractions,
            "reasoning_tokens": 0,
            "completion_tokens": stream.sent,
            "cached_tokens": b.cached,
            "dp_rank": None,
        }
        if finish and b.verify_ct is not None:
            meta |= {"spec_accept_length": stream.sent / b.verify_ct, "spec_verify_ct": b.verify_ct}
        return sse(b, f'{text_and_ids(start, stream.sent)},"meta_info":{dumps(meta)}}}')
    return sse(b, dumps(payload))


def sse(behaviour: Behaviour, payload: str) -> bytes:
    end = "\r\n\r\n" if behaviour.crlf else "\n\n"
    return f"data: {payload}{end}".encode()


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Conductor:
    """Writes what is due, at absolute deadlines: one timer for all streams."""

    def __init__(self) -> None:
        self.heap: list[Stream] = []
        self.streams: list[Stream] = []
        self.timer: asyncio.TimerHandle | None = None

    def add(self, stream: Stream) -> None:
        self.streams.append(stream)
        heapq.heappush(self.heap, stream)
        self.arm()

    def arm(self) -> None:
        if self.timer:
            self.timer.cancel()
        if self.heap:
            self.timer = asyncio.get_running_loop().call_at(self.heap[0].due, self.play)

    def play(self) -> None:
        self.timer = None
        while self.heap and self.heap[0].due <= time.monotonic():
            stream = heapq.heappop(self.heap)
            if self.step(stream):
                heapq.heappush(self.heap, stream)
            elif not stream.finished.done():
                stream.finished.set_result(None)
        self.arm()

    def step(self, stream: Stream) -> bool:
        """One chunk; whether more follow."""
        b = stream.behaviour
        if stream.writer.is_closing():
            return False
        if b.fault and stream.sent >= b.after:
            return self.fault(stream)
        before = stream.sent
        stream.sent = min(stream.asked, before + b.steps[stream.chunk % len(b.steps)])
        stream.chunk += 1
        last = stream.sent == stream.asked
        data = event(stream, before, {"type": "length", "length": stream.asked} if last else None)
        self.write(stream, data, last)
        following = b.steps[stream.chunk % len(b.steps)]
        stream.due += min(following, max(1, stream.asked - stream.sent)) / b.rate
        return not last

    def write(self, stream: Stream, data: bytes, last: bool) -> None:
        b = stream.behaviour
        stream.held += data
        if stream.chunk % b.coalesce and not last:
            return
        data, stream.held = stream.held, b""
        ending = chunked(sse(b, "[DONE]")) + b"0\r\n\r\n" if last else b""
        if b.pieces > 1:
            asyncio.ensure_future(self.write_pieces(stream, data, ending, stream.due, stream.sent))  # noqa: RUF006 (ends by itself)
            return
        if b.done_in_last:
            stream.writer.write(chunked(data) + ending)
        else:
            stream.writer.write(chunked(data))
            if ending:
                stream.writer.write(ending)
        stream.log.append((stream.due, time.monotonic(), stream.sent))

    async def write_pieces(self, stream: Stream, data: bytes, ending: bytes, due: float, sent: int) -> None:
        """The event in several packets, cut inside characters if need be."""
        size = -(-len(data) // stream.behaviour.pieces)
        async with stream.writing:  # one event after the other, also when they are late
            for start in range(0, len(data), size):
                stream.writer.write(chunked(data[start : start + size]))
                await asyncio.sleep(0.0005)
            stream.log.append((due, time.monotonic(), sent))
            if ending:
                stream.writer.write(ending)

    def fault(self, stream: Stream) -> bool:
        b, writer = stream.behaviour, stream.writer
        done = chunked(sse(b, "[DONE]")) + b"0\r\n\r\n"
        if b.fault == "error_event":
            writer.write(chunked(event(stream, 0, None, "CUDA error: an illegal memory access")) + done)
        elif b.fault == "abort":
            reason = {"type": "abort", "message": "Abort in waiting queue", "status_code": 503, "err_type": None}
            writer.write(chunked(event(stream, stream.sent, reason)) + done)
        elif b.fault == "stop":
            writer.write(chunked(event(stream, stream.sent, {"type": "stop", "matched": 2})) + done)
        elif b.fault == "short":
            writer.write(chunked(event(stream, stream.sent, {"type": "length", "length": stream.sent})) + done)
        elif b.fault == "cut":
            writer.write(b"0\r\n\r\n")
        elif b.fault == "cut_in_event":
            writer.write(chunked(event(stream, 0, None)[:40]) + b"0\r\n\r\n")
        elif b.fault == "garbage":
            writer.write(chunked(b"data: {not json\n\n") + done)
        elif b.fault == "close":
            writer.close()
        elif b.fault == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        elif b.fault == "hang":
            pass
        else:
            raise ValueError(b.fault)
        return False


class Server:
    def __init__(self) -> None:
        self.conductor = Conductor()
        self.requests = 0
        self.connections: set[int] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split("\r\n")[0].split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head.split("\r\n")[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if (method, path) == ("GET", "/log"):
            self.reply(writer, 200, self.log())
            return True
        _, options, *rest = path.split("/", 2)
        behaviour = Behaviour(**json.loads(unquote(options)))
        self.requests += 1
        self.connections.add(writer.get_extra_info("peername")[1])
        if behaviour.faulty is not None and self.requests > behaviour.faulty:
            behaviour.fault = ""
        return await self.generate(behaviour, "/" + rest[0], json.loads(body), writer)

    async def generate(self, b: Behaviour, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        arrived = time.monotonic()
        if b.fault in ("400", "503"):
            self.reply(writer, int(b.fault), {"error": {"message": "The engine said no."}})
            return True
        if b.fault == "not a stream":
            self.reply(writer, 200, {"text": "a whole answer"})
            return True
        chat = path == "/v1/chat/completions"
        sampling = body if chat else body["sampling_params"]
        assert body["stream"] is True and sampling["ignore_eos"] is True and sampling["temperature"] == 0, body
        assert not chat or body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert chat or path == "/generate", path
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        due = arrived + b.ttft
        if b.grid:
            due = (due * b.rate // 1 + 1) / b.rate
        stream = Stream(
            due,
            self.requests,
            writer,
            b,
            chat,
            body["messages"][0]["content"] if chat else body["text"],
            sampling["max_tokens" if chat else "max_new_tokens"],
            asyncio.get_running_loop().create_future(),
        )
        stream.arrived = arrived
        self.conductor.add(stream)
        await stream.finished
        return b.keep_alive and not writer.is_closing()

    def log(self) -> dict[str, Any]:
        streams, self.conductor.streams, self.requests = self.conductor.streams, [], 0
        connections, self.connections = self.connections, set()
        requests = [{"prompt": s.prompt, "arrived": s.arrived, "sent": s.log} for s in streams]
        return {"connections": sorted(connections), "requests": requests, "cpu": time.process_time()}

    def reply(self, writer: asyncio.StreamWriter, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)


async def main() -> None:
    server = await asyncio.start_server(Server().serve, "127.0.0.1", 0, backlog=1024, limit=1 << 20)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
