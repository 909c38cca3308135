"""From raw samples to numbers: the formulas of `tuner.values.measurement.METRICS`. Pure functions.

| metric | formula |
|---|---|
| ``output_tok_s`` | window: tokens of all streams in the steady stretch / its length; launch: median of valid windows |
| ``ttft_p50_s``, ``ttft_p99_s`` | arrival of the first token − request written to its last byte; quantile of requests |
| ``itl_p50_s``, ``itl_p99_s`` | gap between arrivals / tokens that the later one brought, once a token; quantile |
| ``accept_length`` | Σ completion tokens / Σ verify steps; 1 where the engine says that it did not speculate |

The steady stretch runs from the latest first token to the earliest last token: all streams are decoding, none is in
prefill and none has ended. SGLang's ``bench_one_batch_server`` (``stream_metrics.py``) begins and ends at the same
points. The rule for gaps is that of SGLang's ``bench_serving``.

The median of windows, because what disturbs a window from outside within a launch (another process on the host, a
stalled link) works in one direction, downwards: a mean would carry part of it into the launch's number. Windows known
to be bad are left out before. Launches, not windows, are the units of any interval.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from tuner.values.measurement import METRICS, Measurement, RequestSample, TunnelLag, Window


def steady_stretch(requests: Sequence[RequestSample]) -> tuple[float, float] | None:
    """(begin, end) in seconds of the stretch in which every stream is decoding; ``None`` if there is none."""
    if not requests or not all(request.arrivals for request in requests):
        return None
    begin = max(request.arrivals[0][0] for request in requests)
    end = min(request.arrivals[-1][0] for request in requests)
    return (begin, end) if end > begin else None


def tokens_at(request: RequestSample, at_s: float) -> float:
    """Cumulative tokens of a stream at a time, linear between arrivals."""
    arrivals = request.arrivals
    after = bisect_right(arrivals, at_s, key=lambda arrival: arrival[0])
    if after == 0:
        return 0.0
    t0, n0 = arrivals[after - 1]
    if after == len(arrivals):
        return float(n0)
    t1, n1 = arrivals[after]
    return n0 + (n1 - n0) * (at_s - t0) / (t1 - t0)


def steady_tokens(requests: Sequence[RequestSample]) -> float:
    """Tokens of all streams in the steady stretch; 0 without one."""
    stretch = steady_stretch(requests)
    if stretch is None:
        return 0.0
    begin, end = stretch
    return sum(tokens_at(request, end) - tokens_at(request, begin) for request in requests)


def output_tok_s(requests: Sequence[RequestSample]) -> float:
    """Tokens per second of all streams together in the steady stretch; 0 without one."""
    stretch = steady_stretch(requests)
    return steady_tokens(requests) / (stretch[1] - stretch[0]) if stretch else 0.0


def ttft_s(requests: Iterable[RequestSample]) -> list[float]:
    """Time to first token of each request that got one."""
    return [request.arrivals[0][0] - request.sent_s for request in requests if request.arrivals]


def itl_s(requests: Iterable[RequestSample]) -> list[float]:
    """Time between tokens: each gap over the tokens that came at its end, as often as there were tokens."""
    gaps: list[float] = []
    for request in requests:
        for (t0, n0), (t1, n1) in zip(request.arrivals, request.arrivals[1:], strict=False):
            gaps.extend([(t1 - t0) / (n1 - n0)] * (n1 - n0))
    return gaps


def accept_length(requests: Sequence[RequestSample]) -> float | None:
    """Tokens that a verify step yielded, over all requests; ``None`` where the endpoint does not tell."""
    told = [request for request in requests if request.spec_verify_ct is not None]
    if not told:
        return None
    verified = sum(request.spec_verify_ct or 0 for request in told)
    return sum(request.completion_tokens for request in told) / verified if verified else 1.0


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile by linear interpolation (Hyndman and Fan 1996, type 7). Needs at least one value."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def measurement(windows: Sequence[Window], tunnel_lag: TunnelLag | None = None) -> Measurement:
    """The windows of a launch with their metrics, computed over the valid ones; no metrics when none is valid.

    A metric whose raw data is missing (``accept_length`` on the chat endpoint) is absent, never a stand-in number.
    """
    valid = [window for window in windows if not window.invalid]
    requests = [request for window in valid for request in window.requests]
    values: dict[str, float] = {}
    if valid:
        values["output_tok_s"] = statistics.median(window.output_tok_s for window in valid)
    for name, samples in (("ttft", ttft_s(requests)), ("itl", itl_s(requests))):
        if samples:
            values[f"{name}_p50_s"] = quantile(samples, 0.50)
            values[f"{name}_p99_s"] = quantile(samples, 0.99)
    if (length := accept_length(requests)) is not None:
        values["accept_length"] = length
    return Measurement(tuple(windows), tuple((name, values[name]) for name in METRICS if name in values), tunnel_lag)
