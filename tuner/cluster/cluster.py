"""Starting Ray, or joining the cluster that one was pointed at; never any other."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tuner.errors import InputError
from tuner.ports import Engine
from tuner.values.host import HostAddress
from tuner.values.study import EngineSpec

QUIET_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    # A local cluster lives on loopback and dies with us. Unset, Ray may write a token into the home directory, and
    # drivers without a mode then fail after 20 s.
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_METRICS_EXPORT_ENABLED": "0",
}
"""Set before Ray is imported, where the user has not set them."""

DIRECTORY_PREFIX = "tuner-ray-"
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

    async def __aenter__(self) -> Cluster:
        for name, value in QUIET_ENVIRONMENT.items():
            if self._address is None or not name.startswith("RAY_AUTH"):
                os.environ.setdefault(name, value)
        with stdout_to_stderr():
            self._init()
        return self

    def _init(self) -> None:
        import ray

        common: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "namespace": "tuner",
            "runtime_env": {"env_vars": {"PYTHONPATH": worker_path()}},
        }
        if self._address is None:
            remove_stale_directories()
            # Short: Unix sockets below it must stay under 107 characters.
            self._directory = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY_PREFIX}{os.getpid()}-"))
            ray.init(
                "local",
                include_dashboard=False,
                num_cpus=1,
                num_gpus=0,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(self._directory),
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

    def host(self, address: HostAddress, engine: Engine, spec: EngineSpec) -> Any:
        """Starts the actor of a host; returns its steps (`tuner.ports.HostSteps`).

        On a cluster that has the custom resource ``gpu_host:NAME`` the actor is placed by it.
        """
        import ray

        from tuner.cluster.actor import HostActor
        from tuner.cluster.ray_host import RayHost

        resource = f"gpu_host:{address.name}"
        has: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        resources = {resource: 1} if resource in has else {}
        # No restarts, no retries: a step that was cut short must be decided on by the driver, not run again.
        actor = (
            ray.remote(HostActor)
            .options(num_cpus=0, resources=resources, max_restarts=0, max_task_retries=0)
            .remote(address, engine, spec)
        )
        return RayHost(address.name, actor)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        with stdout_to_stderr():
            ray.shutdown()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def worker_path() -> str:
    """``PYTHONPATH`` for workers: the directory that holds this package, then the user's own."""
    ours = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(part for part in (ours, os.environ.get("PYTHONPATH", "")) if part)


def remove_stale_directories() -> None:
    """Removes the directories that drivers ended with ``kill -9`` left behind: ours, their process gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
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
