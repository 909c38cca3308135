"""A search space: parameters, rules among them, and what to try first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.documents.complaints import shown
from tuner.errors import InputError
from tuner.space.distribution import Categorical, Choice
from tuner.space.grammar import normalized
from tuner.space.guard import Guard
from tuner.space.offered import NamedAssignment, OfferedSpace, Withheld
from tuner.space.parameter import Kind, Parameter, Rule, TryFirst
from tuner.values.host import HostFacts


@dataclass(frozen=True)
class SearchSpace:
    """What may vary, as a file says it; `tuner.space.load.load_space` makes one.

    Attributes:
        parameters: in an order in which each comes after those that its condition names.
        rules: that every configuration must meet.
        try_first: named configurations that every study starts with.
        why: what the space is for.
    """

    parameters: tuple[Parameter, ...]
    rules: tuple[Rule, ...] = ()
    try_first: tuple[TryFirst, ...] = ()
    why: str = ""

    def offered(self, *hosts: HostFacts) -> OfferedSpace:
        """The part that all of these hosts can take.

        One study samples from one space on all its hosts, so a guard must be met on each of them.

        Raises:
            ValueError: no host is given.
        """
        if not hosts:
            raise ValueError("offered() needs the facts of at least one host")
        parameters: list[Parameter] = []
        withheld: list[Withheld] = []
        for parameter in self.parameters:
            if reason := parameter.guard.unmet(hosts):
                withheld.append(Withheld(parameter.name, None, reason))
                continue
            kept, gone = _guarded(parameter, hosts)
            withheld += gone
            if kept is not None:
                parameters.append(kept)
        return self._with_first(OfferedSpace(tuple(parameters), self.rules, tuple(withheld)))

    @property
    def unguarded(self) -> OfferedSpace:
        """The whole space, as on a host that meets every guard."""
        return self._with_first(OfferedSpace(self.parameters, self.rules))

    def _with_first(self, offered: OfferedSpace) -> OfferedSpace:
        """The offered space with those of `try_first` that it allows."""
        first: list[NamedAssignment] = []
        dropped: list[str] = []
        seen: dict[str, str] = {}
        for entry in self.try_first:
            try:
                values = offered.complete(dict(entry.chosen))
            except InputError as error:
                dropped.append(f"{entry.name}: {'; '.join(error.problems)}")
                continue
            key = offered.configuration(values).key
            if broken := offered.broken_rules(values):
                dropped.append(f"{entry.name}: breaks {'; '.join(broken)}")
            elif key in seen:
                dropped.append(f"{entry.name}: the same as '{seen[key]}' here")
            else:
                seen[key] = entry.name
                first.append(NamedAssignment(entry.name, values))
        return replace(offered, first=tuple(first), first_dropped=tuple(dropped))

    @property
    def env_names(self) -> tuple[str, ...]:
        """Environment variables that it may set, sorted."""
        return tuple(sorted(p.name for p in self.parameters if p.kind is Kind.ENV))

    @property
    def arg_names(self) -> tuple[str, ...]:
        """Arguments that it may set, without dashes in front, sorted."""
        return tuple(sorted(p.name for p in self.parameters if p.kind is Kind.ARGS))

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of what the space means: equal whatever its layout, comments and reasons are.

        The order of choices and of `try_first` counts (samplers see it); that of parameters and rules does not.
        """
        return hashlib.sha256(json.dumps(self._meaning, sort_keys=True).encode()).hexdigest()

    def differences(self, other: SearchSpace) -> tuple[str, ...]:
        """What is different in the other space, a line for each difference; empty if both mean the same."""
        return tuple(_differences("", self._meaning, other._meaning))

    @property
    def _meaning(self) -> dict[str, Any]:
        rules = sorted({normalized(rule.expression.text) for rule in self.rules})
        return {
            **{k.value: {p.name: _parameter_meaning(p) for p in self.parameters if p.kind is k} for k in Kind},
            "rules": {text: True for text in rules},
            "try_first": [{"name": entry.name, "set": dict(sorted(entry.chosen))} for entry in self.try_first],
        }


def _guarded(parameter: Parameter, hosts: Sequence[HostFacts]) -> tuple[Parameter | None, list[Withheld]]:
    """The parameter with the choices that all hosts can take, or none if only "unset" is left; and what is withheld."""
    if not isinstance(parameter.distribution, Categorical):
        return parameter, []
    kept: list[Choice] = []
    withheld: list[Withheld] = []
    for choice in parameter.distribution.choices:
        if reason := choice.guard.unmet(hosts):
            withheld.append(Withheld(parameter.name, choice.value, reason))
        else:
            kept.append(choice)
    if not withheld:
        return parameter, []
    if all(choice.value is None for choice in kept):
        return None, withheld
    return replace(parameter, distribution=Categorical(tuple(kept))), withheld


def _parameter_meaning(parameter: Parameter) -> dict[str, Any]:
    distribution = parameter.distribution
    values: dict[str, Any]
    if isinstance(distribution, Categorical):
        values = {
            "choices": list(distribution.values),
            "choice guards": {str(c): _guard_meaning(c.guard) for c in distribution.choices if c.guard.demands},
        }
    else:
        values = {"range": [distribution.low, distribution.high], "step": distribution.step, "log": distribution.log}
        values["type"] = type(distribution).__name__
    return {
        **values,
        "default": parameter.default,
        "when": normalized(parameter.when.text) if parameter.when else None,
        "requires": _guard_meaning(parameter.guard),
        **({"otherwise": normalized(parameter.otherwise.text)} if parameter.otherwise else {}),
    }


def _guard_meaning(guard: Guard) -> dict[str, str]:
    return dict(guard.demands)


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Lines such as ``env.NCCL_ALGO.default: was null, is now 'Ring'``."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            below = f"{path}.{key}" if path else key
            if key not in new:
                yield f"{below}: removed"
            elif key not in old:
                yield f"{below}: added"
            else:
                yield from _differences(below, old[key], new[key])
    elif json.dumps(old) != json.dumps(new):  # as text: 1, 1.0 and true are three values
        yield f"{path}: was {_written(old)}, is now {_written(new)}"


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else shown(value)
