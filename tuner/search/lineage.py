"""An Optuna study in the database: started, found again, or superseded by one of another specification."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FixedTrial, FrozenTrial, TrialState

from tuner.errors import SpecificationChanged, StoreError
from tuner.search.outcome import Outcome
from tuner.search.specification import Objective, Specification
from tuner.search.storage import without_experimental_warnings
from tuner.space.offered import OfferedSpace
from tuner.values.configuration import Configuration

CONFIGURATION = "tuner:configuration"
"""System attribute of a trial: the key of its configuration."""

OUTCOME = "tuner:outcome"
"""System attribute of a trial: JSON of its `Outcome`, written before anything else of it."""

SUPERSEDED = "tuner:superseded"
"""System attribute of a trial of an earlier specification that means nothing in this one."""

TRY_FIRST = "try first"
"""User attribute of a trial: the name of the ``try_first`` that it is."""

_SPECIFICATION = "tuner:specification"
_SUCCESSOR = "tuner:successor"
_UNFINISHED = "tuner:unfinished"


def started(
    storage: optuna.storages.RDBStorage,
    name: str,
    objective: Objective,
    wanted: Specification,
    space: OfferedSpace,
    accept_changes: bool,
) -> optuna.Study:
    """The study of that name: created, found again, or its successor with the wanted specification.

    Raises:
        SpecificationChanged: it has another specification, and changes are not accepted.
        StoreError: there is a study of that name which is not the tuner's.
    """
    while (attributes := _attributes(storage, name)) is not None and _SUCCESSOR in attributes:
        name = str(attributes[_SUCCESSOR])
    if attributes is None or _SPECIFICATION not in attributes:
        study = _created(storage, name, objective)
        _finish(storage, study, wanted)
        return study
    study = optuna.load_study(storage=storage, study_name=name)
    found = Specification.from_json(attributes[_SPECIFICATION])
    if found.fingerprint == wanted.fingerprint:
        return study
    if not accept_changes:
        raise SpecificationChanged(name, found.differences(wanted))
    comparable = found.objective == wanted.objective
    successor = _created(storage, _next_name(name), objective)
    for trial in study.get_trials(deepcopy=False):
        successor.add_trial(_carried(trial, space, comparable))
    _finish(storage, successor, wanted)
    storage.set_study_system_attr(storage.get_study_id_from_name(name), _SUCCESSOR, successor.study_name)
    return successor


def fitting(space: OfferedSpace, parameters: Mapping[str, Any]) -> tuple[Configuration, FixedTrial] | None:
    """What Optuna's parameters mean in a space; ``None`` if they are not all in it.

    An enqueued trial whose parameters do not fit would raise when it is asked for, and stay under way for ever.
    """
    trial = FixedTrial(dict(parameters))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a number out of range only warns
        try:
            return space.configuration(space.suggest(trial)), trial
        except (ValueError, UserWarning):
            return None


def _attributes(storage: optuna.storages.RDBStorage, name: str) -> dict[str, Any] | None:
    """System attributes of the study of that name; ``None`` if there is none."""
    try:
        study_id = storage.get_study_id_from_name(name)
    except KeyError:
        return None
    return storage.get_study_system_attrs(study_id)


def _next_name(name: str) -> str:
    """``kimi/1-baseline`` → ``kimi/1-baseline (2)`` → ``kimi/1-baseline (3)``."""
    base, _, number = name.rpartition(" (")
    if base and number.endswith(")") and number[:-1].isdigit():
        return f"{base} ({int(number[:-1]) + 1})"
    return f"{name} (2)"


def _created(storage: optuna.storages.RDBStorage, name: str, objective: Objective) -> optuna.Study:
    """A new study that is not finished yet, in place of one that a killed driver did not finish."""
    attributes = _attributes(storage, name)
    if attributes is not None:
        trials = storage.get_all_trials(storage.get_study_id_from_name(name), deepcopy=False)
        if trials and _UNFINISHED not in attributes:
            raise StoreError(
                f"the database has an Optuna study {name} that this tuner did not start. Give the study another name, "
                "or use another database with --storage URL."
            )
        optuna.delete_study(storage=storage, study_name=name)
    study = optuna.create_study(storage=storage, study_name=name, direction=objective.direction)
    storage.set_study_system_attr(storage.get_study_id_from_name(name), _UNFINISHED, True)
    with without_experimental_warnings():
        study.set_metric_names([f"{objective.metric} ({objective.unit})" if objective.unit else objective.metric])
    return study


def _finish(storage: optuna.storages.RDBStorage, study: optuna.Study, specification: Specification) -> None:
    """From here on the study is found again. The specification comes last: it says that all before it is there."""
    study.set_user_attr("specification", specification.fingerprint)
    study.set_user_attr("constraints", specification.objective["constraints"])
    study_id = storage.get_study_id_from_name(study.study_name)
    storage.set_study_system_attr(study_id, _SPECIFICATION, specification.json)


def _carried(trial: FrozenTrial, space: OfferedSpace, comparable: bool) -> FrozenTrial:
    """A trial as it goes on under another specification, so that its number stays.

    Told under the same objective, and meaning the same configuration: kept. Not told, and in the new space: waits
    to be asked for again. All else is a superseded number: FAIL, which samplers do not see.
    """
    parameters = trial.system_attrs.get("fixed_params", trial.params)
    found = fitting(space, parameters)
    if found is not None and SUPERSEDED not in trial.system_attrs:
        configuration, fixed = found
        if not trial.state.is_finished():
            return _waiting(trial, configuration, fixed.params, space)
        same = configuration.key == trial.system_attrs.get(CONFIGURATION)
        if comparable and same and OUTCOME in trial.system_attrs:
            return _kept(trial, fixed.distributions, fixed.params, _names(trial, configuration, space))
    attributes = {name: text for name, text in trial.user_attrs.items() if name != TRY_FIRST}
    return optuna.trial.create_trial(
        state=TrialState.FAIL,
        user_attrs={**attributes, "superseded": "of an earlier specification"},
        system_attrs={SUPERSEDED: True},
    )


def _waiting(
    trial: FrozenTrial, configuration: Configuration, parameters: Mapping[str, Any], space: OfferedSpace
) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=TrialState.WAITING,
        user_attrs=_names(trial, configuration, space),
        system_attrs={"fixed_params": dict(parameters)},  # as `enqueue_trial` leaves them
    )


def _kept(
    trial: FrozenTrial,
    distributions: Mapping[str, BaseDistribution],
    parameters: Mapping[str, Any],
    name: Mapping[str, str],
) -> FrozenTrial:
    outcome = Outcome.from_json(trial.system_attrs[OUTCOME])
    complete = trial.state is TrialState.COMPLETE
    return optuna.trial.create_trial(
        state=trial.state,
        value=outcome.value if complete else None,
        params=dict(parameters),
        distributions=dict(distributions),
        user_attrs={**outcome.attributes, **name},
        system_attrs={key: trial.system_attrs[key] for key in (CONFIGURATION, OUTCOME)},
        constraints=dict(outcome.constraints) if complete else None,
    )


def _names(trial: FrozenTrial, configuration: Configuration, space: OfferedSpace) -> dict[str, str]:
    """The ``try_first`` that the trial was, if it is the same in the new space."""
    name = trial.user_attrs.get(TRY_FIRST)
    same = any(e.name == name and space.configuration(e.values) == configuration for e in space.first)
    return {TRY_FIRST: str(name)} if same else {}
