"""The record of a launch on the host: a folder private to the user, named by the nonce.

~/.cache/tuner/NONCE/          (or under $XDG_CACHE_HOME; /tmp/tuner-UID where neither can be written)
    launch.json                command and environment; mode 0600; removed by the supervisor once read
    supervisor.json            who the supervisor is
    identity.json              who the server is; written before the server runs its first instruction
    lease                      text that changes with each renewal
    seen.json                  processes of the launch met so far
    exit.json                  how the server's parent process ended
    lapsed                     there if the lease lapsed
    closed                     nothing may be started under this nonce any more
    ended.json                 the supervisor saw everything of the launch gone
    log/                       see `tuner.host.remote.log`
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from pathlib import Path
from typing import Any, Sequence

from tuner.host.remote.processes import Marks
from tuner.host.remote.shared_memory import attributed_shared_memory

NONCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{5,99}")
KEPT_RECORDS = 200
"""Records of ended launches that are kept for a person to look at; the oldest go first."""


class RecordError(Exception):
    """A record cannot be made or used; the text says why."""


def roots() -> list[Path]:
    """Folders that may hold records, the preferred one first."""
    found = []
    if os.path.isabs(os.environ.get("XDG_CACHE_HOME", "")):
        found.append(Path(os.environ["XDG_CACHE_HOME"]) / "tuner")
    if os.path.isabs(os.path.expanduser("~")):
        found.append(Path("~/.cache/tuner").expanduser())
    found.append(Path(f"/tmp/tuner-{os.geteuid()}"))  # noqa: S108 - refused unless it is ours and private
    return found


def _private_root() -> Path:
    reasons = []
    for root in roots():
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir(mode=0o700, exist_ok=True)
            _require_private(root)
            probe = root / f".probe-{os.getpid()}"
            probe.touch(mode=0o600)
            probe.unlink()
            return root
        except (OSError, RecordError) as error:
            reasons.append(f"{root}: {error}")
    raise RecordError("no folder for the launch's record: " + "; ".join(reasons))


def _require_private(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise RecordError(f"{folder} is not a folder of this user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(folder, 0o700)


def write_atomically(path: Path, value: Any) -> None:
    """Writes JSON so that a reader finds the whole of it or nothing; mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(value, file)
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; ``None`` if there is none."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


class Record:
    """The folder of one launch.

    Args:
        nonce: of the launch.

    Raises:
        RecordError: the nonce is not one.
    """

    def __init__(self, nonce: str, folder: Path) -> None:
        if not NONCE.fullmatch(nonce):
            raise RecordError(f"not a nonce: {nonce[:100]!r}")
        self.nonce = nonce
        self.folder = folder

    @classmethod
    def find(cls, nonce: str) -> Record | None:
        """The record of a launch made earlier; ``None`` if there is none."""
        for root in roots():
            record = cls(nonce, root / nonce)
            try:
                _require_private(record.folder)
            except (OSError, RecordError):
                continue
            return record
        return None

    @classmethod
    def make(cls, nonce: str) -> tuple[Record, bool]:
        """The record of a launch and whether it was made just now: of two callers one makes it."""
        found = cls.find(nonce)
        if found is not None:
            return found, False
        root = _private_root()
        record = cls(nonce, root / nonce)
        try:
            record.folder.mkdir(mode=0o700)
        except FileExistsError:
            return record, False
        _forget_oldest(root)
        return record, True

    @property
    def identity(self) -> dict[str, Any] | None:
        """What `ServerIdentity` holds, as written by the supervisor."""
        return read_json(self.folder / "identity.json")

    @property
    def exit_status(self) -> int | None:
        """Exit status of the server's parent process: ≥ 0 a code, < 0 minus a signal; ``None`` while it runs."""
        found = read_json(self.folder / "exit.json")
        return None if found is None else int(found["exit_status"])

    @property
    def closed(self) -> bool:
        """Whether nothing may be started here any more."""
        return (self.folder / "closed").exists()

    def close(self) -> None:
        """From now on no supervisor starts a server under this nonce."""
        (self.folder / "closed").touch(mode=0o600)

    @property
    def lapsed(self) -> bool:
        """Whether the supervisor ended the server because its lease lapsed."""
        return (self.folder / "lapsed").exists()

    @property
    def ended(self) -> bool:
        """Whether the supervisor saw everything gone."""
        return (self.folder / "ended.json").exists()

    def renew(self) -> None:
        """Renews the lease: the text changes, which does not depend on any clock being right."""
        # In place and of fixed length, so that a full disk does not end a server.
        handle = os.open(self.folder / "lease", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(handle, b"%020d\n" % time.monotonic_ns(), 0)
        finally:
            os.close(handle)

    @property
    def lease(self) -> bytes:
        """The lease's text; empty if it cannot be read."""
        try:
            return (self.folder / "lease").read_bytes()
        except OSError:
            return b""

    @property
    def before(self) -> dict[str, Any]:
        """What the host was like before the start; empty if nothing was started."""
        return read_json(self.folder / "before.json") or {}

    def attribute_shared_memory(self, pids: Sequence[int]) -> dict[str, int]:
        """Looks which names under /dev/shm the launch's processes use, and remembers them with their inodes."""
        known = read_json(self.folder / "shared_memory.json") or {}
        before = self.before
        if not before:
            return known
        found = attributed_shared_memory(before["patterns"], before["shared_memory"], pids, known)
        if found != known:
            write_atomically(self.folder / "shared_memory.json", found)
        return found

    @property
    def marks(self) -> Marks:
        """What the launch's processes are known by, as far as recorded."""
        supervisor = read_json(self.folder / "supervisor.json") or {}
        identity = self.identity or {}
        seen = read_json(self.folder / "seen.json") or {}
        return Marks(
            nonce=self.nonce,
            boot_id=supervisor.get("boot_id", ""),
            pid_namespace=supervisor.get("pid_namespace", ""),
            server=(identity["pid"], identity["start_ticks"]) if identity else None,
            supervisor=(supervisor["pid"], supervisor["start_ticks"]) if supervisor else None,
            cgroup=supervisor.get("cgroup", ""),
            seen=tuple((pid, ticks) for pid, ticks in seen.get("processes", ())),
        )


def _forget_oldest(root: Path) -> None:
    """Removes the oldest records of ended launches beyond `KEPT_RECORDS`; files of our names only."""
    ended = []
    for folder in root.iterdir():
        try:
            ended.append(((folder / "ended.json").stat().st_mtime, folder))
        except OSError:
            continue
    for _, folder in sorted(ended)[:-KEPT_RECORDS]:
        for file in [*(folder / "log").glob("*"), *folder.glob("*")]:
            try:
                file.rmdir() if file.is_dir() else file.unlink()
            except OSError:
                continue
        try:
            folder.rmdir()
        except OSError:
            continue
