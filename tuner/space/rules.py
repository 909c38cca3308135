"""Rules: small expressions over named values, for conditions, rules among parameters, and objectives' constraints.

    rule = parse("NCCL_MIN_NCHANNELS <= NCCL_MAX_NCHANNELS", {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"})
    rule.holds({"NCCL_MIN_NCHANNELS": 4, "NCCL_MAX_NCHANNELS": 2})      # False
    parse_comparison("output_tok_s >= 1.0 * baseline", names).violation(values)

Comparisons, ``and or not in``, parentheses, ``+ - * /``, numbers, quoted texts, ``null true false`` and names; the
grammar is in `tuner.space.grammar`. Nothing is ever evaluated by Python. What null means:

- A name that is not among the values is null, which means *unset*.
- Arithmetic with null is null; so is a division by zero.
- **An ordering (< <= > >=) in which a side is null holds**: a limit says nothing about what is not set.
- ``==``, ``!=`` and ``in`` take null as a value like any other. Numbers, texts and flags never equal each other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from tuner.documents.complaints import did_you_mean, shown
from tuner.space.grammar import (
    ORDERINGS,
    Arithmetic,
    Condition,
    Junction,
    Literal,
    Membership,
    Name,
    Negation,
    Negative,
    Node,
    Operand,
    Relation,
    fault,
    parse_condition,
    parse_operand,
)
from tuner.values.configuration import Scalar


@dataclass(frozen=True)
class Choices:
    """The values that a name can have, null apart. Comparing with any other is a mistake that `parse` reports."""

    values: tuple[Scalar, ...]


Names = Collection[str] | Mapping[str, Choices | None]
"""The names that an expression may use; with a mapping, `Choices`, or ``None`` for a number (the default)."""


@dataclass(frozen=True)
class Expression:
    """A condition over named values.

    Attributes:
        text: as written.
        names: that it uses.
        condition: its tree.
    """

    text: str
    names: frozenset[str]
    condition: Condition

    def holds(self, values: Mapping[str, Scalar]) -> bool:
        """Whether it is true of the values.

        Raises:
            InputError: a value has a type that it cannot be used with; not for values that `parse` was told of.
        """
        return _holds(self.condition, values, self.text)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Comparison(Expression):
    """A single ordering, such as an objective's constraint: one whose violation is a number."""

    condition: Relation

    def violation(self, values: Mapping[str, Scalar]) -> float:
        """How far it is from holding, in the unit of its sides: ≤ 0 when it holds, > 0 when not.

        For ``a <= b`` it is ``a - b``. At equality ``a < b`` is violated by the smallest positive number. It is 0
        when a side is null and infinite when it is not a number.
        """
        left = _number_at(self.condition.left, values, self.text)
        right = _number_at(self.condition.right, values, self.text)
        if left is None or right is None:
            return 0.0
        try:
            over = float(left - right if self.condition.sign in ("<", "<=") else right - left)
        except OverflowError:  # whole numbers beyond what a float can hold
            return -math.inf if _ordered(self.condition.sign, left, right) else math.inf
        if math.isnan(over):  # infinite sides may be equal; otherwise nothing is known, and nothing known is no proof
            return 0.0 if left == right and self.condition.sign in ("<=", ">=") else math.inf
        if over == 0 and self.condition.sign in ("<", ">"):
            return sys.float_info.min
        return over


@dataclass(frozen=True)
class Formula:
    """A number computed from named values.

    Attributes:
        text: as written.
        names: that it uses.
        operand: its tree.
    """

    text: str
    names: frozenset[str]
    operand: Operand

    def value(self, values: Mapping[str, Scalar]) -> int | float | None:
        """The number; ``None`` when a name that it needs is null.

        Raises:
            InputError: a value is no number; not for values that `parse_formula` was told of.
        """
        return _number_at(self.operand, values, self.text)

    def __str__(self) -> str:
        return self.text


def parse_formula(text: str, names: Names) -> Formula:
    """A formula of the text, such as ``speculative_num_steps + 1``.

    Raises:
        InputError: the text is no value of the grammar, uses an unknown name or what can be no number.
    """
    operand = parse_operand(text)
    _check(operand, names, text)
    if other := _kinds(operand, names) - {"a number"}:
        raise fault(text, operand.column, f"what can be {sorted(other)[0]}", "a number")
    return Formula(text, frozenset(node.name for node in _nodes(operand) if isinstance(node, Name)), operand)


def parse(text: str, names: Names) -> Expression:
    """An expression of the text.

    Args:
        names: that may be used. An argument such as ``num-continuous-decode-steps`` is written with underscores.

    Raises:
        InputError: the text is not of the grammar, uses a name that is not known, orders or adds what is no
            number, or compares with a value that can never be; the message points at the column.
    """
    condition = parse_condition(text)
    _check(condition, names, text)
    return Expression(text, frozenset(node.name for node in _nodes(condition) if isinstance(node, Name)), condition)


def parse_comparison(text: str, names: Names) -> Comparison:
    """Like `parse`, for a single ordering ``left <= right`` (or ``< > >=``).

    Raises:
        InputError: also when it is anything else.
    """
    expression = parse(text, names)
    relation = expression.condition
    if not isinstance(relation, Relation) or relation.sign not in ORDERINGS:
        found = f"'{relation.sign}'" if isinstance(relation, Relation) else "something else"
        raise fault(text, relation.column, found, "one comparison of two numbers with <, <=, > or >=")
    return Comparison(text, expression.names, relation)


def identifier(name: str) -> str:
    """A parameter's name as expressions write it: dashes become underscores."""
    return name.replace("-", "_")


