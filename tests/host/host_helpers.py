"""What the host's tests share beside fixtures."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sshd_server import Sshd

from tuner.host.session import SshSession
from tuner.values.host import HostAddress

MakeSession = Callable[..., SshSession]

MARK = "TUNER_HOST_TEST"
"""A variable in the environment of everything that a session starts, by which the tests find what was left behind."""


def address_of(sshd: Sshd) -> HostAddress:
    return HostAddress(
        name="gpu1",
        hostname="127.0.0.1",
        port=sshd.port,
        key_file=str(sshd.home / "user_key"),
        known_hosts_file=str(sshd.known_hosts),
    )


def marked(mark: str) -> dict[int, str]:
    """Living processes with the mark in their environment, and their command lines."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
