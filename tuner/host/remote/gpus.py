"""What ``nvidia-smi`` and the engine's Python say about the host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from typing import Any, Sequence

from tuner.host.remote.processes import boot_id
from tuner.host.remote.sockets import command_in_words

_MIB = 2**20
_SMI_LIMIT_S = 60.0
"""Without persistence mode ``nvidia-smi`` wakes every GPU first: seconds on a large machine."""

_VERSIONS = """
import importlib.metadata, importlib.util, json, sys
found = {}
for name in sys.argv[2:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
module = sys.argv[1].split(".")[0]
print(json.dumps({"versions": found, "module": not module or importlib.util.find_spec(module) is not None}))
"""


class GpuError(Exception):
    """``nvidia-smi`` is there but does not answer; the text says how."""


def _smi(*arguments: str) -> str | None:
    """Output of ``nvidia-smi``; ``None`` where there is none.

    Raises:
        GpuError: it failed or hung.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SMI_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuError(f"nvidia-smi {' '.join(arguments)}: {error}") from None
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise GpuError(f"nvidia-smi {' '.join(arguments)} ended with status {done.returncode}: {text.strip()[:500]}")
    return text


def _rows(text: str | None) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines() if line.strip()]


def _mib(cell: str) -> int:
    """Bytes of a cell in MiB; 0 for ``[N/A]``."""
    try:
        return int(float(cell)) * _MIB
    except ValueError:
        return 0


def gpus() -> tuple[list[dict[str, Any]], str | None]:
    """The GPUs with their memory in bytes, and the driver's version; none and ``None`` without ``nvidia-smi``."""
    query = "--query-gpu=index,uuid,name,memory.total,memory.used,driver_version"
    rows = _rows(_smi(query, "--format=csv,noheader,nounits"))
    found = [
        {
            "index": int(row[0]),
            "uuid": row[1],
            "name": row[2],
            "memory_total_bytes": _mib(row[3]),
            "memory_used_bytes": _mib(row[4]),
        }
        for row in rows
    ]
    return found, rows[0][5] if rows else None


def memory_used_bytes() -> list[int]:
    """Memory in use on each GPU, by index."""
    return [_mib(row[1]) for row in _rows(_smi("--query-gpu=index,memory.used", "--format=csv,noheader,nounits"))]


def memory_holders() -> list[str]:
    """Processes with memory on a GPU, in words, as far as this login may see them."""
    try:
        rows = _rows(_smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"))
    except GpuError:
        return []
    return [
        f"pid {row[0]} ({command_in_words(int(row[0]))}) with {row[1]} MiB"
        for row in rows
        if len(row) > 1 and row[0].isdigit()
    ]


def wait_for_memory(level_bytes: Sequence[int], slack_bytes: int, limit_s: float) -> tuple[list[int], bool]:
    """Waits until each GPU's memory is back to a level: a driver gives it back a little after the processes end.

    Returns:
        (memory in use on each GPU, whether all are at most `slack_bytes` above the level).
    """
    deadline = time.monotonic() + limit_s
    while True:
        used = memory_used_bytes()
        back = not level_bytes or all(now <= then + slack_bytes for now, then in zip(used, level_bytes))
        if back or time.monotonic() > deadline:
            return used, back
        time.sleep(0.25)


def interpreter_of(command: Sequence[str]) -> list[str] | None:
    """The Python that a launch command runs on: its first word, or the one in that script's first line."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return None
    if os.path.basename(program).startswith("python"):
        return [program]
    try:
        with open(program, "rb") as file:
            line = file.readline(1000)
    except OSError:
        return None
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    return words if any("python" in word for word in words) else None


def versions(command: Sequence[str], env: dict[str, str], distributions: Sequence[str]) -> dict[str, Any]:
    """Versions of distributions, as the server's own interpreter sees them.

    Returns:
        ``versions`` (name → version or ``None``), ``module`` (whether the module after ``-m`` can be found, ``None``
        if not asked), ``error`` (why nothing could be read; empty if it could).
    """
    nothing: dict[str, Any] = {"versions": {}, "module": None, "error": ""}
    if command and shutil.which(command[0]) is None:
        return dict(nothing, error=f"{command[0]!r} is not on the PATH of this login ({os.environ.get('PATH', '')})")
    interpreter = interpreter_of(command)
    if interpreter is None:
        return nothing
    words = list(command)
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    environment = dict(os.environ)
    environment.update(env)
    try:
        done = subprocess.run(
            [*interpreter, "-c", _VERSIONS, module, *distributions],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SMI_LIMIT_S,
            env=environment,
        )
        found = json.loads(done.stdout.decode().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return dict(nothing, error=f"{' '.join(interpreter)}: {error}")
    except (ValueError, IndexError):
        return dict(nothing, error=f"{' '.join(interpreter)}: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return {"versions": found["versions"], "module": found["module"] if module else None, "error": ""}


def host_facts(command: Sequence[str], env: dict[str, str], distributions: Sequence[str]) -> dict[str, Any]:
    """All that preflight wants to know."""
    found, driver = gpus()
    try:
        links = _smi("topo", "-m") or ""
    except GpuError:  # a host with one GPU, or a container without the right to ask
        links = ""
    kernel = os.uname()
    return {
        "hostname": kernel.nodename,
        "boot_id": boot_id(),
        "kernel": kernel.release,
        "cpus": len(os.sched_getaffinity(0)),
        "driver_version": driver,
        "gpus": found,
        "links": links,
        "engine": versions(command, env, distributions),
        "simulated": os.environ.get("TUNER_SIMULATED") or None,
        "simulated_launch_s": os.environ.get("TUNER_SIMULATED_LAUNCH_S") or None,
    }
