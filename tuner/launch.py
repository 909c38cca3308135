"""One launch of a server on a host: the phases in order, each stored before it begins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from tuner.errors import HostRefused, LaunchFailed, TunerError
from tuner.load.canary import compare
from tuner.load.metrics import measurement
from tuner.ports import Engine, HostSteps, Journal
from tuner.values.canary import CanaryAnswer
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass
from tuner.values.launch import GoneReport, LaunchBase, LaunchCommand, Phase
from tuner.values.measurement import Measurement, Window
from tuner.values.study import EngineSpec
from tuner.values.workload import Workload

T = TypeVar("T")

STAGE_INTERVAL_S = 1.0
EXTRA_WINDOWS = 2
"""Windows that a launch may repeat because they were invalid, before it is given up as unmeasurable."""
WRONG_OUTPUT_REMEDY = (
    "Leave the setting out of the space; if the default itself fails so, its outputs are not repeatable: look there "
    "first."
)


class EngineTarget:
    """A host and an engine as a `tuner.ports.Target`: what the study loop launches.

    Args:
        host_name: for messages.
        steps: the host's steps, in this process or behind an actor.
        engine: the rules of the engine.
        spec: deadlines, grace and lease.
        base: the control's launch, references to secrets already looked up: never stored.
        port: the server's HTTP port; ``None``: a free one for each launch.
        journal: where each phase is stored before it begins.
        unproven: nonces of earlier launches whose end was not seen: stopped before the next start.
        on_stage: told what a starting server is doing, such as ``weights 25 %``, for live progress.
        reference: the default's answers to the canaries, read anew for each launch; ``None``: there are none yet.
    """

    def __init__(
        self,
        host_name: str,
        steps: HostSteps,
        engine: Engine,
        spec: EngineSpec,
        base: LaunchBase,
        port: int | None,
        journal: Journal,
        unproven: Sequence[str] = (),
        on_stage: Callable[[str], None] | None = None,
        reference: Callable[[], tuple[CanaryAnswer, ...] | None] = lambda: None,
    ) -> None:
        self._host_name = host_name
        self._steps = steps
        self._engine = engine
        self._spec = spec
        self._base = base
        self._port = port
        self._journal = journal
        self._unproven = set(unproven)
        self._on_stage = on_stage
        self._reference = reference

    async def launch(self, configuration: Configuration) -> EngineServer:
        """Starts a server and returns when it serves with the configuration in effect.

        Raises:
            LaunchFailed: it did not start, or runs with something else; nothing of it is left.
            ForeignServer: somebody else's server holds the port or the GPUs; it was not touched.
            HostLost: the host is gone; its lease ends the server.
            HostRefused: what was started could not be ended.
        """
        nonce = self._journal.nonce
        await self._journal.begin(Phase.CLEAN)
        clean = await self._steps.clean(self._port, sorted(self._unproven))
        await self._journal.record(clean=clean)
        self._unproven.clear()

        command = self._engine.command(self._base, configuration, port=clean.port, nonce=nonce)
        server = EngineServer(self, self._steps, self._journal, self._spec, self._reference)
        self._unproven.add(nonce)
        try:
            await self._start(command, configuration)
        except BaseException:
            await finish(server.stop())
            raise
        return server

    async def _start(self, command: LaunchCommand, configuration: Configuration) -> None:
        await self._journal.begin(Phase.START)
        await self._journal.record(command=command)
        await self._journal.record(identity=await self._steps.start(command))
        await self._journal.begin(Phase.READY)
        async with self._telling_stages():
            await self._steps.wait_ready(self._spec.start_deadline_s, self._spec.no_progress_s)
        await self._journal.begin(Phase.TOOK_EFFECT)
        names = [name for name, _ in (*configuration.env, *configuration.args)]
        effect = await self._steps.took_effect(command, names)
        await self._journal.record(effect=effect)
        if effect.mismatches:
            raise LaunchFailed(
                Failure(
                    FailureClass.NOT_IN_EFFECT,
                    Phase.TOOK_EFFECT.value,
                    "; ".join(effect.mismatches),
                    "The engine rewrote the setting or never read it: take it out of the space.",
                )
            )

    @contextlib.asynccontextmanager
    async def _telling_stages(self) -> AsyncIterator[None]:
        """Tells `on_stage` what the server's log says while the block runs. Errors are the block's to find."""

        async def tell(on_stage: Callable[[str], None]) -> None:
            with contextlib.suppress(TunerError):
                while True:
                    await asyncio.sleep(STAGE_INTERVAL_S)
                    on_stage(self._engine.stage_of((await self._steps.status()).log_tail))

        task = asyncio.ensure_future(tell(self._on_stage)) if self._on_stage is not None else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    def proven_gone(self, report: GoneReport) -> None:
        """Takes note of how a stop ended.

        Raises:
            HostRefused: something is left: the next launch would not start on a clean host.
        """
        if report.gone:
            self._unproven.clear()
            return
        what = []
        if report.left_pids:
            what.append(f"processes {', '.join(map(str, report.left_pids))} survived SIGKILL")
        if not report.port_free:
            what.append("the port is still held")
        if not report.gpu_memory_back:
            used = ", ".join(f"{used / 2**30:.1f}" for used in report.gpu_memory_used_bytes)
            what.append(f"GPU memory did not come back ({used} GiB still in use)")
        raise HostRefused(
            self._host_name,
            f"after the stop of the server {' and '.join(what)}. Look at `nvidia-smi` and `ps` there; a GPU reset or "
            "a reboot may be needed. Then give the same command again: the study goes on where it stopped.",
        )


class EngineServer:
    """A running server as a `tuner.ports.Server`."""

    def __init__(
        self,
        target: EngineTarget,
        steps: HostSteps,
        journal: Journal,
        spec: EngineSpec,
        reference: Callable[[], tuple[CanaryAnswer, ...] | None],
    ) -> None:
        self._target = target
        self._steps = steps
        self._journal = journal
        self._spec = spec
        self._reference = reference
        self._stopped = False

    async def measure(self, workload: Workload) -> Measurement:
        """Warms up, runs the workload's windows, each stored as it ends, then the canaries.

        Invalid windows are kept and repeated, at most `EXTRA_WINDOWS` times.

        Raises:
            LaunchFailed: the server died or hung, no window was valid, or its outputs are wrong.
            HostLost: the host is gone.
        """
        await self._journal.begin(Phase.WARM_UP)
        for index in range(-workload.warm_up_windows, 0):
            await self._steps.window(workload, index)
        await self._journal.begin(Phase.MEASURE)
        windows: list[Window] = []
        valid = 0
        for index in range(workload.windows + EXTRA_WINDOWS):
            if valid == workload.windows:
                break
            window = await self._steps.window(workload, index)
            await self._journal.window(window)
            windows.append(window)
            valid += not window.invalid
        if not valid:
            raise LaunchFailed(unmeasured(windows))
        await self._compare_outputs()
        return measurement(windows, await self._steps.tunnel_lag())

    async def _compare_outputs(self) -> None:
        """Asks the canaries and compares their answers with the default's; a fast but wrong server must not win."""
        await self._journal.begin(Phase.CANARIES)
        answers = await self._steps.canaries()
        await self._journal.record(canaries=answers)
        report = compare(await asyncio.to_thread(self._reference), answers)
        await self._journal.record(outputs=report)
        if report.corrupted:
            raise LaunchFailed(
                Failure(FailureClass.WRONG_OUTPUT, Phase.CANARIES.value, report.corrupted, WRONG_OUTPUT_REMEDY)
            )

    async def stop(self) -> None:
        """Stops the server; returns when it is proven gone. A second call does nothing.

        Raises:
            HostRefused: something of it is left.
            HostLost: the host is gone; the lease ends the server.
        """
        if self._stopped:
            return
        await self._journal.begin(Phase.STOP)
        report = await self._steps.stop(self._spec.stop_grace_s)
        self._stopped = True
        await self._journal.record(gone=report)
        self._target.proven_gone(report)


def unmeasured(windows: Sequence[Window]) -> Failure:
    """Why no window of a launch was valid.

    Requests that fail in each window while the server lives are its configuration's doing; a client that was too slow
    or a machine that was too busy is not.
    """
    errors = [next((request.error for request in window.requests if request.error), "") for window in windows]
    if all(errors):
        evidence = f"requests failed in all {len(windows)} windows while the server lived: {errors[-1]}"
        return Failure(FailureClass.REQUESTS_FAILED, Phase.MEASURE.value, evidence)
    reasons = "; ".join(windows[-1].invalid)
    evidence = f"all {len(windows)} windows were invalid, the last because {reasons}"
    return Failure(FailureClass.BAD_MEASUREMENT, Phase.MEASURE.value, evidence)


async def finish(work: Awaitable[T]) -> T:
    """Awaits work to its end even while the caller is being cancelled: a stop must not be cut short.

    The cancellation is raised again once the work is done.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
