"""From the text of a search space file to a `SearchSpace`, or to all that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from tuner.documents.complaints import did_you_mean, shown
from tuner.documents.reading import Places, read_with_places
from tuner.errors import InputError
from tuner.space.distribution import Categorical, Choice, Distribution, FloatRange, IntRange, range_problem
from tuner.space.grammar import parse_condition
from tuner.space.guard import Guard
from tuner.space.parameter import Kind, Parameter, Rule, TryFirst
from tuner.space.rules import Choices, Expression, Formula, identifier, parse, parse_formula, same
from tuner.space.schema import ChoiceDocument, ParameterDocument, RequiresDocument, SpaceDocument
from tuner.space.space import SearchSpace
from tuner.values.configuration import Scalar

MAX_PARAMETERS = 200
MAX_CHOICES = 256
MAX_VALUE_CHARACTERS = 256
MAX_PROBLEMS = 100

_PATTERNS = {Kind.ENV: r"[A-Z][A-Z0-9_]*", Kind.ARGS: r"[a-z][a-z0-9-]*"}
_NAMES = {Kind.ENV: "an environment variable such as NCCL_ALGO", Kind.ARGS: "an argument such as chunked-prefill-size"}

Path = tuple[str | int, ...]


def load_space(text: str, source: str) -> SearchSpace:
    """The search space of a file's text.

    The file may come from anywhere: names must look like names, values are plain scalars, nothing in it is code. Which
    names are *tunable* is for the engine's adapter to say (`tuner.ports.Engine.problems`).

    Args:
        source: the file's name in messages.

    Raises:
        InputError: with every problem that was found.
    """
    document, places = read_with_places(text, SpaceDocument, source)
    return _Loader(document, places).space()


class _Loader:
    """Turns a document into values, noting problems as it goes."""

    def __init__(self, document: SpaceDocument, places: Places) -> None:
        self._document = document
        self._places = places
        self._problems: list[str] = []
        self._faulty: set[str] = set()

    def space(self) -> SearchSpace:
        parameters = self._parameters()
        domains = {identifier(p.name): p.domain for p in parameters.values()}
        parameters = self._with_conditions(parameters, domains)
        rules = self._rules(domains)
        first = self._try_first(parameters)
        ordered = self._ordered(parameters)
        if self._problems:
            raise InputError(self._problems)
        space = SearchSpace(ordered, rules, first, self._document.why)
        self._check_whole(space)
        if self._problems:
            raise InputError(self._problems)
        return space

    def _note(self, path: Path, message: str) -> None:
        self._problems.append(self._places.problem(path, message))
        if len(self._problems) == MAX_PROBLEMS:  # a hostile file must not keep us busy with its faults
            raise InputError(
                [*self._problems, f"{self._places.source}: found {MAX_PROBLEMS} problems, stopped looking"]
            )

    def _parameters(self) -> dict[str, Parameter]:
        """Every parameter but its condition; names whose parameter is faulty go to `_faulty`."""
        sections = [(Kind.ENV, self._document.env), (Kind.ARGS, self._document.args)]
        total = sum(len(section) for _, section in sections)
        if not 1 <= total <= MAX_PARAMETERS:
            self._note((), f"found {total} parameters under env and args, expected 1 to {MAX_PARAMETERS}")
        found: dict[str, Parameter] = {}
        for kind, section in sections:
            for name, document in section.items():
                before = len(self._problems)
                parameter = self._parameter(kind, name, document)
                if parameter is None or len(self._problems) > before:
                    self._faulty.add(identifier(name))
                if parameter is not None:
                    found[name] = parameter
        return found

    def _parameter(self, kind: Kind, name: str, document: ParameterDocument) -> Parameter | None:
        path = (kind.value, name)
        if not re.fullmatch(_PATTERNS[kind], name):
            self._note(path, f"found the name {shown(name)}, expected {_NAMES[kind]}: {_PATTERNS[kind]}")
        distribution = self._distribution(kind, path, document)
        guard = self._guard((*path, "requires"), document.requires)
        if distribution is None:
            return None
        parameter = Parameter(kind, name, distribution, document.default, None, guard, document.why)
        self._check_default((*path, "default"), parameter, explicit="default" in document.model_fields_set)
        return parameter

    def _distribution(self, kind: Kind, path: Path, document: ParameterDocument) -> Distribution | None:
        fields = ("choices", "int", "float")
        given = [name for name in fields if getattr(document, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            self._note(path, f"found {found} of choices, int and float, expected exactly one of them")
            return None
        if document.choices is not None:
            return self._categorical(kind, path, document.choices)
        numbers = document.int or document.float
        assert numbers is not None
        whole = document.int is not None
        if problem := range_problem(numbers.low, numbers.high, numbers.step, numbers.log, whole):
            self._note((*path, given[0]), problem)
            return None
        if document.int is not None:
            return IntRange(document.int.low, document.int.high, document.int.step, document.int.log)
        return FloatRange(float(numbers.low), float(numbers.high), numbers.step, numbers.log)

    def _categorical(self, kind: Kind, path: Path, entries: tuple[Scalar | ChoiceDocument, ...]) -> Categorical | None:
        if len(entries) > MAX_CHOICES:
            self._note((*path, "choices"), f"found {len(entries)} choices, expected at most {MAX_CHOICES}; use int")
            return None
        choices: list[Choice] = []
        for index, entry in enumerate(entries):
            place: Path = (*path, "choices", index)
            if isinstance(entry, ChoiceDocument):
                guard = self._guard((*place, "requires"), entry.requires)
                choice = Choice(entry.value, guard, entry.why)
            else:
                choice = Choice(entry)
            if choice.value is None and choice.guard.demands:
                self._note(place, "found requires on null, expected none: unset is always possible")
            if problem := _value_problem(kind, choice.value):
                self._note(place, problem)
            # Compared as a server would see them, where 1 and "1" are one text, and as Optuna would: 1 equals true.
            if any(str(c.value) == str(choice.value) or c.value == choice.value for c in choices):
                self._note(place, f"found {shown(choice.value)} a second time, expected each choice once")
            choices.append(choice)
        if not choices or all(choice.value is None for choice in choices):
            self._note((*path, "choices"), "found no value to choose, expected at least one beside null")
            return None
        return Categorical(tuple(choices))

    def _check_default(self, path: Path, parameter: Parameter, explicit: bool) -> None:
        default = parameter.default
        if not parameter.allows(default):
            found = shown(default) if explicit else "no default, which means null (unset)"
            self._note(path, f"found {found}, expected one of {parameter.words}")
        elif isinstance(parameter.distribution, Categorical):
            choice = next(c for c in parameter.distribution.choices if same(c.value, default))
            if choice.guard.demands:
                expected = "a choice without requires: the default must be there on every host"
                self._note(path, f"found {shown(default)}, expected {expected}")

    def _guard(self, path: Path, document: RequiresDocument) -> Guard:
        try:
            return Guard.of(document.engine, document.nccl, document.gpus)
        except InputError as error:
            for problem in error.problems:
                self._note(path, problem)
            return Guard()

    def _expression(self, path: Path, text: str, domains: Mapping[str, Choices | None]) -> Expression | None:
        known = {**domains, **{name: None for name in self._faulty}}
        try:
            parse_condition(text)
        except InputError as error:
            self._note(path, str(error))
            return None
        try:
            return parse(text, known)
        except InputError as error:
            if not self._faulty & set(re.findall(r"\w+", text)):  # else it may be right once the parameter is
                self._note(path, str(error))
            return None

    def _with_conditions(
        self, parameters: Mapping[str, Parameter], domains: Mapping[str, Choices | None]
    ) -> dict[str, Parameter]:
        """The parameters with their conditions."""
        found: dict[str, Parameter] = {}
        for name, p in parameters.items():
            section = self._document.env if p.kind is Kind.ENV else self._document.args
            text, follows = section[name].when, section[name].otherwise
            when = None if text is None else self._expression((p.kind.value, name, "when"), text, domains)
            otherwise = None if follows is None else self._formula((p.kind.value, name, "otherwise"), follows, domains)
            if follows is not None and text is None:
                self._note((p.kind.value, name, "otherwise"), "found otherwise without when, expected both or neither")
            found[name] = replace(p, when=when, otherwise=otherwise)
        return found

    def _formula(self, path: Path, text: str, domains: Mapping[str, Choices | None]) -> Formula | None:
        try:
            return parse_formula(text, {**domains, **{name: None for name in self._faulty}})
        except InputError as error:
            if not self._faulty & set(re.findall(r"\w+", text)):
                self._note(path, str(error))
            return None

    def _rules(self, domains: Mapping[str, Choices | None]) -> tuple[Rule, ...]:
        rules = []
        for index, document in enumerate(self._document.rules):
            if expression := self._expression(("rules", index, "rule"), document.rule, domains):
                rules.append(Rule(expression, document.why))
        return tuple(rules)

    def _try_first(self, parameters: Mapping[str, Parameter]) -> tuple[TryFirst, ...]:
        entries: list[TryFirst] = []
        for index, document in enumerate(self._document.try_first):
            path: Path = ("try_first", index)
            if not 1 <= len(document.name.strip()) <= 80 or "\n" in document.name:
                self._note((*path, "name"), f"found {shown(document.name)}, expected a name of 1 to 80 characters")
            if any(entry.name == document.name for entry in entries):
                self._note((*path, "name"), f"found {shown(document.name)} a second time, expected each name once")
            for name, value in document.set.items():
                known = parameters.get(name)
                if known is None:
                    if identifier(name) not in self._faulty:
                        expected = f"one of the space's{did_you_mean(name, parameters)}"
                        self._note((*path, "set", name), f"found an unknown parameter, expected {expected}")
                elif value is not None and not known.allows(value):
                    near = did_you_mean(str(value), [str(v) for v in (known.domain or Choices(())).values])
                    self._note((*path, "set", name), f"found {shown(value)}, expected one of {known.words}{near}")
            entries.append(TryFirst(document.name, tuple(document.set.items())))
        return tuple(entries)

    def _ordered(self, parameters: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
        """In the file's order, but each after those that its condition and its `otherwise` name."""
        names = {identifier(name): name for name in parameters}
        depends = {name: [names[n] for n in sorted(_depends_on(p)) if n in names] for name, p in parameters.items()}
        try:
            TopologicalSorter(depends).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1]
            kind = parameters[circle[0]].kind.value
            self._note((kind, circle[0], "when"), f"found a circle of conditions ({' → '.join(circle)}), expected none")
            return tuple(parameters.values())
        ordered: dict[str, Parameter] = {}

        def place(name: str) -> None:
            if name in ordered:
                return
            for above in depends[name]:
                place(above)
            ordered[name] = parameters[name]

        for name in parameters:
            place(name)
        return tuple(ordered.values())

    def _check_whole(self, space: SearchSpace) -> None:
        """What can only be seen once everything is there: defaults and first configurations against the rules."""
        whole = space.unguarded
        for broken in whole.broken_rules(whole.default_values):
            self._note(("rules",), f"found defaults that break {broken}, expected defaults that meet every rule")
        for index, entry in enumerate(space.try_first):
            path: Path = ("try_first", index, "set")
            try:
                values = whole.complete(dict(entry.chosen))
            except InputError as error:
                for problem in error.problems:
                    self._note(path, problem)
                continue
            for broken in whole.broken_rules(values):
                self._note(path, f"found a configuration that breaks {broken}, expected one that meets every rule")


def _depends_on(parameter: Parameter) -> frozenset[str]:
    """The names, as expressions write them, that must be settled before it."""
    used: frozenset[str] = frozenset()
    for expression in (parameter.when, parameter.otherwise):
        used |= expression.names if expression else frozenset()
    return used


def _value_problem(kind: Kind, value: Scalar) -> str | None:
    """Why a value cannot be one of an environment variable or an argument."""
    if isinstance(value, bool):
        if kind is Kind.ENV:
            return f'found {shown(value)}, expected a number or a text such as "1": variables have no true or false'
        return None if value else "found false, expected null: a flag that is not given is unset"
    if not isinstance(value, str):
        return None
    if not 1 <= len(value) <= MAX_VALUE_CHARACTERS or not value.isprintable():
        expected = f"1 to {MAX_VALUE_CHARACTERS} printable characters in one line; null for unset"
        return f"found {shown(value)}, expected {expected}"
    if kind is Kind.ARGS and value.startswith("-"):
        # An option's parser would take it for the next option: `--trust-remote-code` smuggled in as a value.
        return f"found {shown(value)}, expected a value that does not begin with a dash"
    return None
