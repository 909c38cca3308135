"""One stream from its bytes to a `RequestSample`: cheap while it runs, parsed when it is over."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.load.formats import DONE, Event, StreamFormat
from tuner.values.measurement import RequestSample


class EventSplitter:
    """Cuts a byte stream into the payloads of its server-sent events, wherever the chunks were cut.

    Works on bytes, so that a character split over two chunks is whole again before it is decoded. Comments and
    fields other than ``data`` are skipped (https://html.spec.whatwg.org/multipage/server-sent-events.html).
    """

    def __init__(self) -> None:
        self._rest = b""

    @property
    def rest(self) -> bytes:
        """Bytes of an event that is not complete."""
        return self._rest

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The payloads that this chunk completes."""
        held = self._rest + chunk if self._rest else chunk
        if b"\r" in held:
            held = held.replace(b"\r\n", b"\n")
        *events, self._rest = held.split(b"\n\n")
        for event in events:
            lines = (line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:"))
            payload = b"\n".join(lines)
            if payload:
                yield payload


class StreamLog:
    """What came on one stream, with the time of each chunk.

    Chunks are kept as they came and parsed by `sample`, after the window. So that memory stays bounded for long
    streams, they are parsed earlier whenever more than `parse_above_bytes` are held: give each stream of a window
    another limit, or streams in lockstep all parse in the same moment.

    Attributes:
        error: what broke the connection, in words; set by the reader of the socket.
        sent_s: when the request was written, on the clock of the chunks' times.
        held_bytes: raw bytes held.
    """

    def __init__(self, form: StreamFormat, parse_above_bytes: int) -> None:
        self.error = ""
        self.sent_s = 0.0
        self._form = form
        self._parse_above_bytes = parse_above_bytes
        self._raw: list[tuple[float, bytes]] = []
        self.held_bytes = 0
        self._at_boundary = True
        self._splitter = EventSplitter()
        self._arrivals: list[tuple[float, int]] = []
        self._last = Event()
        self._received = False
        self._done = False

    def append(self, at_s: float, chunk: bytes) -> None:
        """Keeps a chunk that was received at `at_s`. The hot path: a few microseconds."""
        if self._at_boundary and chunk.find(b"\n\n") == len(chunk) - 2 > 0:  # exactly one event
            chunk = self._form.trim(chunk)
        else:
            self._at_boundary = chunk.endswith(b"\n\n")
        self._raw.append((at_s, chunk))
        self.held_bytes += len(chunk)
        if self.held_bytes > self._parse_above_bytes:
            self._parse()

    def sample(self, prompt: str, output_tokens: int, began_s: float) -> RequestSample:
        """The request as the client saw it.

        Args:
            prompt: identity of the prompt.
            output_tokens: how many were asked for.
            began_s: when the window began, on the clock of the chunks' times.
        """
        self._parse()
        last = self._last
        tokens = last.tokens or 0
        return RequestSample(
            prompt=prompt,
            sent_s=self.sent_s - began_s,
            prompt_tokens=last.prompt_tokens or 0,
            cached_tokens=last.cached_tokens or 0,
            completion_tokens=tokens,
            arrivals=tuple((at_s - began_s, count) for at_s, count in self._arrivals),
            finish_reason=last.finish_reason,
            retractions=last.retractions or 0,
            spec_verify_ct=last.spec_verify_ct,
            error=self._fault(tokens, output_tokens),
        )

    def _fault(self, tokens: int, output_tokens: int) -> str:
        if self._last.error:
            return f"the server reports: {self._last.error}"
        if self._done:
            # What the connection does after the end of the stream changes nothing.
            return ""
        so_far = f"after {tokens} of {output_tokens} tokens"
        if self.error:
            return f"{self.error} ({so_far})" if self._received else self.error
        if not self._received:
            return "the answer is empty: HTTP 200 without a stream"
        if rest := self._splitter.rest:
            return f"the stream was cut {so_far}, in the middle of an event: {rest[:80]!r}"
        return f"the stream ended {so_far} without [DONE]"

    def _parse(self) -> None:
        for at_s, chunk in self._raw:
            self._received = True
            for payload in self._splitter.feed(chunk):
                if payload == DONE:
                    self._done = True
                else:
                    self._take(at_s, self._form.event(payload))
        self._raw.clear()
        self.held_bytes = 0

    def _take(self, at_s: float, event: Event) -> None:
        before = self._last
        if event.tokens is not None and event.tokens > (before.tokens or 0):
            if self._arrivals and self._arrivals[-1][0] == at_s:
                self._arrivals.pop()  # coalesced: one arrival of them all
            self._arrivals.append((at_s, event.tokens))
        self._last = Event(
            tokens=before.tokens if event.tokens is None else max(event.tokens, before.tokens or 0),
            prompt_tokens=before.prompt_tokens if event.prompt_tokens is None else event.prompt_tokens,
            cached_tokens=before.cached_tokens if event.cached_tokens is None else event.cached_tokens,
            finish_reason=event.finish_reason or before.finish_reason,
            retractions=before.retractions if event.retractions is None else event.retractions,
            spec_verify_ct=before.spec_verify_ct if event.spec_verify_ct is None else event.spec_verify_ct,
            error=before.error or event.error,
        )
