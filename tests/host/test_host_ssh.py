"""The SSH door against a real sshd: what is refused, and whether the message tells a person what to do."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from host_helpers import address_of
from sshd_server import MISSING, Sshd, find_sshd, make_key

from tuner.errors import HostLost, HostRefused
from tuner.host.link import open_link
from tuner.host.ssh import connect
from tuner.values.host import HostAddress


def fingerprint(public: Path) -> str:
    return subprocess.run(
        ["ssh-keygen", "-lf", str(public)], check=True, capture_output=True, text=True
    ).stdout.split()[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, without keys, configuration or agent."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


async def test_a_program_runs_and_a_port_is_forwarded(address: HostAddress) -> None:
    connection = await connect(address)
    process = await connection.open_process("read line; echo got $line; exit 7")
    process.write(b"this\n")
    assert await process.read_line() == b"got this\n" and await process.read_line() == b""
    assert await process.exit_status() == 7
    port = await connection.forward(address.port or 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert (await reader.readline()).startswith(b"SSH-2.0-OpenSSH")
    writer.close()
    await connection.close()
    assert connection.closed.is_set()


async def test_an_unknown_host_key_is_refused_with_the_commands_to_accept_it(
    address: HostAddress, sshd: Sshd, tmp_path: Path
) -> None:
    empty = tmp_path / "none"
    with pytest.raises(HostRefused) as raised:
        await connect(replace(address, known_hosts_file=str(empty)))
    text = str(raised.value)
    assert f"the host key of 127.0.0.1 port {sshd.port} is not known" in text
    assert fingerprint(sshd.home / "host_key.pub") in text
    assert f"ssh -p {sshd.port} -i" in text and f"ssh-keyscan -p {sshd.port} 127.0.0.1 >> {empty}" in text


async def test_the_command_of_the_message_works(address: HostAddress, tmp_path: Path) -> None:
    known_hosts = tmp_path / "known"
    with pytest.raises(HostRefused) as raised:
        await connect(replace(address, known_hosts_file=str(known_hosts)))
    scan = next(line for line in str(raised.value).splitlines() if "ssh-keyscan" in line)
    subprocess.run(scan.strip(), shell=True, check=True, capture_output=True)
    await (await connect(replace(address, known_hosts_file=str(known_hosts)))).close()


async def test_a_changed_host_key_is_refused_loudly(address: HostAddress, sshd: Sshd, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other_host_key").with_suffix(".pub")
    known_hosts = tmp_path / "known"
    known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {other.read_text()}")
    with pytest.raises(HostRefused) as raised:
        await connect(replace(address, known_hosts_file=str(known_hosts)))
    text = str(raised.value)
    assert "HAS CHANGED" in text and f"ssh-keygen -f {known_hosts} -R '[127.0.0.1]:{sshd.port}'" in text
    assert fingerprint(other) in text and fingerprint(sshd.home / "host_key.pub") in text
    assert "ssh-keyscan" not in text


async def test_a_configuration_cannot_turn_the_check_off(address: HostAddress, sshd: Sshd, home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile none\n")
    with pytest.raises(HostRefused, match="is not known"):
        await connect(replace(address, known_hosts_file=None))


async def test_a_key_that_is_not_authorized_names_what_was_tried(address: HostAddress, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    with pytest.raises(HostRefused, match=rf"(?s)login as .+ was refused .*tried: the key {key}. .*ssh-copy-id"):
        await connect(replace(address, key_file=str(key)))


async def test_no_key_at_all_says_so(address: HostAddress, home: Path) -> None:
    with pytest.raises(HostRefused, match="tried: no key at all"):
        await connect(replace(address, key_file=None))


async def test_a_missing_key_file_is_named(address: HostAddress) -> None:
    with pytest.raises(HostRefused, match="/no/such/key"):
        await connect(replace(address, key_file="/no/such/key"))


async def test_an_unreachable_host_is_lost_with_address_and_port(address: HostAddress, port: int) -> None:
    with pytest.raises(HostLost, match=rf"no SSH connection to 127.0.0.1 port {port}: Connection refused. Try: ssh -p"):
        await connect(replace(address, port=port))


async def test_a_name_that_does_not_resolve_is_lost(address: HostAddress) -> None:
    with pytest.raises(HostLost, match=r"no SSH connection to no-such-host.invalid port"):
        await connect(replace(address, hostname="no-such-host.invalid"))


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "a b", "a\nProxyCommand touch x", ""])
async def test_a_name_that_is_no_name_is_refused(address: HostAddress, name: str) -> None:
    with pytest.raises(HostRefused, match="not a host name"):
        await connect(replace(address, hostname=name))


async def test_the_users_ssh_configuration_is_honoured(sshd: Sshd, home: Path) -> None:
    (home / ".ssh" / "config").write_text(
        f"Host gpu1\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.home}/user_key\n"
        f"  UserKnownHostsFile {sshd.known_hosts}\n"
    )
    await (await connect(HostAddress("gpu1"))).close()


async def test_an_alias_keeps_its_block_when_the_address_is_given(sshd: Sshd, home: Path) -> None:
    (home / ".ssh" / "config").write_text(
        f"Host gpu1\n  HostName no-such-host.invalid\n  IdentityFile {sshd.home}/user_key\n"
        f"  UserKnownHostsFile {sshd.known_hosts}\n"
    )
    await (await connect(HostAddress("gpu1", hostname="127.0.0.1", port=sshd.port))).close()


async def test_default_keys_and_known_hosts_are_found(sshd: Sshd, home: Path) -> None:
    (home / ".ssh" / "id_ed25519").write_bytes((sshd.home / "user_key").read_bytes())
    (home / ".ssh" / "known_hosts").write_bytes(sshd.known_hosts.read_bytes())
    await (await connect(HostAddress("127.0.0.1", port=sshd.port))).close()


@pytest.fixture
def jump_host(tmp_path: Path) -> Iterator[Sshd]:
    if find_sshd() is None:
        pytest.skip(MISSING)
    server = Sshd.make(tmp_path / "jump")
    server.start()
    yield server
    server.stop()


async def test_a_jump_host_is_gone_through_and_its_key_is_checked(
    address: HostAddress, sshd: Sshd, jump_host: Sshd, tmp_path: Path
) -> None:
    (jump_host.home / "authorized_keys").write_bytes((sshd.home / "user_key.pub").read_bytes())
    through = replace(address, jump=f"127.0.0.1:{jump_host.port}")
    with pytest.raises(HostRefused, match=f"the host key of 127.0.0.1 port {jump_host.port} is not known"):
        await connect(through)
    both = tmp_path / "both"
    both.write_text(sshd.known_hosts.read_text() + jump_host.known_hosts.read_text())
    connection = await connect(replace(through, known_hosts_file=str(both)))
    assert len(jump_host.session_pids()) > 0
    process = await connection.open_process("echo there")
    assert await process.read_line() == b"there\n"
    await connection.close()


async def test_the_agent_starts_behind_a_login_shell_that_talks(sshd: Sshd, tmp_path: Path) -> None:
    """What a shell's start-up files print comes before the agent's first words."""
    talking = tmp_path / "python"
    talking.write_text('#!/bin/sh\necho Welcome!\necho "{not: json"\necho \'{"hello": "world"}\'\nexec python3 "$@"\n')
    talking.chmod(0o755)
    link = await open_link(replace(address_of(sshd), python=str(talking)), keep_alive_s=5, keep_alive_misses=3)
    assert await link.call("ping") == {}
    await link.close()


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/no/such/python", r"'/no/such/python' ended with status 127 .*Python 3.8 or later"),
        ("false; touch x", "ended with status 127"),
        ("true", "ended with status 0"),
    ],
)
async def test_a_host_without_a_python_is_refused(address: HostAddress, python: str, words: str) -> None:
    with pytest.raises(HostRefused, match=words):
        await open_link(replace(address, python=python), keep_alive_s=5, keep_alive_misses=3)
