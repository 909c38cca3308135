"""What a measurement is made of: raw samples of requests, windows of them, a launch's windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["maximize", "minimize"]
"""Which way is better; Optuna's words."""


@dataclass(frozen=True)
class Metric:
    """What a metric is called and what its numbers mean. Its formula is in `tuner.load.metrics`.

    Attributes:
        unit: as reports show it; empty for a plain ratio.
        direction: which way is better, whatever the launch.
        meaning: one line for people.
    """

    name: str
    unit: str
    direction: Direction
    meaning: str


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("output_tok_s", "tok/s", "maximize", "tokens a second of all streams together while they decode"),
        Metric("ttft_p50_s", "s", "minimize", "time to first token, median over requests"),
        Metric("ttft_p99_s", "s", "minimize", "time to first token, 99th percentile over requests"),
        Metric("itl_p50_s", "s", "minimize", "time between tokens of a stream, median"),
        Metric("itl_p99_s", "s", "minimize", "time between tokens of a stream, 99th percentile"),
        Metric("accept_length", "", "maximize", "tokens a verify step yields; 1 without speculation"),
    )
}
"""Every metric that a measurement may hold and an objective may name."""


@dataclass(frozen=True)
class RequestSample:
    """One streamed request as the client saw it. Times are seconds since the window began.

    Attributes:
        prompt: identity of the prompt in the bundled set.
        prompt_tokens: tokens of the prompt by the server's count.
        cached_tokens: of those, tokens found in the prefix cache.
        completion_tokens: tokens of the answer by the server's cumulative count.
        arrivals: (time, cumulative completion tokens) at each chunk that brought new ones.
        finish_reason: ``length``, ``stop``, ``abort``, …; empty if none came.
        retractions: times the server took the request off the batch.
        spec_verify_ct: verify steps of the request: 0 without speculation, ``None`` where the endpoint does not tell.
        error: what went wrong; empty if nothing did.
    """

    prompt: str
    sent_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    arrivals: tuple[tuple[float, int], ...]
    finish_reason: str
    retractions: int = 0
    spec_verify_ct: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Window:
    """One timed stretch under load.

    Attributes:
        index: 0, 1, … within the launch; warm-up windows are not kept.
        started_unix_s: wall-clock time of its beginning.
        output_tok_s: tokens per second while all streams were decoding; see `tuner.load.metrics`.
        client_cpu: fraction of one core that the client used.
        loop_lag_p99_s: 99th percentile of the client's event-loop lag.
        invalid: reasons not to use it; empty for a good window.
    """

    index: int
    started_unix_s: float
    duration_s: float
    output_tok_s: float
    requests: tuple[RequestSample, ...]
    client_cpu: float
    loop_lag_p99_s: float
    invalid: tuple[str, ...] = ()


@dataclass(frozen=True)
class TunnelLag:
    """Delay that the SSH port-forward added to a byte, by echo under load: half the round trip."""

    p50_s: float
    p99_s: float
    samples: int


@dataclass(frozen=True)
class Measurement:
    """The windows of a launch, raw samples kept.

    Attributes:
        metrics: (name, value) pairs; names and formulas are in `tuner.load.metrics`.
        tunnel_lag: ``None`` when the server was reached without a port-forward.
    """

    windows: tuple[Window, ...]
    metrics: tuple[tuple[str, float], ...]
    tunnel_lag: TunnelLag | None = None

    def metric(self, name: str) -> float:
        """The value of one metric.

        Raises:
            KeyError: no metric of that name was measured.
        """
        return dict(self.metrics)[name]
