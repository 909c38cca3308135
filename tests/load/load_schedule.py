"""The schedule server as tests and benchmarks use it: a process of its own, and what it says that it sent."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class SentLog:
    """What the server sent since the last look.

    Attributes:
        connections: identities of the connections that served requests.
        prompts: of each request.
        arrived_s: when each request had arrived.
        cpu_s: CPU time that the server has used since its start.
        sent: for each request (deadline, time of the write, cumulative tokens); all times on CLOCK_MONOTONIC.
    """

    connections: tuple[int, ...]
    prompts: tuple[str, ...]
    arrived_s: tuple[float, ...]
    cpu_s: float
    sent: tuple[tuple[tuple[float, float, int], ...], ...]

    def tok_s(self) -> float:
        """The server's own count: tokens written while all streams were under way, over that time."""
        begin = max(writes[0][1] for writes in self.sent)
        end = min(writes[-1][1] for writes in self.sent)
        tokens = 0.0
        for writes in self.sent:
            for (_, t0, n0), (_, t1, n1) in itertools.pairwise(writes):
                overlap = max(0.0, min(t1, end) - max(t0, begin))
                tokens += (n1 - n0) * overlap / (t1 - t0)
        return tokens / (end - begin)

    def ttft_s(self) -> list[float]:
        return [writes[0][1] - arrived for arrived, writes in zip(self.arrived_s, self.sent, strict=True)]

    def itl_s(self) -> list[float]:
        pairs = (pair for writes in self.sent for pair in itertools.pairwise(writes))
        return [(t1 - t0) / (n1 - n0) for (_, t0, n0), (_, t1, n1) in pairs for _ in range(n1 - n0)]

    def lateness_s(self) -> list[float]:
        return [at - due for writes in self.sent for due, at, _ in writes]


def machine_busy_s() -> float:
    """CPU seconds that all cores of this machine have been busy, from ``/proc/stat``."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class ScheduleServer:
    """Runs ``schedule_server.py`` while the ``with`` block runs."""

    def __enter__(self) -> ScheduleServer:
        program = Path(__file__).with_name("schedule_server.py")
        self._process = subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port: int = json.loads(self._process.stdout.readline())["port"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def url(self, **behaviour: Any) -> str:
        """The base URL at which the server behaves so; see `Behaviour` in ``schedule_server.py``."""
        return f"http://127.0.0.1:{self.port}/{json.dumps(behaviour)}"

    def log(self) -> SentLog:
        """What it sent since the last call."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/log", timeout=10) as answer:
            said = json.load(answer)
        requests = said["requests"]
        return SentLog(
            connections=tuple(said["connections"]),
            prompts=tuple(r["prompt"] for r in requests),
            arrived_s=tuple(r["arrived"] for r in requests),
            cpu_s=said["cpu"],
            sent=tuple(tuple((due, at, n) for due, at, n in r["sent"]) for r in requests),
        )
