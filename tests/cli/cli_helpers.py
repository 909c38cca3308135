"""`python -m tuner.study` as a child process in an empty directory, on short studies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

SPACE = """\
why: protocols alone, so that four launches see them all
env:
  NCCL_PROTO:
    choices: [null, LL, LL128, Simple]
try_first:
  - {name: everything default, set: {}}
  - {name: LL, set: {NCCL_PROTO: LL}}
  - {name: LL128, set: {NCCL_PROTO: LL128}}
  - {name: Simple, set: {NCCL_PROTO: Simple}}
"""

STUDY = """\
name: {name}
hosts:
  - {host}
engine:
  name: sglang
  command: python3 -m sglang.launch_server
  args: {{model-path: m61, tp-size: {gpus}, disable-custom-all-reduce: true, mem-fraction-static: 0.88}}
  env: {{NCCL_P2P_DISABLE: 1{env}}}
  start_deadline_s: 30
  no_progress_s: 15
  stop_grace_s: 10
  lease_s: 12
workload: {{concurrency: 1, output_tokens: {tokens}, windows: 2, warm_up_windows: 1}}
budget: {{launches: {launches}, lost_launches: {lost}}}
stages:
  - {{name: baseline, space: protocols.yaml, objective: throughput.yaml, confirmation_launches: 4}}
"""


def write_study(
    directory: Path,
    *,
    name: str = "short",
    host: str = "{name: sim, simulated: h200x2-shm}",
    gpus: int = 2,
    tokens: int = 100,
    launches: int = 8,
    lost: int = 5,
    env: str = "",
) -> Path:
    """Writes the study and its space; returns the study's path."""
    (directory / "protocols.yaml").write_text(SPACE)
    path = directory / "study.yaml"
    path.write_text(STUDY.format(name=name, host=host, gpus=gpus, tokens=tokens, launches=launches, lost=lost, env=env))
    return path


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without what could change the command's output."""
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "RAY_ADDRESS", "TTY_COMPATIBLE")}
    return env | extra


def study(*words: str, cwd: Path, timeout: float = 110, **extra: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tuner.study", *words],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@dataclass
class Running:
    """The command under way, its standard error read as it comes."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, *words: str, cwd: Path, **extra: str) -> Running:
        return cls(
            subprocess.Popen(
                [sys.executable, "-m", "tuner.study", *words],
                cwd=cwd,
                env=environment(**extra),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )

    def wait_for(self, text: str) -> str:
        """The next line of standard error that holds the text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"ended without {text!r}:\n{''.join(self.lines)}")

    def kill(self) -> None:
        """`kill -9` of the driver alone: its Ray and its servers are left to themselves."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)


def ours(mark: str) -> list[int]:
    """Pids, zombies excepted, in whose environment or command line the mark stands."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            if mark.encode() in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def gone(mark: str, within_s: float) -> bool:
    """Whether nothing with the mark is left, now or soon."""
    deadline = time.monotonic() + within_s
    while ours(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
