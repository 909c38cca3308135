"""A configuration as the engine sees it: refused or not, without what it never reads, as a command to paste."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.ports import Engine
from tuner.values.configuration import Configuration
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
        notes = tuple(f"{name} has no measurable effect and was left out: {why}" for name, why in inert.items())
        return Configuration.of(env=env, args=args), notes

    def command(self, key: str) -> str:
        """The launch of a configuration as one line for a shell, environment included, quoted."""
        return self.engine.shell_line(self.base, Configuration.from_key(key))
