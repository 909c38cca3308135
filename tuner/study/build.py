"""Where the adapters are built: the only place that knows which class stands behind each port."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

from tuner.cluster.cluster import Cluster
from tuner.documents import secrets
from tuner.engines import engine as engine_named
from tuner.errors import HostRefused
from tuner.launch import EngineTarget
from tuner.ports import Engine, HostSteps
from tuner.simulated.process import start_simulated_host
from tuner.store.journal import LaunchJournal
from tuner.store.rows import StoredStudy
from tuner.store.store import Store
from tuner.study.canaries import reference_answers
from tuner.study.journal import HostJournal
from tuner.study.launcher import Worker
from tuner.study.progress import Progress
from tuner.study.recovery import unproven
from tuner.values.host import HostAddress, HostFacts
from tuner.values.launch import Phase
from tuner.values.study import HostSpec


@dataclass(frozen=True)
class Rack:
    """The hosts of a study, connected and read.

    Attributes:
        workers: one for each host.
        engine: the rules of the study's engine.
        facts: of the hosts, alike in what version guards ask.
    """

    workers: tuple[Worker, ...]
    engine: Engine
    facts: HostFacts


@contextlib.asynccontextmanager
async def open_rack(
    store: Store,
    study: StoredStudy,
    progress: Progress,
    *,
    ray_address: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> AsyncIterator[Rack]:
    """Starts Ray and what hosts are simulated, connects to each host, reads its facts, stops what is left of ours.

    Raises:
        InputError: a secret's variable is not set, or no cluster answers at `ray_address`.
        HostRefused, HostLost: a host cannot be used.
    """
    spec = study.spec
    engine = engine_named(spec.engine.name)
    base = secrets.resolve_launch(spec.engine.launch, environment)
    hidden = secrets.secret_values(spec, environment)
    store.mask = lambda text: secrets.mask(text, hidden)
    cluster = Cluster(ray_address)
    async with cluster:
        addresses = await asyncio.gather(*(address_of(host) for host in spec.hosts))
        steps: list[HostSteps] = [cluster.host(address, engine, spec.engine) for address in addresses]
        try:
            facts = await asyncio.gather(*(step.preflight() for step in steps))
            alike(facts)
            workers = []
            for host, step, found in zip(spec.hosts, steps, facts, strict=True):
                store.record_host(study.id, found)
                name = host.address.name
                left = unproven(store, study, name)
                if left:
                    report = await step.clean(host.port, left)
                    if report.stopped_nonces:
                        progress.say(f"{name}: stopped {len(report.stopped_nonces)} server(s) that we had left there")
                journal = HostJournal(
                    lambda launch: LaunchJournal(store, launch),
                    on_phase=lambda phase, name=name: progress.phase(name, phase),  # type: ignore[misc]
                )
                target = EngineTarget(
                    name,
                    step,
                    engine,
                    spec.engine,
                    base,
                    host.port,
                    journal,
                    on_stage=lambda stage, name=name: progress.phase(name, Phase.READY, stage),  # type: ignore[misc]
                    reference=lambda: reference_answers(store, study.id),
                )
                workers.append(Worker(name, target, journal, found))
            yield Rack(tuple(workers), engine, facts[0])
        finally:
            await asyncio.gather(*(step.close() for step in steps), return_exceptions=True)


async def address_of(host: HostSpec) -> HostAddress:
    """The address of a host; a simulated one is started first. From here on they are alike."""
    if host.simulated is None:
        return host.address
    address, _ = await start_simulated_host(host.simulated)
    return replace(address, name=host.address.name)


def alike(facts: list[HostFacts]) -> None:
    """Checks that the hosts of one study can be compared.

    Raises:
        HostRefused: engine, NCCL or the number of GPUs differ.
    """
    first = facts[0]
    for other in facts[1:]:
        for what in ("engine_version", "nccl_version", "simulated"):
            if getattr(first, what) != getattr(other, what):
                raise HostRefused(
                    other.name,
                    f"its {what.replace('_', ' ')} is {getattr(other, what)}, that of {first.name} is "
                    f"{getattr(first, what)}. One study compares like with like: give each kind a study of its own.",
                )
        if len(first.gpus) != len(other.gpus):
            raise HostRefused(
                other.name,
                f"it has {len(other.gpus)} GPUs, {first.name} has {len(first.gpus)}. One study compares like with "
                "like: give each kind a study of its own.",
            )
