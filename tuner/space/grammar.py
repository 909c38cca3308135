"""The grammar of rules: text to a tree. A parser of our own, so that nothing of Python's can be reached from a file.

    condition  = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation   = "not" negation | comparison | "(" condition ")"
    comparison = sum relation sum { relation sum } | sum [ "not" ] "in" "(" literal { "," literal } ")"
    relation   = "==" | "!=" | "<" | "<=" | ">" | ">="
    sum        = term { ("+" | "-") term }
    term       = factor { ("*" | "/") factor }
    factor     = "-" factor | number | text | name | "null" | "true" | "false" | "(" sum ")"

A text stands in single or double quotes, without escapes. There are no attributes, calls, subscripts or powers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tuner.documents.complaints import shown
from tuner.errors import InputError
from tuner.values.configuration import Scalar

MAX_CHARACTERS = 500
MAX_DEPTH = 20

ORDERINGS = ("<", "<=", ">", ">=")
RELATIONS = ("==", "!=", *ORDERINGS)
CONSTANTS: dict[str, Scalar] = {"null": None, "true": True, "false": False}

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![A-Za-z0-9_.]))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<text>"[^"]*"|'[^']*')
      | (?P<sign>==|!=|<=|>=|[<>+\-*/(),\[\]])
      )""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True)
class Literal:
    """A number, a text, true, false or null."""

    value: Scalar
    column: int


@dataclass(frozen=True)
class Name:
    """A parameter or a metric."""

    name: str
    column: int


@dataclass(frozen=True)
class Arithmetic:
    """Two numbers joined by ``+ - * /``."""

    sign: str
    left: Operand
    right: Operand
    column: int


@dataclass(frozen=True)
class Negative:
    """A number with its sign turned."""

    operand: Operand
    column: int


Operand = Literal | Name | Arithmetic | Negative


@dataclass(frozen=True)
class Relation:
    """``left sign right``. A chain such as ``1 <= A <= B`` is the conjunction of its links."""

    sign: str
    left: Operand
    right: Operand
    column: int


@dataclass(frozen=True)
class Membership:
    """``left in (a, b)``."""

    left: Operand
    members: tuple[Literal, ...]
    column: int


@dataclass(frozen=True)
class Negation:
    """``not condition``."""

    condition: Condition
    column: int


@dataclass(frozen=True)
class Junction:
    """Conditions joined by ``and`` (all) or ``or`` (any)."""

    word: str
    conditions: tuple[Condition, ...]
    column: int


Condition = Relation | Membership | Negation | Junction
Node = Operand | Condition


@dataclass(frozen=True)
class Token:
    """A word of the text; `kind` is ``number``, ``name``, ``text``, ``sign`` or ``end``."""

    kind: str
    text: str
    column: int


def fault(text: str, column: int, found: str, expected: str) -> InputError:
    """The error for a rule's text, pointing at a column (counted from 1)."""
    excerpt = text if len(text) <= 100 else text[:100] + "…"
    return InputError(f"in {excerpt!r}, column {column}: found {found}, expected {expected}")


def parse_condition(text: str) -> Condition:
    """The tree of a rule.

    Raises:
        InputError: it is not of the grammar, longer than 500 characters or deeper than 20 levels.
    """
    if len(text) > MAX_CHARACTERS:
        raise fault(text, MAX_CHARACTERS + 1, f"{len(text)} characters", f"at most {MAX_CHARACTERS}")
    return _Parser(text).whole()


def parse_operand(text: str) -> Operand:
    """The tree of a value, such as ``STEPS + 1``: a *sum* of the grammar.

    Raises:
        InputError: as `parse_condition`, and when it is a condition.
    """
    if len(text) > MAX_CHARACTERS:
        raise fault(text, MAX_CHARACTERS + 1, f"{len(text)} characters", f"at most {MAX_CHARACTERS}")
    return _Parser(text).value()


def normalized(text: str) -> str:
    """The words of a rule, spaced and quoted in one way: equal for rules that differ in layout only."""
    return " ".join(
        json.dumps(token.text[1:-1]) if token.kind == "text" else token.text
        for token in _tokens(text)
        if token.kind != "end"
    )


def _tokens(text: str) -> Iterator[Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            column = position + len(text[position:]) - len(text[position:].lstrip()) + 1
            raise fault(text, column, repr(text[column - 1]), _what_fits(text[column - 1]))
        yield Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1)
        position = match.end()
    yield Token("end", "", end + 1)


def _what_fits(character: str) -> str:
    if character in "\"'":
        return "a closing quote later in the text"
    if character == "=":
        return "'==' for a comparison"
    if character in "0123456789":
        return "a decimal number such as 4 or 0.5"
    return "a name, a number, a quoted text, a comparison, '+ - * /' or parentheses"


