"""The client against a real server in another process: every form of stream, every fault."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
import time
from typing import Any, Literal

import pytest
from load_schedule import ScheduleServer

from tuner.errors import InputError
from tuner.load.client import LoadClient
from tuner.load.metrics import measurement
from tuner.load.prompts import prompts
from tuner.values.measurement import Window
from tuner.values.workload import Workload

TOKENS = 24
WORKLOAD = Workload(concurrency=3, output_tokens=TOKENS, prompt_words=30, request_timeout_s=5.0)
QUICK = {"rate": 400, "ttft": 0.02}


async def run(url: str, workload: Workload = WORKLOAD, index: int = 0) -> Window:
    client = LoadClient(url)
    try:
        return await client.window(workload, index)
    finally:
        await client.close()


def apart_from_lag(window: Window) -> list[str]:
    """The reasons that are the server's: a noisy machine may make the client late in such short windows."""
    return [reason for reason in window.invalid if "the client" not in reason]


@pytest.mark.parametrize("endpoint", ["generate", "chat"])
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"incremental": True},
        {"steps": [1, 3, 2, 4]},
        {"coalesce": 4},
        {"pieces": 3, "rate": 100},
        {"pieces": 20, "rate": 30},
        {"crlf": True},
        {"crlf": True, "pieces": 5, "rate": 100},
        {"done_in_last": True},
        {"grid": True, "steps": [2]},
    ],
    ids=str,
)
async def test_every_form_of_stream_gives_the_servers_count(
    schedule: ScheduleServer, endpoint: Literal["generate", "chat"], form: dict[str, Any]
) -> None:
    behaviour = {**QUICK, **form}
    window = await run(schedule.url(**behaviour), dataclasses.replace(WORKLOAD, endpoint=endpoint))
    assert apart_from_lag(window) == []
    sent = schedule.log()
    assert len(window.requests) == 3
    counts = {tuple(n for _, _, n in writes) for writes in sent.sent}
    for request in window.requests:
        assert (request.error, request.finish_reason, request.completion_tokens) == ("", "length", TOKENS)
        assert request.prompt_tokens >= 25
        assert request.cached_tokens == 2
        seen = tuple(n for _, n in request.arrivals)
        assert seen[-1] == TOKENS
        # Chunks may coalesce on the way too, so what was seen is part of what was written.
        assert any(set(seen) <= set(written) for written in counts), (seen, counts)
        assert request.arrivals == tuple(sorted(request.arrivals))
        assert 0.0 <= request.sent_s < request.arrivals[0][0]
    assert window.output_tok_s == pytest.approx(sent.tok_s(), rel=0.4)  # too short for more; see test_load_timing


async def test_verify_steps_and_their_absence(schedule: ScheduleServer) -> None:
    speculating = await run(schedule.url(**QUICK, steps=[3], verify_ct=8))
    plain = await run(schedule.url(**QUICK))
    chat = await run(schedule.url(**QUICK), dataclasses.replace(WORKLOAD, endpoint="chat"))
    assert [r.spec_verify_ct for r in speculating.requests] == [8] * 3
    assert [r.spec_verify_ct for r in plain.requests] == [0] * 3
    assert [r.spec_verify_ct for r in chat.requests] == [None] * 3
    for window, length in ((speculating, 3.0), (plain, 1.0), (chat, None)):
        assert dict(measurement([dataclasses.replace(window, invalid=())]).metrics).get("accept_length") == length


@pytest.mark.parametrize(
    ("fault", "endpoint", "reason"),
    [
        ("400", "generate", "1 of 3 requests failed: HTTP 400: The engine said no."),
        ("503", "chat", "1 of 3 requests failed: HTTP 503: The engine said no."),
        ("not a stream", "generate", "after 0 of 24 tokens"),
        ("error_event", "generate", "1 of 3 requests failed: the server reports: CUDA error: an illegal memory access"),
        ("error_event", "chat", "1 of 3 requests failed: the server reports: CUDA error: an illegal memory access"),
        ("abort", "generate", "1 of 3 requests failed: the server reports: Abort in waiting queue"),
        ("stop", "generate", "1 of 3 requests ended before the 24 tokens asked for: 10 tokens, finish reason stop"),
        ("stop", "chat", "1 of 3 requests ended before the 24 tokens asked for: 10 tokens, finish reason stop"),
        ("short", "generate", "1 of 3 requests ended before the 24 tokens asked for: 10 tokens, finish reason length"),
        ("cut", "generate", "the stream ended after 10 of 24 tokens without [DONE]"),
        ("cut", "chat", "the stream ended after 10 of 24 tokens without [DONE]"),
        ("cut_in_event", "generate", "the stream was cut after 10 of 24 tokens, in the middle of an event"),
        ("garbage", "generate", "1 of 3 requests failed: the server reports: an event that is not JSON: b'{not json'"),
        ("close", "generate", "the connection broke: peer closed connection without sending complete message body"),
        ("reset", "generate", "the connection broke: "),
    ],
)
async def test_each_fault_is_recorded_and_makes_the_window_invalid(
    schedule: ScheduleServer, fault: str, endpoint: Literal["generate", "chat"], reason: str
) -> None:
    url = schedule.url(**QUICK, fault=fault, faulty=1)
    window = await run(url, dataclasses.replace(WORKLOAD, endpoint=endpoint))
    assert any(reason in said for said in window.invalid), window.invalid
    assert sum(bool(r.error) or r.completion_tokens < TOKENS for r in window.requests) == 1
    assert sum(r.completion_tokens == TOKENS for r in window.requests) == 2, "the other streams went on"
    assert measurement([window]).metrics == ()