def same(left: Scalar, right: Scalar) -> bool:
    """Whether two scalars are equal and of one kind: ``1 == 1.0``, but neither true nor ``"1"``."""
    return _kind(left) == _kind(right) and left == right


def _kind(value: Scalar) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    return "a text" if isinstance(value, str) else "a number"


def _nodes(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    match node:
        case Literal() | Name():
            pass
        case Arithmetic(left=left, right=right) | Relation(left=left, right=right):
            yield from _nodes(left)
            yield from _nodes(right)
        case Membership(left=left, members=members):
            yield from _nodes(left)
            yield from members
        case Negative(operand=operand):
            yield from _nodes(operand)
        case Negation(condition=condition):
            yield from _nodes(condition)
        case Junction(conditions=conditions):
            for condition in conditions:
                yield from _nodes(condition)
        case _:
            assert_never(node)


def _check(condition: Node, names: Names, text: str) -> None:
    """Finds what can never be meant, before any value is known."""
    for node in _nodes(condition):
        match node:
            case Name() if node.name not in names:
                hint = _hint(node, names, text)
                raise fault(text, node.column, f"the unknown name {node.name!r}", f"a known one{hint}")
            case Arithmetic(left=left, right=right, sign=sign):
                _check_number(left, sign, names, text)
                _check_number(right, sign, names, text)
            case Negative(operand=operand):
                _check_number(operand, "-", names, text)
            case Relation(left=left, right=right, sign=sign) if sign in ORDERINGS:
                _check_number(left, sign, names, text)
                _check_number(right, sign, names, text)
            case Relation(left=left, right=right):
                _check_possible(left, right, names, text)
                _check_possible(right, left, names, text)
            case Membership(left=left, members=members):
                for member in members:
                    _check_possible(left, member, names, text)
            case _:
                pass


def _hint(node: Name, names: Names, text: str) -> str:
    """The nearest name; for a name that was written with dashes, how it is written here."""
    dashed = next((n for n in names if "_" in n and text[node.column - 1 :].startswith(n.replace("_", "-"))), None)
    return f"; write dashes as underscores: {dashed}" if dashed else did_you_mean(node.name, names)


def _kinds(operand: Operand, names: Names) -> set[str]:
    """The kinds of value that an operand can have, null apart."""
    if isinstance(operand, Literal):
        return {_kind(operand.value)} - {"null"}
    choices = names.get(operand.name) if isinstance(operand, Name) and isinstance(names, Mapping) else None
    return {"a number"} if choices is None else {_kind(value) for value in choices.values} - {"null"}


def _check_number(operand: Operand, sign: str, names: Names, text: str) -> None:
    if other := _kinds(operand, names) - {"a number"}:
        raise fault(text, operand.column, f"what can be {sorted(other)[0]}", f"a number beside '{sign}'")


def _check_possible(operand: Operand, other: Operand, names: Names, text: str) -> None:
    """Whether an operand can ever equal a literal."""
    if not isinstance(other, Literal) or other.value is None or isinstance(operand, Literal):
        return
    choices = names.get(operand.name) if isinstance(operand, Name) and isinstance(names, Mapping) else None
    if choices is None:
        possible, expected = _kind(other.value) == "a number", "a number"
    else:
        possible = any(same(other.value, value) for value in choices.values)
        near = did_you_mean(str(other.value), [str(v) for v in choices.values if v is not None])
        expected = f"one of {', '.join(shown(v) for v in choices.values)}{near}"
    if not possible:
        raise fault(text, other.column, shown(other.value), expected)


def _holds(condition: Condition, values: Mapping[str, Scalar], text: str) -> bool:
    match condition:
        case Relation(sign=sign, left=left, right=right) if sign in ORDERINGS:
            return _ordered(sign, _number_at(left, values, text), _number_at(right, values, text))
        case Relation(sign=sign, left=left, right=right):
            return same(_value(left, values, text), _value(right, values, text)) == (sign == "==")
        case Membership(left=left, members=members):
            value = _value(left, values, text)
            return any(same(value, member.value) for member in members)
        case Negation(condition=inner):
            return not _holds(inner, values, text)
        case Junction(word="and", conditions=conditions):
            return all(_holds(inner, values, text) for inner in conditions)
        case Junction(conditions=conditions):
            return any(_holds(inner, values, text) for inner in conditions)
        case _:
            assert_never(condition)


def _ordered(sign: str, left: int | float | None, right: int | float | None) -> bool:
    if left is None or right is None:
        return True
    if sign == "<":
        return left < right
    if sign == "<=":
        return left <= right
    return left > right if sign == ">" else left >= right


def _value(operand: Operand, values: Mapping[str, Scalar], text: str) -> Scalar:
    match operand:
        case Literal(value=value):
            return value
        case Name(name=name):
            return values.get(name)
        case Negative(operand=inner):
            number = _number_at(inner, values, text)
            return None if number is None else -number
        case Arithmetic():
            return _computed(operand, values, text)
        case _:
            assert_never(operand)


def _number_at(operand: Operand, values: Mapping[str, Scalar], text: str) -> int | float | None:
    value = _value(operand, values, text)
    if isinstance(value, str | bool):
        raise fault(text, operand.column, shown(value), "a number or null")
    return value


def _computed(operand: Arithmetic, values: Mapping[str, Scalar], text: str) -> int | float | None:
    left, right = _number_at(operand.left, values, text), _number_at(operand.right, values, text)
    if left is None or right is None or (operand.sign == "/" and right == 0):
        return None
    try:
        match operand.sign:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case _:
                return left / right
    except OverflowError as error:
        raise fault(text, operand.column, "a result that is too large", "numbers that a computer can hold") from error
