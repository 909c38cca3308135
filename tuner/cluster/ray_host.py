"""A host's steps done by an actor: the driver's end of `tuner.cluster.actor`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from tuner.errors import HostLost, TunerError
from tuner.values.canary import CanaryAnswer
from tuner.values.host import HostFacts
from tuner.values.launch import CleanReport, EffectReport, GoneReport, LaunchCommand, ServerIdentity, ServerStatus
from tuner.values.measurement import TunnelLag, Window
from tuner.values.workload import Workload


class RayHost:
    """`tuner.ports.HostSteps` through a Ray actor.

    Beside the errors of each step, every method raises `HostLost` when the actor or its node died: the lease on the
    host, or the next `clean`, then ends the server. The step after that is done by a new actor.

    Args:
        start: starts an actor.
    """

    def __init__(self, name: str, start: Callable[[], Any]) -> None:
        self._name = name
        self._start = start
        self._actor: Any = None

    async def _step(self, step: str, *args: Any) -> Any:
        if self._actor is None:
            self._actor = self._start()
        try:
            return await self._actor.step.remote(step, *args)
        except RayTaskError as error:
            if isinstance(error.cause, TunerError):
                raise error.cause from None
            raise
        except (ActorDiedError, ActorUnavailableError) as error:
            self._actor = None
            raise HostLost(
                self._name, f"its actor died during {step!r} ({type(error).__name__}: {first_line(error)})"
            ) from None

    async def preflight(self) -> HostFacts:
        """See `tuner.ports.HostSteps.preflight`."""
        facts: HostFacts = await self._step("preflight")
        return facts

    async def clean(self, port: int | None, nonces: Sequence[str]) -> CleanReport:
        """See `tuner.ports.HostSteps.clean`."""
        report: CleanReport = await self._step("clean", port, tuple(nonces))
        return report

    async def start(self, command: LaunchCommand) -> ServerIdentity:
        """See `tuner.ports.HostSteps.start`."""
        identity: ServerIdentity = await self._step("start", command)
        return identity

    async def wait_ready(self, start_deadline_s: float, no_progress_s: float) -> None:
        """See `tuner.ports.HostSteps.wait_ready`."""
        await self._step("wait_ready", start_deadline_s, no_progress_s)

    async def took_effect(self, command: LaunchCommand, names: Sequence[str]) -> EffectReport:
        """See `tuner.ports.HostSteps.took_effect`."""
        report: EffectReport = await self._step("took_effect", command, tuple(names))
        return report

    async def window(self, workload: Workload, index: int) -> Window:
        """See `tuner.ports.HostSteps.window`."""
        window: Window = await self._step("window", workload, index)
        return window

    async def canaries(self) -> tuple[CanaryAnswer, ...]:
        """See `tuner.ports.HostSteps.canaries`."""
        answers: tuple[CanaryAnswer, ...] = await self._step("canaries")
        return answers

    async def tunnel_lag(self) -> TunnelLag | None:
        """See `tuner.ports.HostSteps.tunnel_lag`."""
        lag: TunnelLag | None = await self._step("tunnel_lag")
        return lag

    async def status(self) -> ServerStatus:
        """See `tuner.ports.HostSteps.status`."""
        status: ServerStatus = await self._step("status")
        return status

    async def stop(self, grace_s: float) -> GoneReport:
        """See `tuner.ports.HostSteps.stop`."""
        report: GoneReport = await self._step("stop", grace_s)
        return report

    async def close(self) -> None:
        """Closes the session and ends the actor."""
        if self._actor is None:
            return
        with contextlib.suppress(HostLost):
            await self._step("close")
        if self._actor is not None:
            ray.kill(self._actor, no_restart=True)
            self._actor = None


def first_line(error: BaseException) -> str:
    """The first line of an error's text: Ray's go on for pages."""
    return str(error).strip().partition("\n")[0]
