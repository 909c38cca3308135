"""Version guards: where a parameter or a choice may be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tuner.errors import InputError
from tuner.values.host import HostFacts


@dataclass(frozen=True)
class Guard:
    """Demands on a host; an empty text demands nothing.

    Attributes:
        engine: specifier of the engine's version, such as ``>=0.5.21``.
        nccl: of the version of the NCCL library.
        gpus: of the number of GPUs.

    The texts are in packaging's normal form, so guards that mean the same are equal.
    """

    engine: str = ""
    nccl: str = ""
    gpus: str = ""

    @classmethod
    def of(cls, engine: str | None = None, nccl: str | None = None, gpus: str | None = None) -> Guard:
        """A guard of specifier texts.

        Raises:
            InputError: one is no specifier.
        """
        given = {"engine": engine, "nccl": nccl, "gpus": gpus}
        problems = [p for name, text in given.items() if text is not None and (p := _specifier_problem(name, text))]
        if problems:
            raise InputError(problems)
        return cls(**{name: _normal(text or "") for name, text in given.items()})

    @property
    def demands(self) -> tuple[tuple[str, str], ...]:
        """(name, specifier) of each demand."""
        pairs = (("engine", self.engine), ("nccl", self.nccl), ("gpus", self.gpus))
        return tuple((name, specifier) for name, specifier in pairs if specifier)

    def unmet(self, hosts: Sequence[HostFacts]) -> str:
        """The demands that some host does not meet, in words; empty if all do.

        A version that is not known meets no demand: nothing is offered on the hope that it works.
        """
        reasons = []
        for name, specifier in self.demands:
            for facts in hosts:
                found = {
                    "engine": facts.engine_version,
                    "nccl": facts.nccl_version,
                    "gpus": str(len(facts.gpus)),
                }[name]
                if not _meets(found, specifier):
                    noun = {"engine": facts.engine, "nccl": "NCCL", "gpus": "GPUs"}[name]
                    has = "is of unknown version" if found is None else f"is {found}"
                    has = f"has {found}" if name == "gpus" else has
                    there = f"host {facts.name}" if name == "gpus" else f"{noun} on host {facts.name}"
                    reasons.append(f"needs {noun} {specifier}, but {there} {has}")
                    break
        return "; ".join(reasons)

    def __str__(self) -> str:
        return ", ".join(f"{name} {specifier}" for name, specifier in self.demands)


def _specifier_problem(name: str, text: str) -> str:
    try:
        if text.strip() and len(text) <= 100:
            SpecifierSet(text)
            return ""
    except InvalidSpecifier:
        pass
    example = {"engine": ">=0.5.21", "nccl": ">=2.24,<2.30", "gpus": ">=2"}[name]
    return f"found {text[:100]!r}, expected a version specifier for {name} such as '{example}'"


def _normal(text: str) -> str:
    return str(SpecifierSet(text))


def _meets(found: str | None, specifier: str) -> bool:
    """A pre-release or a local build of a version counts as that version."""
    if found is None:
        return False
    try:
        return SpecifierSet(specifier).contains(Version(found), prereleases=True)
    except InvalidVersion:
        return False
