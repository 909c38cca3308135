"""TCP ports of the host: who listens, which are free, a small HTTP GET, and an echo for measuring lag."""

from __future__ import annotations

import errno
import http.client
import os
import pwd
import random
import re
import socket
import threading
import time
from dataclasses import dataclass
from typing import Iterable

from tuner.host.remote.processes import PROC

_LISTEN = "0A"
_FIRST_PORT = 20_000
"""Ports are chosen from here up to where the kernel takes outgoing ones: an engine binds minutes after the choice."""

_BODY_LIMIT = 8 * 2**20


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket, by the inode that links it to its process, and the user who owns it."""

    inode: str
    uid: int


def listeners(port: int) -> list[Listener]:
    """Sockets that listen on the port, on any address."""
    found = []
    for table in ("tcp", "tcp6"):
        try:
            rows = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                found.append(Listener(fields[9], int(fields[7])))
    return found


def holders(found: Iterable[Listener], pids: Iterable[int]) -> tuple[set[int], bool]:
    """Which of the processes hold one of the sockets, and whether all of them could be looked into."""
    wanted = {f"socket:[{listener.inode}]" for listener in found}
    holding: set[int] = set()
    complete = True
    for pid in pids:
        folder = str(PROC / str(pid) / "fd")
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            complete = False
            continue
        for name in names:
            try:
                if os.readlink(f"{folder}/{name}") in wanted:
                    holding.add(pid)
                    break
            except OSError:
                continue
    return holding, complete


def holder_in_words(port: int) -> str:
    """Who listens on the port; empty if nobody does. Arguments that may be secrets are left out."""
    found = listeners(port)
    if not found:
        return "" if can_bind(port) else f"port {port} is in use by a connection or another network namespace"
    pids, _ = holders(found, (int(name) for name in os.listdir(PROC) if name.isdigit()))
    users = sorted({_user(listener.uid) for listener in found})
    who = [f"pid {pid} ({command_in_words(pid)})" for pid in sorted(pids)]
    return f"{', '.join(who) or 'a process that this login may not look into'} of user {', '.join(users)}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def command_in_words(pid: int) -> str:
    """The beginning of a process's command line: up to its first option, passwords in URLs masked."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
    except OSError:
        return "?"
    shown: list[str] = []
    for word in words:
        if word.startswith("--") or len(shown) == 4:
            break
        shown.append(re.sub(r"//[^/@\s]*@", "//***@", word)[:60])
    return " ".join(shown).strip() or "?"


def can_bind(port: int) -> bool:
    """Whether a server could bind the port now, as servers do it: with SO_REUSEADDR."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - never listens
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True


def free_port() -> int:
    """A port that can be bound and that the kernel does not hand out by itself to outgoing connections.

    Drawn at random: an engine restarted on the port it had before may be reached by the old one's connections.
    """
    try:
        low, high = map(int, (PROC / "sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    ranges = range(_FIRST_PORT, low) if low > _FIRST_PORT + 1000 else range(high + 1, 65536)
    draw = random.SystemRandom()
    for _ in range(200 if len(ranges) > 100 else 0):
        port = draw.choice(ranges)
        if can_bind(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def http_get(port: int, path: str, timeout_s: float) -> dict[str, object]:
    """GET on the loopback, past any proxy.

    Returns:
        ``status`` (``None`` if there was no answer), ``body``, ``error`` (empty if there was an answer).
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return {"status": answer.status, "body": answer.read(_BODY_LIMIT).decode(errors="replace"), "error": ""}
    except (OSError, http.client.HTTPException, ValueError) as error:
        return {"status": None, "body": "", "error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()


class Echo:
    """Sends back what it receives, on a port of the loopback: the far end of a measurement of the tunnel's lag."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    @staticmethod
    def _serve(connection: socket.socket) -> None:
        with connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    data = connection.recv(4096)
                    if not data:
                        return
                    connection.sendall(data)
            except OSError:
                return


def wait_until_released(port: int, limit_s: float) -> bool:
    """Waits until the port can be bound, or a stranger listens on it: the caller knows that nothing of its own lives.

    Returns:
        False if it can still not be bound after `limit_s`, although nobody listens.
    """
    deadline = time.monotonic() + limit_s
    while not can_bind(port) and not listeners(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def own_listener(port: int, own_pids: Iterable[int]) -> bool | None:
    """Whether our processes are the ones that listen on the port; ``None``: nobody listens, or it cannot be told."""
    found = listeners(port)
    if not found:
        return None
    pids, complete = holders(found, own_pids)
    if pids:
        return True
    return False if complete else None