async def test_a_broken_stream_keeps_what_came_before(schedule: ScheduleServer) -> None:
    window = await run(schedule.url(**QUICK, fault="reset", faulty=1))
    (broken,) = [r for r in window.requests if r.error]
    assert broken.completion_tokens == 10 and broken.arrivals[-1][1] == 10
    assert broken.error.endswith("(after 10 of 24 tokens)")


@pytest.mark.parametrize(("after", "words"), [(0, "nothing came for 0.3 s"), (10, "(after 10 of 24 tokens)")])
async def test_a_hang_ends_at_the_time_out(schedule: ScheduleServer, after: int, words: str) -> None:
    began = time.monotonic()
    workload = dataclasses.replace(WORKLOAD, request_timeout_s=0.3)
    window = await run(schedule.url(**QUICK, fault="hang", faulty=1, after=after), workload)
    assert time.monotonic() - began < 3.0
    assert any("nothing came for 0.3 s" in said and words in said for said in window.invalid), window.invalid


async def test_a_slow_stream_outlives_the_time_out_that_counts_silence(schedule: ScheduleServer) -> None:
    workload = dataclasses.replace(WORKLOAD, request_timeout_s=0.4, output_tokens=10)
    window = await run(schedule.url(rate=10, ttft=0.1), workload)  # 1.0 s in all, never 0.4 s silent
    assert [r.error for r in window.requests] == ["", "", ""]


async def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else can take it
        window = await run(f"http://127.0.0.1:{held.getsockname()[1]}")
    assert len(window.invalid) == 1
    assert "3 of 3 requests failed: no connection to http://127.0.0.1:" in window.invalid[0]
    assert "refused" in window.invalid[0].lower() or "Connect call failed" in window.invalid[0]


@pytest.mark.parametrize(
    ("endpoint", "cached", "invalid"),
    [("generate", 4, False), ("generate", 30, True), ("chat", 30, False), ("chat", 60, True)],
)
async def test_a_cached_prompt_makes_the_window_invalid(
    schedule: ScheduleServer, endpoint: Literal["generate", "chat"], cached: int, invalid: bool
) -> None:
    workload = dataclasses.replace(WORKLOAD, endpoint=endpoint, prompt_words=60)
    window = await run(schedule.url(**QUICK, cached=cached), workload)
    assert [r.cached_tokens for r in window.requests] == [cached] * 3
    assert any("prefix cache" in reason for reason in window.invalid) is invalid


async def test_retractions_and_missing_usage_make_the_window_invalid(schedule: ScheduleServer) -> None:
    window = await run(schedule.url(**QUICK, retractions=1))
    assert any("taken off the batch" in reason for reason in window.invalid)
    window = await run(schedule.url(**QUICK, usage=False), dataclasses.replace(WORKLOAD, endpoint="chat"))
    assert apart_from_lag(window) != []
    assert window.output_tok_s == 0.0


async def test_connections_stay_open_between_windows(schedule: ScheduleServer) -> None:
    client = LoadClient(schedule.url(**QUICK))
    await client.window(WORKLOAD, -1)
    warm = schedule.log()
    assert len(warm.connections) == 3
    await client.window(WORKLOAD, 0)
    assert schedule.log().connections == warm.connections
    await client.close()


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced(schedule: ScheduleServer) -> None:
    client = LoadClient(schedule.url(**QUICK, keep_alive=False))
    await client.window(WORKLOAD, -1)
    await asyncio.sleep(0.1)  # the closing arrives
    window = await client.window(WORKLOAD, 0)
    await client.close()
    assert [r.error for r in window.requests] == ["", "", ""]


async def test_the_prompts_arrive_as_they_were_made(schedule: ScheduleServer) -> None:
    await run(schedule.url(**QUICK), index=2)
    assert sorted(schedule.log().prompts) == sorted(prompt.text for prompt in prompts(WORKLOAD, 2))


async def test_a_cancelled_window_leaves_no_connection_under_way(schedule: ScheduleServer) -> None:
    client = LoadClient(schedule.url(rate=10))
    task = asyncio.create_task(client.window(WORKLOAD, 0))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.close()
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def test_a_blocked_event_loop_is_told(schedule: ScheduleServer) -> None:
    async def block() -> None:
        while True:
            time.sleep(0.05)  # the fault under test
            await asyncio.sleep(0.02)

    blocker = asyncio.create_task(block())
    window = await run(schedule.url(rate=50))
    blocker.cancel()
    assert any("event loop was late" in reason for reason in window.invalid), window.invalid
    assert window.loop_lag_p99_s > 0.03


async def test_a_client_without_cpu_to_spare_is_told(schedule: ScheduleServer) -> None:
    done = threading.Event()
    busy = threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)])
    busy.start()
    try:
        window = await run(schedule.url(rate=50))
    finally:
        done.set()
        busy.join()
    # Given less than a core by the machine, the client is late rather than busy: either way it says so.
    assert any("of a core" in reason or "event loop was late" in reason for reason in window.invalid), window


def test_an_address_that_is_not_http_is_refused() -> None:
    with pytest.raises(InputError, match="expected http://HOST:PORT"):
        LoadClient("https://127.0.0.1:30000")


async def test_a_proxy_in_the_environment_is_ignored(schedule: ScheduleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    window = await run(schedule.url(**QUICK))
    assert [r.error for r in window.requests] == ["", "", ""]
