"""The SSH client's door: asyncssh is imported here only, and its errors are mapped to ours.

``~/.ssh/config``, the agent and the usual keys are honoured. Host keys are always checked, whatever a configuration
says (``StrictHostKeyChecking`` has no effect, ``UserKnownHostsFile none`` means the usual file).
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from tuner.errors import HostLost, HostRefused
from tuner.values.host import HostAddress

KEEP_ALIVE_S = 5.0
KEEP_ALIVE_MISSES = 3
"""A peer that answers nothing for interval × misses is gone."""
CONNECT_LIMIT_S = 20.0
_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_NAME = re.compile(r"[A-Za-z0-9_.:%@-]+")
_JUMP = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^\s:@]+|[^\s@]*:[^\s@]*:[^\s@]*)(?::(?P<port>\d+))?")


class SshProcess:
    """A program on the host with its standard input and output, bytes."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process

    def write(self, data: bytes) -> None:
        """Queues data for its standard input.

        Raises:
            ConnectionError: the channel is closed.
        """
        try:
            self._process.stdin.write(data)
        except (OSError, asyncssh.Error) as error:
            raise ConnectionError(str(error)) from None

    async def drain(self) -> None:
        """Waits until what was written is on its way.

        Raises:
            ConnectionError: the channel is closed.
        """
        try:
            await self._process.stdin.drain()
        except (OSError, asyncssh.Error) as error:
            raise ConnectionError(str(error)) from None

    async def read_line(self) -> bytes:
        """The next line of its output, its newline included; empty at the end, which a lost connection is, too."""
        try:
            return await self._process.stdout.readline()
        except (OSError, asyncssh.Error):
            return b""

    async def read_errors(self) -> str:
        """All of its standard error; waits for the end."""
        try:
            return (await self._process.stderr.read()).decode(errors="replace")
        except (OSError, asyncssh.Error):
            return ""

    async def exit_status(self) -> int | None:
        """Its exit status; ``None`` when the connection was lost first, or a signal ended it."""
        try:
            return (await self._process.wait()).exit_status
        except (OSError, asyncssh.Error):
            return None

    def close(self) -> None:
        """Closes the channel; the program sees the end of its input."""
        self._process.close()


class SshConnection:
    """A connection to a host. Made by `connect`.

    Attributes:
        closed: set when the connection is gone, for whatever reason.
    """

    def __init__(self, name: str, connection: asyncssh.SSHClientConnection, jumps: list[SshConnection]) -> None:
        self.name = name
        self.closed = asyncio.Event()
        self._connection = connection
        self._jumps = jumps
        self._watch = asyncio.create_task(self._wait_closed())

    async def _wait_closed(self) -> None:
        await self._connection.wait_closed()
        self.closed.set()

    async def open_process(self, command: str) -> SshProcess:
        """Runs a command line by the login shell.

        Raises:
            HostLost: the connection is gone.
            HostRefused: sshd does not let this login run commands.
        """
        try:
            return SshProcess(await self._connection.create_process(command, encoding=None))
        except asyncssh.ChannelOpenError as error:
            if self.closed.is_set() or error.code == asyncssh.OPEN_CONNECT_FAILED:
                raise HostLost(self.name, f"the SSH connection broke: {error.reason}") from None
            raise HostRefused(
                self.name,
                f"sshd refuses to run a command: {error.reason}. Too many sessions at once (MaxSessions) or a login "
                "limited to forwarding; look at sshd's log and at authorized_keys there.",
            ) from None
        except (OSError, asyncssh.Error) as error:
            raise HostLost(self.name, f"the SSH connection broke: {error}") from None

    async def forward(self, port: int) -> int:
        """Forwards a port of our loopback to `port` of the host's; returns ours. Lasts as long as the connection.

        Raises:
            HostLost: the connection is gone.
        """
        try:
            listener = await self._connection.forward_local_port("127.0.0.1", 0, "127.0.0.1", port)
        except (OSError, asyncssh.Error) as error:
            raise HostLost(self.name, f"no port could be forwarded to {port} there: {error}") from None
        return listener.get_port()

    async def close(self) -> None:
        """Closes the connection, then those that it goes through."""
        self._connection.close()
        try:
            await asyncio.wait_for(self.closed.wait(), 2.0)
        except TimeoutError:
            self._connection.abort()
        for jump in self._jumps:
            await jump.close()


