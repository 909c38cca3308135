"""What an endpoint is asked, and what each event of its stream says. Pure functions.

Sources: SGLang's ``sglang/srt/entrypoints/http_server.py`` and ``managers/tokenizer_manager.py`` (0.5.9 to 0.5.23) and
recorded answers of 0.5.17. Text may be cumulative (the default) or incremental; tokens are counted by the server's own
cumulative ``completion_tokens``, because a chunk may hold several tokens and chunks may coalesce.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

DONE = b"[DONE]"
"""The payload that ends a stream."""


@dataclass(frozen=True)
class Event:
    """What one event of a stream says; ``None`` where it says nothing.

    Attributes:
        tokens: cumulative completion tokens.
        prompt_tokens: tokens of the prompt.
        cached_tokens: of those, tokens found in the prefix cache.
        finish_reason: ``length``, ``stop``, ``abort``, …; empty while running.
        retractions: times the request was taken off the batch so far.
        spec_verify_ct: verify steps; 0 where the engine says that it did not speculate.
        error: the server's message; empty if it reports none.
    """

    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str = ""
    retractions: int | None = None
    spec_verify_ct: int | None = None
    error: str = ""


@dataclass(frozen=True)
class StreamFormat:
    """One streaming endpoint.

    Attributes:
        path: of the HTTP request.
        body: (prompt text, output tokens) → JSON body of the request.
        event: payload of one server-sent event → what it says.
        trim: one received chunk that is exactly one event → the same event without what nobody reads.
    """

    path: str
    body: Callable[[str, int], dict[str, Any]]
    event: Callable[[bytes], Event]
    trim: Callable[[bytes], bytes]


def format_of(endpoint: Literal["generate", "chat"]) -> StreamFormat:
    """The format of a workload's endpoint."""
    return CHAT if endpoint == "chat" else GENERATE


def error_text(body: bytes) -> str:
    """The server's message in an error body, or the body's own beginning; one line of at most 300 characters."""
    try:
        text = _error(json.loads(body))
    except ValueError:
        text = ""
    return _line(text or body.decode("utf-8", "replace"))


def _generate_body(text: str, output_tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True}
    return {"text": text, "sampling_params": sampling, "stream": True}


def _generate_event(payload: bytes) -> Event:
    data = _object(payload)
    if isinstance(data, str):
        return Event(error=data)
    meta = data.get("meta_info")
    if error := _error(data):
        return Event(error=error)
    if not isinstance(meta, dict):
        return Event(error=_line(f"an event without meta_info: {payload[:200]!r}"))
    reason, error = _finish(meta.get("finish_reason"))
    verify = _count(meta.get("spec_verify_ct"))
    return Event(
        tokens=_count(meta.get("completion_tokens")),
        prompt_tokens=_count(meta.get("prompt_tokens")),
        cached_tokens=_count(meta.get("cached_tokens")),
        finish_reason=reason,
        retractions=_count(meta.get("num_retractions")),
        # The last event alone carries it, and only if a draft ran.
        spec_verify_ct=(verify or 0) if reason else verify,
        error=error,
    )


def _generate_trim(chunk: bytes) -> bytes:
    """Drops text and token ids, which grow with each event: over a stream they are quadratic in its length.

    Inside a JSON string a quote is escaped, so the key cannot be mistaken for generated text.
    """
    start = chunk.rfind(b'"meta_info":')
    return b"data: {" + chunk[start:] if start > 0 and chunk.startswith(b"data: {") else chunk


def _chat_body(text: str, output_tokens: int) -> dict[str, Any]:
    return {
        "model": "default",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _chat_event(payload: bytes) -> Event:
    data = _object(payload)
    if isinstance(data, str):
        return Event(error=data)
    if error := _error(data):
        return Event(error=error)
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    reason, error = _finish(choice.get("finish_reason"))
    return Event(
        tokens=_count(usage.get("completion_tokens")),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        finish_reason=reason,
        error=error,
    )


GENERATE = StreamFormat("/generate", _generate_body, _generate_event, _generate_trim)
CHAT = StreamFormat("/v1/chat/completions", _chat_body, _chat_event, lambda chunk: chunk)


def _object(payload: bytes) -> dict[str, Any] | str:
    """The JSON object of an event, or what is wrong with it."""
    try:
        data = json.loads(payload)
    except ValueError:
        return _line(f"an event that is not JSON: {payload[:200]!r}")
    return data if isinstance(data, dict) else _line(f"an event that is not a JSON object: {payload[:200]!r}")


def _error(data: Any) -> str:
    """The message in ``{"error": …}`` or ``{"object": "error", "message": …}``; empty if it is none of these."""
    if not isinstance(data, dict):
        return ""
    error = data.get("error")
    if error is None and data.get("object") == "error":
        error = data
    if isinstance(error, dict):
        error = error.get("message") or json.dumps(error)
    return _line(str(error)) if error else ""


def _finish(reason: Any) -> tuple[str, str]:
    """(finish reason, error) of either form: a word, or an object with its type."""
    if isinstance(reason, dict):
        kind = str(reason.get("type") or "")
        message = _line(str(reason.get("message") or "no message")) if kind == "abort" else ""
        return kind, message
    return (str(reason), "") if reason else ("", "")


def _count(value: Any) -> int | None:
    """A count of the server, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
