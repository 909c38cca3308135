from __future__ import annotations

import dataclasses
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.load.metrics import (
    accept_length,
    itl_s,
    measurement,
    output_tok_s,
    quantile,
    steady_stretch,
    tokens_at,
    ttft_s,
)
from tuner.values.json import from_json, to_json
from tuner.values.measurement import METRICS, Measurement, RequestSample, TunnelLag, Window


def stream(first_s: float, rate: float, tokens: int, step: int = 1, **fields: int | None) -> RequestSample:
    """A stream at a constant rate whose chunks hold `step` tokens."""
    arrivals = tuple((first_s + (n - step) / rate, n) for n in range(step, tokens + 1, step))
    sample = RequestSample("p", 0.0, 80, 2, tokens, arrivals, "length")
    return dataclasses.replace(sample, **fields)  # type: ignore[arg-type]


def window(*requests: RequestSample, index: int = 0, invalid: tuple[str, ...] = ()) -> Window:
    return Window(index, 0.0, 1.0, output_tok_s(requests), requests, 0.1, 0.001, invalid)


@settings(deadline=None)
@given(
    rate=st.floats(1, 1000),
    firsts=st.lists(st.floats(0, 0.2), min_size=1, max_size=8),
    step=st.integers(1, 5),
)
def test_constant_rates_are_found_whatever_the_chunks_and_starts(rate: float, firsts: list[float], step: int) -> None:
    tokens = 400 * step
    requests = [stream(first / rate, rate, tokens, step) for first in firsts]
    assert output_tok_s(requests) == pytest.approx(rate * len(firsts), rel=1e-6)


def test_prefill_and_ramps_are_outside_the_stretch() -> None:
    late, early = stream(5.0, 50, 500), stream(1.0, 100, 1000)
    assert steady_stretch([late, early]) == pytest.approx((5.0, 1.0 + 999 / 100))
    assert output_tok_s([late, early]) == pytest.approx(150)


def test_tokens_between_arrivals() -> None:
    request = dataclasses.replace(stream(0, 1, 1), arrivals=((1.0, 2), (2.0, 6)))
    assert [tokens_at(request, at) for at in (0.5, 1.0, 1.5, 2.0, 9.0)] == [0, 2, 4, 6, 6]


@pytest.mark.parametrize("requests", [[], [stream(0, 10, 1)], [stream(0, 100, 10), stream(9, 100, 10)]])
def test_without_a_stretch_there_is_no_rate(requests: list[RequestSample]) -> None:
    assert steady_stretch(requests) is None
    assert output_tok_s(requests) == 0.0


def test_times_of_tokens() -> None:
    request = dataclasses.replace(stream(0, 1, 1), sent_s=0.25, arrivals=((1.0, 1), (1.5, 2), (3.0, 5)))
    assert ttft_s([request]) == [0.75]
    assert itl_s([request]) == [0.5, 0.5, 0.5, 0.5]
    assert (
        itl_s([dataclasses.replace(request, arrivals=())]) == ttft_s([dataclasses.replace(request, arrivals=())]) == []
    )


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_quantiles_are_those_of_the_standard_library(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (1, 50, 99):
        assert quantile(values, percent / 100) == pytest.approx(expected[percent - 1], abs=1e-6)


def test_accept_length_is_over_all_tokens() -> None:
    requests = [stream(0, 10, 300, spec_verify_ct=100), stream(0, 10, 100, spec_verify_ct=100)]
    assert accept_length(requests) == 2.0
    assert accept_length([stream(0, 10, 30, spec_verify_ct=0)]) == 1.0
    assert accept_length([stream(0, 10, 30)]) is None


def test_a_launch_is_the_median_of_its_valid_windows() -> None:
    good = [window(stream(0, rate, 200), index=k) for k, rate in enumerate((99, 100, 60))]
    bad = window(stream(0, 1000, 200), index=3, invalid=("cached",))
    lag = TunnelLag(0.001, 0.005, 100)
    found = measurement([*good, bad], lag)
    assert found.metric("output_tok_s") == pytest.approx(99)
    assert found.windows == (*good, bad) and found.tunnel_lag == lag
    assert found.metric("itl_p99_s") == pytest.approx(1 / 60)
    assert [name for name, _ in found.metrics] == [name for name in METRICS if name != "accept_length"]


def test_every_declared_metric_can_be_measured() -> None:
    found = measurement([window(stream(0.1, 100, 200, spec_verify_ct=100))])
    assert [name for name, _ in found.metrics] == list(METRICS)


@pytest.mark.parametrize("windows", [[], [window(stream(0, 10, 20), invalid=("x",))]])
def test_without_a_valid_window_there_are_no_metrics(windows: list[Window]) -> None:
    assert measurement(windows).metrics == ()


def test_a_measurement_survives_the_database() -> None:
    found = measurement([window(stream(0.1, 100, 20)), window(invalid=("3 of 3 requests failed",))])
    assert from_json(Measurement, to_json(found)) == found
