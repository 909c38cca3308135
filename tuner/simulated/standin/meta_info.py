"""The objects of ``/generate``: cumulative text, ids and ``meta_info``, keys in SGLang's order."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from tuner.simulated.standin.frontend import Pending
from tuner.simulated.standin.vocabulary import decode


class GenerateChunks:
    """Writes the JSON of one request's chunks. Cumulative text is appended to, not encoded anew each time.

    Args:
        args: resolved server arguments: weight version, metrics, speculation.
        logprob_text: whether log-probabilities come with the text of their token.
    """

    def __init__(self, args: Mapping[str, Any], pending: Pending, *, logprob_text: bool = False) -> None:
        self._args = args
        self._pending = pending
        self._first = True
        self._first_sent = 0.0
        self._incremental = bool(args.get("incremental_streaming_output") or args.get("stream_output"))
        self._logprob_text = logprob_text
        self._sent = (0, 0)

    def chunk(self) -> str:
        """The object as it stands: one chunk of a stream, or the whole answer."""
        pending = self._pending
        text, ids = pending.text_json, pending.ids_json
        if self._incremental:
            at_text, at_ids = self._sent
            self._sent = (len(text), len(ids))
            text, ids = text[at_text:], ids[at_ids:].lstrip(",")
        meta = self._meta()
        self._first = False
        return f'{{"text":"{text}","output_ids":[{ids}],"meta_info":{json.dumps(meta, separators=(",", ":"))}}}'

    def _meta(self) -> dict[str, Any]:
        pending, metrics = self._pending, self._args["enable_metrics"]
        meta: dict[str, Any] = {
            "id": pending.rid,
            "finish_reason": pending.finish,
            "prompt_tokens": 1 if _refused(pending) else pending.prompt_tokens,
            "weight_version": self._args["weight_version"],
            "num_retractions": 0,
        }
        if metrics:
            meta |= {
                "forward_entry_time": pending.entered_ts,
                "prefill_finished_time": pending.first_ts,
                "queue_time": pending.queued_s,
            }
        if pending.logprobs is not None:
            triples = [
                (value, token, decode([token]) if self._logprob_text else None) for value, token in pending.logprobs
            ]
            meta |= {
                "input_token_logprobs": [],  # none are asked for: `logprob_start_len` is -1
                "output_token_logprobs": triples,
                "output_token_logprobs_length": len(triples),
            }
        meta |= {
            "reasoning_tokens": 0,
            "completion_tokens": pending.made,
            "cached_tokens": pending.cached,
            "cached_tokens_details": None if _refused(pending) else {"device": pending.cached, "host": 0},
            "dp_rank": None,
        }
        if self._first:
            self._first_sent = time.time()
        if pending.finish is None:
            return meta | ({"response_sent_to_client_ts": self._first_sent} if self._first and metrics else {})
        return meta | self._last(metrics=metrics)

    def _last(self, *, metrics: bool) -> dict[str, Any]:
        """What only the last chunk has."""
        pending = self._pending
        last: dict[str, Any] = {"e2e_latency": pending.last_s - pending.received_s}
        if metrics:
            last |= {"request_received_ts": pending.received_ts, "api_server_dispatch_finish_ts": pending.dispatched_ts}
        if not self._first:
            last["response_sent_to_client_ts"] = self._first_sent
        if metrics:
            last["request_finished_ts"] = pending.received_ts + pending.last_s - pending.received_s
            if not _refused(pending):
                last["decode_throughput"] = (pending.made - 1) / max(1e-6, pending.last_s - pending.first_s)
        last["response_sent_to_client_ts"] = self._first_sent  # keeps its place where it has one
        if pending.verifies:
            drafts = int(self._args["speculative_num_draft_tokens"] or 1) - 1
            correct = pending.made - pending.verifies
            last |= {
                "spec_accept_rate": correct / max(1, pending.verifies * drafts),
                "spec_accept_length": pending.made / pending.verifies,
                "spec_num_correct_drafts": correct,
                "spec_num_proposed_drafts": pending.verifies * drafts,
                "spec_verify_ct": pending.verifies,
            }
        return last


def _refused(pending: Pending) -> bool:
    return pending.finish is not None and pending.finish.get("status_code") == 400
