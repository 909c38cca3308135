"""``python -m tuner.simulated``: a simulated GPU host that is reached by SSH."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from tuner.errors import InputError
from tuner.simulated.machine import MACHINES, Machine, machine
from tuner.simulated.sshd import Keys, SshServer
from tuner.simulated.state import HostState

_DESCRIPTION = """\
A simulated GPU host: an SSH server on the loopback with a stand-in for SGLang behind it.

When it is ready it prints one line of JSON: hostname, port, user, key_file, known_hosts_file, preset, pid. It ends by
itself when nobody is connected and none of its processes has been alive for a while, and takes its files with it."""

_EXAMPLE = """\
example:
  python -m tuner.simulated --preset h200x2-shm > host.json &
  ssh -i KEY_FILE -o UserKnownHostsFile=KNOWN_HOSTS_FILE -p PORT USER@127.0.0.1 nvidia-smi
  ssh … 'python3 -m sglang.launch_server --model-path m --tp-size 2 --port 30000'"""


def main() -> int:
    """Runs the host until it is idle or told to end."""
    options = _options()
    if options.list:
        for each in MACHINES.values():
            print(f"{each.name:22} {each.title} ({each.source})")
        return 0
    try:
        host = machine(options.preset)
        if options.engine_version is not None:
            host = replace(host, engine_version=options.engine_version)
        state = HostState.create(host, options.state_dir)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    logging.basicConfig(
        filename=state.path / "host.log", level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    try:
        asyncio.run(_serve(host, state, options))
    finally:
        state.end_processes()
        if not options.keep:
            state.remove()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tuner.simulated",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--preset", default=next(iter(MACHINES)), help="the machine to imitate (default: %(default)s)")
    add("--list", action="store_true", help="list the presets and end")
    add("--idle-s", type=float, default=120.0, help="end after so many idle seconds (default: %(default)s)")
    add("--state-dir", type=Path, help="where its files go (default: a new temporary directory)")
    add("--keep", action="store_true", help="leave its files when it ends")
    add("--load-s", type=float, default=1.0, help="seconds that loading and graph capture take (default: %(default)s)")
    add("--noise", type=float, default=1.0, help="multiplier of the noise; 0: none (default: %(default)s)")
    add("--engine-version", help="of the SGLang that is installed on it (default: the preset's)")
    add("--seed", type=int, help="of the noise of its launches (default: random)")
    return parser.parse_args()


async def _serve(host: Machine, state: HostState, options: argparse.Namespace) -> None:
    settings = {"TUNER_SIMULATED_LOAD_S": f"{options.load_s:g}", "TUNER_SIMULATED_NOISE": f"{options.noise:g}"}
    if options.seed is not None:
        settings["TUNER_SIMULATED_SEED"] = str(options.seed)
    keys = Keys.generate(state.keys)
    server = SshServer(getpass.getuser(), keys, state.environment(host, settings), state.path / "home")
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await server.start()
    ready = {
        "hostname": "127.0.0.1",
        "port": server.port,
        "user": server.user,
        "key_file": str(keys.user_key),
        "known_hosts_file": str(keys.known_hosts),
        "preset": host.name,
        "pid": os.getpid(),
    }
    print(json.dumps(ready), flush=True)
    await _until_idle(server, state, options.idle_s, told)
    await server.stop()


async def _until_idle(server: SshServer, state: HostState, idle_s: float, told: asyncio.Event) -> None:
    """Returns when nobody has used the host for `idle_s`, or when it is told to end."""
    used = time.monotonic()
    look = min(1.0, max(0.05, idle_s / 4))
    while time.monotonic() - used < idle_s:
        try:
            await asyncio.wait_for(told.wait(), look)
            return
        except TimeoutError:
            pass
        if server.connections or any(True for _ in state.processes()):
            used = time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
