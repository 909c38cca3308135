"""The search of one stage: an Optuna study that is asked and told, and survives its driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import optuna
import optuna_dashboard
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from tuner.errors import InputError
from tuner.search.lineage import CONFIGURATION, OUTCOME, SUPERSEDED, TRY_FIRST, fitting, started
from tuner.search.outcome import LAUNCH, RULES, Outcome, feasible, settled
from tuner.search.sampler import STARTUP_TRIALS, sampler_seed, tpe
from tuner.search.specification import Objective, Specification
from tuner.search.storage import database_errors, open_storage
from tuner.space.offered import OfferedSpace
from tuner.values.configuration import Configuration, Scalar

_ENQUEUED = "tuner:try first enqueued"
_ATTEMPT = "attempt"
_MAX_CONSTRAINT = 400
"""Characters of a constraint's name; Optuna's column for it, prefix included, has 512."""


@dataclass(frozen=True)
class Proposal:
    """A configuration to launch.

    Attributes:
        number: of the trial.
        values: the assignment in the space.
        broken_rules: rules of the space that it breaks, in words: to be told, not launched.
        name: of the ``try_first`` that it is, or ``None``.
        repeat_of: number of an earlier told trial with the same configuration, or ``None``.
    """

    number: int
    values: Mapping[str, Scalar]
    configuration: Configuration
    broken_rules: tuple[str, ...]
    name: str | None
    repeat_of: int | None


class TrialState(StrEnum):
    """Where a trial is. *Superseded*: of an earlier specification, kept so that numbers go on."""

    WAITING = "waiting"
    RUNNING = "running"
    TOLD = "told"
    SUPERSEDED = "superseded"


@dataclass(frozen=True)
class TrialRow:
    """A trial as a report shows it.

    Attributes:
        configuration: ``None`` while it has not been drawn whole.
        value: as measured; ``None`` for a failure, whatever Optuna was told.
        constraints: empty unless told.
        feasible: measured, and no constraint is violated.
    """

    number: int
    state: TrialState
    configuration: Configuration | None
    value: float | None
    constraints: Mapping[str, float]
    feasible: bool
    name: str | None
    attributes: Mapping[str, str]


class Search:
    """An Optuna study in our terms. One driver at a time; calls are short and durable when they return.

    Every method may raise `StoreError`: the database has gone.
    """

    def __init__(
        self,
        url: str,
        storage: optuna.storages.RDBStorage,
        study: optuna.Study,
        space: OfferedSpace,
        objective: Objective,
    ) -> None:
        self._url = url
        self._storage = storage
        self._study = study
        self._study_id = storage.get_study_id_from_name(study.study_name)
        self._space = space
        self._objective = objective
        self._maximize = objective.direction == "maximize"

    @classmethod
    def open(
        cls,
        store_url: str,
        name: str,
        *,
        space: OfferedSpace,
        objective: Objective,
        seed: int,
        worker: int = 0,
        attempt: int = 0,
        n_startup: int = STARTUP_TRIALS,
        accept_changes: bool = False,
    ) -> Search:
        """Starts the search of that name, or goes on with it.

        Args:
            store_url: `tuner.store.Store.secret_url`: the store prepares the database.
            name: of the Optuna study, such as ``kimi/1-baseline``.
            seed: of the study. Samplers get a hash of it, `worker` and the attempt.
            worker: of several drivers of one study.
            attempt: at least this one; each opening counts up from the last by itself.
            n_startup: told trials before the model is used.
            accept_changes: go on with another space or objective. What was told then and still means the same is
                kept; other trials stay as numbers only.

        Raises:
            SpecificationChanged: the search was started with another space or objective.
            StoreError: the database cannot be used.
            InputError: a constraint's name cannot be stored, or a ``try_first`` is not in the space.
        """
        _check(objective, space)
        wanted = Specification.of(objective, space)
        storage = open_storage(store_url)
        with database_errors(store_url):
            study = started(storage, name, objective, wanted, space, accept_changes)
            search = cls(store_url, storage, study, space, objective)
            attempt = max(attempt, int(study.user_attrs.get(_ATTEMPT, -1)) + 1)
            study.set_user_attr(_ATTEMPT, attempt)
            study.sampler = tpe(sampler_seed(seed, worker, attempt), n_startup)
            search._enqueue_first()
            for trial in study.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
                if OUTCOME in trial.system_attrs:  # killed in the middle of `tell`
                    search._write(trial.number, Outcome.from_json(trial.system_attrs[OUTCOME]))
        return search

    def close(self) -> None:
        """Lets the connections go. Nothing is lost."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def name(self) -> str:
        """Of the Optuna study, as the dashboard lists it."""
        return self._study.study_name

    @property
    def constraints(self) -> tuple[str, ...]:
        """Names that `tell` wants for a measured trial: the objective's own."""
        return self._objective.constraints

    def running(self) -> tuple[Proposal, ...]:
        """The trials that were asked for and not told: under way, or left by a driver that died.

        Each keeps its number. One whose parameters were not all drawn yet gets the rest of them now.
        """
        with database_errors(self._url):
            running = self._study.get_trials(deepcopy=False, states=(OptunaState.RUNNING,))
            return tuple(self._proposal(optuna.Trial(self._study, self._trial_id(trial.number))) for trial in running)

    def ask(self) -> Proposal:
        """The next configuration: what is to be tried first, then what the sampler proposes."""
        with database_errors(self._url):
            return self._proposal(self._study.ask())

    def tell(
        self, number: int, *, value: float | None, constraints: Mapping[str, float], attributes: Mapping[str, str]
    ) -> bool:
        """Tells how a trial ended, once.

        A failure is told too, as the worst value so far and infeasible: what a sampler never hears of it proposes
        again. While nothing was measured there is no worst value, and the trial is only marked as failed.

        Args:
            value: the objective's; ``None`` for a failure.
            constraints: ``rules``, ``launch`` and the objective's, > 0 where violated. Of a failure those that
                cannot be judged may be left out.
            attributes: shown in the dashboard: failure, evidence, host. Cut at 1000 characters.

        Returns:
            Whether this was the first time; if not, nothing is changed.

        Raises:
            ValueError: there is no such trial under way, a number is not finite, or a constraint is unknown or missing.
        """
        with database_errors(self._url):
            trials = self._study.get_trials(deepcopy=False)
            trial = next((trial for trial in trials if trial.number == number), None)
            if trial is None or trial.state is OptunaState.WAITING:
                raise ValueError(f"trial {number} of {self.name} was not asked for: it cannot be told")
            if trial.state.is_finished():
                return False
            attributes = {"configuration": str(self._row(trial).configuration or ""), **attributes}
            earlier = [outcome for other in trials if (outcome := _outcome(other)) is not None]
            names = self._objective.constraints
            outcome = settled(value, constraints, attributes, names, earlier, self._maximize)
            # Optuna writes attribute by attribute. The whole is written first, so that a driver killed in between
            # leaves something that can be finished: a constraint is write-once, and half of one launch's beside
            # half of another's would be nobody's result.
            self._storage.set_trial_system_attr(self._trial_id(number), OUTCOME, outcome.json)
            self._write(number, outcome)
            return True

    def note(self, markdown: str) -> None:
        """Puts a text on the study's page in the dashboard, in place of the one before."""
        with database_errors(self._url):
            optuna_dashboard.save_note(self._study, markdown)

    def best(self) -> tuple[int, Configuration, float] | None:
        """Number, configuration and value of the best feasible trial; among equals the simplest, then the first."""
        rows = [
            (row.number, row.configuration, row.value)
            for row in self.trials()
            if row.feasible and row.configuration is not None and row.value is not None
        ]
        sign = -1.0 if self._maximize else 1.0
        return min(rows, key=lambda row: (sign * row[2], row[1].settings, row[0]), default=None)

    def told(self) -> int:
        """How many trials were told."""
        return sum(row.state is TrialState.TOLD for row in self.trials())

    def trials(self) -> tuple[TrialRow, ...]:
        """All trials, by number."""
        with database_errors(self._url):
            return tuple(self._row(trial) for trial in self._study.get_trials(deepcopy=False))

    def _row(self, trial: FrozenTrial) -> TrialRow:
        outcome = _outcome(trial)
        key = trial.system_attrs.get(CONFIGURATION)
        constraints = outcome.constraints if outcome else {}
        value = outcome.measured if outcome else None
        return TrialRow(
            number=trial.number,
            state=_state(trial),
            configuration=None if key is None else Configuration.from_key(key),
            value=value,
            constraints=constraints,
            feasible=value is not None and feasible(constraints),
            name=trial.user_attrs.get(TRY_FIRST),
            attributes={name: str(text) for name, text in trial.user_attrs.items()},
        )

    def _proposal(self, trial: optuna.Trial) -> Proposal:
        """The proposal of a trial; parameters that were drawn already come back as they were."""
        values = self._space.suggest(trial)
        configuration = self._space.configuration(values)
        same = [
            t for t in self._study.get_trials(deepcopy=False) if t.system_attrs.get(CONFIGURATION) == configuration.key
        ]
        if trial.number not in [t.number for t in same]:
            self._storage.set_trial_system_attr(self._trial_id(trial.number), CONFIGURATION, configuration.key)
        return Proposal(
            number=trial.number,
            values=values,
            configuration=configuration,
            broken_rules=self._space.broken_rules(values),
            name=trial.user_attrs.get(TRY_FIRST),
            repeat_of=min((t.number for t in same if _state(t) is TrialState.TOLD), default=None),
        )

    def _write(self, number: int, outcome: Outcome) -> None:
        """Hands an outcome to Optuna: attributes, constraints, then the state, which ends the trial."""
        trial = optuna.Trial(self._study, self._trial_id(number))
        for name, text in outcome.attributes.items():
            trial.set_user_attr(name, text)
        written = trial.constraints
        for name, violation in outcome.constraints.items():
            if name not in written:
                trial.set_constraint(name, violation)
        state = OptunaState.FAIL if outcome.value is None else OptunaState.COMPLETE
        self._study.tell(number, outcome.value, state=state)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    def _enqueue_first(self) -> None:
        """Enqueues what is to be tried first, once in the study's life; those already there after a kill are not."""
        if _ENQUEUED in self._storage.get_study_system_attrs(self._study_id):
            return
        there = {trial.user_attrs.get(TRY_FIRST) for trial in self._study.get_trials(deepcopy=False)}
        for entry in self._space.first:
            if entry.name not in there:
                self._study.enqueue_trial(self._space.parameters_for(entry.values), {TRY_FIRST: entry.name})
        self._storage.set_study_system_attr(self._study_id, _ENQUEUED, True)


