"""The stand-in's endpoints, held against what SGLang 0.5.17 answered (`recorded.json`): keys, their order, kinds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from simulated_server import Host, StandIn, make_host, until

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
SIX = {"text": "quick brown", "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}}


def shape(value: Any) -> Any:
    """Keys in order and kinds of values; of a list the kind of its first element; numbers are one kind."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else type(value).__name__


def assert_like(answer: Any, recorded: Any) -> None:
    assert json.dumps(shape(answer), indent=1) == json.dumps(shape(recorded), indent=1)


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info(served: StandIn, path: str) -> None:
    answer = served.json(path)
    assert_like(answer, RECORDED["model_info"])
    assert answer["weight_version"] == served.nonce


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info(served: StandIn, path: str) -> None:
    answer = served.json(path)
    assert list(answer) == RECORDED["server_info_keys"]
    internal = answer["internal_states"][0]
    assert [key for key in internal if key != "simulated_lateness"] == RECORDED["internal_state_keys"]
    assert_like(internal["memory_usage"], RECORDED["memory_usage"])
    assert_like(answer["startup_time"], RECORDED["startup_time"])
    assert set(internal["simulated_lateness"]) == {"steps", "late_mean_s", "late_fraction"}
    assert (answer["tp_size"], answer["version"], answer["status"]) == (2, "0.5.17", "ready")
    assert answer["weight_version"] == served.nonce


def test_generate_stream(served: StandIn) -> None:
    chunks = [chunk for _, chunk in served.generate("quick brown", 6)]
    assert_like([chunks[0], chunks[1], chunks[-1]], RECORDED["generate_stream"])
    assert chunks[-1]["meta_info"]["weight_version"] == served.nonce


def test_generate(served: StandIn) -> None:
    assert_like(served.json("/generate", SIX), RECORDED["generate"])


def test_without_metrics_the_extra_fields_are_missing(host: Host) -> None:
    server = host.start().ready()
    meta = server.json("/generate", SIX)["meta_info"]
    assert not {"queue_time", "decode_throughput", "request_finished_ts"} & set(meta)
    assert {"e2e_latency", "response_sent_to_client_ts"} <= set(meta)
    assert server.request("/metrics")[0] == 404


def test_a_bad_parameter_is_refused(served: StandIn) -> None:
    status, body = served.request("/generate", {"text": "x", "sampling_params": {"max_new_tokens": -5}})
    assert (status, json.loads(body)) == (400, RECORDED["generate_bad"])


def test_a_bad_parameter_in_a_stream_comes_as_an_event(served: StandIn) -> None:
    events = [
        event for _, event in served.events("/generate", {"text": "x", "sampling_params": {"max_new_tokens": -5}})
    ]
    assert events[0]["error"]["code"] == 400
    assert events[0]["error"]["message"] == RECORDED["generate_bad"]["error"]["message"]
    assert events[1:] == ["[DONE]"]


def test_too_long_a_prompt_in_a_stream_is_an_abort_with_status_200(served: StandIn) -> None:
    body = {"input_ids": [5] * 8190, "sampling_params": {"max_new_tokens": 4}}
    events = [event for _, event in served.events("/generate", body)]
    assert_like(events[:-1], RECORDED["generate_too_long_stream"])
    finish = events[0]["meta_info"]["finish_reason"]
    assert (finish["type"], finish["status_code"]) == ("abort", 400)
    assert finish["message"].startswith("Input length (8190 tokens) exceeds the maximum allowed length (8186 tokens).")


def test_completions_stream(served: StandIn) -> None:
    body = {
        "model": "tiny",
        "prompt": "a b",
        "max_tokens": 4,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    events = [event for _, event in served.events("/v1/completions", body)]
    first, last, usage, done = events[0], events[-3], events[-2], events[-1]
    assert_like([first, last, usage], RECORDED["completions_stream"])
    assert done == "[DONE]"
    assert usage["usage"]["completion_tokens"] == 4


def test_chat_stream(served: StandIn) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 3,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    events = [event for _, event in served.events("/v1/chat/completions", body)]
    recorded = RECORDED["chat_stream"]
    assert_like([events[0], events[1], events[-3], events[-2]], recorded)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-2])
    assert text.strip()


