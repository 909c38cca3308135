"""GPU memory in use on the simulated host: one small file for each process that holds some.

The host's ``nvidia-smi`` counts a file while its process lives, as a driver frees the memory of a process that is gone
however it went. A file marked stuck counts on: the memory that a broken driver does not give back.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tuner.simulated.standin.child import start_ticks

FOLDER = "gpu"


def register(state_dir: Path | None, gpu: int, used_bytes: int, *, stuck_s: float | None = None) -> None:
    """Says what the calling process holds on a GPU.

    Args:
        stuck_s: how long after this process is gone the memory stays in use; infinite: for ever.
    """
    if state_dir is None:
        return
    folder = state_dir / FOLDER
    pid = os.getpid()
    entry = {"pid": pid, "start_ticks": start_ticks(pid), "gpu": gpu, "used_bytes": used_bytes, "stuck_s": stuck_s}
    draft = folder / f".{pid}"
    try:
        folder.mkdir(exist_ok=True)
        draft.write_text(json.dumps(entry), encoding="utf-8")
        draft.rename(folder / f"{pid}.json")
    except FileNotFoundError:  # the host has ended and taken its directory with it
        return


def launches(state_dir: Path | None) -> int:
    """How many launches this host has seen, this one included."""
    if state_dir is None:
        return 1
    with (state_dir / "launches").open("a+", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {time.time():.3f}\n")
        file.seek(0)
        return sum(1 for _ in file)
