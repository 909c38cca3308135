"""Is a window good: the reasons not to use it, in words, each with what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.load.metrics import itl_s, output_tok_s, quantile, steady_stretch, steady_tokens
from tuner.values.measurement import RequestSample, Window
from tuner.values.workload import Workload

CLIENT_CPU_LIMIT = 0.7
"""Fraction of a core above which a client delays what it stamps (measured with httpx 0.28.1: 64 streams of 100 tok/s at
50 % are true, 256 at 98 % lose a third of the chunks)."""

LOOP_LAG_LIMIT_S = 0.020
"""Event-loop lag at the 99th percentile that is always tolerated."""

LOOP_LAG_FRACTION = 0.005
"""Lag as a fraction of the steady stretch that is tolerated: how wrong it can make the rate."""

CACHED_TOKENS_LIMIT = {"generate": 8, "chat": 40}
"""Cached prompt tokens that are always tolerated: fresh text finds 2 to 4 (the first tokens; SGLang 0.5.17), a chat
template's own prefix with its system prompt up to some 30."""

CACHED_FRACTION_LIMIT = 0.10
"""Cached fraction of a prompt that is tolerated."""

STEADY_FRACTION = 0.25
"""Least fraction of the window's tokens that must fall in the steady stretch for its rate to stand for the window."""


def window_of(
    workload: Workload,
    index: int,
    requests: Sequence[RequestSample],
    *,
    started_unix_s: float,
    duration_s: float,
    client_cpu: float,
    loop_lag_p99_s: float,
) -> Window:
    """The window with its rate, and with all reasons not to use it."""
    reasons = (
        *_request_faults(workload, requests),
        *_steadiness(requests),
        *_client_faults(requests, client_cpu, loop_lag_p99_s),
    )
    return Window(
        index=index,
        started_unix_s=started_unix_s,
        duration_s=duration_s,
        output_tok_s=output_tok_s(requests),
        requests=tuple(requests),
        client_cpu=client_cpu,
        loop_lag_p99_s=loop_lag_p99_s,
        invalid=reasons,
    )


def _request_faults(workload: Workload, requests: Sequence[RequestSample]) -> list[str]:
    asked = workload.output_tokens
    cached_always = CACHED_TOKENS_LIMIT[workload.endpoint]

    def early(r: RequestSample) -> bool:
        return not r.error and r.completion_tokens < asked

    def cached(r: RequestSample) -> bool:
        return r.cached_tokens > max(cached_always, CACHED_FRACTION_LIMIT * r.prompt_tokens)

    found = [
        _count(requests, lambda r: bool(r.error), "failed", lambda r: r.error),
        _count(
            requests,
            early,
            f"ended before the {asked} tokens asked for",
            lambda r: (
                f"{r.completion_tokens} tokens, finish reason {r.finish_reason or 'missing'}; does the engine honour "
                "ignore_eos, and does prompt + answer fit its context length?"
            ),
        ),
        _count(
            requests,
            cached,
            "found the prompt in the prefix cache",
            lambda r: f"{r.cached_tokens} of {r.prompt_tokens} tokens; flush the cache, or start the launch afresh",
        ),
        _count(
            requests,
            lambda r: r.retractions > 0,
            "were taken off the batch and computed again",
            lambda r: (
                f"{r.retractions} times; the KV cache is too small for this concurrency: lower the one or raise the "
                "memory fraction"
            ),
        ),
    ]
    return [reason for reason in found if reason]


def _count(
    requests: Sequence[RequestSample],
    faulty: Callable[[RequestSample], bool],
    what: str,
    detail: Callable[[RequestSample], str],
) -> str:
    """``3 of 64 requests WHAT: DETAIL of the first``; empty if there are none."""
    found = [request for request in requests if faulty(request)]
    if not found:
        return ""
    return f"{len(found)} of {len(requests)} requests {what}: {detail(found[0])}"


def _steadiness(requests: Sequence[RequestSample]) -> list[str]:
    whole = [request for request in requests if not request.error]
    if len(whole) < len(requests) or not requests:
        return []  # said already, and by its cause
    if any(len(request.arrivals) < 2 for request in requests):
        return [
            "a stream told its tokens only once, so no rate can be seen: use more output tokens, or an endpoint that "
            "reports usage in each chunk (generate does)"
        ]
    if steady_stretch(requests) is None:
        return ["the streams never all decoded at the same time: use more output tokens or fewer streams"]
    share = steady_tokens(requests) / max(1, sum(request.completion_tokens for request in requests))
    if share < STEADY_FRACTION:
        return [
            f"all streams decoded together for only {share:.0%} of the tokens (at least {STEADY_FRACTION:.0%} are "
            "needed): use more output tokens or fewer streams"
        ]
    return []


def _client_faults(requests: Sequence[RequestSample], client_cpu: float, loop_lag_p99_s: float) -> list[str]:
    if not any(request.arrivals for request in requests):
        return []  # nothing was timed
    reasons = []
    if client_cpu > CLIENT_CPU_LIMIT:
        reasons.append(
            f"the client used {client_cpu:.0%} of a core (limit {CLIENT_CPU_LIMIT:.0%}) and may have been the "
            "bottleneck: spread the streams over more client processes, or lower the concurrency"
        )
    # A late stamp moves an end of the stretch. Half a token step there is below what counting tokens resolves.
    gaps = itl_s(requests)
    stretch = steady_stretch(requests)
    limit = max(
        LOOP_LAG_LIMIT_S,
        quantile(gaps, 0.5) / 2 if gaps else 0.0,
        LOOP_LAG_FRACTION * (stretch[1] - stretch[0]) if stretch else 0.0,
    )
    if loop_lag_p99_s > limit:
        reasons.append(
            f"the client's event loop was late by {1000 * loop_lag_p99_s:.0f} ms at the 99th percentile (limit "
            f"{1000 * limit:.0f} ms): free the machine that runs the client, or lower the concurrency"
        )
    return reasons
