"""A point of a search space: environment variables and server arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = str | int | float | bool | None
"""What a parameter can be set to. ``None`` means *unset*: the default, not a string."""


@dataclass(frozen=True)
class Configuration:
    """Environment variables and server arguments to set on top of the study file's launch.

    Attributes:
        env: sorted (name, value) pairs of environment variables.
        args: sorted (name, value) pairs of server arguments, names without the leading dashes. ``True`` is a
            bare flag.

    Unset names are absent, so two configurations that mean the same are equal and have the same `key`.
    """

    env: tuple[tuple[str, Scalar], ...] = field(default=())
    args: tuple[tuple[str, Scalar], ...] = field(default=())

    @classmethod
    def of(cls, env: Mapping[str, Scalar] | None = None, args: Mapping[str, Scalar] | None = None) -> Configuration:
        """Builds a configuration from mappings; entries whose value is ``None`` are dropped."""

        def pairs(mapping: Mapping[str, Scalar] | None) -> tuple[tuple[str, Scalar], ...]:
            return tuple(sorted((k, v) for k, v in (mapping or {}).items() if v is not None))

        return cls(env=pairs(env), args=pairs(args))

    @property
    def key(self) -> str:
        """A canonical JSON text, equal for equal configurations: their identity in the database."""
        return json.dumps({"env": dict(self.env), "args": dict(self.args)}, sort_keys=True)

    @classmethod
    def from_key(cls, key: str) -> Configuration:
        """The inverse of `key`.

        Raises:
            ValueError: the text is not JSON of the form that `key` writes.
        """
        data = json.loads(key)
        if not isinstance(data, dict) or set(data) != {"env", "args"}:
            raise ValueError(f"not a configuration key: {key[:200]!r}")
        return cls.of(env=data["env"], args=data["args"])

    @property
    def settings(self) -> int:
        """How many names are set: 0 for the control. Among equals the simplest configuration wins."""
        return len(self.env) + len(self.args)

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.env]
        for name, value in self.args:
            words.append(f"--{name}" if value is True else f"--{name} {value}")
        return " ".join(words) or "(default)"
