"""The SSH server of a simulated host: the one door to asyncssh's server side.

It behaves as OpenSSH's does where the tuner can tell: commands are real processes in sessions of their own, run by the
user's shell; a channel that closes or a connection that is lost ends none of them; output is forwarded until the last
process that holds it is gone; exit statuses and signals arrive as they are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOG = logging.getLogger("tuner.simulated.sshd")


@dataclass(frozen=True)
class Keys:
    """The files of the keys that one run generates, each readable by this user only.

    Attributes:
        user_key: the private key that a client needs.
        known_hosts: the host's key for a client to check.
    """

    host_key: Path
    user_key: Path
    authorized_keys: Path
    known_hosts: Path

    @classmethod
    def generate(cls, folder: Path) -> Keys:
        """Makes new keys."""
        keys = cls(folder / "host_key", folder / "user_key", folder / "authorized_keys", folder / "known_hosts")
        for path in (keys.host_key, keys.user_key):
            key = asyncssh.generate_private_key("ssh-ed25519", comment="simulated host")
            _write(path, key.export_private_key())
            _write(Path(f"{path}.pub"), key.export_public_key())
        _write(keys.authorized_keys, Path(f"{keys.user_key}.pub").read_bytes())
        return keys

    def trust(self, port: int) -> None:
        """Writes the known_hosts file for the port that the server got."""
        public = Path(f"{self.host_key}.pub").read_text(encoding="utf-8").split()
        _write(self.known_hosts, f"[127.0.0.1]:{port} {public[0]} {public[1]}\n".encode())


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


@dataclass
class SshServer:
    """The running server.

    Attributes:
        connections: how many there are now.
    """

    user: str
    keys: Keys
    environment: Mapping[str, str]
    home: Path
    connections: int = 0
    port: int = 0
    _listener: Any = field(default=None, repr=False)

    async def start(self) -> None:
        """Listens on a free port of the loopback."""
        self._listener = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[str(self.keys.host_key)],
            server_factory=lambda: _Server(self),
            encoding=None,
            login_timeout=30,
            x11_forwarding=False,
            agent_forwarding=False,
            allow_scp=False,
        )
        self.port = self._listener.get_port()
        self.keys.trust(self.port)

    async def stop(self) -> None:
        """Closes the listener and all connections. Processes that were started live on."""
        self._listener.close()
        await self._listener.wait_closed()


class _Server(asyncssh.SSHServer):
    """One connection."""

    def __init__(self, owner: SshServer) -> None:
        self._owner = owner
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Counts it."""
        self._connection = conn
        self._owner.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts it off."""
        self._owner.connections -= 1

    def begin_auth(self, username: str) -> bool:
        """Only the one user has a key that is let in."""
        assert self._connection is not None
        if username == self._owner.user:
            self._connection.set_authorized_keys(str(self._owner.keys.authorized_keys))
        return True

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        """Each session channel runs one command."""
        return _Command(self._owner.environment, self._owner.home)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Forwards to the host's own loopback, nowhere else. (asyncio sets TCP_NODELAY on both sockets.)"""
        return dest_host in _LOOPBACK


