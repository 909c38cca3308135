"""A study of any object that can be launched and measured: no host, no engine, no study file."""

from __future__ import annotations

import contextlib
import sys

from rich.console import Console

from tuner.documents.objective import load_objective
from tuner.documents.reading import read_text
from tuner.ports import Target
from tuner.search.search import Search
from tuner.shipped import shipped_file
from tuner.space.load import load_space
from tuner.store.journal import LaunchJournal
from tuner.store.store import Store
from tuner.study.journal import HostJournal
from tuner.study.launcher import Worker
from tuner.study.progress import PlainProgress
from tuner.study.recovery import settle
from tuner.study.result import StageResult
from tuner.study.runner import StageRunner
from tuner.study.stage import Stage
from tuner.values.host import HostAddress, HostFacts
from tuner.values.launch import LaunchBase
from tuner.values.study import Budget, EngineSpec, HostSpec, StageSpec, StudySpec
from tuner.values.workload import Workload

NO_HOST = HostFacts("target", "", "", "", 0, None, (), "", "", None, None)


async def tune(
    target: Target,
    *,
    space: str,
    launches: int,
    name: str,
    objective: str = "throughput.yaml",
    storage: str = "sqlite:///studies/tuner.db",
    confirmation_launches: int = 6,
    seed: int = 0,
) -> StageResult:
    """Searches a space with a target of your own, and confirms the winner.

    Called again with the same name it goes on where it was, and once finished returns the same result: what a target
    would answer now is not known to a database. Another target needs another name.

    Args:
        target: anything with `tuner.ports.Target`'s method.
        space: a search space: a file, or the name of a shipped one. Version guards are not applied.
        launches: how many it may begin in all, `confirmation_launches` included.
        objective: a file, or the name of a shipped one; its metric must be in each measurement.
        name: of the study in the database: one for each target that you tune.
        storage: the database's URL.

    Raises:
        InputError: a file is wrong.
        ControlFailed: the target gives no number for the empty configuration.
        SpecificationChanged: the study of that name was started with another space or objective.
        BudgetSpent: too many launches were lost.
    """
    space_path, objective_path = shipped_file("search_spaces", space), shipped_file("objectives", objective)
    stage = StageSpec(
        name="baseline",
        space=read_text(space_path, space),
        space_name=space,
        objective=read_text(objective_path, objective),
        objective_name=objective,
        confirmation_launches=confirmation_launches,
        seed=seed,
    )
    spec = StudySpec(
        name=name,
        hosts=(HostSpec(HostAddress("target")),),
        engine=EngineSpec("none", LaunchBase(())),
        workload=Workload(),
        budget=Budget(launches),
        stages=(stage,),
    )
    goal = load_objective(stage.objective, objective)
    with contextlib.closing(Store.open(storage)) as store:
        study = store.study(name) or store.create_study(spec)
        settle(store, study)
        progress = PlainProgress(Console(file=sys.stderr))
        if begun := store.counts(study.id).spent:
            progress.say(f"Study {name} of {store.url} goes on: {begun} of {launches} launches were made before.")
        journal = HostJournal(lambda launch: LaunchJournal(store, launch))
        search = Search.open(
            store.secret_url,
            f"{name}/1-baseline",
            space=load_space(stage.space, space).unguarded,
            objective=goal,
            seed=seed,
        )
        with contextlib.closing(search):
            runner = StageRunner(
                Stage(store, study, stage, goal, launches),
                search,
                [Worker("target", target, journal, NO_HOST)],
                progress,
            )
            return await runner.run()
