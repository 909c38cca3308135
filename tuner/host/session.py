"""The steps of a launch on one host, over SSH: `tuner.ports.HostSteps`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tuner.errors import ForeignServer, HostLost, HostRefused, LaunchFailed
from tuner.host import answers
from tuner.host.connection import HostConnection, LeaseKeeper
from tuner.host.lag import TunnelLagProbe
from tuner.host.link import AgentError, AgentLink, LinkLost
from tuner.load.client import LoadClient
from tuner.ports import Engine
from tuner.values.canary import CanaryAnswer
from tuner.values.failure import Failure, FailureClass, Fault
from tuner.values.host import HostAddress, HostFacts
from tuner.values.launch import (
    CleanReport,
    EffectReport,
    GoneReport,
    LaunchCommand,
    Phase,
    ServerIdentity,
    ServerStatus,
)
from tuner.values.measurement import TunnelLag, Window
from tuner.values.study import EngineSpec
from tuner.values.workload import Workload

T = TypeVar("T")

SHARED_MEMORY = ("nccl-*", "sgl_shm_mm_*", "psm_*", "sem.mp-*")
"""Names under /dev/shm that servers leave behind: NCCL's, SGLang's, Python's shared memory and semaphores."""
GPU_BUSY_BYTES = 2 * 2**30
"""Memory in use on a GPU that is somebody's work, not a driver's or a desktop's own."""
GPU_SLACK_BYTES = 256 * 2**20
"""How far above the level before the start a GPU's memory may be after the stop and count as back."""
GPU_WAIT_S = 30.0
LEASE_GRACE_S = 5.0
LOG_SEGMENT_BYTES = 8 * 2**20
LOG_SEGMENTS_KEPT = 2
LOG_LIMIT_BYTES = 4 * 2**20
"""How much of a log is looked at for evidence: the whole of most."""
_POLL_FIRST_S = 0.1
_POLL_LONGEST_S = 1.0
_PROBE_LIMIT_S = 5.0
_INFO_LIMIT_S = 30.0
DEATH_WATCH_S = 8.0
"""How long a server with failed requests is watched: SGLang's parent follows a dead scheduler after 5.8 s."""
_WINDOW_TRIES = 3
_RETRY_INDEX = 100_000
"""A window repeated after a broken link gets prompts of its own: the first ones are in the prefix cache by now."""


class Load(Protocol):
    """What windows and canaries need of the load client."""

    async def window(self, workload: Workload, index: int) -> Window:
        """Runs one window."""
        ...

    async def canaries(self) -> tuple[CanaryAnswer, ...]:
        """Asks the canaries."""
        ...

    async def close(self) -> None:
        """Closes its connections."""
        ...


@dataclass
class _Launch:
    """The launch under way."""

    command: LaunchCommand
    lease: LeaseKeeper
    started_s: float
    lag: TunnelLagProbe
    client: Load | None = None
    client_link: AgentLink | None = None


