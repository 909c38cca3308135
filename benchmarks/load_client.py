"""What the load client costs, and how true it is, against a server with a known token schedule.

    python -m benchmarks.load_client                 # 1, 64 and 256 streams, about half a minute
    python -m benchmarks.load_client --plain         # beside httpx as it comes: its pool, stamps taken in the tasks

Run it from the root of the checkout, on a machine that does nothing else. Columns: µs of client CPU for each token
(httpx and the lag sampler included), client CPU as a fraction of a core, error of tok/s against the server's own count
and against the schedule, difference to the server's own times at the median and the 99th percentile, lag of the
client's event loop, the server's own lateness, and whether the window calls itself valid.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
import time
from pathlib import Path

import httpx

from tuner.load.client import LoadClient
from tuner.load.formats import GENERATE
from tuner.load.metrics import itl_s, quantile, ttft_s
from tuner.load.prompts import prompts
from tuner.load.stream import StreamLog
from tuner.load.windows import window_of
from tuner.values.measurement import Window
from tuner.values.workload import Workload

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "load"))
from load_schedule import ScheduleServer, SentLog

CASES = ((1, 100, 300), (64, 100, 300), (256, 25, 150), (256, 100, 300))
"""(streams, tokens per second of each, tokens of each)."""

HEAD = (
    f"{'client':8}{'streams':>8}{'tok/s':>8}{'µs/tok':>8}{'CPU':>6}{'err srv %':>11}{'err sched %':>12}"
    f"{'ttft p50/p99 ms':>17}{'itl p50/p99 ms':>16}{'lag ms':>8}{'srv late ms':>12}  valid"
)


class PlainClient:
    """httpx as it comes, for comparison: time-outs and limits raised, nothing else."""

    def __init__(self, base_url: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url, trust_env=False, limits=httpx.Limits(max_connections=None), timeout=120.0
        )

    async def window(self, workload: Workload, index: int) -> Window:
        asked = prompts(workload, index)
        logs = [StreamLog(GENERATE, 10**9) for _ in asked]
        began, cpu = time.monotonic(), time.process_time()
        async with asyncio.TaskGroup() as streams:
            for prompt, log in zip(asked, logs, strict=True):
                streams.create_task(self._stream(GENERATE.body(prompt.text, workload.output_tokens), log))
        took, used = time.monotonic() - began, time.process_time() - cpu
        samples = [log.sample(p.name, workload.output_tokens, began) for p, log in zip(asked, logs, strict=True)]
        return window_of(
            workload, index, samples, started_unix_s=0, duration_s=took, client_cpu=used / took, loop_lag_p99_s=0
        )

    async def _stream(self, body: object, log: StreamLog) -> None:
        log.sent_s = time.monotonic()
        async with self._http.stream("POST", "/generate", json=body) as response:
            async for chunk in response.aiter_raw():
                log.append(time.monotonic(), chunk)

    async def close(self) -> None:
        await self._http.aclose()


def row(name: str, rate: int, window: Window, sent: SentLog) -> str:
    streams = len(window.requests)
    tokens = sum(request.completion_tokens for request in window.requests)
    per_token_us = 1e6 * window.client_cpu * window.duration_s / tokens
    server = sent.tok_s()
    pairs = ((ttft_s(window.requests), sent.ttft_s()), (itl_s(window.requests), sent.itl_s()))
    times = [
        "/".join(f"{1000 * (quantile(client, q) - quantile(own, q)):+.1f}" for q in (0.5, 0.99))
        for client, own in pairs
    ]
    against_server = f"{100 * (window.output_tok_s / server - 1):+.3f}" if server else "-"
    against_schedule = f"{100 * (window.output_tok_s / (streams * rate) - 1):+.3f}"
    return (
        f"{name:8}{streams:8}{streams * rate:8}{per_token_us:8.1f}{window.client_cpu:6.2f}{against_server:>11}"
        f"{against_schedule:>12}{times[0]:>17}{times[1]:>16}{1000 * window.loop_lag_p99_s:8.1f}"
        f"{1000 * quantile(sent.lateness_s(), 0.99):12.1f}  {'no' if window.invalid else 'yes'}"
    )


async def main(plain: bool) -> None:
    print(HEAD)
    with ScheduleServer() as server:
        for streams, rate, tokens in CASES:
            workload = Workload(concurrency=streams, output_tokens=tokens)
            for name, kind in (("ours", LoadClient), ("plain", PlainClient)) if plain else (("ours", LoadClient),):
                client = kind(server.url(rate=rate, ttft=0.5, grid=True))
                await client.window(dataclasses.replace(workload, output_tokens=8), -1)
                server.log()
                window = await client.window(workload, 0)
                print(row(name, rate, window, server.log()), flush=True)
                for reason in window.invalid:
                    print(f"{'':10}{reason}")
                await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Cost and truth of the load client.")
    parser.add_argument("--plain", action="store_true", help="also run httpx as it comes")
    asyncio.run(main(parser.parse_args().plain))
