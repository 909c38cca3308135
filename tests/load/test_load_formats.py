"""The parsers against answers recorded from SGLang 0.5.17, and against what servers should never send."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.load.formats import CHAT, GENERATE, Event, StreamFormat, error_text, format_of

RUNNING = (
    b'{"text":" fox","output_ids":[1872,287],"meta_info":{"id":"36c7","finish_reason":null,"prompt_tokens":5,'
    b'"weight_version":"nonce-abc123","num_retractions":0,"queue_time":0.0003,"reasoning_tokens":0,'
    b'"completion_tokens":2,"cached_tokens":2,"cached_tokens_details":{"device":2,"host":0},"dp_rank":null}}'
)
ABORTED = (
    b'{"text":"","output_ids":[0],"meta_info":{"id":"f89e","finish_reason":{"type":"abort","message":"Input length '
    b'(20000 tokens) exceeds the maximum allowed length (8186 tokens).","status_code":400,'
    b'"err_type":"BadRequestError"},"prompt_tokens":1,"num_retractions":0,"completion_tokens":1,"cached_tokens":0,"cached_tokens_details":null}}'
)
CHAT_FINISH = (
    b'{"id":"f6d8","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":'
    b'{"reasoning_content":null},"logprobs":null,"finish_reason":"length","matched_stop":null}]}'
)
CHAT_USAGE = (
    b'{"id":"f6d8","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[],"usage":'
    b'{"prompt_tokens":16,"total_tokens":19,"completion_tokens":3,"prompt_tokens_details":null,"reasoning_tokens":0}}'
)


@pytest.mark.parametrize(
    ("form", "payload", "event"),
    [
        (GENERATE, RUNNING, Event(tokens=2, prompt_tokens=5, cached_tokens=2, retractions=0)),
        (
            GENERATE,
            ABORTED,
            Event(
                tokens=1,
                prompt_tokens=1,
                cached_tokens=0,
                finish_reason="abort",
                retractions=0,
                spec_verify_ct=0,
                error="Input length (20000 tokens) exceeds the maximum allowed length (8186 tokens).",
            ),
        ),
        (CHAT, CHAT_FINISH, Event(finish_reason="length")),
        (CHAT, CHAT_USAGE, Event(tokens=3, prompt_tokens=16)),
    ],
)
def test_recorded_events(form: StreamFormat, payload: bytes, event: Event) -> None:
    assert form.event(payload) == event


def test_verify_steps_come_with_the_last_event_only() -> None:
    meta = {"finish_reason": {"type": "length", "length": 9}, "completion_tokens": 9, "spec_verify_ct": 4}
    assert GENERATE.event(json.dumps({"meta_info": meta}).encode()).spec_verify_ct == 4
    del meta["spec_verify_ct"]
    assert GENERATE.event(json.dumps({"meta_info": meta}).encode()).spec_verify_ct == 0
    assert GENERATE.event(RUNNING).spec_verify_ct is None


@pytest.mark.parametrize("form", [GENERATE, CHAT])
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"error":{"message":"max_new_tokens must be at least 0, got -5."}}', "must be at least 0"),
        (b'{"error":"a bare text"}', "a bare text"),
        (b'{"object":"error","message":"the model does not exist","code":404}', "the model does not exist"),
        (b'{"error":{"code":500}}', '"code": 500'),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_errors_are_said(form: StreamFormat, payload: bytes, words: str) -> None:
    assert words in form.event(payload).error


@pytest.mark.parametrize("form", [GENERATE, CHAT])
@settings(max_examples=50, deadline=None)
@given(
    data=st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["meta_info", "usage", "choices", "finish_reason", "error", "completion_tokens", "type"]
                )
                | st.text(),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_payload_raises(form: StreamFormat, data: bytes) -> None:
    event = form.event(data)
    assert event.tokens is None or event.tokens >= 0


@settings(deadline=None)
@given(text=st.text(), ids=st.lists(st.integers(0, 200_000)))
def test_trimming_changes_nothing_that_is_read(text: str, ids: list[int]) -> None:
    """Whatever is generated, the very keys of the format included."""
    for generated in (text, '"meta_info":{"completion_tokens":99}', text + 'data: {"meta_info":' + text):
        event = {"text": generated, "output_ids": ids, **json.loads(RUNNING.decode().replace('"text"', '"was"'))}
        del event["was"]
        for separators in ((",", ":"), (", ", ": ")):
            chunk = b"data: " + json.dumps(event, separators=separators).encode() + b"\n\n"
            trimmed = GENERATE.trim(chunk)
            assert len(trimmed) <= len(chunk)
            assert GENERATE.event(trimmed[6:-2]) == GENERATE.event(chunk[6:-2]) == GENERATE.event(RUNNING)


def test_bodies_ask_for_equal_token_counts() -> None:
    generate, chat = format_of("generate").body("Hello", 7), format_of("chat").body("Hello", 7)
    assert generate["text"] == "Hello"
    assert generate["sampling_params"] == {"temperature": 0, "max_new_tokens": 7, "ignore_eos": True}
    assert chat["messages"] == [{"role": "user", "content": "Hello"}]
    assert (chat["temperature"], chat["max_tokens"], chat["ignore_eos"]) == (0, 7, True)
    assert generate["stream"] and chat["stream"]
    assert chat["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_an_error_body_is_one_short_line() -> None:
    assert error_text(b'{"error": {"message": "no\\nway"}}') == "no way"
    assert error_text(b"<html>\n" + b"x" * 1000).startswith("<html> xxx")
    assert len(error_text(b"x" * 1000)) == 300
