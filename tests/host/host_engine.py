"""The rules of the small test server (`launched_server.py`), as an engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass
from tuner.values.host import HostFacts
from tuner.values.launch import LaunchBase, LaunchCommand, Phase

SERVER = Path(__file__).with_name("launched_server.py")


@dataclass(frozen=True)
class SmallEngine:
    """An engine whose server answers /nonce and /info."""

    name: str = "small"
    distributions: tuple[str, ...] = ("asyncssh", "no-such-distribution", "ray")
    ready_path: str = "/nonce"
    server_info_path: str = "/info"
    flush_path: str = "/flush"
    worker_titles: tuple[str, ...] = ("small::worker",)

    def problems(self, env: Sequence[str], args: Sequence[str], allow: Sequence[str]) -> tuple[str, ...]:
        return ()

    def launch_problems(self, base: LaunchBase) -> tuple[str, ...]:
        return ()

    def refused(self, configuration: Configuration, facts: HostFacts, base: LaunchBase) -> tuple[str, ...]:
        return ()

    def inert(self, configuration: Configuration, facts: HostFacts, base: LaunchBase | None = None) -> dict[str, str]:
        return {}

    def command(self, base: LaunchBase, configuration: Configuration, *, port: int, nonce: str) -> LaunchCommand:
        return launch(port, nonce, *(word for pair in configuration.args for word in (f"--{pair[0]}", str(pair[1]))))

    def shell_line(self, base: LaunchBase, configuration: Configuration) -> str:
        return ""

    def stage_of(self, log: str) -> str:
        return "loading"

    def classify(self, log: str, exit_status: int | None, phase: Phase) -> Failure:
        kind = FailureClass.PORT_TAKEN if "Address already in use" in log else FailureClass.CRASHED
        lines = [line for line in log.splitlines() if line.strip()]
        return Failure(kind, phase.value, lines[-1] if lines else "", exit_status=exit_status, log_tail=log[-2000:])

    def nonce_in(self, path: str, body: str) -> str:
        return body.strip()

    def window_problems(self, server_info: Mapping[str, Any]) -> tuple[str, ...]:
        return ()

    def nccl_evidence(self, log: str) -> tuple[str, ...]:
        return tuple(line for line in log.splitlines() if line.startswith("NCCL"))

    def effect_mismatches(
        self,
        command: LaunchCommand,
        server_info: Mapping[str, Any],
        environ: Mapping[str, str],
        nccl_lines: Sequence[str],
        names: Sequence[str] | None = None,
    ) -> tuple[str, ...]:
        asked = {name: value for name, value in command.env if names is None or name in names}
        return tuple(name for name, value in asked.items() if environ.get(name) != value)


def launch(port: int, nonce: str, *options: str, env: Mapping[str, str] | None = None) -> LaunchCommand:
    """The command that starts the test server."""
    argv = (sys.executable, str(SERVER), "--port", str(port), "--nonce", nonce, *options)
    return LaunchCommand(argv, tuple((env or {}).items()), port, nonce)
