"""The simulated host by SSH: what a real sshd does with commands, forwards and lost connections; how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from simulated_server import PRESET, Host, free_port

from tuner.errors import InputError
from tuner.simulated.machine import MACHINES, machine
from tuner.simulated.process import log_of, start_simulated_host
from tuner.simulated.standin.child import start_ticks
from tuner.values.host import HostAddress


@asynccontextmanager
async def connected(address: HostAddress, **options: Any) -> AsyncIterator[asyncssh.SSHClientConnection]:
    usual: dict[str, Any] = {
        "client_keys": [address.key_file],
        "username": address.user,
        "known_hosts": address.known_hosts_file,
    }
    async with asyncssh.connect(
        address.hostname,
        address.port,
        config=None,
        agent_path=None,
        **{**usual, **options},
    ) as connection:
        yield connection


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[HostAddress, int]]:
    address, pid = await start_simulated_host(PRESET, load_s=0.2, noise=0, **options)
    try:
        yield address, pid
    finally:
        if start_ticks(pid):
            os.kill(pid, signal.SIGTERM)
        await until(lambda: not start_ticks(pid), "the host's end")


async def until(condition: Callable[[], Any], what: str, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.02)


async def test_commands_run_as_on_a_real_sshd() -> None:
    async with running() as (address, pid), connected(address) as ssh:
        result = await ssh.run("printf out; printf err >&2; exit 7", encoding=None)
        assert (result.stdout, result.stderr, result.exit_status) == (b"out", b"err", 7)
        blob = bytes(range(256)) * 4096
        assert (await ssh.run("cat", input=blob, encoding=None)).stdout == blob
        killed = await ssh.run("kill -9 $$")
        assert killed.exit_signal is not None
        assert killed.exit_signal[0] == "KILL"
        assert (await ssh.run("exit 3")).exit_status == 3
        script = await ssh.run(input="echo from a shell; exit 5\n")
        assert (script.stdout, script.exit_status) == ("from a shell\n", 5)
        for index in range(20):  # the race on short commands
            assert (await ssh.run(f"echo {index}")).stdout == f"{index}\n"
        many = await asyncio.gather(*(ssh.run(f"sleep 0.1; echo {n}") for n in range(8)))
        assert [run.stdout for run in many] == [f"{n}\n" for n in range(8)]
        session, parent = (await ssh.run("ps -o sid= -p $$; echo $$")).stdout.split()  # type: ignore[union-attr]
        assert session == parent != str(pid), "a session of its own"


async def test_signals_reach_the_command() -> None:
    async with running() as (address, _), connected(address) as ssh:
        process = await ssh.create_process("trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
        assert await process.stdout.readline() == "ready\n"
        process.send_signal("TERM")
        result = await process.wait()
        assert (result.stdout, result.exit_status) == ("caught\n", 9)


async def test_the_host_is_the_machine_of_its_preset() -> None:
    async with running() as (address, pid), connected(address) as ssh:
        code = "import importlib.metadata as m; print(m.version('sglang'), m.version('nvidia-nccl-cu13'))"
        versions = (await ssh.run(f'python3 -c "{code}"', check=True)).stdout
        assert versions == f"{machine(PRESET).engine_version} {machine(PRESET).nccl_version}\n"
        assert (await ssh.run("echo $TUNER_SIMULATED $TUNER_SIMULATED_LAUNCH_S")).stdout == f"{PRESET} 57\n"
        assert (await ssh.run("pwd; echo $HOME")).stdout == f"{log_of(address).parent / 'home'}\n" * 2
        query = "index,uuid,name,memory.total,memory.used,driver_version"
        listed = (await ssh.run(f"nvidia-smi --query-gpu={query} --format=csv,noheader,nounits")).stdout
        rows = [line.split(", ") for line in str(listed).splitlines()]
        assert [row[0] for row in rows] == ["0", "1"]
        assert all(row[2:] == ["NVIDIA H200", "143771", "0", machine(PRESET).driver_version] for row in rows)
        assert len({row[1] for row in rows}) == 2
        assert "GPU0" in str((await ssh.run("nvidia-smi topo -m")).stdout)
        apps = await ssh.run("nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv,noheader,nounits")
        assert apps.stdout == ""
        assert pid != os.getpid()


async def test_only_its_own_key_and_user_are_let_in(tmp_path: Path) -> None:
    async with running() as (address, _):
        other = tmp_path / "other"
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(other))
        with pytest.raises(asyncssh.PermissionDenied):
            async with connected(address, client_keys=[str(other)]):
                pass
        with pytest.raises(asyncssh.PermissionDenied):
            async with connected(address, username="somebody-else"):
                pass
        with pytest.raises(asyncssh.HostKeyNotVerifiable):
            async with connected(address, known_hosts=([], [], [])):
                pass
        assert address.key_file is not None
        assert Path(address.key_file).stat().st_mode & 0o077 == 0


async def test_a_detached_child_survives_the_connection_and_a_killed_client(tmp_path: Path) -> None:
    async with running() as (address, _):
        async with connected(address) as ssh:
            detached = await ssh.run("setsid sleep 60 </dev/null >/dev/null 2>&1 & echo $!")
            attached = await ssh.create_process("echo $$; exec sleep 61")
            pids = [int(str(detached.stdout)), int(await attached.stdout.readline())]
            ssh.abort()
        await asyncio.sleep(0.2)
        assert all(start_ticks(pid) for pid in pids), "a real sshd ends neither"
        async with connected(address) as ssh:
            for pid in pids:
                await ssh.run(f"kill {pid}", check=True)
        await until(lambda: not any(start_ticks(pid) for pid in pids), "their end")


async def test_a_server_is_reached_through_a_forward_only_on_the_loopback() -> None:
    async with running() as (address, pid), connected(address) as ssh:
        port = free_port()
        command = f"python3 -m sglang.launch_server --model-path m --tp-size 2 --port {port} --weight-version n1"
        await ssh.run(f"SPT_NOENV=1 setsid {command} </dev/null >$HOME/server.log 2>&1 &", check=True)
        listener = await ssh.forward_local_port("127.0.0.1", 0, "127.0.0.1", port)

        async def nonce() -> str:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.get_port())
                writer.write(b"GET /model_info HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                answer = await asyncio.wait_for(reader.read(), 5)
                writer.close()
                return str(json.loads(answer.partition(b"\r\n\r\n")[2])["weight_version"])
            except (OSError, ValueError):
                return ""

        for _ in range(200):
            if await nonce() == "n1":
                break
            await asyncio.sleep(0.05)
        assert await nonce() == "n1"
        apps = await ssh.run("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits")
        pids = [int(line.split(",")[0]) for line in str(apps.stdout).splitlines()]
        assert len(pids) == 2
        with pytest.raises(asyncssh.ChannelOpenError):
            await ssh.open_connection("192.0.2.1", 80)
        os.kill(pid, signal.SIGTERM)
        await until(lambda: not start_ticks(pid), "the host's end")
        await until(lambda: not any(start_ticks(each) for each in pids), "its servers' end")
        assert not log_of(address).exists()


async def test_it_outlives_its_driver_ends_when_idle_and_leaves_nothing() -> None:
    code = (
        "import asyncio, os, signal\n"
        "from tuner.simulated.process import start_simulated_host\n"
        f"address, pid = asyncio.run(start_simulated_host({PRESET!r}, idle_s=0.6))\n"
        "print(pid, address.key_file, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    driver = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    pid, key_file = driver.stdout.split()
    assert start_ticks(int(pid)), "it lives on"
    await until(lambda: not start_ticks(int(pid)), "its end")
    assert not Path(key_file).parent.parent.exists()


async def test_it_is_not_idle_while_a_server_lives() -> None:
    async with running(idle_s=0.5) as (address, pid):
        async with connected(address) as ssh:
            started = await ssh.run("setsid sleep 60 </dev/null >/dev/null 2>&1 & echo $!")
        await asyncio.sleep(1.2)
        assert start_ticks(pid)
        os.kill(int(str(started.stdout)), signal.SIGKILL)
        await until(lambda: not start_ticks(pid), "its end, after the last process")


async def test_an_unknown_preset_is_an_error_that_lists_the_presets() -> None:
    with pytest.raises(InputError, match="no such preset; there are pcie8-failed-search"):
        await start_simulated_host("nonsense")


async def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        await start_simulated_host(PRESET, state_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_help_and_list_teach() -> None:
    argv = [sys.executable, "-m", "tuner.simulated"]
    text = subprocess.run([*argv, "--help"], capture_output=True, text=True, check=True).stdout
    assert "ssh -i KEY_FILE" in text
    listed = subprocess.run([*argv, "--list"], capture_output=True, text=True, check=True).stdout
    assert all(name in listed for name in MACHINES)


def test_nvidia_smi_prints_units_and_refuses_what_it_does_not_know(host: Host) -> None:
    program = str(host.state.path / "bin" / "nvidia-smi")
    text = host.run(program, "--query-gpu=index,memory.total", "--format=csv")
    assert text == "index, memory.total [MiB]\n0, 143771 MiB\n1, 143771 MiB\n"
    wrong = subprocess.run(
        [program, "--query-gpu=index,colour", "--format=csv"], env=host.environment, capture_output=True
    )
    assert wrong.returncode == 2
    assert b'Field "colour" is not a valid field to query.' in wrong.stdout
