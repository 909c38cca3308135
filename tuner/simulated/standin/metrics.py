"""``/metrics``: the main series of SGLang's Prometheus exposition, names and labels as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.simulated.standin.frames import Message
from tuner.simulated.standin.frontend import Totals
from tuner.simulated.standin.server_info import ServerInfo


def exposition(info: ServerInfo, state: Message, totals: Totals, responses: Mapping[tuple[str, str, int], int]) -> str:
    """The whole text.

    Args:
        state: rank 0's own account.
        responses: (path, method, status) → how many.
    """
    model = info.args["served_model_name"]
    engine = {"engine_type": "unified", "model_name": model}
    rank = {**engine, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    lines: list[str] = []

    def series(name: str, kind: str, *samples: tuple[Mapping[str, Any], float]) -> None:
        lines.append(f"# TYPE sglang:{name} {kind}")
        lines.extend(_sample(name, labels, value) for labels, value in samples)

    startup = info.startup()
    phases = ("load_weight", "kv_cache_allocation", "scheduler_e2e", "tokenizer_e2e")
    series("startup_time_seconds", "gauge", *(({**engine, "phase": p}, startup[p]) for p in phases))
    series(
        "startup_cuda_graph_time_seconds",
        "gauge",
        *(({**engine, "phase": phase}, value) for phase, value in startup["cuda_graph"].items()),
    )
    gauges = {
        "max_total_num_tokens": float(info.capacity.tokens),
        "num_running_reqs": float(state["running"]),
        "num_queue_reqs": float(state["queued"]),
        "gen_throughput": state["last_gen_throughput"],
        "cache_hit_rate": totals.cached / max(1, sum(totals.prompt.values())),
        "token_usage": state["used_tokens"] / max(1, info.capacity.tokens),
        "num_used_tokens": float(state["used_tokens"]),
        "spec_accept_length": state.get("avg_spec_accept_length", 0.0),
        "spec_accept_rate": _accept_rate(info, state),
    }
    for name, value in gauges.items():
        series(name, "gauge", (rank, value))
    counted = tuple(responses.items())
    series(
        "http_responses_total",
        "counter",
        *(({"endpoint": path, "method": method, "status_code": str(code)}, n) for (path, method, code), n in counted),
    )
    streaming = {kind: {**engine, "is_streaming": str(kind).lower()} for kind in (False, True)}
    for name, values in (
        ("prompt_tokens_total", totals.prompt),
        ("generation_tokens_total", totals.generated),
        ("num_requests_total", totals.requests),
    ):
        series(name, "counter", *((streaming[kind], value) for kind, value in values.items()))
    series("cached_tokens_total", "counter", ({"cache_source": "device", **engine}, totals.cached))
    if info.args["speculative_algorithm"]:
        series("spec_verify_calls_total", "counter", (rank, totals.verifies))
    for name, sums in (("time_to_first_token_seconds", totals.first_s), ("e2e_request_latency_seconds", totals.e2e_s)):
        lines.append(f"# TYPE sglang:{name} histogram")
        for kind, total in sums.items():
            lines.append(_sample(f"{name}_sum", streaming[kind], total))
            lines.append(_sample(f"{name}_count", streaming[kind], totals.requests[kind]))
    lines.append("# TYPE sglang:inter_token_latency_seconds histogram")
    lines.append(_sample("inter_token_latency_seconds_sum", engine, totals.between_s))
    lines.append(_sample("inter_token_latency_seconds_count", engine, totals.between))
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Mapping[str, Any], value: float) -> str:
    inside = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
    return f"sglang:{name}{{{inside}}} {float(value)}"


def _accept_rate(info: ServerInfo, state: Message) -> float:
    drafts = int(info.args["speculative_num_draft_tokens"] or 1) - 1
    return max(0.0, float(state.get("avg_spec_accept_length", 1.0)) - 1.0) / max(1, drafts)