class SshSession:
    """One host and at most one server on it at a time.

    A link that breaks is connected anew, and the launch goes on as long as its lease has not lapsed meanwhile.

    Args:
        spec: its `lease_s` is also how long a broken link is tried before the host counts as lost.
        load: makes the load client for a base URL.
        gpu_busy_bytes: memory in use on a GPU from which on it counts as somebody else's.
        gpu_wait_s: how long GPU memory may take to come back after a stop.
        death_watch_s: how long a server with failed requests is watched for its death.
    """

    def __init__(
        self,
        address: HostAddress,
        engine: Engine,
        spec: EngineSpec,
        *,
        load: Callable[[str], Load] = LoadClient,
        gpu_busy_bytes: int = GPU_BUSY_BYTES,
        gpu_wait_s: float = GPU_WAIT_S,
        death_watch_s: float = DEATH_WATCH_S,
    ) -> None:
        self._name = address.name
        self._engine = engine
        self._spec = spec
        self._load = load
        self._gpu_busy_bytes = gpu_busy_bytes
        self._gpu_wait_s = gpu_wait_s
        self._death_watch_s = death_watch_s
        keep_alive_s = min(5.0, max(0.5, spec.lease_s / 12))
        self._host = HostConnection(address, limit_s=spec.lease_s, keep_alive_s=keep_alive_s)
        self._launch: _Launch | None = None
        self._lag: TunnelLag | None = None
        self._gpu_level: tuple[int, ...] = ()

    # ── Before ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def preflight(self) -> HostFacts:
        """Connects and reads what the host has; see `tuner.ports.HostSteps.preflight`."""
        launch = self._spec.launch
        try:
            found = await self._host.call(
                "facts",
                command=launch.command,
                env=dict(launch.env),
                distributions=self._engine.distributions,
            )
        except AgentError as error:
            raise HostRefused(self._name, f"{error.what}. Mend that there, then start again.") from None
        return answers.host_facts(self._name, self._engine, launch, found)

    async def clean(self, port: int | None, nonces: Sequence[str]) -> CleanReport:
        """Ends leftovers of ours and looks whether the way is free; see `tuner.ports.HostSteps.clean`.

        A launch of this session that was not seen to end is ended, too.

        Raises:
            ForeignServer: others hold the GPUs' memory.
            HostRefused: something of ours cannot be ended.
        """
        unfinished = self._launch
        wanted = {*nonces, *([unfinished.command.nonce] if unfinished else [])}
        found = await self._host.call(
            "clean",
            port=port,
            nonces=sorted(wanted),
            busy_bytes=self._gpu_busy_bytes,
            gpu_wait_s=self._gpu_wait_s,
            patterns=SHARED_MEMORY,
        )
        if found["left_pids"]:
            raise HostRefused(
                self._name,
                f"processes {', '.join(map(str, found['left_pids']))} of an earlier launch survive SIGKILL: a call "
                "into the GPU's driver does not return. Look at `ps` and `dmesg` there; a GPU reset or a reboot "
                "may be needed.",
            )
        if unfinished is not None:
            await self._let_go(unfinished)
        if found["gpu_busy"]:
            raise answers.gpus_busy(self._name, found)
        self._gpu_level = tuple(found["gpu_memory_used_bytes"])
        return CleanReport(found["port"], found["port_holder"], self._gpu_level, tuple(found["stopped"]))

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self, command: LaunchCommand) -> ServerIdentity:
        """Starts the command under a supervisor and renews its lease from now on.

        Raises:
            ForeignServer: somebody else listens on the port.
        """
        if self._launch is not None:
            raise HostRefused(self._name, f"launch {self._launch.command.nonce} is not ended: call stop() or clean().")
        self._lag = None
        lease = LeaseKeeper(self._host, command.nonce, self._spec.lease_s)
        self._launch = _Launch(command, lease, time.monotonic(), TunnelLagProbe())
        found = await self._host.call(
            "start",
            nonce=command.nonce,
            argv=command.argv,
            env=dict(command.env),
            port=command.port,
            gpu_memory_used_bytes=self._gpu_level,
            patterns=SHARED_MEMORY,
            supervisor={
                "lease_s": self._spec.lease_s,
                "lease_grace_s": LEASE_GRACE_S,
                "segment_bytes": LOG_SEGMENT_BYTES,
                "kept_segments": LOG_SEGMENTS_KEPT,
            },
        )
        if found["port_holder"]:
            raise answers.port_taken(self._name, command.port, Phase.START, found["port_holder"])
        return ServerIdentity(**found["identity"])

    @property
    def _under_way(self) -> _Launch:
        if self._launch is None:
            raise HostRefused(self._name, "no server was started: call start() first.")
        return self._launch

    async def wait_ready(self, start_deadline_s: float, no_progress_s: float) -> None:
        """Returns once our nonce comes back and our process lives; see `tuner.ports.HostSteps.wait_ready`.

        Raises:
            LaunchFailed: it died or hangs.
            ForeignServer: somebody else answers on the port.
            HostLost: the host is gone, or its lease lapsed.
        """
        launch = self._under_way
        path = self._engine.ready_path
        progress, progress_s = -1, time.monotonic()
        pause_s = _POLL_FIRST_S
        while True:
            look = await self._host.call(
                "probe", nonce=launch.command.nonce, port=launch.command.port, path=path, timeout_s=_PROBE_LIMIT_S
            )
            await self._require_alive(look["status"], Phase.READY)
            if self._is_ready(look, path):
                return
            now = time.monotonic()
            if look["status"]["log_bytes"] != progress:
                progress, progress_s = look["status"]["log_bytes"], now
            if now - launch.started_s > start_deadline_s:
                raise self._hang(look["status"], f"not ready {start_deadline_s:g} s after its start")
            if now - progress_s > no_progress_s:
                raise self._hang(look["status"], f"not ready, and its log has been silent for {no_progress_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, _POLL_LONGEST_S)

    def _is_ready(self, look: Mapping[str, Any], path: str) -> bool:
        """Whether it is our server that answers."""
        http, port = look["http"], self._under_way.command.port
        if http["status"] is None:
            return False
        if look["listener_is_own"] is False:
            raise answers.port_taken(self._name, port, Phase.READY, "a process that is not ours")
        answered = self._engine.nonce_in(path, http["body"]) if http["status"] == 200 else ""
        if answered and answered != self._under_way.command.nonce:
            raise answers.port_taken(self._name, port, Phase.READY, f"a server that answers as {answered!r}")
        return bool(answered)

    @staticmethod
    def _hang(status: Mapping[str, Any], what: str, phase: Phase = Phase.READY) -> LaunchFailed:
        return LaunchFailed(answers.hang(status, phase, what))

    async def _require_alive(self, status: Mapping[str, Any], phase: Phase) -> None:
        """Raises what the status of a launch amounts to, unless its server is alive and well."""
        if status["rebooted"]:
            raise HostLost(self._name, "it was rebooted; the launch is lost")
        if status["lease_lapsed"]:
            raise HostLost(
                self._name, "the lease lapsed while the host could not be reached; its supervisor ended the server"
            )
        if status["alive"]:
            return
        if status["exit_status"] is None and not status["supervised"]:
            raise HostLost(self._name, "the server's supervisor was killed on the host, and the server with it")
        log = await self._log()
        failure = self._engine.classify(log, status["exit_status"], phase)
        raise ForeignServer(failure) if failure.fault is Fault.FOREIGN else LaunchFailed(failure)

    async def _log(self) -> str:
        found = await self._host.call("log", nonce=self._under_way.command.nonce, limit=LOG_LIMIT_BYTES)
        text: str = found["text"]
        return text

    # ── Took effect ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def took_effect(self, command: LaunchCommand, names: Sequence[str]) -> EffectReport:
        """Reads back what the live processes and the server run with; see `tuner.ports.HostSteps.took_effect`."""
        found = await self._host.call("environ", nonce=command.nonce, names=list(names))
        pids, environment, mismatches = answers.workers_environment(
            found["processes"], self._engine.worker_titles, names
        )
        path = self._engine.server_info_path
        answer = await self._host.call("get", port=command.port, path=path, timeout_s=_INFO_LIMIT_S)
        if answer["status"] is None:
            status = await self._watch_for_death(Phase.TOOK_EFFECT)
            raise self._hang(status, f"it lives but GET {path} brings {answer['error']}", Phase.TOOK_EFFECT)
        await self._require_alive(await self._status(), Phase.TOOK_EFFECT)
        try:
            info: dict[str, Any] = json.loads(answer["body"])
        except ValueError:
            info = {}
            mismatches.append(f"GET {path} gave no JSON but {answer['body'][:200]!r} (HTTP {answer['status']})")
        lines = self._engine.nccl_evidence(await self._log())
        mismatches += self._engine.effect_mismatches(command, info, environment, lines, names)
        return EffectReport(
            pids, tuple(sorted(environment.items())), answers.server_info_pairs(info), tuple(lines), tuple(mismatches)
        )

    # ── Measure ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def window(self, workload: Workload, index: int) -> Window:
        """Runs one window through the forward; see `tuner.ports.HostSteps.window`.

        A window during which the link broke is run again, with other prompts.
        """
        phase = Phase.WARM_UP if index < 0 else Phase.MEASURE
        for attempt in range(_WINDOW_TRIES):
            asked = index if attempt == 0 else abs(index) + _RETRY_INDEX * attempt
            try:
                link, window = await self._window(workload, asked, phase)
            except LinkLost:
                continue
            if any(request.error for request in window.requests):
                if link.broken:
                    continue
                await self._after_errors(workload, window, phase)
            late = await self._window_problems(self._under_way.command.port)
            return dataclasses.replace(window, index=index, invalid=window.invalid + late)
        raise HostLost(self._name, f"the SSH connection broke in each of {_WINDOW_TRIES} windows")

    async def _window_problems(self, port: int) -> tuple[str, ...]:
        """What the server itself says against the window that just ended."""
        answer = await self._host.call("get", port=port, path=self._engine.server_info_path, timeout_s=_INFO_LIMIT_S)
        try:
            info = json.loads(answer["body"] or "null")
        except ValueError:
            return ()
        return self._engine.window_problems(info) if isinstance(info, dict) else ()

    async def _window(self, workload: Workload, index: int, phase: Phase) -> tuple[AgentLink, Window]:
        echo = (await self._host.call("echo"))["port"]
        link, client = await self._client()
        async with self._under_way.lag.through(await link.forward(echo)):
            return link, await self._watched(client.window(workload, index), phase)

    async def _client(self) -> tuple[AgentLink, Load]:
        """The load client through the link as it is now: a new one after the link broke."""
        launch = self._under_way
        link, port = await self._host.forward(launch.command.port)
        if launch.client is None or launch.client_link is not link:
            if launch.client is not None:
                await launch.client.close()
            launch.client, launch.client_link = self._load(f"http://127.0.0.1:{port}"), link
        return link, launch.client

    async def _watched(self, work: Coroutine[Any, Any, T], phase: Phase) -> T:
        """Awaits work on the server while looking whether that lives."""
        run = asyncio.create_task(work)
        try:
            while not run.done():
                await asyncio.wait([run], timeout=_POLL_LONGEST_S)
                if not run.done():
                    await self._require_alive(await self._status(), phase)
            return run.result()
        finally:
            run.cancel()
            await asyncio.wait([run])

    async def canaries(self) -> tuple[CanaryAnswer, ...]:
        """Asks the canaries through the forward; see `tuner.ports.HostSteps.canaries`."""
        for attempt in range(_WINDOW_TRIES):
            try:
                link, client = await self._client()
                found = await self._watched(client.canaries(), Phase.CANARIES)
            except LinkLost:
                continue
            if not any(answer.error for answer in found):
                return found
            if not link.broken:
                await self._watch_for_death(Phase.CANARIES)
                if attempt:  # an error may be a hiccup: it counts when it comes again
                    return found
        raise HostLost(self._name, f"the SSH connection broke {_WINDOW_TRIES} times while its outputs were compared")

    async def _after_errors(self, workload: Workload, window: Window, phase: Phase) -> None:
        """Finds out whether failed requests mean a dead or hanging server; returns if neither."""
        status = await self._status()
        await self._require_alive(status, phase)
        if window.duration_s < workload.request_timeout_s:
            await self._watch_for_death(phase)
            return
        error = next(request.error for request in window.requests if request.error)
        tail = answers.masked(status["log_tail"])
        evidence = f"{error} (the server's process lives)"
        raise LaunchFailed(Failure(FailureClass.HANG_RUN, phase.value, evidence, log_tail=tail))

    async def _watch_for_death(self, phase: Phase) -> dict[str, Any]:
        """Watches a server that failed to answer for as long as it may take to die; its status if it lives on."""
        deadline = time.monotonic() + self._death_watch_s
        while True:
            status = await self._status()
            await self._require_alive(status, phase)
            if time.monotonic() > deadline:
                return status
            await asyncio.sleep(_POLL_FIRST_S)

    async def tunnel_lag(self) -> TunnelLag | None:
        """The forward's lag during the windows since the start; ``None`` before the first."""
        return self._launch.lag.lag if self._launch is not None else self._lag

    async def _status(self) -> dict[str, Any]:
        return await self._host.call("status", nonce=self._under_way.command.nonce)

    async def status(self) -> ServerStatus:
        """A look at the server under way; without one, nothing is alive."""
        if self._launch is None:
            return ServerStatus(False, None, False, 0, "")
        return answers.server_status(await self._status())

    # ── After ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, grace_s: float) -> GoneReport:
        """Ends all that is ours and proves it gone; see `tuner.ports.HostSteps.stop`."""
        launch = self._launch
        if launch is None:
            return GoneReport(None, (), (), True, (), True, (), 0.0)
        try:
            found = await self._host.call(
                "stop",
                nonce=launch.command.nonce,
                grace_s=grace_s,
                gpu_wait_s=self._gpu_wait_s,
                gpu_slack_bytes=GPU_SLACK_BYTES,
                patterns=SHARED_MEMORY,
            )
        finally:
            # Whatever happened, nobody wants that server any more: if it still lives, its lease may lapse.
            await launch.lease.stop()
        await self._let_go(launch)
        return answers.gone_report(found)

    async def _let_go(self, launch: _Launch) -> None:
        self._launch = None
        self._lag = launch.lag.lag
        await launch.lease.stop()
        if launch.client is not None:
            await launch.client.close()

    async def close(self) -> None:
        """Lets the connection go. A server under way is ended by its lease."""
        if self._launch is not None:
            await self._let_go(self._launch)
        await self._host.close()
