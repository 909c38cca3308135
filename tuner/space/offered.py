"""The part of a search space that a host can take: what a study samples from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.documents.complaints import did_you_mean, shown
from tuner.errors import InputError
from tuner.space.distribution import Categorical, FloatRange, IntRange
from tuner.space.parameter import Kind, Parameter, Rule, by_identifier
from tuner.space.rules import same
from tuner.values.configuration import Configuration, Scalar


class SuggestTrial(Protocol):
    """What is needed of a trial: the three methods of Optuna's ``Trial`` and ``FrozenTrial``."""

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Any:
        """One of the choices."""
        ...

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """A whole number from low to high, both included."""
        ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number from low to high, both included."""
        ...


@dataclass(frozen=True)
class Withheld:
    """A parameter or one of its choices that a host cannot take.

    Attributes:
        value: the choice; ``None``: the parameter as a whole.
        reason: in words.
    """

    name: str
    value: Scalar
    reason: str

    def __str__(self) -> str:
        return f"{self.name}{'' if self.value is None else f'={self.value}'}: {self.reason}"


@dataclass(frozen=True)
class NamedAssignment:
    """A full assignment to try first.

    Attributes:
        values: a value for each parameter that is offered, as `OfferedSpace.suggest` returns it.
    """

    name: str
    values: Mapping[str, Scalar]


@dataclass(frozen=True)
class OfferedSpace:
    """Parameters with the version guards applied.

    An *assignment* is a mapping with a value for each parameter; ``None`` is unset. Parameters whose condition does
    not hold are unset in it, or what they follow from (`Parameter.otherwise`).

    Attributes:
        parameters: in an order in which each comes after those that its condition names.
        rules: that every configuration must meet.
        withheld: what the guards took away.
        first: what to try first, in order.
        first_dropped: notes on what cannot be tried first here.
    """

    parameters: tuple[Parameter, ...]
    rules: tuple[Rule, ...]
    withheld: tuple[Withheld, ...] = ()
    first: tuple[NamedAssignment, ...] = ()
    first_dropped: tuple[str, ...] = ()

    def suggest(self, trial: SuggestTrial) -> dict[str, Scalar]:
        """An assignment drawn by the trial; only parameters whose condition holds are asked for.

        It may break rules: a sampler learns from `broken_rules`, which costs no launch.
        """
        values: dict[str, Scalar] = {}
        for parameter in self.parameters:
            values[parameter.name] = (
                _suggest(trial, parameter) if _active(parameter, values) else parameter.implied(values)
            )
        return values

    def parameters_for(self, values: Mapping[str, Scalar]) -> dict[str, Any]:
        """What to give to Optuna's ``enqueue_trial`` so that `suggest` returns this assignment."""
        asked: dict[str, Any] = {}
        for parameter in self.parameters:
            if not _active(parameter, values):
                continue
            value = values.get(parameter.name)
            if parameter.may_be_unset:
                asked[parameter.switch] = value is not None
                if value is None:
                    continue
            asked[parameter.name] = value
        return asked

    def configuration(self, values: Mapping[str, Scalar]) -> Configuration:
        """The environment variables and arguments that the assignment sets."""
        settled = {p.name: values.get(p.name) if _active(p, values) else p.implied(values) for p in self.parameters}
        kinds = {p.name: p.kind for p in self.parameters}
        return Configuration.of(
            env={name: value for name, value in settled.items() if kinds[name] is Kind.ENV},
            args={name: value for name, value in settled.items() if kinds[name] is Kind.ARGS},
        )

    def broken_rules(self, values: Mapping[str, Scalar]) -> tuple[str, ...]:
        """The rules that the assignment breaks, in words; empty if none."""
        known = by_identifier(values)
        return tuple(str(rule) for rule in self.rules if not rule.expression.holds(known))

    def complete(self, chosen: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The assignment with these values and the default for all else.

        Raises:
            InputError: a name or a value is not offered, or is set although its condition does not hold.
        """
        names = [p.name for p in self.parameters]
        problems = [
            self._withheld_note(name, value) or f"{name}: no such parameter{did_you_mean(name, names)}"
            for name, value in chosen.items()
            if name not in names and value is not None
        ]
        values: dict[str, Scalar] = {}
        for parameter in self.parameters:
            name, active = parameter.name, _active(parameter, values)
            follows = None if active else parameter.implied(values)
            value = chosen.get(name, parameter.default if active else follows)
            if not active and not same(value, follows):
                expected = "unset: it needs" if follows is None else f"{shown(follows)}, which follows unless"
                problems.append(f"{name}: found {shown(value)}, expected {expected} {parameter.when}")
            elif active and not parameter.allows(value):
                expected = f"{name}: found {shown(value)}, expected one of {parameter.words}"
                problems.append(self._withheld_note(name, value) or expected)
            values[name] = value
        if problems:
            raise InputError(problems)
        return values

    def _withheld_note(self, name: str, value: Scalar) -> str:
        """Why a value, or its parameter as a whole, is not here; empty if the guards did not take it."""
        notes = [w for w in self.withheld if w.name == name and (w.value is None or same(w.value, value))]
        return str(notes[0]) if notes else ""

    @property
    def default_values(self) -> dict[str, Scalar]:
        """The assignment with everything at its default."""
        return self.complete({})

    @property
    def size(self) -> float:
        """Number of points, conditions and rules ignored: a whole number, or infinite with a continuous range."""
        return math.prod(parameter.size for parameter in self.parameters)


def _active(parameter: Parameter, values: Mapping[str, Scalar]) -> bool:
    """Whether its condition holds; the values of what it depends on must be settled."""
    return parameter.when is None or parameter.when.holds(by_identifier(values))


def _suggest(trial: SuggestTrial, parameter: Parameter) -> Scalar:
    if parameter.may_be_unset and not trial.suggest_categorical(parameter.switch, (False, True)):
        return None
    match parameter.distribution:
        case Categorical() as categorical:
            value: Scalar = trial.suggest_categorical(parameter.name, categorical.values)
            return value
        case IntRange(low=low, high=high, step=step, log=log):
            return trial.suggest_int(parameter.name, low, high, step=step, log=log)
        case FloatRange(low=low, high=high, step=step, log=log):
            return trial.suggest_float(parameter.name, low, high, step=step, log=log)
