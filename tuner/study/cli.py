"""``python -m tuner.study``: from files or the database to a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tuner.documents import secrets
from tuner.documents.objective import load_objective
from tuner.documents.reading import read_text
from tuner.documents.study_file import differences, load_study
from tuner.engines import engine as engine_named
from tuner.errors import (
    BudgetSpent,
    ForeignServer,
    HostLost,
    HostRefused,
    InputError,
    SpecificationChanged,
    StoreError,
)
from tuner.search.search import Search
from tuner.shipped import shipped_file
from tuner.space.load import load_space
from tuner.space.space import SearchSpace
from tuner.store.rows import StoredStudy
from tuner.store.store import Store
from tuner.study.build import Rack, open_rack
from tuner.study.dry_run import dry_run
from tuner.study.holding import holding
from tuner.study.options import (
    DEFAULT_STORAGE,
    DEFAULT_STUDY,
    EXIT_INFEASIBLE,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    Options,
)
from tuner.study.progress import LiveProgress, PlainProgress, Progress
from tuner.study.recovery import settle
from tuner.study.report import Report, markdown, show
from tuner.study.result import StageResult, StudyResult
from tuner.study.runner import ControlFailed, StageRunner
from tuner.study.stage import Stage, stage_launches
from tuner.study.winner import Winner
from tuner.values.json import from_json, to_json
from tuner.values.study import Budget, StageSpec, StudySpec

REPORT_MARK = "<!-- written by llm-server-tuner; changes are lost -->\n\n"


def command(options: Options) -> int:
    """Runs the command; returns its exit status. Results go to stdout, everything else to stderr."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        return asyncio.run(run(options, os.environ))
    except (KeyboardInterrupt, asyncio.CancelledError):
        errors.print("Interrupted. The study can be resumed: give the same command again.")
        return EXIT_INTERRUPTED
    except (InputError, SpecificationChanged) as error:
        errors.print(f"error: {error}")
        return EXIT_INPUT
    except ControlFailed as error:
        errors.print(f"error: {error}")
        return EXIT_INFEASIBLE
    except (BudgetSpent, StoreError) as error:
        errors.print(f"error: {error}")
        return EXIT_STOPPED
    except (ForeignServer, HostRefused, HostLost) as error:
        errors.print(f"error: {error}\nThe study can be resumed: give the same command again.")
        return EXIT_STOPPED
    except BrokenPipeError:
        # Who read our output has gone, as `head` does; what was found is in the database and in the report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_OK


async def run(options: Options, environment: Mapping[str, str]) -> int:
    """Loads, decides whether to start, resume or only print, and runs.

    Raises:
        TunerError: as `command` maps them to exit statuses.
    """
    out = results_console()
    if options.resume is None:
        spec, storage = specified(options)
        check(spec)
        if options.dry_run:
            dry_run(spec, out)
            return EXIT_OK
    else:
        spec, storage = None, options.storage or DEFAULT_STORAGE
    with contextlib.closing(Store.open(secrets.resolve_url(storage, environment))) as store:
        study, wanted = resumed(store, options) if spec is None else started(store, spec, options)
        terminal = Console(stderr=True, highlight=False, markup=False)
        if study.result is None or wanted != study.spec:
            with progress_on(terminal) as progress:
                study = await run_study(store, study, wanted, options, environment, progress)
        else:
            terminal.print(finished_before(store, study), soft_wrap=True)
        print_result(store, study, out)
    return EXIT_OK


def results_console() -> Console:
    """Where results go: stdout, wide where it is no terminal; nowhere if it was closed. No character is an error."""
    if sys.stdout is None:
        return Console(file=io.StringIO(), highlight=False, markup=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)


def finished_before(store: Store, study: StoredStudy) -> str:
    """What a person must know who gave the command of a finished study."""
    ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(study.updated_unix_s))
    spent = store.counts(study.id).spent
    return (
        f"Study {study.name} finished on {ended} after {spent} launches; nothing was run now. "
        "--new starts another; for a larger budget, --new with --trials."
    )


def specified(options: Options) -> tuple[StudySpec, str]:
    """The specification that files and options describe, and the storage URL."""
    path = shipped_file("studies", options.study or DEFAULT_STUDY)
    spec, storage = load_study(read_text(path, str(path)), str(path), space=options.space, objective=options.objective)
    spec = replace(spec, budget=budget_of(spec, options))
    if options.seed is not None:
        stages = tuple(replace(stage, seed=options.seed) for stage in spec.stages)
        spec = replace(spec, stages=stages, workload=replace(spec.workload, seed=options.seed))
    return spec, options.storage or storage


def budget_of(spec: StudySpec, options: Options) -> Budget:
    """The specification's budget with what the command line says."""
    budget = spec.budget
    if options.launches is not None:
        budget = replace(budget, launches=options.launches)
    if options.lost_launches is not None:
        budget = replace(budget, lost_launches=options.lost_launches)
    return budget


