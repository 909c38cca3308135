"""Which study a command is about, and with which specification it goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.documents.differences import differences
from tuner.documents.objective import load_objective
from tuner.documents.reading import read_text
from tuner.documents.study_file import load_study
from tuner.engines import engine as engine_named
from tuner.errors import InputError, SpecificationChanged
from tuner.shipped import shipped_file
from tuner.space.load import load_space
from tuner.space.space import SearchSpace
from tuner.study.options import DEFAULT_STUDY, Options
from tuner.values.study import Budget, StageSpec, StudySpec

if TYPE_CHECKING:
    from tuner.store.rows import StoredStudy
    from tuner.store.store import Store


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


def optuna_name(study: str, index: int, stage: StageSpec) -> str:
    """The name of a stage's Optuna study: ``NAME/1-baseline``."""
    return f"{study}/{index + 1}-{stage.name}"


def stage_launches(total: int, stages: int, index: int) -> int:
    """A stage's share of the study's launches: equal parts, the remainder to the first."""
    share, rest = divmod(total, stages)
    return share + (rest if index == 0 else 0)
