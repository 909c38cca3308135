"""A configuration as the engine sees it: refused or not, without what it never reads, as a command to paste."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.ports import Engine
from tuner.space.distribution import Categorical
from tuner.space.parameter import Kind, Parameter
from tuner.space.rules import same
from tuner.space.space import SearchSpace
from tuner.values.configuration import Configuration, Scalar
from tuner.values.host import HostFacts
from tuner.values.launch import LaunchBase


@dataclass(frozen=True)
class Winner:
    """The engine's view on the configurations of one study.

    Attributes:
        base: the control's launch with its secrets as references, so that no command shows one.
    """

    engine: Engine
    facts: HostFacts
    base: LaunchBase

    def refused(self, configuration: Configuration) -> tuple[str, ...]:
        """Reasons why no launch should be spent on a configuration."""
        return self.engine.refused(configuration, self.facts, self.base)

    def simplified(self, configuration: Configuration) -> tuple[Configuration, tuple[str, ...]]:
        """The configuration without settings that this engine never reads, and a sentence for each."""
        inert = self.engine.inert(configuration, self.facts, self.base)
        env = {name: value for name, value in configuration.env if name not in inert}
        args = {name: value for name, value in configuration.args if name not in inert}
        notes = tuple(f"{name} was left out of the winner: {why}" for name, why in inert.items())
        return Configuration.of(env=env, args=args), notes

    def command(self, key: str) -> str:
        """The launch of a configuration as one line for a shell, environment included, quoted."""
        return self.engine.shell_line(self.base, Configuration.from_key(key))


def reasons(space: SearchSpace, configuration: Configuration) -> tuple[tuple[str, str], ...]:
    """(setting, what the space says of it) for each setting: the choice's own reason before the parameter's.

    A space may warn of a choice that it offers, and a winner must not go to production without its warning.
    """
    parameters = {(parameter.kind, parameter.name): parameter for parameter in space.parameters}
    pairs = [(Kind.ENV, name, value) for name, value in configuration.env]
    pairs += [(Kind.ARGS, name, value) for name, value in configuration.args]
    found = []
    for kind, name, value in pairs:
        alone = Configuration.of(**{kind.value: {name: value}})
        found.append((str(alone), _reason(parameters.get((kind, name)), value)))
    return tuple(found)


def _reason(parameter: Parameter | None, value: Scalar) -> str:
    if parameter is None:
        return ""
    parts = [parameter.why]
    if isinstance(parameter.distribution, Categorical):
        parts = [choice.why for choice in parameter.distribution.choices if same(choice.value, value)] + parts
    return " ".join(" ".join(part.split()) for part in parts if part)
