"""A stream's bytes to a sample: however they were cut, and whenever they were parsed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.load.formats import CHAT, GENERATE
from tuner.load.stream import EventSplitter, StreamLog


def generate_events(tokens: int, **last: Any) -> list[bytes]:
    """Cumulative text with characters of one to four bytes."""
    events = []
    for n in range(1, tokens + 1):
        meta: dict[str, Any] = {"finish_reason": None, "prompt_tokens": 80, "completion_tokens": n, "cached_tokens": 3}
        if n == tokens:
            meta |= {"finish_reason": {"type": "length", "length": tokens}, **last}
        text = "".join("aé雨🦊"[i % 4] for i in range(n))
        data = json.dumps({"text": text, "output_ids": list(range(n)), "meta_info": meta}, ensure_ascii=False)
        events.append(f"data: {data}\n\n".encode())
    return [*events, b"data: [DONE]\n\n"]


@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, 3000), max_size=40), limit=st.sampled_from([0, 100, 1000, 10**9]), crlf=st.booleans()
)
def test_any_cut_gives_the_same_sample(cuts: list[int], limit: int, crlf: bool) -> None:
    body = b"".join(generate_events(12, spec_verify_ct=5, num_retractions=1))
    if crlf:
        body = body.replace(b"\n", b"\r\n")
    log = StreamLog(GENERATE, limit)
    log.sent_s = 10.5
    places = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    for number, (start, stop) in enumerate(itertools.pairwise(places)):
        log.append(11.0 + number, body[start:stop])
    sample = log.sample("0/0/0", 12, began_s=10.0)
    assert (sample.error, sample.finish_reason, sample.completion_tokens) == ("", "length", 12)
    assert (sample.prompt_tokens, sample.cached_tokens, sample.retractions, sample.spec_verify_ct) == (80, 3, 1, 5)
    assert sample.sent_s == 0.5
    counts = [n for _, n in sample.arrivals]
    assert counts == sorted(set(counts)) and counts[-1] == 12
    # Each count is stamped with the time of the piece that completed its event.
    end = b"\r\n\r\n" if crlf else b"\n\n"
    for at_s, count in sample.arrivals:
        piece = round(at_s - 1.0)
        assert body[: places[piece + 1]].count(end) >= count > body[: places[piece]].count(end)


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    log = StreamLog(GENERATE, 256 * 1024)
    events = generate_events(1500)
    total = sum(map(len, events))
    held = 0
    for number, event in enumerate(events):
        log.append(number * 0.01, event)
        held = max(held, log.held_bytes)
    assert total > 8_000_000
    assert held <= 256 * 1024
    assert log.sample("x", 1500, 0.0).completion_tokens == 1500


def test_coalesced_events_are_one_arrival() -> None:
    events = generate_events(6)
    log = StreamLog(GENERATE, 10**6)
    log.append(1.0, events[0])
    log.append(2.0, b"".join(events[1:5]))
    log.append(3.0, b"".join(events[5:]))
    assert log.sample("x", 6, 0.0).arrivals == ((1.0, 1), (2.0, 5), (3.0, 6))


def test_chat_without_a_count_for_each_chunk_is_not_guessed() -> None:
    log = StreamLog(CHAT, 10**6)
    delta = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
    for n in range(5):
        log.append(float(n), b"data: " + json.dumps(delta).encode() + b"\n\n")
    log.append(5.0, b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}\n\ndata: [DONE]\n\n')
    assert log.sample("x", 5, 0.0).arrivals == ((5.0, 5),)


@pytest.mark.parametrize(
    ("chunks", "broke", "words"),
    [
        ([], "", "the answer is empty"),
        ([], "nothing came for 3 s", "nothing came for 3 s"),
        (generate_events(4)[:3], "", "ended after 3 of 9 tokens without [DONE]"),
        (generate_events(4)[:3], "the connection broke: x", "the connection broke: x (after 3 of 9 tokens)"),
        ([*generate_events(4)[:2], b'data: {"te'], "", "cut after 2 of 9 tokens, in the middle of an event"),
        ([b'data: {"error":{"message":"out of memory"}}\n\n', b"data: [DONE]\n\n"], "", "reports: out of memory"),
    ],
)
def test_what_went_wrong_is_said(chunks: list[bytes], broke: str, words: str) -> None:
    log = StreamLog(GENERATE, 10**6)
    for chunk in chunks:
        log.append(1.0, chunk)
    log.error = broke
    assert words in log.sample("x", 9, 0.0).error


def test_a_connection_that_breaks_after_the_end_changes_nothing() -> None:
    log = StreamLog(GENERATE, 10**6)
    log.append(1.0, b"".join(generate_events(4)))
    log.error = "the connection broke: reset"
    assert log.sample("x", 4, 0.0).error == ""


def test_fields_other_than_data_are_skipped() -> None:
    splitter = EventSplitter()
    stream = b": keep-alive\n\nevent: x\nid: 7\ndata: a\ndata: b\n\nretry: 3\n\ndata:c\n\n"
    assert list(splitter.feed(stream)) == [b"a\nb", b"c"]
    assert splitter.rest == b""