def test_continuous_usage_counts_in_every_chunk_with_text(served: StandIn) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "ignore_eos": True,
        "stream_options": options,
    }
    events = [event for _, event in served.events("/v1/chat/completions", body)]
    assert "usage" not in events[0] and "usage" not in events[-3], "a chat's opening and closing chunks carry none"
    counts = [event["usage"]["completion_tokens"] for event in events[1:-1] if "usage" in event]
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_models(served: StandIn) -> None:
    assert_like(served.json("/v1/models"), RECORDED["models"])


def test_flush_empties_the_cache(served: StandIn) -> None:
    first = served.json("/generate", {**SIX, "text": "an entirely different prompt of some length"})
    again = served.json("/generate", {**SIX, "text": "an entirely different prompt of some length"})
    prompt = again["meta_info"]["prompt_tokens"]
    assert first["meta_info"]["cached_tokens"] < prompt - 1
    assert again["meta_info"]["cached_tokens"] == prompt - 1, "all but the last token, which is always computed"
    assert served.request("/flush_cache", {}) == (200, RECORDED["flush"].encode())
    flushed = served.json("/generate", {**SIX, "text": "an entirely different prompt of some length"})
    assert flushed["meta_info"]["cached_tokens"] == 0


def test_flush_is_refused_while_a_request_runs(served: StandIn) -> None:
    stream = served.events("/generate", {"text": "y", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}})
    next(stream)
    assert served.request("/flush_cache", {})[0] == 400
    list(stream)


def test_abort_ends_a_stream_with_its_reason(served: StandIn) -> None:
    body = {"text": "y", "rid": "mine", "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True}}
    stream = served.events("/generate", body)
    next(stream)
    assert served.request("/abort_request", {"rid": "mine"})[0] == 200
    last = [event for _, event in stream][-2]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert last["meta_info"]["completion_tokens"] < 1000


def test_health_takes_a_second_and_is_no_request_of_the_metrics(served: StandIn) -> None:
    assert served.request("/health")[0] == 200
    text = served.request("/metrics")[1].decode()
    assert "HEALTH_CHECK" not in text


def test_metrics(served: StandIn) -> None:
    served.generate("count me", 5)
    text = served.request("/metrics")[1].decode()
    names = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    assert names <= set(RECORDED["metrics"]), "no series that SGLang lacks"
    assert {
        "sglang:gen_throughput",
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:token_usage",
        "sglang:generation_tokens_total",
        "sglang:prompt_tokens_total",
        "sglang:time_to_first_token_seconds_sum",
        "sglang:inter_token_latency_seconds_count",
        "sglang:e2e_request_latency_seconds_sum",
        "sglang:startup_time_seconds",
    } <= names


def test_what_the_version_lacks_is_not_there(served: StandIn) -> None:
    assert served.request("/ready")[0] == 404, "0.5.20 and later"
    assert served.request("/get_model_info")[0] == 200
    assert "Endpoint '/get_model_info' is deprecated" in served.log


def test_a_newer_engine_has_what_is_new_and_leaves_in_order(tmp_path: Path) -> None:
    host = make_host(tmp_path / "host", version="0.5.21")
    try:
        server = host.start().ready()
        assert server.request("/ready")[0] == 200
        info = server.json("/server_info")
        assert info["version"] == "0.5.21"
        assert info["launch_command"].startswith("python3 -m sglang.launch_server --model-path /models/m61")
        assert "served_model_name" in server.json("/model_info")
        server.process.terminate()
        assert server.ended() == 0, "up to 0.5.17 it was killed by itself"
        assert "Gracefully exiting... Remaining number of requests 0." in server.log
        until(lambda: list(host.state.processes()) == [], "all gone", 5)
    finally:
        host.end()
