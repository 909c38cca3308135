"""A driver to be killed: starts the test server over SSH as its arguments say, prints what it knows, then waits."""

from __future__ import annotations

import asyncio
import json
import sys

from host_engine import SmallEngine, launch

from tuner.host.session import SshSession
from tuner.values.host import HostAddress
from tuner.values.launch import LaunchBase
from tuner.values.study import EngineSpec


async def main() -> None:
    arguments = json.loads(sys.argv[1])
    spec = EngineSpec("small", LaunchBase(command=("python3",)), lease_s=arguments["lease_s"])
    session = SshSession(HostAddress(**arguments["address"]), SmallEngine(), spec)
    identity = await session.start(launch(arguments["port"], arguments["nonce"], *arguments["options"]))
    await session.wait_ready(20, 20)
    print(json.dumps({"pid": identity.pid}), flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