class _Output(asyncio.Protocol):
    """One of the process's outputs on its way into the channel."""

    def __init__(self, write: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._write = write
        self._ended = ended
        self.transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()


class _Input(asyncio.BaseProtocol):
    """The process's input; slows the channel down while the process does not read."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = channel

    def pause_writing(self) -> None:
        self._channel.pause_reading()

    def resume_writing(self) -> None:
        # Not at once: the rest of the input and its end would then come while asyncio is still in the middle of its
        # write, which takes the end for its own and drops what it has just been given.
        asyncio.get_running_loop().call_soon(self._channel.resume_reading)


class _Command(asyncssh.SSHServerSession[bytes]):
    """One command: a process, its three pipes and its end.

    asyncssh's own redirection loses the output of commands that end before it is set up; and asyncio's subprocesses
    are killed with their transport, which a real sshd does not do. So both are done here.
    """

    def __init__(self, environment: Mapping[str, str], home: Path) -> None:
        self._environment = dict(environment)
        self._home = home
        self._command: str | None = None
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._early: list[bytes] = []
        self._early_eof = False
        self._outputs: list[_Output] = []
        self._open = 3  # both outputs, and the process itself
        self._start: asyncio.Task[None] | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """The channel is there."""
        self._channel = chan

    def shell_requested(self) -> bool:
        """A login shell reads its commands from standard input."""
        return True

    def exec_requested(self, command: str) -> bool:
        """A command for the user's shell."""
        self._command = command
        return True

    def session_started(self) -> None:
        """Starts the process."""
        assert self._channel is not None
        environment = self._environment | {
            name: value for name, value in self._channel.get_environment().items() if name.startswith(("LC_", "LANG"))
        }
        shell = environment["SHELL"]
        argv = [shell, "-c", self._command] if self._command is not None else [shell]
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=self._home,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._channel.write_stderr(f"{shell}: {error}\n".encode())
            self._channel.exit(255)
            return
        loop = asyncio.get_running_loop()
        ended = os.pidfd_open(self._process.pid)
        loop.add_reader(ended, self._process_ended, loop, ended)
        self._start = loop.create_task(self._connect(loop, self._process))

    async def _connect(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes]) -> None:
        channel = self._channel
        assert channel is not None
        self._stdin, _ = await loop.connect_write_pipe(lambda: _Input(channel), process.stdin)
        for data in self._early:
            self._stdin.write(data)
        if self._early_eof:
            self._stdin.close()
        writes: list[tuple[Any, Callable[[bytes], None]]] = [
            (process.stdout, self._write),
            (process.stderr, self._write_error),
        ]
        for pipe, write in writes:
            output = _Output(write, self._ended)
            self._outputs.append(output)
            await loop.connect_read_pipe(lambda output=output: output, pipe)  # type: ignore[misc]
        if self._channel is None:  # it closed meanwhile
            self._drop()

    def _write(self, data: bytes) -> None:
        if self._channel is not None:
            self._channel.write(data)

    def _write_error(self, data: bytes) -> None:
        if self._channel is not None:
            self._channel.write_stderr(data)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """The client's input."""
        if self._stdin is None:
            self._early.append(data)
        elif not self._stdin.is_closing():
            self._stdin.write(data)

    def eof_received(self) -> bool:
        """The client's input ended; the channel stays open for the output."""
        if self._stdin is None:
            self._early_eof = True
        else:
            self._stdin.close()
        return True

    def pause_writing(self) -> None:
        """The client does not read: the process's output waits."""
        for output in self._outputs:
            if output.transport is not None and output.transport.is_reading():
                output.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        for output in self._outputs:
            if output.transport is not None and not output.transport.is_closing():
                output.transport.resume_reading()

    def signal_received(self, signal: str) -> None:
        """A signal for the command's process group."""
        self._kill(signal)

    def _kill(self, name: str) -> None:
        number = getattr(signal, f"SIG{name}", None)
        if self._process is not None and self._process.returncode is None and number is not None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                return

    def break_received(self, msec: int) -> bool:
        """A break is an interrupt."""
        self._kill("INT")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed: its pipes are, the processes are not ended."""
        self._channel = None
        self._drop()

    def _drop(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        for output in self._outputs:
            if output.transport is not None:
                output.transport.close()

    def _process_ended(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        assert self._process is not None
        loop.remove_reader(descriptor)
        os.close(descriptor)
        self._process.wait()
        self._ended()

    def _ended(self) -> None:
        """One of process, output and error output ended; after the last of them the channel ends with the status."""
        self._open -= 1
        if self._open or self._channel is None or self._process is None:
            return
        status = self._process.returncode
        if status >= 0:
            self._channel.exit(status)
        else:
            self._channel.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
