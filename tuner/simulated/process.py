"""Starts a simulated host as a process of its own. Standard library only."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tuner
from tuner.errors import InputError
from tuner.values.host import HostAddress

_READY_S = 30.0
_ROOT = str(Path(tuner.__file__).resolve().parent.parent)
"""Where `tuner` is, so that the host finds it wherever the caller stands."""
_started: list[subprocess.Popen[bytes]] = []
"""Kept, so that a host which ends while this process lives is reaped and not complained about."""


async def start_simulated_host(preset: str, **options: Any) -> tuple[HostAddress, int]:
    """Starts a simulated host and returns how to reach it, and its pid.

    It is a process in a session of its own: Ctrl-C and ``kill -9`` of the caller do not end it. It ends by itself when
    nobody has used it for a while.

    Args:
        options: the options of ``python -m tuner.simulated``, ``idle_s=60`` for ``--idle-s 60``; ``None`` is left out.

    Raises:
        InputError: it did not start; the message ends with what it said.
    """
    argv = [sys.executable, "-m", "tuner.simulated", "--preset", preset]
    for name, value in options.items():
        if value is not None:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    with tempfile.TemporaryFile() as errors:
        host = subprocess.Popen(  # noqa: ASYNC220 - asyncio's is killed when its transport goes
            argv,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        _started.append(host)
        assert host.stdout is not None
        line = b""
        try:
            line = await asyncio.wait_for(_line(host.stdout), _READY_S)
        except TimeoutError:
            host.kill()
        finally:
            host.stdout.close()
        try:
            ready = json.loads(line)
        except ValueError:
            errors.seek(0)
            tail = errors.read()[-4000:].decode(errors="replace").strip()
            raise InputError(
                f"the simulated host {preset!r} did not start within {_READY_S:g} s: {tail or 'it said nothing'}\n"
                f"Try it by hand: {' '.join(argv)}"
            ) from None
    address = HostAddress(
        name=f"simulated-{preset}",
        hostname=ready["hostname"],
        port=ready["port"],
        user=ready["user"],
        key_file=ready["key_file"],
        known_hosts_file=ready["known_hosts_file"],
    )
    return address, ready["pid"]


async def _line(pipe: Any) -> bytes:
    """The first line of a pipe, or what came before its end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        return await reader.readline()
    finally:
        transport.close()


def log_of(address: HostAddress) -> Path:
    """The log of a host that was started here."""
    assert address.key_file is not None
    return Path(address.key_file).parent.parent / "host.log"
