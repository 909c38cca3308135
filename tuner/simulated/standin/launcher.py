"""The launcher: ``python3 -m sglang.launch_server`` on a simulated host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, NoReturn

from tuner.simulated.machine import Machine, machine
from tuner.simulated.standin import child, gpu_registry, ranks, server_args
from tuner.simulated.standin.arguments import parse, version_of
from tuner.simulated.standin.capacity import Capacity
from tuner.simulated.standin.log import Log
from tuner.simulated.standin.settings import Settings

if TYPE_CHECKING:
    from tuner.simulated.standin.http import Application
    from tuner.simulated.standin.server_info import ServerInfo

_CRASH_SETTLE_S = 5.0
_DRAIN_POLL_S = 5.0
_SLOW_EXIT_S = 10.0
_WARNING = (
    "<site-packages>/sglang/launch_server.py:56: UserWarning: 'python -m sglang.launch_server' is still supported, but "
    "'sglang serve' is the recommended entrypoint.\n"
    "  Example: sglang serve --model-path <model> [options]\n"
    "  warnings.warn(\n"
)


def main(argv: Sequence[str], version: str) -> None:
    """Parses, validates, loads and serves, as ``sglang.launch_server`` does.

    The schedulers are forked, not spawned as SGLang's are, for the sake of a quick start. So what SGLang adds to their
    environment (``NCCL_CUMEM_ENABLE=0`` and the like) is in force, but not in their ``/proc/PID/environ``.

    Args:
        argv: the arguments after the module's name.
        version: of SGLang, as installed on the host.
    """
    settings = Settings.of(os.environ)
    if "ignored_environment" in settings.faults:
        _lose_environment()
    host = replace(machine(settings.preset), engine_version=version)
    log = Log()
    log.raw(_WARNING)
    given = parse(argv, host.engine_version)
    args = server_args.resolve(given, host, log)
    log.line(f"server_args={server_args.describe(args)}")
    Launcher(args, tuple(argv), settings, host).run()


class Launcher:
    """One start of the server: the parent process."""

    def __init__(self, args: dict[str, Any], argv: tuple[str, ...], settings: Settings, host: Machine) -> None:
        self._args = args
        self._argv = argv
        self._settings = settings
        self._machine = host
        self._log = Log()
        self._began_s = time.monotonic()
        self._children: ranks.Children | None = None
        self._crashing = False

    def run(self) -> None:
        """Serves until the process ends."""
        signal.signal(signal.SIGQUIT, self._failed_launch)
        _set_environment(self._machine.engine_version)
        resource_tracker.ensure_running()
        seed = self._seed()
        self._children = ranks.start(self._args, dict(os.environ), self._settings, self._machine, seed)
        # The schedulers load from here on; what this process needs for serving is imported meanwhile.
        from tuner.simulated.standin import http, server_info

        took = self._wait_ready(self._children)
        capacity = Capacity.of(self._machine, self._args, os.environ)
        info = server_info.ServerInfo(self._args, self._argv, self._machine, capacity, took)
        startup = info.startup()
        graphs = ", ".join(f"{phase}={seconds:.2f}" for phase, seconds in startup["cuda_graph"].items())
        self._log.line(
            f"Engine startup timings (s): load_weight={startup['load_weight']:.2f}, kv_cache_allocation=0.00, "
            f"scheduler_e2e={startup['scheduler_e2e']:.2f}, cuda_graph={{{graphs}}}, "
            f"tokenizer_e2e={startup['tokenizer_e2e']:.2f}"
        )
        try:
            self._serve(info, capacity, http.Application)
        finally:
            self._kill_tree(include_self=False)

    def _seed(self) -> int:
        """Of this launch's noise: another for each launch on the host, the same ones for the same host seed."""
        count = gpu_registry.launches(self._settings.state_dir)
        if self._settings.seed is None:
            return int.from_bytes(os.urandom(4), "big")
        return zlib.crc32(f"{self._settings.seed}:{count}".encode())

    def _wait_ready(self, children: ranks.Children) -> dict[str, float]:
        """Waits until every scheduler is ready; returns the times of rank 0.

        A scheduler that dies meanwhile ends the launch, as in SGLang.
        """
        took: dict[str, float] = {}
        for rank, ready in enumerate(children.ready):
            while not select.select([ready], [], [], 5.0)[0]:
                pass
            line = os.read(ready, 1 << 16)
            os.close(ready)
            if not line:
                code = os.waitstatus_to_exitcode(os.waitpid(children.schedulers[rank], 0)[1])
                self._log.line(f"Rank {rank} scheduler died during initialization (exit code: {code}).")
                self._log.line("Initialization failed. Please see the error messages above.")
                self._kill_tree(include_self=True)
            if rank == 0:
                took = json.loads(line)
        return {**took, "tokenizer_e2e": time.monotonic() - self._began_s}

    def _serve(self, info: ServerInfo, capacity: Capacity, application: type[Application]) -> None:
        import uvicorn
        from uvicorn.config import LOGGING_CONFIG

        from tuner.simulated.standin.frontend import Frontend

        assert self._children is not None
        frontend = Frontend(self._args, capacity, self._children.requests, self._children.texts)
        app = application(info, frontend, self._settings.faults)
        logs = json.loads(json.dumps(LOGGING_CONFIG))
        logs["formatters"]["default"] |= {
            "fmt": "[%(asctime)s] %(levelprefix)s %(message)s",
            "datefmt": "%Y-%m-%d %H:%M:%S",
        }
        access = '[%(asctime)s] %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'
        logs["formatters"]["access"] |= {"fmt": access, "datefmt": "%Y-%m-%d %H:%M:%S", "use_colors": False}
        logs["formatters"]["default"]["use_colors"] = False

        @contextlib.asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            await frontend.start()
            self._watch(app, frontend, server)
            warmup = threading.Thread(
                target=self._warm_up, args=(app, info.model()["has_image_understanding"]), daemon=True
            )
            warmup.start()
            yield
            await asyncio.to_thread(warmup.join)

        config = uvicorn.Config(
            app.asgi(lifespan),
            host=self._args["host"],
            port=self._args["port"],
            log_level="info",
            log_config=logs,
            loop="asyncio",
            http="h11",
            ws="none",
            timeout_keep_alive=5,
        )
        server = uvicorn.Server(config)
        child.prefer()
        server.run()
        if not server.started:  # as uvicorn.run does
            sys.exit(3)

    def _warm_up(self, app: Application, seeing: bool) -> None:
        from tuner.simulated.standin.warmup import warm_up

        def up() -> None:
            app.up = True

        warm_up(self._args, seeing=seeing, up=up, failed=lambda: self._kill_tree(include_self=True))

    def _watch(self, app: Application, frontend: Any, server: Any) -> None:
        """From here on: signals are handled on the loop, and a child that dies ends the server."""
        assert self._children is not None
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()

        def begin(coroutine: Any) -> None:
            task = loop.create_task(coroutine)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        if "ignore_term" in self._settings.faults:
            loop.add_signal_handler(signal.SIGTERM, lambda: None)
        else:
            loop.add_signal_handler(signal.SIGTERM, lambda: begin(self._drain(app, frontend, server)))
        loop.add_signal_handler(signal.SIGQUIT, lambda: begin(self._crash()))
        for pid, name in self._children.names.items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            loop.add_reader(descriptor, self._child_died, loop, descriptor, pid, name, app)

    def _child_died(self, loop: asyncio.AbstractEventLoop, descriptor: int, pid: int, name: str, app: Any) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if app.leaving and code == 0:
            return
        self._log.line(
            f"Subprocess {name} (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup..."
        )
        os.kill(os.getpid(), signal.SIGQUIT)

    async def _crash(self) -> None:
        if self._crashing:
            return
        self._crashing = True
        self._log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        self._log.line("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        await asyncio.sleep(_CRASH_SETTLE_S * self._settings.time_scale)
        self._log.line("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        self._kill_tree(include_self=True)

    async def _drain(self, app: Application, frontend: Any, server: Any) -> None:
        """TERM: waits for the running requests, then ends: by KILL up to 0.5.17, in order after it."""
        if app.leaving:
            return
        app.leaving = True
        self._log.line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        while True:
            await asyncio.sleep(_DRAIN_POLL_S * self._settings.time_scale / 2)
            left = list(frontend.pending)
            self._log.line(
                f"Gracefully exiting... Remaining number of requests {len(left)}. "
                f"Remaining requests remaining_rids={left}."
            )
            if not left:
                break
        if "slow_exit" in self._settings.faults:
            await asyncio.sleep(_SLOW_EXIT_S)
        await asyncio.sleep(_DRAIN_POLL_S * self._settings.time_scale / 2)
        if version_of(self._machine.engine_version) <= (0, 5, 17):
            self._kill_tree(include_self=True)
        server.should_exit = True

    def _failed_launch(self, signum: int, frame: Any) -> NoReturn:
        self._log.line("Received sigquit from a child process. It usually means the child failed.")
        self._kill_tree(include_self=True)
        raise AssertionError("unreachable: the process has killed itself")

    def _kill_tree(self, *, include_self: bool) -> None:
        me = os.getpid()
        self._log.line(f"kill_process_tree called: parent_pid={me}, include_parent={include_self}, pid={me}")
        outlives = "zombie_scheduler" in self._settings.faults
        if self._children is not None:
            for pid, name in self._children.names.items():
                if outlives and name == f"scheduler_{len(self._children.schedulers) - 1}":
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if include_self:
            os.kill(me, signal.SIGKILL)
            time.sleep(60)


def _lose_environment() -> None:
    """Goes on without the NCCL variables, as behind a wrapper that does not pass them on."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    if len(kept) < len(os.environ):
        os.execve(sys.executable, sys.orig_argv, kept)  # noqa: S606


def _set_environment(version: str) -> None:
    """What SGLang puts into the environment of its children."""
    overwrites = version_of(version) <= (0, 5, 4)
    for name in ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"):
        if overwrites or name not in os.environ:
            os.environ[name] = "0"
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "4" if overwrites else "8"
    os.environ["SGLANG_RUN_ID"] = f"sglang-run-{time.time()}-{os.getpid()}"
