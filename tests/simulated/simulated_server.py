"""A simulated host without SSH, and servers on it: what the tests of the stand-in share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.simulated.machine import machine
from tuner.simulated.standin.child import start_ticks
from tuner.simulated.state import HostState

PRESET = "h200x2-shm"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Waits for something that must come true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return value


@dataclass
class StandIn:
    """One server on the host."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path
    nonce: str

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def request(self, path: str, body: Any = None, *, timeout: float = 20.0) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, body: Any = None) -> Any:
        status, data = self.request(path, body)
        assert status == 200, (status, data)
        return json.loads(data)

    def events(self, path: str, body: Any) -> Iterator[tuple[float, Any]]:
        """(time, object) of each event of a stream."""
        data = json.dumps({**body, "stream": True}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        with urllib.request.urlopen(request, timeout=20) as response:
            for line in response:
                if line.startswith(b"data: "):
                    text = line[6:].strip()
                    yield time.monotonic(), text.decode() if text == b"[DONE]" else json.loads(text)

    def generate(self, text: str, tokens: int, **params: Any) -> list[tuple[float, Any]]:
        """The chunks of one stream that ignores the end of sequence."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **params}
        events = list(self.events("/generate", {"text": text, "sampling_params": sampling}))
        assert events[-1][1] == "[DONE]"
        return events[:-1]

    def ready(self) -> StandIn:
        """Waits until it is up, by its nonce."""

        def up() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.log[-3000:]}"
            with contextlib.suppress(OSError, ValueError):
                return bool(json.loads(self.request("/model_info")[1])["weight_version"] == self.nonce) and (
                    "fired up" in self.log
                )
            return False

        until(up, "readiness")
        return self

    def ended(self, seconds: float = 20.0) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(seconds)

    def children(self) -> dict[str, int]:
        """title → pid of its living children."""
        found = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{name}/status").read_text()
                    if f"\nPPid:\t{self.process.pid}\n" in status and start_ticks(int(name)):
                        found[Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()] = int(
                            name
                        )
        return found


@dataclass
class Host:
    """A simulated host's directory, and what was started on it."""

    state: HostState
    environment: dict[str, str]
    servers: list[StandIn] = field(default_factory=list)

    def start(
        self,
        *args: str,
        port: int | None = None,
        nonce: str | None = None,
        environment: Mapping[str, str] | None = None,
        **env: str,
    ) -> StandIn:
        port = port or free_port()
        nonce = nonce or f"nonce-{len(self.servers)}"
        log_path = self.state.path / f"server-{len(self.servers)}.log"
        tp = () if "--tp-size" in args else ("--tp-size", "2")
        argv = ["python3", "-m", "sglang.launch_server", "--model-path", "/models/m61", *tp, "--port", str(port)]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*argv, "--weight-version", nonce, *args],
                env={**self.environment, **(environment or {}), **env},
                executable=str(self.state.path / "bin" / "python3"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        server = StandIn(process, port, log_path, nonce)
        self.servers.append(server)
        return server

    def run(self, *argv: str) -> str:
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=True, timeout=20).stdout

    def gpu_memory(self) -> list[int]:
        """Used MiB of each GPU, by nvidia-smi."""
        program = str(self.state.path / "bin" / "nvidia-smi")
        out = self.run(program, "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        return [int(line) for line in out.split()]

    def end(self) -> None:
        self.state.end_processes()
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait(10)


def make_host(folder: Path, version: str | None = None, **settings: str) -> Host:
    preset_machine = machine(PRESET)
    if version is not None:
        preset_machine = replace(preset_machine, engine_version=version)
    state = HostState.create(preset_machine, folder)
    quick = {"TUNER_SIMULATED_LOAD_S": "0.2", "TUNER_SIMULATED_NOISE": "0"}
    return Host(state, state.environment(preset_machine, {**quick, **settings}))
