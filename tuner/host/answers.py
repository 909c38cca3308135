"""What the agent's answers mean: our values and failures made of its JSON. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.errors import ForeignServer, HostRefused
from tuner.ports import Engine
from tuner.values.failure import Failure, FailureClass
from tuner.values.host import Gpu, HostFacts
from tuner.values.launch import GoneReport, LaunchBase, Phase, ServerStatus

_SECRET_NAME = re.compile(r"api_?key|passw|secret|(^|_)token$", re.IGNORECASE)
_SECRET_IN_TEXT = re.compile(
    r"((?:api[-_]?key|passw(?:or)?d|secret|(?:access|auth|bearer|hf)[-_]token)['\"]?(?:\s*[=:]\s*|\s+))(?!None|null)\S+",
    re.IGNORECASE,
)
_VALUE_CHARACTERS = 2000


def masked(text: str) -> str:
    """Text of a log or a command line without what looks like a secret."""
    return _SECRET_IN_TEXT.sub(r"\1***", text)


def host_facts(name: str, engine: Engine, launch: LaunchBase, found: Mapping[str, Any]) -> HostFacts:
    """The facts of a host.

    Raises:
        HostRefused: the launch command cannot work there, or the engine is not installed.
    """
    words = " ".join(launch.command)
    inside = found["engine"]
    if inside["error"]:
        raise HostRefused(
            name, f"the launch command {words!r} cannot work: {inside['error']}. Give its full path in the study file."
        )
    if inside["module"] is False:
        raise HostRefused(
            name,
            f"{engine.name} is not installed for {launch.command[0]!r} there: {words!r} finds no module. "
            "Install it, or name the interpreter that has it in the study file's launch command.",
        )
    versions: Mapping[str, str | None] = inside["versions"]
    own, *others = engine.distributions
    return HostFacts(
        name=name,
        hostname=found["hostname"],
        boot_id=found["boot_id"],
        kernel=found["kernel"],
        cpus=found["cpus"],
        driver_version=found["driver_version"],
        gpus=tuple(Gpu(**gpu) for gpu in found["gpus"]),
        links=found["links"],
        engine=engine.name,
        engine_version=versions.get(own),
        nccl_version=next((versions[other] for other in others if versions.get(other)), None),
        simulated=found["simulated"],
        real_launch_s=float(found["simulated_launch_s"]) if found["simulated_launch_s"] else None,
    )


def gpus_busy(name: str, found: Mapping[str, Any]) -> ForeignServer:
    """Somebody else's work is on the GPUs."""
    gib = ", ".join(f"{level / 2**30:.1f}" for level in found["gpu_memory_used_bytes"])
    holders = "; ".join(found["gpu_holders"]) or "no process that this login may see"
    return ForeignServer(
        Failure(
            FailureClass.GPU_BUSY,
            Phase.CLEAN.value,
            f"host {name}: GPU memory in use is {gib} GiB, held by {holders}; nothing of it was touched.",
            "Wait until they are done or end them yourself, then give the same command again.",
        )
    )


def port_taken(name: str, port: int, phase: Phase, holder: str) -> ForeignServer:
    """Somebody else listens on the server's port."""
    return ForeignServer(
        Failure(
            FailureClass.PORT_TAKEN,
            phase.value,
            f"host {name}: port {port} is held by {holder}; it was neither touched nor measured.",
            "Choose another port in the study file (or none, for a free one), or end that server yourself.",
        )
    )


def hang(status: Mapping[str, Any], phase: Phase, what: str) -> Failure:
    """A server that starts and starts; the last line of its log is the evidence."""
    tail = masked(status["log_tail"])
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    last = f"the last line of its log: {lines[-1][:500]}" if lines else "it logged nothing"
    return Failure(
        FailureClass.HANG_START,
        phase.value,
        f"{what}; {last}",
        "If it only needs longer, raise start_deadline_s or no_progress_s in the study file.",
        log_tail=tail,
    )


def server_status(found: Mapping[str, Any]) -> ServerStatus:
    """A look at a launch."""
    return ServerStatus(
        found["alive"], found["exit_status"], found["lease_lapsed"], found["log_bytes"], masked(found["log_tail"])
    )


def gone_report(found: Mapping[str, Any]) -> GoneReport:
    """How a launch was ended."""
    return GoneReport(
        exit_status=found["exit_status"],
        killed_pids=tuple(found["killed_pids"]),
        left_pids=tuple(found["left_pids"]),
        port_free=found["port_free"],
        gpu_memory_used_bytes=tuple(found["gpu_memory_used_bytes"]),
        gpu_memory_back=found["gpu_memory_back"],
        shared_memory_removed=tuple(found["shared_memory_removed"]),
        took_s=found["took_s"],
    )


def workers_environment(
    processes: Sequence[Mapping[str, Any]], titles: tuple[str, ...], names: Sequence[str]
) -> tuple[tuple[int, ...], dict[str, str], list[str]]:
    """Pids of the processes whose environment decides, the variables they agree on, and what is wrong with that."""
    titled = [row for row in processes if row["title"].startswith(titles)]
    workers = [row for row in titled if row["env"] is not None]
    if not workers:
        found = f"{len(titled)} such processes hide it" if titled else "there is no such process"
        return (), {}, [f"the environment of {' or '.join(titles)} cannot be read: {found}"]
    agreed: dict[str, str] = {}
    mismatches = []
    for name in names:
        values = {row["env"].get(name) for row in workers}
        if len(values) > 1:
            shown = ", ".join(f"pid {row['pid']}: {row['env'].get(name, 'unset')}" for row in workers)
            mismatches.append(f"{name} differs among the server's processes ({shown})")
        elif (value := values.pop()) is not None:
            agreed[name] = value
    return tuple(row["pid"] for row in workers), agreed, mismatches


def server_info_pairs(info: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The server's account of itself as text pairs, without secrets; long values are cut."""
    pairs = []
    for name, value in sorted(info.items()):
        text = value if isinstance(value, str) else json.dumps(value)
        secret = value is not None and _SECRET_NAME.search(name)
        pairs.append((name, "***" if secret else masked(text)[:_VALUE_CHARACTERS]))
    return tuple(pairs)
