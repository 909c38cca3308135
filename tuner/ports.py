"""The seams of the tuner: what each layer asks of the one below it, and nothing more.

    study loop ── Target, Server ── one launch ── HostSteps ── SSH session (in a Ray actor or not)
        │                               └──────── Engine ───── SGLang's rules
        └── Journal ── database

A user can run a study against any object with `Target`'s methods; the README shows it in 20 lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tuner.values.canary import CanaryAnswer
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure
from tuner.values.host import HostFacts
from tuner.values.launch import (
    CleanReport,
    EffectReport,
    GoneReport,
    LaunchBase,
    LaunchCommand,
    Phase,
    ServerIdentity,
    ServerStatus,
)
from tuner.values.measurement import Measurement, TunnelLag, Window
from tuner.values.workload import Workload


class Server(Protocol):
    """One running server."""

    async def measure(self, workload: Workload) -> Measurement:
        """Puts the load on the server and returns what was seen.

        Raises:
            LaunchFailed: no number, by the configuration's fault.
            HostLost: no number, by nobody's fault.
        """
        ...

    async def stop(self) -> None:
        """Stops the server and returns when it is proven gone. Safe to call twice."""
        ...


class Target(Protocol):
    """Something that can be launched with a configuration: a server on a host, or a stand-in for one."""

    async def launch(self, configuration: Configuration) -> Server:
        """Starts a server with the configuration and returns when it is ready.

        Raises:
            LaunchFailed: it does not start, by the configuration's fault; nothing of it is left.
            HostLost: the host is gone.
            ForeignServer: somebody else's server is in the way.
        """
        ...


class Journal(Protocol):
    """Where a launch writes what it is about to do, before it does it."""

    @property
    def nonce(self) -> str:
        """The unique text of the launch under way; in the database before anything is started."""
        ...

    async def begin(self, phase: Phase) -> None:
        """Stores that a phase begins (and that the one before it ended). Returns when it is on disk."""
        ...

    async def record(self, **evidence: Any) -> None:
        """Stores evidence with the phase under way: values of `tuner.values`, or JSON types."""
        ...

    async def window(self, window: Window) -> None:
        """Stores one measured window with its raw samples."""
        ...


class HostSteps(Protocol):
    """The steps of a launch on one host, each of which ends. The caller stores between them.

    Every method may raise `HostLost`.
    """

    async def preflight(self) -> HostFacts:
        """Connects and reads what the host has.

        Raises:
            HostRefused: login, host key, interpreter or engine are not as needed.
        """
        ...

    async def clean(self, port: int | None, nonces: Sequence[str]) -> CleanReport:
        """Stops what is left of our launches and looks whether the way is free.

        Args:
            port: the port that the server will get; ``None``: choose a free one.
            nonces: of all launches of ours that may still have processes on this host; nothing else is touched.
        """
        ...

    async def start(self, command: LaunchCommand) -> ServerIdentity:
        """Starts the command under a supervisor that holds a lease, renewed from here until `stop`."""
        ...

    async def wait_ready(self, start_deadline_s: float, no_progress_s: float) -> None:
        """Returns once the engine's nonce comes back from the server and our process lives.

        Args:
            start_deadline_s: longest time from the start to readiness.
            no_progress_s: longest silence of the log.

        Raises:
            LaunchFailed: it died, or hangs.
        """
        ...

    async def took_effect(self, command: LaunchCommand, names: Sequence[str]) -> EffectReport:
        """Reads back from the live processes and the server what it runs with.

        Args:
            names: the environment variables of the configuration.
        """
        ...

    async def window(self, workload: Workload, index: int) -> Window:
        """Runs window `index` (negative: warm-up) of the workload against the server.

        Raises:
            LaunchFailed: the server died or hangs under load.
        """
        ...

    async def canaries(self) -> tuple[CanaryAnswer, ...]:
        """The server's greedy answers to the bundled canaries; one that fails says so in itself.

        Raises:
            LaunchFailed: the server died.
        """
        ...

    async def tunnel_lag(self) -> TunnelLag | None:
        """The port-forward's delay, measured during the windows since the start; ``None`` without one."""
        ...

    async def status(self) -> ServerStatus:
        """A look at the server under way, while another step waits."""
        ...

    async def stop(self, grace_s: float) -> GoneReport:
        """TERM, grace, KILL for all that is ours, then proof. Safe to call when nothing was started."""
        ...

    async def close(self) -> None:
        """Lets the connection go. Does not stop a server: its lease will."""
        ...