async def connect(
    address: HostAddress, *, keep_alive_s: float = KEEP_ALIVE_S, keep_alive_misses: int = KEEP_ALIVE_MISSES
) -> SshConnection:
    """Connects to a host, through its jump hosts if it has any.

    Raises:
        HostRefused: host key unknown or changed, login refused, a name or file is wrong; says what to do.
        HostLost: not reachable now.
    """
    options = _options(address, keep_alive_s, keep_alive_misses)
    spec = address.jump or (options.tunnel if isinstance(options.tunnel, str) else None)
    jumps: list[SshConnection] = []
    try:
        for word in (spec or "").split(",") if spec and spec.lower() != "none" else ():
            through = jumps[-1] if jumps else None
            jump = _jump_address(word.strip(), address)
            jump_options = _options(jump, keep_alive_s, keep_alive_misses)
            jumps.append(await _connect_once(jump, jump_options, through, []))
        return await _connect_once(address, options, jumps[-1] if jumps else None, jumps[::-1])
    except BaseException:
        for opened in reversed(jumps):
            await opened.close()
        raise


def _jump_address(word: str, address: HostAddress) -> HostAddress:
    match = _JUMP.fullmatch(word)
    if match is None:
        raise HostRefused(
            address.name, f"jump host {word!r} is not of the form user@host:port. Correct it in the study file."
        )
    port = int(match["port"]) if match["port"] else None
    return HostAddress(
        name=match["host"].strip("[]"),
        port=port,
        user=match["user"],
        key_file=address.key_file,
        known_hosts_file=address.known_hosts_file,
    )


def _options(address: HostAddress, keep_alive_s: float, keep_alive_misses: int) -> asyncssh.SSHClientConnectionOptions:
    """What the address, ``~/.ssh/config`` and the defaults come to, in this order."""
    for text in (address.name, address.hostname):
        if text is not None and not _NAME.fullmatch(text):
            raise HostRefused(address.name, f"{text!r} is not a host name or address. Correct it in the study file.")
    given: dict[str, Any] = {"keepalive_interval": keep_alive_s, "keepalive_count_max": keep_alive_misses}
    if address.port is not None:
        given["port"] = address.port
    if address.user is not None:
        given["username"] = address.user
    if address.key_file is not None:
        given["client_keys"] = [str(Path(address.key_file).expanduser())]
    try:
        with tempfile.TemporaryDirectory(prefix="tuner-ssh-") as folder:
            configs = [path for path in [Path("~/.ssh/config").expanduser()] if os.access(path, os.R_OK)]
            if address.hostname is not None:
                # The alias still finds its own block of the user's file; the address given here comes first.
                first = Path(folder) / "config"
                first.write_text(f"HostName {address.hostname}\n")
                configs.insert(0, first)
            options = asyncssh.SSHClientConnectionOptions(
                host=address.name, config=[str(path) for path in configs], **given
            )
        options.known_hosts = _known_hosts(address, options.known_hosts)
    except (OSError, ValueError, asyncssh.Error) as error:
        raise HostRefused(
            address.name, f"the SSH settings cannot be used: {error}. Check ~/.ssh/config and the study file's key."
        ) from None
    return options


def _known_hosts(address: HostAddress, configured: Any) -> list[str]:
    """Files of trusted host keys that are there; never "no check"."""
    if address.known_hosts_file is not None:
        names = [address.known_hosts_file]
    elif configured and isinstance(configured, list | tuple):
        names = [str(name) for name in configured]
    else:
        names = ["~/.ssh/known_hosts", "~/.ssh/known_hosts2", *_GLOBAL_KNOWN_HOSTS]
    paths = [Path(name).expanduser() for name in names]
    return [str(path) for path in paths if path.is_file()]


@dataclass
class _HostKey(asyncssh.SSHClient):
    """Takes note of a host key that no file trusts; never accepts it."""

    untrusted: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.untrusted = key
        return False


