"""The server's output in segments: its beginning and its end are kept, the middle is let go.

Each segment is a file named by the offset of its first byte in the whole output, so a reader needs no index and
``cat log/*`` shows what is left in order. The beginning holds what the engine and NCCL decided, the end why it died.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """(offset, file) in order."""
    try:
        return sorted((int(name), folder / name) for name in os.listdir(folder) if name.isdigit())
    except OSError:
        return []


class LogWriter:
    """Appends to the log of a launch.

    Args:
        folder: made if it is not there.
        segment_bytes: length at which the next segment is begun.
        kept: latest segments that are kept, beside the first.
    """

    def __init__(self, folder: Path, segment_bytes: int, kept: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._kept = kept
        self._offset = 0
        self._room = 0
        self._handle = -1

    def write(self, data: bytes) -> None:
        """Appends. What a full disk does not take is lost: the server must not wait for it."""
        while data:
            if self._room == 0:
                self._next_segment()
            part, data = data[: self._room], data[self._room :]
            with contextlib.suppress(OSError):
                os.write(self._handle, part)
            self._offset += len(part)
            self._room -= len(part)

    def _next_segment(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        path = self._folder / f"{self._offset:015d}"
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            self._handle = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._room = self._segment_bytes
        for _, old in _segments(self._folder)[1 : -self._kept]:
            old.unlink()


def log_bytes(folder: Path) -> int:
    """How much has been written in all."""
    segments = _segments(folder)
    try:
        return segments[-1][0] + segments[-1][1].stat().st_size if segments else 0
    except OSError:
        return 0


def read_log(folder: Path, offset: int, limit: int) -> tuple[int, bytes]:
    """At most `limit` bytes from `offset` on; from the first kept byte after it where it is gone.

    Returns:
        (offset of the first byte returned, bytes).
    """
    first, found = -1, b""
    for start, path in _segments(folder):
        try:
            size = path.stat().st_size
            if start + size <= offset or size == 0:
                continue
            if found and start != first + len(found):
                break  # a gap: the middle was let go
            at = max(offset, start)
            with open(path, "rb") as file:
                file.seek(at - start)
                part = file.read(limit - len(found))
        except OSError:
            continue
        first = at if first < 0 else first
        found += part
        if len(found) >= limit:
            break
    return (offset if first < 0 else first), found


def read_tail(folder: Path, limit: int) -> bytes:
    """The last `limit` bytes, without a piece of a line at their beginning."""
    start = max(0, log_bytes(folder) - limit)
    offset, data = read_log(folder, start, limit)
    if offset > 0 and b"\n" in data:
        data = data[data.index(b"\n") + 1 :]
    return data


def read_ends(folder: Path, limit: int) -> bytes:
    """The whole log if it is short enough, else as much of its beginning as of its end, with a line between."""
    total = log_bytes(folder)
    if total <= limit:
        return read_log(folder, 0, limit)[1]
    _, head = read_log(folder, 0, limit // 2)
    tail = read_tail(folder, limit // 2)
    return head + b"\n[tuner: %d bytes left out]\n" % (total - len(head) - len(tail)) + tail
