"""A real OpenSSH sshd on the loopback, for tests: its own keys, configuration and folder, a free port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

MISSING = "sshd is not installed: `apt-get install openssh-server` (the service itself need not run)"


def find_sshd() -> str | None:
    """Full path of sshd, which must be started by it; ``None`` if it is not installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")


def make_key(path: Path) -> Path:
    """An Ed25519 key pair without a passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


@dataclass
class Sshd:
    """One sshd.

    Attributes:
        home: folder with everything; sessions get ``XDG_CACHE_HOME`` and a ``PATH`` inside it.
        bin: first on the PATH of sessions.
    """

    home: Path
    port: int
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(cls, home: Path) -> Sshd:
        """Makes keys and configuration; `start` starts it."""
        (home / "bin").mkdir(parents=True)
        (home / "cache").mkdir()
        make_key(home / "host_key")
        make_key(home / "user_key")
        shutil.copy(home / "user_key.pub", home / "authorized_keys")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        sshd = cls(home, port)
        sshd.write_known_hosts()
        return sshd

    @property
    def bin(self) -> Path:
        return self.home / "bin"

    @property
    def records(self) -> Path:
        """Where the agent keeps the records of launches."""
        return self.home / "cache" / "tuner"

    @property
    def known_hosts(self) -> Path:
        return self.home / "known_hosts"

    def write_known_hosts(self, key: Path | None = None) -> None:
        """Trusts the given public key, or its own, for its address."""
        public = (key or self.home / "host_key.pub").read_text()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {public}")

    def start(self) -> None:
        """Starts it and waits until it listens."""
        program = find_sshd()
        assert program is not None, MISSING
        env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.home / "cache"),
            **self.env,
        }
        settings = " ".join(f'"{name}={value}"' for name, value in env.items())
        (self.home / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.home}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {self.home}/authorized_keys\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
            f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\nUseDNS no\n"
            f"MaxStartups 100\nSetEnv {settings}\n"
        )
        if os.geteuid() == 0:  # as root it wants its empty folder for privilege separation
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.home / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "-D", "-e", "-f", str(self.home / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError((self.home / "sshd.log").read_text()) from None
                time.sleep(0.02)

    def session_pids(self) -> list[int]:
        """Pids of the sshd processes that serve connections: descendants of the listener named sshd."""
        assert self.process is not None
        found = []
        frontier = [self.process.pid]
        while frontier:
            parent = frontier.pop()
            for pid in children(parent):
                if Path(f"/proc/{pid}/comm").read_text().strip().startswith("sshd"):
                    found.append(pid)
                    frontier.append(pid)
        return found

    def drop_connections(self) -> None:
        """Kills the processes that serve connections, as a lost network would end them; the listener stays."""
        for pid in self.session_pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        """Ends it with its connections."""
        if self.process is not None:
            self.drop_connections()
            self.process.kill()
            self.process.wait()
            self.process = None


def children(pid: int) -> list[int]:
    """Pids of the living children of a process."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(name))
    return found
