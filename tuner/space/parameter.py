"""Parameters, rules and named configurations: the parts of a search space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.space.distribution import Categorical, Distribution
from tuner.space.guard import Guard
from tuner.space.rules import Choices, Expression, Formula, identifier
from tuner.values.configuration import Scalar


class Kind(StrEnum):
    """Where a parameter goes. The value is the section of the file."""

    ENV = "env"
    ARGS = "args"


@dataclass(frozen=True)
class Parameter:
    """An environment variable or a server argument that may vary.

    Attributes:
        name: ``NCCL_ALGO``, or ``chunked-prefill-size`` without dashes in front.
        default: what it is when nobody chose; ``None`` is unset.
        when: the condition under which it is set at all; ``None``: always. Where it does not hold it is unset.
        guard: where it may be used.
        why: the fact behind it.
        otherwise: what it is where `when` does not hold, computed from parameters before it; ``None``: unset.
    """

    kind: Kind
    name: str
    distribution: Distribution
    default: Scalar = None
    when: Expression | None = None
    guard: Guard = field(default_factory=Guard)
    why: str = ""
    otherwise: Formula | None = None

    def implied(self, values: Mapping[str, Scalar]) -> Scalar:
        """Its value where its condition does not hold, the values of what it depends on being settled."""
        return None if self.otherwise is None else self.otherwise.value(by_identifier(values))

    @property
    def may_be_unset(self) -> bool:
        """Whether a range has "unset" beside its numbers, chosen by a switch of its own (`switch`)."""
        return not isinstance(self.distribution, Categorical) and self.default is None

    @property
    def switch(self) -> str:
        """Name of the on/off categorical of a range that may be unset."""
        return f"{self.name}:set"

    @property
    def size(self) -> float:
        """How many values, unset included; infinite for a continuous range."""
        return self.distribution.size + self.may_be_unset

    def allows(self, value: Scalar) -> bool:
        """Whether the value, kind and all, can be chosen."""
        return (value is None and self.may_be_unset) or self.distribution.contains(value)

    @property
    def domain(self) -> Choices | None:
        """What expressions may compare it with; ``None``: any number."""
        return Choices(self.distribution.values) if isinstance(self.distribution, Categorical) else None

    @property
    def words(self) -> str:
        """The values, for people."""
        return f"unset, {self.distribution}" if self.may_be_unset else str(self.distribution)


@dataclass(frozen=True)
class Rule:
    """A condition that every configuration must meet."""

    expression: Expression
    why: str = ""

    def __str__(self) -> str:
        return f"{self.expression} ({self.why})" if self.why else str(self.expression)


@dataclass(frozen=True)
class TryFirst:
    """A configuration to start with, as the file names it.

    Attributes:
        chosen: (name, value) pairs; all else has its default.
    """

    name: str
    chosen: tuple[tuple[str, Scalar], ...] = ()


def by_identifier(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Values under the names that expressions use."""
    return {identifier(name): value for name, value in values.items()}
