from __future__ import annotations

import dataclasses

import pytest
from test_load_metrics import stream

from tuner.load.windows import window_of
from tuner.values.measurement import RequestSample, Window
from tuner.values.workload import Workload

WORKLOAD = Workload(concurrency=2, output_tokens=200)


def judged(
    *requests: RequestSample, workload: Workload = WORKLOAD, client_cpu: float = 0.2, loop_lag_p99_s: float = 0.002
) -> Window:
    return window_of(
        workload, 0, requests, started_unix_s=1e9, duration_s=2.0, client_cpu=client_cpu, loop_lag_p99_s=loop_lag_p99_s
    )


GOOD = stream(0.1, 100, 200)


def test_a_good_window_is_valid() -> None:
    window = judged(GOOD, GOOD)
    assert window.invalid == ()
    assert window.output_tok_s == pytest.approx(200)


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ((GOOD, dataclasses.replace(GOOD, error="HTTP 503: no")), "1 of 2 requests failed: HTTP 503: no"),
        ((GOOD, stream(0.1, 100, 190)), "1 of 2 requests ended before the 200 tokens asked for: 190 tokens"),
        ((GOOD, dataclasses.replace(GOOD, cached_tokens=9)), "9 of 80 tokens"),
        ((GOOD, dataclasses.replace(GOOD, retractions=2)), "taken off the batch and computed again: 2 times"),
        ((GOOD, stream(9.0, 100, 200)), "never all decoded at the same time"),
        ((GOOD, stream(1.7, 100, 200)), "all streams decoded together for only"),
        ((GOOD, dataclasses.replace(GOOD, arrivals=((2.0, 200),))), "told its tokens only once"),
    ],
)
def test_each_reason(requests: tuple[RequestSample, ...], words: str) -> None:
    (reason,) = judged(*requests).invalid
    assert words in reason


def test_the_cached_limit_grows_with_the_prompt() -> None:
    long = dataclasses.replace(GOOD, prompt_tokens=1000, cached_tokens=100)
    assert judged(long, long).invalid == ()
    assert "prefix cache" in judged(long, dataclasses.replace(long, cached_tokens=101)).invalid[0]


def test_a_busy_or_late_client_is_said_with_the_remedy() -> None:
    (busy,) = judged(GOOD, GOOD, client_cpu=0.71).invalid
    assert "71% of a core (limit 70%)" in busy and "spread the streams" in busy
    (late,) = judged(GOOD, GOOD, loop_lag_p99_s=0.021).invalid
    assert "late by 21 ms" in late and "(limit 20 ms)" in late and "free the machine" in late


@pytest.mark.parametrize(("rate", "tokens", "limit_s"), [(10, 50, 0.050), (100, 4001, 0.200)])
def test_more_lag_is_tolerated_where_it_cannot_change_the_rate(rate: int, tokens: int, limit_s: float) -> None:
    """Half a token step of 100 ms, or 0.5 % of a stretch of 40 s."""
    requests = [stream(0.1, rate, tokens)] * 2
    workload = dataclasses.replace(WORKLOAD, output_tokens=tokens)
    assert judged(*requests, workload=workload, loop_lag_p99_s=limit_s - 0.001).invalid == ()
    (late,) = judged(*requests, workload=workload, loop_lag_p99_s=limit_s + 0.001).invalid
    assert f"(limit {1000 * limit_s:.0f} ms)" in late


def test_reasons_add_up_but_a_failure_is_not_said_twice() -> None:
    window = judged(dataclasses.replace(GOOD, error="reset", arrivals=()), GOOD, client_cpu=0.9)
    assert len(window.invalid) == 2
    nothing = dataclasses.replace(GOOD, error="refused", arrivals=(), completion_tokens=0)
    assert judged(nothing, nothing, client_cpu=0.9).invalid == ("2 of 2 requests failed: refused",)
