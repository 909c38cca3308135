"""A study on a `SurfaceHost`: everything real but the host. Shared by tests, in process and as a child process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from tuner.documents.objective import load_objective
from tuner.engines import engine
from tuner.launch import EngineTarget
from tuner.search.search import Search
from tuner.space.load import load_space
from tuner.store.journal import LaunchJournal
from tuner.store.store import Store
from tuner.study.canaries import reference_answers
from tuner.study.journal import HostJournal
from tuner.study.launcher import Worker
from tuner.study.progress import PlainProgress
from tuner.study.recovery import settle, unproven
from tuner.study.result import StageResult
from tuner.study.runner import StageRunner
from tuner.study.stage import Stage
from tuner.study.winner import Winner
from tuner.testing import SurfaceHost, two_gpus
from tuner.values.failure import Failure, FailureClass
from tuner.values.host import HostAddress
from tuner.values.launch import LaunchBase, LaunchCommand
from tuner.values.measurement import TunnelLag
from tuner.values.study import Budget, EngineSpec, HostSpec, StageSpec, StudySpec
from tuner.values.workload import Workload

SPACE = """
env:
  NCCL_PROTO: {choices: [null, LL, LL128, Simple]}
  NCCL_ALGO: {choices: [null, Ring, "allreduce:tree"]}
  NCCL_MAX_NCHANNELS: {choices: [null, 2, 4]}
try_first:
  - {name: default, set: {}}
  - {name: LL, set: {NCCL_PROTO: LL}}
"""
OBJECTIVE = "metric: output_tok_s\n"
BASE = LaunchBase(("python3", "-m", "sglang.launch_server"), (("model-path", "m"), ("tp-size", 2)))


def spec(name: str = "double", launches: int = 16, hosts: Sequence[str] = ("one",), **budget: int) -> StudySpec:
    return StudySpec(
        name=name,
        hosts=tuple(HostSpec(HostAddress(host), port=30000) for host in hosts),
        engine=EngineSpec("sglang", BASE),
        workload=Workload(windows=2, output_tokens=8),
        budget=Budget(launches, **budget),
        stages=(StageSpec("baseline", SPACE, "small.yaml", OBJECTIVE, "throughput.yaml", 6),),
    )


def proto_matters(command: LaunchCommand) -> float | Failure:
    """LL is 20 % faster, Simple 10 % slower, LL128 crashes; nothing else matters."""
    proto = dict(command.env).get("NCCL_PROTO")
    if proto == "LL128":
        return Failure(FailureClass.NCCL_REFUSED, "ready", "NCCL error: invalid usage")
    return {None: 100.0, "LL": 120.0, "Simple": 90.0}[proto]


@dataclass
class Bench:
    """A study on doubles, runnable again and again on one database."""

    url: str
    spec: StudySpec
    surface: Callable[[LaunchCommand], float | Failure] = proto_matters
    launch_cv: float = 0.0
    lag: TunnelLag | None = None
    corrupted: Callable[[LaunchCommand], bool] = lambda command: False
    before: Callable[[str, str], None] = lambda host, step: None
    hosts: dict[str, SurfaceHost] = field(default_factory=dict)
    seconds_left: Callable[[], float | None] = lambda: None
    out: Console = field(default_factory=lambda: Console(quiet=True))

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        with contextlib.closing(Store.open(self.url)) as store:
            yield store

    async def run(self) -> StageResult:
        """One run of the driver, as `tuner.study.cli` does it, to the end of the stage."""
        with self.store() as store:
            study = store.study(self.spec.name) or store.create_study(self.spec)
            settle(store, study)
            stage = study.spec.stages[0]
            objective = load_objective(stage.objective, stage.objective_name)
            facts = two_gpus("double")
            rules = engine("sglang")
            winner = Winner(rules, facts, BASE)
            workers = [self._worker(store, study.id, host) for host in study.spec.hosts]
            for worker in workers:
                unproven(store, study, worker.name)
            search = Search.open(
                store.secret_url,
                f"{study.name}/1-baseline",
                space=load_space(stage.space, stage.space_name).offered(facts),
                objective=objective,
                seed=stage.seed,
            )

            async def no_pause(_: float) -> None:
                await asyncio.sleep(0)

            with contextlib.closing(search):
                return await StageRunner(
                    Stage(store, study, stage, objective, study.spec.budget.launches, self.seconds_left),
                    search,
                    workers,
                    PlainProgress(self.out),
                    vet=winner.refused,
                    simplify=winner.simplified,
                    pause=no_pause,
                ).run()

    def _worker(self, store: Store, study_id: int, host: HostSpec) -> Worker:
        name = host.address.name
        steps = SurfaceHost(
            self.surface,
            launch_cv=self.launch_cv,
            seed=len(store.launches(study_id)),
            before=lambda step: self.before(name, step),
            lag=self.lag,
            corrupted=self.corrupted,
        )
        self.hosts[name] = steps
        journal = HostJournal(lambda launch: LaunchJournal(store, launch))
        target = EngineTarget(
            name,
            steps,
            engine("sglang"),
            self.spec.engine,
            BASE,
            30000,
            journal,
            reference=lambda: reference_answers(store, study_id),
        )
        return Worker(name, target, journal, two_gpus(name))


def url(directory: Path) -> str:
    return f"sqlite:///{directory / 'tuner.db'}"
