"""What the engine is asked, and the shape of what it answers: keys in order and kinds of values.

`shapes.json` was recorded from a real SGLang by ``TUNER_RECORD_SHAPES=1 scripts/real-engine test -k shapes``; real
engine and stand-in are both held to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from contract_bench import events

SHAPES = Path(__file__).with_name("shapes.json")

_SAMPLING = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
_CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello there"}],
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}
_COMPLETION = {"model": "tiny", "prompt": "a b c", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
_USAGE = {"stream_options": {"include_usage": True}}
_CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_BAD = {"text": "x", "sampling_params": {"max_new_tokens": -5}}
TOO_LONG = {"input_ids": [5] * 8190, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
"""Longer than the KV cache of 8,192 tokens can take, shorter than the context."""


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        body: of a POST; ``None``: a GET.
        stream: whether the answer is a stream, of which the first two and last three events are looked at.
        may_lack: keys that the stand-in need not have → why.
    """

    path: str
    body: Mapping[str, Any] | None = None
    stream: bool = False
    may_lack: Mapping[str, str] = field(default_factory=dict)


QUESTIONS: dict[str, Question] = {
    "health": Question("/health"),
    "model_info": Question("/model_info"),
    "get_model_info": Question("/get_model_info"),
    "server_info": Question("/server_info"),
    "get_server_info": Question("/get_server_info"),
    "models": Question("/v1/models"),
    "generate": Question("/generate", {"text": "quick brown", "sampling_params": _SAMPLING}),
    "generate_logprobs": Question(
        "/generate", {"text": "brown fox", "sampling_params": _SAMPLING, "return_logprob": True}
    ),
    "generate_stream": Question("/generate", {"text": "lazy dog", "sampling_params": _SAMPLING}, stream=True),
    "generate_bad": Question("/generate", _BAD),
    "generate_bad_stream": Question("/generate", _BAD, stream=True),
    "generate_nothing": Question("/generate", {"sampling_params": _SAMPLING}),
    "generate_too_long": Question("/generate", TOO_LONG),
    "generate_too_long_stream": Question("/generate", TOO_LONG, stream=True),
    "completions": Question("/v1/completions", _COMPLETION),
    "completions_stream": Question("/v1/completions", {**_COMPLETION, **_USAGE}, stream=True),
    "chat": Question("/v1/chat/completions", _CHAT),
    "chat_stream": Question("/v1/chat/completions", {**_CHAT, **_USAGE}, stream=True),
    "chat_stream_continuous": Question("/v1/chat/completions", {**_CHAT, **_CONTINUOUS}, stream=True),
    "chat_without_messages": Question("/v1/chat/completions", {"model": "tiny", "max_tokens": 4}),
    "unknown_path": Question("/no_such_path"),
    "flush": Question("/flush_cache", {}),
}


async def answer(http: httpx.AsyncClient, question: Question) -> Any:
    """Status and body of an answer, or the events of a stream that matter."""
    if question.stream:
        seen = [event async for event in events(http, question.path, question.body)]
        return seen if len(seen) < 5 else [*seen[:2], *seen[-3:]]
    if question.body is None:
        response = await http.get(question.path)
    else:
        response = await http.post(question.path, json=question.body)
    kind = response.headers.get("content-type", "").partition(";")[0]
    body = response.json() if kind == "application/json" and response.content else response.text
    return {"status": response.status_code, "content-type": kind, "body": body}


def shape(value: Any, key: str = "") -> Any:
    """Keys in order and kinds of values; of lists the kinds of their elements, each once; some texts as they stand."""
    if isinstance(value, dict):
        return {name: shape(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        kinds = [shape(element) for element in value]
        return kinds if key == "" else [kind for place, kind in enumerate(kinds) if kind not in kinds[:place]]
    if value == "[DONE]" or key in ("status", "content-type", "object", "role", "finish_reason", "type"):
        return value
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else type(value).__name__


def differences(recorded: Any, found: Any, where: str = "") -> Iterator[str]:
    """Where a shape differs from the recorded one, in words. A value that is null on one side is of any kind."""
    if "NoneType" in (recorded, found) or None in (recorded, found):
        return
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in recorded.keys() - found.keys():
            yield f"{where}.{key} is missing"
        for key in found.keys() - recorded.keys():
            yield f"{where}.{key} is not in SGLang"
        if list(recorded) != list(found) and recorded.keys() == found.keys():
            yield f"{where}: keys are in another order"
        for key in recorded.keys() & found.keys():
            yield from differences(recorded[key], found[key], f"{where}.{key}")
    elif isinstance(recorded, list) and isinstance(found, list):
        if len(recorded) != len(found) and recorded and found:
            yield f"{where}: {len(found)} elements, SGLang has {len(recorded)}"
        for place, (left, right) in enumerate(zip(recorded, found, strict=False)):
            yield from differences(left, right, f"{where}[{place}]")
    elif recorded != found:
        yield f"{where}: {found!r}, SGLang has {recorded!r}"


def recorded_shapes() -> dict[str, Any]:
    """What was recorded."""
    value: dict[str, Any] = json.loads(SHAPES.read_text(encoding="utf-8"))
    return value


def record(name: str, found: Any) -> None:
    """Records the shape of one answer."""
    shapes = recorded_shapes() if SHAPES.exists() else {}
    shapes[name] = found
    SHAPES.write_text(json.dumps(shapes, indent=1) + "\n", encoding="utf-8")
