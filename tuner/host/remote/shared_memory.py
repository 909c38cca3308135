"""Shared memory that a launch leaves under /dev/shm: found while its processes use it, removed when they are gone."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import Sequence

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is


def shared_memory(patterns: Sequence[str]) -> dict[str, int]:
    """Names under /dev/shm that match and are this user's, with their inodes."""
    found = {}
    try:
        entries = list(os.scandir(SHARED_MEMORY))
    except OSError:
        return {}
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if status.st_uid == os.geteuid() and any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns):
            found[entry.name] = status.st_ino
    return found


def shared_memory_in_use(pids: Sequence[int]) -> set[str]:
    """Names under /dev/shm that the processes have mapped or open."""
    prefix = f"{SHARED_MEMORY}/"
    names: set[str] = set()
    for pid in pids:
        folder = f"/proc/{pid}"
        try:
            with open(f"{folder}/maps", errors="replace") as file:
                names |= {line.rstrip("\n").split(prefix, 1)[1] for line in file if prefix in line}
            targets = [_target(f"{folder}/fd/{name}") for name in os.listdir(f"{folder}/fd")]
            names |= {target[len(prefix) :] for target in targets if target.startswith(prefix)}
        except OSError:
            continue
    return {name[: -len(" (deleted)")] if name.endswith(" (deleted)") else name for name in names}


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def attributed_shared_memory(
    patterns: Sequence[str], before: dict[str, int], pids: Sequence[int], known: dict[str, int]
) -> dict[str, int]:
    """Names and inodes under /dev/shm that are a launch's own: its processes have them mapped or open.

    Args:
        before: names and inodes at the start, which are not.
        pids: of the launch.
        known: what earlier looks have found. Only if there is more to find are the processes looked into.
    """
    new = {
        name: inode
        for name, inode in shared_memory(patterns).items()
        if before.get(name) != inode and known.get(name) != inode
    }
    if not new:
        return known
    in_use = shared_memory_in_use(pids)
    return {**known, **{name: inode for name, inode in new.items() if name in in_use}}


def remove_shared_memory(patterns: Sequence[str], own_names: dict[str, int]) -> list[str]:
    """Removes what a launch left under /dev/shm and nobody uses any more; the names.

    Only what the launch's processes were seen to use: a matching name of the same user may be another server's, which
    hands such segments from process to process, and between two hands nobody holds them.
    """
    found = {name for name, inode in shared_memory(patterns).items() if own_names.get(name) == inode}
    if not found:
        return []
    in_use = shared_memory_in_use([int(name) for name in os.listdir("/proc") if name.isdigit()])
    removed = []
    for name in sorted(found - in_use):
        try:
            os.unlink(SHARED_MEMORY / name)
            removed.append(name)
        except OSError:
            continue
    return removed
