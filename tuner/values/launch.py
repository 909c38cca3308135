"""One start of a server, from clean-before to gone-after."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.values.configuration import Scalar


class Phase(StrEnum):
    """The phases of a launch, in order. Each is stored before it begins."""

    CLEAN = "clean"
    START = "start"
    READY = "ready"
    TOOK_EFFECT = "took effect"
    WARM_UP = "warm-up"
    MEASURE = "measure"
    CANARIES = "canaries"
    STOP = "stop"


class Role(StrEnum):
    """Why a launch was made. Only SEARCH launches are Optuna trials of their own."""

    SEARCH = "search"
    CONTROL = "control"
    REPLICATE = "replicate"
    CONFIRMATION = "confirmation"


@dataclass(frozen=True)
class LaunchBase:
    """The launch as the study file gives it: the control.

    Attributes:
        command: the words that start the server, such as ``python3 -m sglang.launch_server``.
        args: fixed arguments in the file's order, names without dashes; ``True`` is a bare flag.
        env: fixed environment variables.
        allow: names beyond the engine's tunable ones that a space may set: the user's own decision.
        forbid: names, or ``NAME=value`` patterns with ``*``, that no launch may have.
    """

    command: tuple[str, ...]
    args: tuple[tuple[str, Scalar], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaunchCommand:
    """What the supervisor executes on the host.

    Attributes:
        argv: the command, one word each; never passed through a shell.
        env: variables to set on top of the login environment.
        port: the HTTP port on the host's loopback that the server will listen on.
        nonce: unique text of this launch; in ``argv`` as the engine's nonce flag, in ``env`` as ``TUNER_NONCE``.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    port: int
    nonce: str


@dataclass(frozen=True)
class ServerIdentity:
    """Who a server is, so that nothing else is ever taken for it.

    Attributes:
        pid: of the server's parent process, also its session id.
        start_ticks: start time from ``/proc/PID/stat`` field 22, in clock ticks since boot; with the pid and the
            boot id unique.
        cgroup: path of the cgroup made for it; empty where none could be made.
        log_path: where the supervisor writes its output on the host.
    """

    nonce: str
    pid: int
    start_ticks: int
    boot_id: str
    cgroup: str
    log_path: str


@dataclass(frozen=True)
class CleanReport:
    """What was found before a start.

    Attributes:
        port: the port that the server will get.
        port_holder: who listens on it, in words; empty if it is free.
        gpu_memory_used_bytes: for each GPU; the level that must come back after the stop.
        stopped_nonces: launches of ours that were still there and were stopped.
    """

    port: int
    port_holder: str
    gpu_memory_used_bytes: tuple[int, ...]
    stopped_nonces: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerStatus:
    """A look at a running launch.

    Attributes:
        alive: whether the server's parent process is alive (a zombie is not).
        exit_status: its exit status once it ended: ≥ 0 a code, < 0 minus a signal.
        lease_lapsed: whether the supervisor ended it because nobody renewed its lease.
        log_bytes: how much it has written so far: the measure of progress while it loads.
        log_tail: the last lines it wrote.
    """

    alive: bool
    exit_status: int | None
    lease_lapsed: bool
    log_bytes: int
    log_tail: str


@dataclass(frozen=True)
class EffectReport:
    """Proof that a configuration reached the processes that matter.

    Attributes:
        checked_pids: pids whose ``/proc/PID/environ`` was read.
        environment: the variables of the configuration as those processes have them.
        server_info: the server's own account of its arguments, secrets masked.
        nccl_lines: lines of NCCL's log that say what it took.
        mismatches: what differs from the configuration, in words; empty when all took effect.
    """

    checked_pids: tuple[int, ...]
    environment: tuple[tuple[str, str], ...]
    server_info: tuple[tuple[str, str], ...]
    nccl_lines: tuple[str, ...]
    mismatches: tuple[str, ...] = ()


@dataclass(frozen=True)
class GoneReport:
    """Proof that a server is gone.

    Attributes:
        exit_status: of the parent process; ``None`` when it was not seen to end.
        killed_pids: pids that ignored TERM and were ended with KILL.
        left_pids: pids of ours that are still alive; empty when it is gone.
        port_free: whether nothing of it is on the port: it can be bound again, or somebody else listens there by now.
        gpu_memory_used_bytes: for each GPU, after the stop.
        gpu_memory_back: whether that is down to the level before the start.
        shared_memory_removed: names under ``/dev/shm`` that it left and that were removed.
        took_s: from TERM to all of the above.
    """

    exit_status: int | None
    killed_pids: tuple[int, ...]
    left_pids: tuple[int, ...]
    port_free: bool
    gpu_memory_used_bytes: tuple[int, ...]
    gpu_memory_back: bool
    shared_memory_removed: tuple[str, ...]
    took_s: float

    @property
    def gone(self) -> bool:
        """Processes gone, port free and GPU memory back."""
        return not self.left_pids and self.port_free and self.gpu_memory_back