def _check(objective: Objective, space: OfferedSpace) -> None:
    """Finds now what Optuna would trip over in mid-study."""
    names = objective.constraints
    problems = [
        f"the constraint {name[:60]!r}… of the objective has {len(name)} characters, at most {_MAX_CONSTRAINT} are kept"
        for name in names
        if len(name) > _MAX_CONSTRAINT
    ]
    problems += [
        f"the objective has the constraint {name!r} twice" for name in {n for n in names if names.count(n) > 1}
    ]
    problems += [
        f"a constraint of the objective may not be called {name!r}" for name in names if name in (RULES, LAUNCH)
    ]
    problems += [
        f"'{entry.name}' is to be tried first but is not in the space: {dict(entry.values)}"
        for entry in space.first
        if fitting(space, space.parameters_for(entry.values)) is None
    ]
    if problems:
        raise InputError(problems)


def _outcome(trial: FrozenTrial) -> Outcome | None:
    """How a trial ended; ``None`` if it was not told, or in an earlier specification."""
    if not trial.state.is_finished() or OUTCOME not in trial.system_attrs:
        return None
    return Outcome.from_json(trial.system_attrs[OUTCOME])


def _state(trial: FrozenTrial) -> TrialState:
    if SUPERSEDED in trial.system_attrs:
        return TrialState.SUPERSEDED
    if trial.state.is_finished():
        return TrialState.TOLD
    return TrialState.WAITING if trial.state is OptunaState.WAITING else TrialState.RUNNING
