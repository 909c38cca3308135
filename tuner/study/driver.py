"""Driving a study to its end: the database, the lease, the hosts, the stages, the result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console

from tuner.documents import secrets
from tuner.documents.objective import load_objective
from tuner.search.search import Search
from tuner.store.rows import StoredStudy
from tuner.store.store import Store
from tuner.study.build import Rack, open_rack
from tuner.study.holding import holding
from tuner.study.interrupt import Interrupt
from tuner.study.options import Options
from tuner.study.output import print_result, report_of
from tuner.study.progress import LiveProgress, PlainProgress, Progress
from tuner.study.recovery import settle
from tuner.study.report import markdown
from tuner.study.result import StageResult, StudyResult
from tuner.study.runner import StageRunner
from tuner.study.selection import optuna_name, resumed, space_of, stage_launches, started
from tuner.study.stage import Stage
from tuner.study.winner import Winner
from tuner.values.json import to_json
from tuner.values.study import StudySpec


async def drive(
    spec: StudySpec | None, storage: str, options: Options, environment: Mapping[str, str], out: Console
) -> None:
    """Starts a study or goes on with it, and prints its result; a finished one is only printed.

    Args:
        spec: what the files say; ``None``: the study that ``--resume`` names.
        storage: the database's URL, a password in it as it is or as a reference.
        out: where results go.
    """
    with contextlib.closing(Store.open(secrets.resolve_url(storage, environment))) as store:
        study, wanted = resumed(store, options) if spec is None else started(store, spec, options)
        terminal = Console(stderr=True, highlight=False, markup=False)
        if study.result is None or wanted != study.spec:
            with progress_on(terminal) as progress:
                study = await run_study(store, study, wanted, options, environment, progress)
        else:
            terminal.print(finished_before(store, study), soft_wrap=True)
        print_result(store, study, out)


def finished_before(store: Store, study: StoredStudy) -> str:
    """What a person must know who gave the command of a finished study."""
    ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(study.updated_unix_s))
    spent = store.counts(study.id).spent
    return (
        f"Study {study.name} finished on {ended} after {spent} launches; nothing was run now. "
        "--new starts another; for a larger budget, --new with --trials."
    )


@contextlib.contextmanager
def progress_on(console: Console) -> Iterator[Progress]:
    """Live progress where the console is a terminal, lines elsewhere."""
    if console.is_terminal:
        with LiveProgress(console) as live:
            yield live
    else:
        yield PlainProgress(console)


async def run_study(
    store: Store,
    study: StoredStudy,
    wanted: StudySpec,
    options: Options,
    environment: Mapping[str, str],
    progress: Progress,
) -> StoredStudy:
    """Runs a study's stages to their end and stores the result; counts the time whatever happens.

    Args:
        wanted: the specification to go on with.

    Raises:
        StudyHeld: another driver runs it.
    """
    async with holding(store, study, progress):
        if wanted != study.spec:
            store.replace_spec(study.name, wanted)
        study = store.study(study.name) or study  # as it is now that nobody else works on it
        if study.result is not None:
            return study
        greet(store, study, progress)
        began = time.monotonic()

        def seconds_left() -> float | None:
            hours = study.spec.budget.hours
            return None if hours is None else hours * 3600 - study.spent_s - (time.monotonic() - began)

        try:
            with Interrupt(progress) as interrupt:
                async with open_rack(
                    store, study, progress, ray_address=options.ray_address, environment=environment
                ) as rack:
                    interrupt.listen()
                    announce(rack, progress)
                    results = [
                        await run_stage(store, study, rack, index, options, progress, seconds_left)
                        for index in range(len(study.spec.stages))
                    ]
                    store.set_result(study.name, to_json(StudyResult(tuple(results))))
        finally:
            store.add_seconds(study.name, time.monotonic() - began)
    return store.study(study.name) or study


def greet(store: Store, study: StoredStudy, progress: Progress) -> None:
    """Settles what a dead driver left, and says what is about to happen."""
    sentences = settle(store, study)
    begun = store.counts(study.id).spent
    what = f"goes on after {begun} of {study.spec.budget.launches} launches" if begun else "begins"
    progress.say(f"Study {study.name} {what}: starting Ray, connecting to {len(study.spec.hosts)} host(s) ...")
    for sentence in sentences:
        progress.say(sentence)


def announce(rack: Rack, progress: Progress) -> None:
    """Says what was found on the hosts."""
    for worker in rack.workers:
        facts = worker.facts
        gpus = f"{len(facts.gpus)} × {facts.gpus[0].name}" if facts.gpus else "no GPU"
        simulated = f"SIMULATED {facts.simulated}: " if facts.simulated else ""
        versions = (
            f"{facts.engine} {facts.engine_version or '(version unknown)'}, NCCL {facts.nccl_version or 'unknown'}"
        )
        progress.say(f"{worker.name}: {simulated}{gpus}, {versions}")


async def run_stage(
    store: Store,
    study: StoredStudy,
    rack: Rack,
    index: int,
    options: Options,
    progress: Progress,
    seconds_left: Callable[[], float | None],
) -> StageResult:
    """Runs one stage on the rack."""
    stage = study.spec.stages[index]
    objective = load_objective(stage.objective, stage.objective_name)
    offered = space_of(stage).offered(*(worker.facts for worker in rack.workers))
    for note in offered.withheld:
        progress.say(f"not offered here: {note}")
    winner = Winner(rack.engine, rack.facts, study.spec.engine.launch)
    search = Search.open(
        store.secret_url,
        optuna_name(study.name, index, stage),
        space=offered,
        objective=objective,
        seed=stage.seed,
        accept_changes=options.accept_changes,
    )
    with contextlib.closing(search):
        runner = StageRunner(
            Stage(
                store=store,
                study=study,
                spec=stage,
                objective=objective,
                launches=stage_launches(study.spec.budget.launches, len(study.spec.stages), index),
                seconds_left=seconds_left,
            ),
            search,
            rack.workers,
            progress,
            vet=winner.refused,
            simplify=winner.simplified,
        )
        result = await runner.run()
        search.note(markdown(report_of(store, study, index, result)))
    return result
