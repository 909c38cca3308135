"""The simulated host's ``nvidia-smi``: copied into its ``bin`` and run as a program; standard library only.

What it lists comes from ``host.json`` (the machine) and from the files of ``gpu/`` (who holds memory).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

MIB = 1 << 20
UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "utilization.gpu": "%",
    "used_memory": "MiB",
}


def alive(pid: int, start_ticks: int) -> bool:
    """Whether the process with that start time lives; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == start_ticks


def holders(state: str) -> list[tuple[int, int, int, bool]]:
    """(pid, GPU, bytes, whether the process lives) of all memory in use; files of what is gone are removed."""
    folder = os.path.join(state, "gpu")  # noqa: PTH118
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():  # noqa: PTH112, PTH208
        path = os.path.join(folder, name)  # noqa: PTH118
        if not name.endswith(".json"):
            continue
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                entry = json.load(file)
        except OSError:
            continue
        lives = alive(entry["pid"], entry["start_ticks"])
        if not lives:
            stuck = entry.get("stuck_s")
            if stuck is None:
                os.unlink(path)  # noqa: PTH108
                continue
            if "gone_at" not in entry:
                entry["gone_at"] = time.time()
                with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
                    json.dump(entry, file)
            elif time.time() - entry["gone_at"] > stuck:
                os.unlink(path)  # noqa: PTH108
                continue
        found.append((entry["pid"], entry["gpu"], entry["used_bytes"], lives))
    return found


def option(name: str) -> str | None:
    """The value of ``--name=value`` or ``--name value``; ``None`` if it is not given."""
    for index, word in enumerate(sys.argv[1:], 1):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and index + 1 < len(sys.argv):
            return sys.argv[index + 1]
    return None


def table(fields: list[str], rows: list[dict[str, Any]]) -> int:
    """Prints rows as ``--format=csv`` does, with or without header and units."""
    style = (option("--format") or "csv").split(",")
    units = "nounits" not in style
    if "noheader" not in style:
        print(", ".join(f"{f} [{UNITS[f]}]" if units and f in UNITS else f for f in fields))
    for row in rows:
        unknown = [f for f in fields if f not in row]
        if unknown:
            print(f'Field "{unknown[0]}" is not a valid field to query.\n')
            return 2
        print(", ".join(f"{row[f]} {UNITS[f]}" if units and f in UNITS else str(row[f]) for f in fields))
    return 0


def main() -> int:
    """The few queries that exist."""
    state = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    with open(os.path.join(state, "host.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        host = json.load(file)
    if sys.argv[1:3] == ["topo", "-m"]:
        print(host["links"])
        return 0
    held = holders(state)
    gpus = []
    for index in range(host["gpus"]):
        used = sum(entry[2] for entry in held if entry[1] == index)
        total = host["gpu_memory_bytes"]
        gpus.append(
            {
                "index": index,
                "uuid": host["uuids"][index],
                "gpu_uuid": host["uuids"][index],
                "name": host["gpu_name"],
                "memory.total": total // MIB,
                "memory.used": used // MIB,
                "memory.free": (total - used) // MIB,
                "driver_version": host["driver_version"],
                "utilization.gpu": 0,
                "compute_cap": host["compute_cap"],
                "count": host["gpus"],
            }
        )
    if (query := option("--query-gpu")) is not None:
        return table([f.strip() for f in query.split(",")], gpus)
    if (query := option("--query-compute-apps")) is not None:
        apps = [
            {
                "pid": pid,
                "gpu_uuid": host["uuids"][gpu],
                "used_memory": used // MIB,
                "used_gpu_memory": used // MIB,
                "process_name": "python3",
                "gpu_name": host["gpu_name"],
            }
            for pid, gpu, used, lives in held
            if lives
        ]
        return table([f.strip() for f in query.split(",")], apps)
    if sys.argv[1:] in ([], ["-L"]):
        if not sys.argv[1:]:
            print(f"NVIDIA-SMI {host['driver_version']}    Driver Version: {host['driver_version']}    (simulated)")
        for gpu in gpus:
            line = f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})"
            print(line if sys.argv[1:] else f"{line}  {gpu['memory.used']}MiB / {gpu['memory.total']}MiB")
        return 0
    print(f"Invalid combination of input arguments: {' '.join(sys.argv[1:])}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