class _Parser:
    """Recursive descent, one method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._all = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        node = self._junction()
        if self._here.kind != "end":
            raise self._unexpected("a comparison, 'and', 'or' or the end of the rule")
        return self._as_condition(node)

    def value(self) -> Operand:
        node = self._junction()
        if self._here.kind != "end":
            raise self._unexpected("'+ - * /' or the end of the value")
        return self._as_operand(node)

    @property
    def _here(self) -> Token:
        return self._all[self._at]

    def _take(self, *words: str) -> Token | None:
        """The token here if it is one of the words; then it is passed."""
        token = self._here
        if token.kind not in ("sign", "name") or token.text not in words:
            return None
        self._at += 1
        return token

    def _unexpected(self, expected: str) -> InputError:
        found = repr(self._here.text) if self._here.kind != "end" else "the end"
        return fault(self._text, self._here.column, found, expected)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise fault(self._text, self._here.column, f"more than {MAX_DEPTH} levels", "a simpler rule")

    def _as_condition(self, node: Node) -> Condition:
        if isinstance(node, Literal | Name | Arithmetic | Negative):
            raise fault(self._text, node.column, "a value", "a comparison such as NAME == 4 or NAME != null")
        return node

    def _as_operand(self, node: Node) -> Operand:
        if not isinstance(node, Literal | Name | Arithmetic | Negative):
            raise fault(self._text, node.column, "a comparison", "a value")
        return node

    # Below, a node may be a value or a condition, since "(" may open either: what it is decides what may follow.

    def _junction(self) -> Node:
        return self._joined("or", lambda: self._joined("and", self._negation))

    def _joined(self, word: str, operand: Callable[[], Node]) -> Node:
        column, first = self._here.column, operand()
        nodes = [first]
        while self._take(word):
            nodes.append(operand())
        if len(nodes) == 1:
            return first
        return Junction(word, tuple(self._as_condition(node) for node in nodes), column)

    def _negation(self) -> Node:
        if token := self._take("not"):
            self._deeper()
            negation = Negation(self._as_condition(self._negation()), token.column)
            self._depth -= 1
            return negation
        return self._comparison()

    def _comparison(self) -> Node:
        column, left = self._here.column, self._sum()
        links: list[Condition] = []
        while token := self._take(*RELATIONS):
            right = self._as_operand(self._sum())
            links.append(Relation(token.text, self._as_operand(left), right, token.column))
            left = right
        if links:
            return links[0] if len(links) == 1 else Junction("and", tuple(links), column)
        if token := self._take("not"):
            if not self._take("in"):
                raise self._unexpected("'in' after 'not'")
            return Negation(self._membership(left, token), token.column)
        if token := self._take("in"):
            return self._membership(left, token)
        return left

    def _membership(self, left: Node, token: Token) -> Membership:
        opening = self._take("(", "[")
        if opening is None:
            raise self._unexpected("a list such as (1, 2, 4)")
        closing = ")" if opening.text == "(" else "]"
        members: list[Literal] = []
        while not self._take(closing):
            member = self._factor()
            if isinstance(member, Negative) and isinstance(member.operand, Literal):
                number = member.operand.value
                if isinstance(number, int | float):
                    member = Literal(-number, member.column)
            if not isinstance(member, Literal):
                raise fault(self._text, member.column, "something else", "a number, a quoted text, null, true or false")
            members.append(member)
            if not self._take(",") and self._here.text != closing:
                raise self._unexpected(f"',' or {closing!r}")
        if not members:
            raise fault(self._text, token.column, "an empty list", "at least one value")
        return Membership(self._as_operand(left), tuple(members), token.column)

    def _sum(self) -> Node:
        return self._chain(("+", "-"), lambda: self._chain(("*", "/"), self._factor))

    def _chain(self, signs: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        left = operand()
        depth = self._depth
        while token := self._take(*signs):
            self._deeper()  # a chain leans to the left: each link is one level of the tree
            left = Arithmetic(token.text, self._as_operand(left), self._as_operand(operand()), token.column)
        self._depth = depth
        return left

    def _factor(self) -> Node:
        token = self._here
        self._at += token.kind != "end"
        if token.kind == "number":
            return Literal(self._number(token), token.column)
        if token.kind == "text":
            return Literal(token.text[1:-1], token.column)
        if token.kind == "name" and token.text not in ("and", "or", "not", "in"):
            if token.text in CONSTANTS:
                return Literal(CONSTANTS[token.text], token.column)
            if token.text in ("None", "True", "False"):
                raise fault(self._text, token.column, token.text, "null, true or false")
            return Name(token.text, token.column)
        if token.text in ("-", "("):
            self._deeper()
            node: Node
            if token.text == "-":
                node = Negative(self._as_operand(self._factor()), token.column)
            else:
                node = self._junction()
                if not self._take(")"):
                    raise self._unexpected("')'")
            self._depth -= 1
            return node
        found = repr(token.text) if token.kind != "end" else "the end"
        raise fault(self._text, token.column, found, "a name, a number, a quoted text or '('")

    def _number(self, token: Token) -> int | float:
        if token.text.isdecimal():
            if len(token.text) > 18:
                raise fault(self._text, token.column, f"a number of {len(token.text)} digits", "at most 18")
            return int(token.text)
        number = float(token.text)
        if number == float("inf"):
            raise fault(self._text, token.column, shown(token.text), "a finite number")
        return number
