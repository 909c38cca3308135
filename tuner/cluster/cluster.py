"""Starting Ray, or joining the cluster that one was pointed at; never any other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError
from tuner.ports import Engine
from tuner.values.host import HostAddress
from tuner.values.study import EngineSpec

if TYPE_CHECKING:
    from tuner.cluster.ray_host import RayHost

QUIET_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_metrics_collection": "0",
}
"""Set before Ray is imported, where the user has not set them."""

LOCAL_ENVIRONMENT = {
    # Ray's name for it notwithstanding: the node's address stays 127.0.0.1 instead of becoming one that the network
    # can reach.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray runs what it is sent, and some of its sockets listen on every interface whatever the address.
    "RAY_AUTH_MODE": "token",
}
"""Set for a cluster of our own, whatever the user has set: who has no token gets no answer."""

DIRECTORY_PREFIX = "tuner-ray-"
LONGEST_DIRECTORY = 30
START_LIMIT_S = 60.0
PROBE_LIMIT_S = 5.0
OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's smallest; we send values of kilobytes."""


class Cluster:
    """An ``async with`` around Ray: a local one of its own, or the one at `address`.

    Args:
        address: of a running cluster (``host:port``); ``None`` starts a local one that ends with this process.

    Raises:
        InputError: on entry, no cluster answers at `address`.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._directory: Path | None = None
        self._output: contextlib.AbstractContextManager[None] | None = None

    async def __aenter__(self) -> Cluster:
        for name, value in QUIET_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # Ray writes to stdout when one of its processes dies, whatever it was told: results alone belong there.
        self._output = stdout_to_stderr()
        self._output.__enter__()
        try:
            if self._address is None:
                self._prepare_directory()
            else:
                await probe(self._address)
            # In a thread: it blocks for seconds, and for ever where a cluster half answers.
            await asyncio.wait_for(asyncio.to_thread(self._init), START_LIMIT_S)
        except BaseException as error:
            await self.__aexit__(None, None, None)
            if isinstance(error, TimeoutError):
                raise InputError(
                    f"Ray did not start within {START_LIMIT_S:g} s; its logs are in {self._directory}"
                ) from None
            raise
        return self

    def _prepare_directory(self) -> None:
        """A directory of our own with a token for this run."""
        remove_stale_directories()
        self._directory = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY_PREFIX}{os.getpid()}-", dir=short_directory()))
        token = self._directory / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ.update(LOCAL_ENVIRONMENT)
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
        os.environ.pop("RAY_AUTH_TOKEN", None)

    def _init(self) -> None:
        import ray

        common: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "namespace": "tuner",
            "runtime_env": {"env_vars": {"PYTHONPATH": worker_path()}},
        }
        if self._directory is not None:
            ray.init(
                "local",
                include_dashboard=False,
                num_cpus=1,
                num_gpus=0,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(self._directory / "ray"),  # Ray opens it to everybody
                _node_ip_address="127.0.0.1",
                **common,
            )
            return
        try:
            ray.init(self._address, **common)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(
                f"--ray-address {self._address}: no Ray cluster answers there ({str(error).splitlines()[0]}). "
                "Start one with `ray start --head`, or leave the option out to use a local one."
            ) from error

    def host(self, address: HostAddress, engine: Engine, spec: EngineSpec) -> RayHost:
        """The steps of a host, done by an actor of its own.

        On a cluster that has the custom resource ``gpu_host:NAME`` the actor is placed by it.
        """
        import ray

        from tuner.cluster.actor import HostActor
        from tuner.cluster.ray_host import RayHost

        def start() -> Any:
            resource = f"gpu_host:{address.name}"
            has: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            # No restarts, no retries: a step that was cut short must be decided on by the driver, not run again.
            return (
                ray.remote(HostActor)
                .options(
                    num_cpus=0,
                    resources={resource: 1} if resource in has else {},
                    max_restarts=0,
                    max_task_retries=0,
                )
                .remote(address, engine, spec)
            )

        return RayHost(address.name, start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        if self._output is not None:
            self._output.__exit__(None, None, None)
            self._output = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


async def probe(address: str) -> None:
    """Finds out whether something listens at a cluster's address: Ray itself would wait for it for ever.

    Raises:
        InputError: nothing does, or the address is none.
    """
    name, _, port = address.removeprefix("ray://").rpartition(":")
    if not name or not port.isdigit():
        raise InputError(f"--ray-address {address}: HOST:PORT is expected, such as 127.0.0.1:6379")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(name, int(port)), PROBE_LIMIT_S)
    except (OSError, TimeoutError) as error:
        raise InputError(
            f"--ray-address {address}: nothing answers there ({error or 'no answer'}). Start a cluster with "
            "`ray start --head`, or leave the option out to use a local one."
        ) from None
    writer.close()


def short_directory() -> str:
    """Where the directory goes: Unix sockets deep below it must stay under 107 characters."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_DIRECTORY else "/tmp"  # noqa: S108


def worker_path() -> str:
    """``PYTHONPATH`` for workers: the directory that holds this package, then the user's own."""
    ours = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(part for part in (ours, os.environ.get("PYTHONPATH", "")) if part)


def remove_stale_directories() -> None:
    """Removes the directories that drivers ended with ``kill -9`` left behind: ours, their process gone."""
    for path in Path(short_directory()).glob(f"{DIRECTORY_PREFIX}*"):
        pid = path.name.removeprefix(DIRECTORY_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and path.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Sends what Ray's native code writes to file descriptor 1 to 2: results alone go to stdout."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