def check(spec: StudySpec) -> None:
    """Checks all that can be checked without a host.

    Raises:
        InputError: a space sets what a space must not, or a file is wrong.
    """
    engine = engine_named(spec.engine.name)
    problems: list[str] = list(engine.launch_problems(spec.engine.launch))
    for index, stage in enumerate(spec.stages):
        space = space_of(stage)
        load_objective(stage.objective, stage.objective_name)
        found = engine.problems(space.env_names, space.arg_names, spec.engine.launch.allow)
        problems += [f"{stage.space_name}: {problem}" for problem in found]
        launches = stage_launches(spec.budget.launches, len(spec.stages), index)
        if launches < stage.confirmation_launches + 2:
            problems.append(
                f"budget: {launches} launches for stage {stage.name}, of which {stage.confirmation_launches} are kept "
                f"for confirmation: at least {stage.confirmation_launches + 2} are needed. Give more (`launches:` of "
                "`budget:`, or --trials), or lower `confirmation_launches:` of the stage."
            )
    if problems:
        raise InputError(problems)


def space_of(stage: StageSpec) -> SearchSpace:
    """The stage's search space."""
    return load_space(stage.space, stage.space_name)


def resumed(store: Store, options: Options) -> tuple[StoredStudy, StudySpec]:
    """The stored study that ``--resume`` names, and the specification to go on with: its own, or a larger budget.

    Raises:
        InputError: there is none of that name.
    """
    study = store.study(options.resume or "")
    if study is None:
        names = ", ".join(row.name for row in store.studies()) or "none"
        raise InputError(f"--resume {options.resume}: {store.url} has no such study; it has: {names}.")
    if study.result is not None:
        return study, study.spec
    wanted = replace(study.spec, budget=budget_of(study.spec, options))
    check(wanted)
    return study, wanted


def started(store: Store, spec: StudySpec, options: Options) -> tuple[StoredStudy, StudySpec]:
    """The study to work on, new or stored, and the specification to go on with.

    Raises:
        SpecificationChanged: the stored one was started with another specification.
    """
    existing = store.study(spec.name)
    if existing is None:
        return store.create_study(spec), spec
    if options.new:
        spec = replace(spec, name=store.fresh_name(spec.name))
        return store.create_study(spec), spec
    changed = differences(existing.spec, spec)
    if not changed and existing.result is not None:
        return existing, existing.spec  # a finished study is not touched: not its budget either
    if changed and not options.accept_changes:
        raise SpecificationChanged(spec.name, changed)
    if changed and differences(measured_alike(existing.spec, spec), spec):
        raise SpecificationChanged(spec.name, changed, acceptable=False)
    return existing, spec


def measured_alike(old: StudySpec, new: StudySpec) -> StudySpec:
    """The old specification with all of the new one that leaves what was measured comparable: stages, budget, patience.

    Not with its launch, workload, hosts or engine: another control makes the old one's numbers meaningless.
    """
    launch = replace(
        new.engine.launch,
        command=old.engine.launch.command,
        args=old.engine.launch.args,
        env=old.engine.launch.env,
    )
    engine = replace(new.engine, name=old.engine.name, launch=launch)
    return replace(old, stages=new.stages, budget=new.budget, engine=engine)


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


def optuna_name(study: str, index: int, stage: StageSpec) -> str:
    """The name of a stage's Optuna study: ``NAME/1-baseline``."""
    return f"{study}/{index + 1}-{stage.name}"


def report_of(store: Store, study: StoredStudy, index: int, result: StageResult) -> Report:
    """The report of a stage from what the database holds."""
    stage = study.spec.stages[index]
    facts = store.hosts(study.id)[0]
    winner = Winner(engine_named(study.spec.engine.name), facts, study.spec.engine.launch)
    return Report(
        study=study.name,
        result=result,
        objective=load_objective(stage.objective, stage.objective_name),
        facts=facts,
        launches=store.launches(study.id, stage.name),
        command=winner.command(result.configuration),
        storage=store.url,
    )


def print_result(store: Store, study: StoredStudy, out: Console) -> None:
    """Writes a finished study's reports beside the database, and prints them."""
    assert study.result is not None
    reports = [
        report_of(store, study, index, result)
        for index, result in enumerate(from_json(StudyResult, study.result).stages)
    ]
    written = write_reports(store, study, reports)
    for report in reports:
        show(report, out)
    if written:
        out.print(written, soft_wrap=True)


def write_reports(store: Store, study: StoredStudy, reports: list[Report]) -> str:
    """Writes the reports as Markdown; returns where, in words. A file that is not ours is left as it is."""
    if store.directory is None:
        return ""
    path = store.directory / f"{study.name}.md"
    try:
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(REPORT_MARK):
            return f"Report: not written, {shown_path(path)} is a file of yours"
        path.write_text(REPORT_MARK + "\n".join(markdown(report) for report in reports), encoding="utf-8")
    except OSError as error:
        return f"Report: not written ({error})"
    return f"Report: {shown_path(path)}"


def shown_path(path: Path) -> str:
    """A path as short as it can be typed from here."""
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


class Interrupt:
    """Ctrl-C, TERM and a closed terminal cancel the study, which stops its servers; a second one leaves them to their
    leases."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._seen = False

    def listen(self) -> None:
        """Installs the handlers for the current task. Again after Ray has started: it installs its own."""
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in self.SIGNALS:
            loop.remove_signal_handler(number)
            loop.add_signal_handler(number, self._stop, task)

    def _stop(self, task: asyncio.Task[object] | None) -> None:
        if self._seen:
            os._exit(EXIT_INTERRUPTED)
        self._seen = True
        self._progress.say(
            "Stopping the server and proving it gone; the study stays resumable. Once more leaves it to its lease."
        )
        if task is not None:
            task.cancel()

    def __enter__(self) -> Interrupt:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number in self.SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