class Engine(Protocol):
    """The rules of one inference engine. Plain data and pure functions: no I/O, so that it can be sent anywhere."""

    @property
    def name(self) -> str:
        """Such as ``sglang``."""
        ...

    @property
    def distributions(self) -> tuple[str, ...]:
        """Python distributions whose versions preflight reads: the engine's own first, then NCCL's names."""
        ...

    def problems(self, env: Sequence[str], args: Sequence[str], allow: Sequence[str]) -> tuple[str, ...]:
        """What a space must not set: names that are not tunable, in words with the remedy.

        Args:
            env: names of environment variables.
            args: names of arguments, without dashes.
            allow: names that the user's own study file permits beyond the tunable ones.
        """
        ...

    def launch_problems(self, base: LaunchBase) -> tuple[str, ...]:
        """What in a study file's launch the tuner cannot work with, in words with the remedy; empty if nothing."""
        ...

    def refused(self, configuration: Configuration, facts: HostFacts, base: LaunchBase) -> tuple[str, ...]:
        """Reasons why the engine of that version would refuse or rewrite the configuration; empty if none."""
        ...

    def inert(self, configuration: Configuration, facts: HostFacts, base: LaunchBase | None = None) -> dict[str, str]:
        """Names of the configuration that nothing on that host ever acts on → why. Only what is certain.

        Args:
            base: the launch below it, which may make a name inert; ``None``: the configuration by itself.
        """
        ...

    def command(self, base: LaunchBase, configuration: Configuration, *, port: int, nonce: str) -> LaunchCommand:
        """The exact command: the base with the configuration laid over it, the port, and the nonce."""
        ...

    def shell_line(self, base: LaunchBase, configuration: Configuration) -> str:
        """The launch as one line to paste into a shell, everything quoted, with nothing of the tuner's own in it.

        A value of the base of the form ``$NAME`` stays a reference for the shell to fill in; one of the configuration
        is plain text.
        """
        ...

    def effect_mismatches(
        self,
        command: LaunchCommand,
        server_info: Mapping[str, Any],
        environ: Mapping[str, str],
        nccl_lines: Sequence[str],
        names: Sequence[str] | None = None,
    ) -> tuple[str, ...]:
        """What a running server has other than the command says, in words; empty when all took effect.

        Args:
            server_info: the JSON of `server_info_path`.
            environ: the environment of one process titled as `worker_titles` say.
            nccl_lines: what `nccl_evidence` found in its log.
            names: variables and arguments to compare, such as those of the configuration, beside the tuner's own;
                ``None``: all. An engine may rightly round an argument of the base.
        """
        ...

    def window_problems(self, server_info: Mapping[str, Any]) -> tuple[str, ...]:
        """What a server's own account, read just after a window, says against using it; empty if nothing.

        Args:
            server_info: the JSON of `server_info_path`.
        """
        ...

    def nccl_evidence(self, log: str) -> tuple[str, ...]:
        """The log's lines in which NCCL says what it took, each once."""
        ...

    def stage_of(self, log: str) -> str:
        """A short word for what a starting server is doing, such as ``weights 25 %``; ``ready`` at the end."""
        ...

    def classify(self, log: str, exit_status: int | None, phase: Phase) -> Failure:
        """The class of a failed start or a death, from the log and the exit status of the parent process."""
        ...

    def nonce_in(self, path: str, body: str) -> str:
        """The nonce that the server's readiness endpoint returned; empty if none."""
        ...

    @property
    def ready_path(self) -> str:
        """HTTP path that returns the nonce without putting load on the model."""
        ...

    @property
    def server_info_path(self) -> str:
        """HTTP path that returns what the server runs with, as a JSON object."""
        ...

    @property
    def flush_path(self) -> str:
        """HTTP path that empties the prefix cache (POST)."""
        ...

    @property
    def worker_titles(self) -> tuple[str, ...]:
        """How the titles of the processes begin whose environment decides."""
        ...
