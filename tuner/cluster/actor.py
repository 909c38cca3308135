"""The actor that lives in a Ray worker and holds one host's SSH session."""

from __future__ import annotations

from typing import Any

from tuner.host.session import SshSession
from tuner.ports import Engine
from tuner.values.host import HostAddress
from tuner.values.study import EngineSpec

STEPS = frozenset(
    {
        "preflight",
        "clean",
        "start",
        "wait_ready",
        "took_effect",
        "window",
        "canaries",
        "tunnel_lag",
        "status",
        "stop",
        "close",
    }
)
"""The methods of `tuner.ports.HostSteps`: all that may be called from outside."""


class HostActor:
    """One `SshSession` behind Ray. An async actor: a status can be read while a window runs."""

    def __init__(self, address: HostAddress, engine: Engine, spec: EngineSpec) -> None:
        self._session = SshSession(address, engine, spec)

    async def step(self, name: str, *args: Any) -> Any:
        """Does one step of `tuner.ports.HostSteps`; its errors cross to the caller whole."""
        if name not in STEPS:
            raise AttributeError(f"{name!r} is not a step; steps are {', '.join(sorted(STEPS))}")
        return await getattr(self._session, name)(*args)