async def _connect_once(
    address: HostAddress,
    options: asyncssh.SSHClientConnectionOptions,
    through: SshConnection | None,
    jumps: list[SshConnection],
) -> SshConnection:
    seen = _HostKey()
    where = f"{options.host} port {options.port}"
    # An empty value would mean the default file, not "nothing is trusted".
    known_hosts: Any = options.known_hosts or b"# no file of known hosts\n"
    try:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            connection = await asyncssh.connect(
                options.host,
                options.port,
                options=options,
                config=None,
                known_hosts=known_hosts,
                tunnel=through._connection if through is not None else None,
                client_factory=lambda: seen,
            )
    except asyncssh.HostKeyNotVerifiable as error:
        raise HostRefused(address.name, _host_key_text(address, options, seen.untrusted, error)) from None
    except asyncssh.PermissionDenied as error:
        raise HostRefused(address.name, _login_text(address, options, error)) from None
    except TimeoutError:
        raise HostLost(
            address.name,
            f"no SSH answer from {where} in {CONNECT_LIMIT_S:g} s. Is it up? Is its firewall open to this machine?",
        ) from None
    except asyncssh.ChannelOpenError as error:
        raise HostLost(address.name, f"the jump host cannot reach {where}: {error.reason}") from None
    except (OSError, asyncssh.Error) as error:
        reason = _reason(error)
        raise HostLost(
            address.name, f"no SSH connection to {where}: {reason}. Try: {_ssh_command(address, options)}"
        ) from None
    return SshConnection(address.name, connection, jumps)


def _reason(error: Exception) -> str:
    """The system's own words for an error, such as "Connection refused"."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _ssh_command(address: HostAddress, options: asyncssh.SSHClientConnectionOptions) -> str:
    """The same connection by OpenSSH's client, for a person to type."""
    words = ["ssh"]
    if address.port is not None:
        words += ["-p", str(address.port)]
    if address.key_file is not None:
        words += ["-i", address.key_file]
    if address.jump is not None:
        words += ["-J", address.jump]
    if address.known_hosts_file is not None:
        words += ["-o", f"UserKnownHostsFile={address.known_hosts_file}"]
    host = address.hostname or address.name
    words.append(f"{address.user}@{host}" if address.user else host)
    return shlex.join(words)


def _host_key_text(
    address: HostAddress,
    options: asyncssh.SSHClientConnectionOptions,
    key: asyncssh.SSHKey | None,
    error: Exception,
) -> str:
    where = f"{options.host} port {options.port}"
    if key is None:
        return f"the host key of {where} was refused: {error}. Ask the host's administrator."
    shown = f"{key.get_algorithm()} {key.get_fingerprint()}"
    name = options.host_key_alias or options.host
    entry = name if options.port == 22 else f"[{name}]:{options.port}"
    files: Any = options.known_hosts
    port = options.port if options.port != 22 else None
    trusted = asyncssh.match_known_hosts(files, name, "", port)[0] if files else ()
    file = address.known_hosts_file or next(iter(files), "~/.ssh/known_hosts")
    if trusted:
        known = ", ".join(f"{other.get_algorithm()} {other.get_fingerprint()}" for other in trusted)
        return (
            f"THE HOST KEY OF {where} HAS CHANGED: it shows {shown}, known is {known}. Somebody may be in between; "
            f"nothing was sent. If the host was really reinstalled, remove the old key and accept the new one with\n"
            f"  ssh-keygen -f {shlex.quote(file)} -R {shlex.quote(entry)}\n  {_ssh_command(address, options)}"
        )
    scan = f"ssh-keyscan -p {options.port} {shlex.quote(options.host)} >> {file}"
    return (
        f"the host key of {where} is not known: it shows {shown}. Compare that fingerprint with the host's own "
        f"(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub, run there), then accept it with\n"
        f"  {_ssh_command(address, options)}\nor, where nobody can answer questions,\n  {scan}"
    )


def _login_text(
    address: HostAddress, options: asyncssh.SSHClientConnectionOptions, error: asyncssh.PermissionDenied
) -> str:
    if address.key_file is not None:
        tried = f"the key {address.key_file}"
    else:
        keys = sorted(Path("~/.ssh").expanduser().glob("id_*.pub"))
        tried = (
            ", ".join(["the SSH agent"] * bool(options.agent_path) + [str(key)[:-4] for key in keys]) or "no key at all"
        )
    return (
        f"login as {options.username} at {options.host} port {options.port} was refused ({error.reason}); "
        f"tried: {tried}. This must work without a question: {_ssh_command(address, options)} true\n"
        f"Put the public key into ~/.ssh/authorized_keys there (ssh-copy-id), or name user and key in the study file."
    )
