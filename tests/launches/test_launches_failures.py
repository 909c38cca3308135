"""Each failure class, from a server that really fails that way, over SSH: its evidence, and nothing left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tuner.engines import engine
from tuner.errors import HostRefused, LaunchFailed
from tuner.host.session import SshSession
from tuner.launch import EngineTarget
from tuner.simulated.process import start_simulated_host
from tuner.testing import MemoryJournal
from tuner.values.canary import CanaryAnswer, CanaryReport, Finding
from tuner.values.configuration import Configuration, Scalar
from tuner.values.failure import Failure, FailureClass, Fault
from tuner.values.host import HostAddress
from tuner.values.launch import GoneReport, LaunchBase, Phase
from tuner.values.study import EngineSpec
from tuner.values.workload import Workload

BASE = LaunchBase(
    ("python3", "-m", "sglang.launch_server"),
    (("model-path", "m61"), ("tp-size", 2), ("disable-custom-all-reduce", True), ("mem-fraction-static", 0.88)),
)
SPEC = EngineSpec("sglang", BASE, start_deadline_s=6.0, no_progress_s=3.0, stop_grace_s=3.0, lease_s=20.0)
LOAD = Workload(output_tokens=200, windows=1, request_timeout_s=3.0)


@pytest.fixture(scope="module")
def address() -> Iterator[HostAddress]:
    """One simulated host for all."""
    found, pid = asyncio.run(start_simulated_host("h200x2-shm", idle_s=120, load_s=0.5))
    yield found
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


@dataclass
class Try:
    """A launch of one configuration on the host."""

    session: SshSession
    journal: MemoryJournal
    target: EngineTarget

    async def measure(self, configuration: Configuration) -> None:
        server = await self.target.launch(configuration)
        try:
            await server.measure(LOAD)
        finally:
            await server.stop()

    async def fails(self, configuration: Configuration) -> Failure:
        with pytest.raises(LaunchFailed) as caught:
            await self.measure(configuration)
        return caught.value.failure

    @property
    def gone(self) -> GoneReport:
        report: GoneReport = self.journal.evidence["gone"]
        return report


@contextlib.asynccontextmanager
async def attempt(
    address: HostAddress,
    fault: str = "",
    args: dict[str, Scalar] | None = None,
    spec: EngineSpec = SPEC,
    reference: tuple[CanaryAnswer, ...] | None = None,
) -> AsyncIterator[Try]:
    base = replace(BASE, env=(("TUNER_STANDIN_FAULT", fault),) if fault else ())
    if args:
        base = replace(base, args=(*(pair for pair in base.args if pair[0] not in args), *args.items()))
    # Patience for real drivers and real engines, cut short.
    session = SshSession(address, engine("sglang"), spec, gpu_wait_s=2.0, death_watch_s=1.5)
    journal = MemoryJournal()
    try:
        await session.preflight()
        target = EngineTarget(
            address.name, session, engine("sglang"), spec, base, None, journal, reference=lambda: reference
        )
        yield Try(session, journal, target)
    finally:
        await session.stop(1.0)
        await session.close()


CASES = [
    # fault, environment, arguments → class, phase, a word of the evidence
    ("", {}, {"no-such-flag": True}, FailureClass.BAD_FLAG, Phase.READY, "unrecognized arguments"),
    ("", {"NCCL_ALGO": "Tree"}, {}, FailureClass.NCCL_REFUSED, Phase.READY, "AllGather"),
    ("", {}, {"mem-fraction-static": 0.02}, FailureClass.OUT_OF_MEMORY_LOAD, Phase.READY, "Not enough memory"),
    ("hang_load", {}, {}, FailureClass.HANG_START, Phase.READY, ""),
    ("hang_run", {}, {}, FailureClass.HANG_RUN, Phase.WARM_UP, ""),
    ("never_a_token", {}, {}, FailureClass.HANG_RUN, Phase.WARM_UP, ""),
    ("oom_run", {}, {}, FailureClass.OUT_OF_MEMORY_RUN, Phase.WARM_UP, "out of memory"),
    ("ignored_environment", {"NCCL_PROTO": "LL"}, {}, FailureClass.NOT_IN_EFFECT, Phase.TOOK_EFFECT, "NCCL_PROTO"),
    ("cut_stream", {}, {}, FailureClass.REQUESTS_FAILED, Phase.MEASURE, "while the server lived"),
]


@pytest.mark.parametrize(
    ("fault", "env", "args", "wanted", "phase", "word"), CASES, ids=[f"{c[0]}{c[1]}{c[2]}" for c in CASES]
)
async def test_a_failure_is_told_apart_with_its_evidence(
    address: HostAddress,
    fault: str,
    env: dict[str, Scalar],
    args: dict[str, Scalar],
    wanted: FailureClass,
    phase: Phase,
    word: str,
) -> None:
    async with attempt(address, fault, args) as launch:
        failure = await launch.fails(Configuration.of(env=env))
        assert failure.failure_class is wanted, failure
        assert failure.phase == phase.value
        assert failure.evidence
        assert word.lower() in failure.evidence.lower()
        assert launch.gone.gone, launch.gone
        assert launch.journal.phases[-1] is Phase.STOP


async def test_out_of_memory_in_graph_capture() -> None:
    """By buffers × channels where GPUs talk directly, with a high memory fraction."""
    configuration = Configuration.of(
        env={"NCCL_P2P_LEVEL": "SYS", "NCCL_BUFFSIZE": 1 << 30, "NCCL_MIN_NCHANNELS": 32, "NCCL_MAX_NCHANNELS": 32}
    )
    found, pid = await start_simulated_host("pcie8-failed-search", idle_s=60, load_s=0.5)
    try:
        async with attempt(found, args={"tp-size": 8, "mem-fraction-static": 0.97}) as launch:
            failure = await launch.fails(configuration)
            assert failure.failure_class is FailureClass.OUT_OF_MEMORY_CAPTURE, failure
            assert "out of memory" in failure.evidence.lower()
            assert launch.gone.gone
    finally:
        os.kill(pid, signal.SIGTERM)


async def test_wrong_output_is_told_from_another_order_of_summation(address: HostAddress) -> None:
    """The same answers under another algorithm pass although no log-probability is quite the same; others do not."""
    async with attempt(address) as launch:
        await launch.measure(Configuration())
        reference: tuple[CanaryAnswer, ...] = launch.journal.evidence["canaries"]
        assert launch.journal.evidence["outputs"] == CanaryReport(()), "the first has nothing to be compared with"
    async with attempt(address, reference=reference) as launch:
        await launch.measure(Configuration.of(env={"NCCL_ALGO": "allreduce:tree"}))
        report: CanaryReport = launch.journal.evidence["outputs"]
        assert [each.finding for each in report.comparisons] == [Finding.SAME] * 8
        assert all(each.logprob_gap and each.logprob_gap < 0.05 for each in report.comparisons)
    async with attempt(address, "wrong_output", reference=reference) as launch:
        failure = await launch.fails(Configuration())
        assert (failure.failure_class, failure.phase) == (FailureClass.WRONG_OUTPUT, Phase.CANARIES.value)
        assert failure.fault is Fault.CONFIGURATION
        first = reference[0]
        assert repr(first.canary) in failure.evidence and first.text[:20] in failure.evidence
        assert "from token 1 of 20" in failure.evidence and "8 of 8 canaries are wrong" in failure.evidence
        assert launch.journal.windows and launch.gone.gone


async def test_killed_from_outside_is_nobody_s_fault(address: HostAddress) -> None:
    async with attempt(address) as launch:
        server = await launch.target.launch(Configuration())
        os.kill(launch.journal.evidence["identity"].pid, signal.SIGKILL)
        with pytest.raises(LaunchFailed) as caught:
            await server.measure(LOAD)
        await server.stop()
        assert caught.value.failure.failure_class is FailureClass.KILLED
        assert caught.value.failure.fault is Fault.INFRASTRUCTURE
        assert launch.gone.gone


@pytest.mark.parametrize("fault", ["zombie_scheduler", "ignore_term", "gpu_memory_late", "slow_exit"])
async def test_a_server_that_will_not_go_is_ended(address: HostAddress, fault: str) -> None:
    async with attempt(address, fault) as launch:
        await launch.measure(Configuration())
        assert launch.gone.gone, launch.gone
        # One that ignores TERM gets the whole grace; its workers' end then ends it, as SGLang's chain does.
        assert fault != "ignore_term" or launch.gone.took_s >= SPEC.stop_grace_s
        assert fault != "zombie_scheduler" or launch.gone.exit_status is not None


async def test_gpu_memory_that_does_not_come_back_stops_everything() -> None:
    found, pid = await start_simulated_host("flat", idle_s=60, load_s=0.5)
    try:
        async with attempt(found, "gpu_memory_stuck") as launch:
            with pytest.raises(HostRefused, match="GPU memory did not come back"):
                await launch.measure(Configuration())
    finally:
        os.kill(pid, signal.SIGTERM)


async def test_nothing_of_the_launches_is_left(address: HostAddress) -> None:
    assert address.key_file is not None
    state = str(Path(address.key_file).parents[1])
    servers = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (
                    state.encode() in (entry / "environ").read_bytes()
                    and b"launch_server" in (entry / "cmdline").read_bytes()
                ):
                    servers.append(entry.name)
    assert servers == []
