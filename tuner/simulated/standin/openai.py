"""The objects of ``/v1/completions`` and ``/v1/chat/completions``, as SGLang streams and returns them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tuner.simulated.standin.frontend import Pending


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters of such a request in SGLang's own names."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return {
        "max_new_tokens": limit,
        "temperature": 1.0 if body.get("temperature") is None else body["temperature"],
        "ignore_eos": body.get("ignore_eos", False),
    }


def prompt_of(messages: list[Mapping[str, Any]]) -> str:
    """A conversation as the text that the model continues: a template of the usual kind."""
    turns = "".join(f"<|{message.get('role', 'user')}|>{_content(message)}<|end|>" for message in messages)
    return f"{turns}<|assistant|>"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))


class OpenAIChunks:
    """Writes the objects of one request.

    Args:
        chat: whether the shape is that of chat completions.
        model: name of the model as the request gives it.
        options: ``stream_options``.
        cache_report: ``--enable-cache-report``.
        weight_version: ``--weight-version``.
    """

    def __init__(
        self,
        pending: Pending,
        *,
        chat: bool,
        model: str,
        options: Mapping[str, Any] | None,
        cache_report: bool,
        weight_version: str,
    ) -> None:
        self._pending = pending
        self._chat = chat
        self._model = model
        self._created = int(time.time())
        self._include = bool((options or {}).get("include_usage"))
        self._continuous = bool((options or {}).get("continuous_usage_stats"))
        self._cache_report = cache_report
        self._weight_version = weight_version
        self._sent = 0

    def first(self) -> list[dict[str, Any]]:
        """The chunk that opens a chat stream; completions have none."""
        if not self._chat:
            return []
        return [self._chunk({"delta": {"reasoning_content": None, "role": "assistant", "content": ""}}, None)]

    def news(self) -> list[dict[str, Any]]:
        """Chunks for what is new since the last call."""
        text = self._pending.text[self._sent :]
        self._sent = len(self._pending.text)
        reason = (self._pending.finish or {}).get("type")
        if not self._chat:
            return [self._chunk({"text": text}, reason)]
        chunks = [self._chunk({"delta": {"reasoning_content": None, "content": text}}, None)] if text else []
        if reason is not None:
            chunks.append(self._chunk({"delta": {"reasoning_content": None}}, reason))
        return chunks

    def last(self) -> list[dict[str, Any]]:
        """The usage chunk, where it is asked for."""
        if not self._include:
            return []
        head = self._head("chat.completion.chunk" if self._chat else "text_completion")
        return [{**head, "choices": [], "usage": self.usage()}]

    def whole(self) -> dict[str, Any]:
        """The answer of a request without a stream."""
        reason = (self._pending.finish or {}).get("type")
        if self._chat:
            content: dict[str, Any] = {
                "message": {
                    "role": "assistant",
                    "content": self._pending.text,
                    "reasoning_content": None,
                    "tool_calls": None,
                }
            }
        else:
            content = {"text": self._pending.text}
        head = self._head("chat.completion" if self._chat else "text_completion")
        return {
            **head,
            "choices": [self._choice(content, reason)],
            "usage": self.usage(whole=True),
            "metadata": {"weight_version": self._weight_version},
        }

    def usage(self, *, whole: bool = False) -> dict[str, Any]:
        """Token counts so far, in a chunk or in a whole answer."""
        prompt, made = self._pending.prompt_tokens, self._pending.made
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
        details = {"cached_tokens": self._pending.cached} if self._cache_report else None
        if whole or self._chat or details:
            usage["prompt_tokens_details"] = details
        return {**usage, "reasoning_tokens": 0}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._pending.rid, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, content: dict[str, Any], reason: str | None) -> dict[str, Any]:
        matched = (self._pending.finish or {}).get("matched") if reason == "stop" else None
        return {"index": 0, **content, "logprobs": None, "finish_reason": reason, "matched_stop": matched}

    def _chunk(self, content: dict[str, Any], reason: str | None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        chunk: dict[str, Any] = {**self._head(kind), "choices": [self._choice(content, reason)]}
        # A chat's opening and closing chunks carry no counts.
        if self._continuous and not (self._chat and (reason is not None or "role" in content["delta"])):
            return {**chunk, "usage": self.usage()}
        return chunk if self._chat else {**chunk, "usage": None}
