"""Is what the client measures what the server did? Real sockets, another process, a known token schedule.

Every figure is compared with the server's own account of the same run; the schedule is the judge where the server kept
to it. A machine that is busy with other things disturbs both: a test may fail once, with the reason printed, and where
other processes took the CPU during both attempts it is skipped and says how much they took.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from load_schedule import ScheduleServer, SentLog, machine_busy_s

from tuner.load.client import LoadClient
from tuner.load.metrics import itl_s, quantile, ttft_s
from tuner.values.measurement import Window
from tuner.values.workload import Workload

BUSY_CORES = 0.25
"""What other processes may take of the machine before a failure is put down to them."""


@dataclass(frozen=True)
class Run:
    """A warm window, what the server says that it sent in it, and how many cores others used meanwhile."""

    window: Window
    sent: SentLog
    others_cores: float

    def __str__(self) -> str:
        window, late = self.window, quantile(self.sent.lateness_s(), 0.99)
        return (
            f"{len(window.requests)} streams: client {window.output_tok_s:.1f}, server {self.sent.tok_s():.1f} tok/s; "
            f"server late {late:.4f} s, client lag {window.loop_lag_p99_s:.4f} s, client cpu {window.client_cpu:.2f}, "
            f"others {self.others_cores:.2f} cores"
        )


async def measured(schedule: ScheduleServer, workload: Workload, **behaviour: object) -> Run:
    client = LoadClient(schedule.url(**behaviour))
    try:
        await client.window(dataclasses.replace(workload, output_tokens=4), -1)
        before, busy, own, began = schedule.log(), machine_busy_s(), time.process_time(), time.monotonic()
        window = await client.window(workload, 0)
        busy, own, took = machine_busy_s() - busy, time.process_time() - own, time.monotonic() - began
        sent = schedule.log()
        return Run(window, sent, (busy - own - (sent.cpu_s - before.cpu_s)) / took)
    finally:
        await client.close()


async def judged(run: Callable[[], Awaitable[Run]], judge: Callable[[Run], None]) -> None:
    """Runs and judges, and once more if the first run does not stand."""
    found = await run()
    print(found)
    try:
        judge(found)
        return
    except AssertionError as reason:
        print(f"once more, because {reason}")
    again = await run()
    print(again)
    try:
        judge(again)
    except AssertionError:
        if min(found.others_cores, again.others_cores) > BUSY_CORES:
            pytest.skip(f"the machine is busy with other processes: {found}; {again}")
        raise


@pytest.mark.parametrize(
    ("streams", "rate", "tokens", "grid"),
    [(1, 100, 150, False), (64, 100, 200, False), (64, 100, 200, True), (256, 25, 75, False)],
)
async def test_rate_and_times_are_the_servers(
    schedule: ScheduleServer, streams: int, rate: int, tokens: int, grid: bool
) -> None:
    workload = Workload(concurrency=streams, output_tokens=tokens)

    def judge(run: Run) -> None:
        window, sent = run.window, run.sent
        assert window.invalid == ()
        assert len(sent.sent) == streams
        assert window.output_tok_s == pytest.approx(sent.tok_s(), rel=0.005)
        if quantile(sent.lateness_s(), 0.99) < 0.003:
            assert window.output_tok_s == pytest.approx(streams * rate, rel=0.005)
        pairs = ((ttft_s(window.requests), sent.ttft_s()), (itl_s(window.requests), sent.itl_s()))
        # 64 prompts at once are a burst of some ms of work for one core; two cores share it with the server here.
        middle_s = 0.002 if streams == 1 else 0.005
        for client_s, server_s in pairs if streams <= 64 else ():
            assert quantile(client_s, 0.5) == pytest.approx(quantile(server_s, 0.5), abs=middle_s)
            assert quantile(client_s, 0.99) == pytest.approx(quantile(server_s, 0.99), abs=0.010)

    await judged(lambda: measured(schedule, workload, rate=rate, ttft=0.2, grid=grid), judge)


async def test_several_tokens_a_chunk_do_not_change_the_rate(schedule: ScheduleServer) -> None:
    workload = Workload(concurrency=8, output_tokens=200)

    def judge(run: Run) -> None:
        assert run.window.invalid == ()
        assert run.window.output_tok_s == pytest.approx(run.sent.tok_s(), rel=0.005)

    await judged(lambda: measured(schedule, workload, rate=150, steps=[4, 1, 3, 2], verify_ct=80), judge)


async def test_too_much_load_is_never_silently_slow(schedule: ScheduleServer) -> None:
    """25,600 tokens a second: the client keeps up with the server's own count, or says that it did not."""
    run = await measured(schedule, Workload(concurrency=256, output_tokens=150), rate=100)
    print(run, run.window.invalid)
    assert [request.error for request in run.window.requests] == [""] * 256
    assert run.window.invalid or run.window.output_tok_s == pytest.approx(run.sent.tok_s(), rel=0.005)
