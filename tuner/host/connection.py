"""A host that is reached again when its link breaks, and a lease that is renewed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tuner.errors import HostLost, HostRefused
from tuner.host.link import AgentError, AgentLink, LinkLost, open_link
from tuner.values.host import HostAddress

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_TRIES_PER_CALL = 8
"""A link that comes up and breaks again with each request is no link."""


class HostConnection:
    """The link to one host, renewed as needed. Operations of the agent can be asked for twice without harm.

    Args:
        limit_s: how long a broken link is tried anew before the host counts as lost. A first connection is tried once.
        keep_alive_s: interval of keep-alive messages; after three unanswered ones the link is broken.
    """

    def __init__(self, address: HostAddress, *, limit_s: float, keep_alive_s: float) -> None:
        self.address = address
        self._limit_s = limit_s
        self._keep_alive_s = keep_alive_s
        self._link: AgentLink | None = None
        self._connecting = asyncio.Lock()

    async def link(self) -> AgentLink:
        """The link, connected anew if it is broken.

        Raises:
            HostLost: the host cannot be reached within the limit.
            HostRefused: it refuses us.
        """
        async with self._connecting:
            if self._link is not None and not self._link.broken:
                return self._link
            first = self._link is None
            if self._link is not None:
                await self._link.close()
            self._link = await self._connect(0.0 if first else self._limit_s)
            return self._link

    async def _connect(self, limit_s: float) -> AgentLink:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await open_link(self.address, keep_alive_s=self._keep_alive_s, keep_alive_misses=3)
            except HostLost as error:
                if loop.time() + pause_s > deadline:
                    if limit_s == 0.0:
                        raise
                    raise HostLost(
                        self.address.name,
                        f"the SSH connection broke and did not come back in {limit_s:g} s: {error.what}",
                    ) from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Asks the agent for an operation, over as many links as it takes.

        Raises:
            HostLost: the host cannot be reached; `AgentError`: the operation failed there.
            HostRefused: the host refuses us.
        """
        for _ in range(_TRIES_PER_CALL):
            link = await self.link()
            with contextlib.suppress(LinkLost):
                return await link.call(op, **arguments)
        raise HostLost(self.address.name, f"the SSH connection broke {_TRIES_PER_CALL} times in a row")

    async def forward(self, port: int) -> tuple[AgentLink, int]:
        """The link at hand and a port of our loopback that it forwards to `port` of the host's loopback."""
        for _ in range(_TRIES_PER_CALL):
            link = await self.link()
            with contextlib.suppress(LinkLost):
                return link, await link.forward(port)
        raise HostLost(self.address.name, f"the SSH connection broke {_TRIES_PER_CALL} times in a row")

    async def close(self) -> None:
        """Lets the link go."""
        async with self._connecting:
            if self._link is not None:
                await self._link.close()
                self._link = None


class LeaseKeeper:
    """Renews the lease of a launch in the background, five times as often as it would lapse.

    It stops by itself when the lease has lapsed: the server is gone then.
    """

    def __init__(self, host: HostConnection, nonce: str, lease_s: float) -> None:
        self._host = host
        self._nonce = nonce
        self._interval_s = lease_s / 5
        self._task = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        lapsed = False
        while not lapsed:
            await asyncio.sleep(self._interval_s)
            # A host that is lost or refuses us is told to whoever waits for a step; here the next try follows.
            with contextlib.suppress(AgentError, HostLost, HostRefused):
                lapsed = (await self._host.call("renew", nonce=self._nonce))["lapsed"]

    async def stop(self) -> None:
        """Renews no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
