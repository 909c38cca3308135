"""The grammar of rules: what it means, what it refuses, and that a text in it is never code."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.space.grammar import MAX_CHARACTERS, normalized
from tuner.space.rules import Choices, parse, parse_comparison
from tuner.values.configuration import Scalar

NAMES = {
    "A": None,
    "B": None,
    "ALGO": Choices((None, "Ring", "allreduce:tree")),
    "mixed": Choices((1, "max")),
    "flag": Choices((None, True)),
    "num_continuous_decode_steps": None,
}


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("A <= B", {"A": 1, "B": 2}, True),
        ("A <= B", {"A": 2, "B": 1}, False),
        ("A < B", {"A": 2, "B": 2}, False),
        ("A >= B", {"A": 2, "B": 2}, True),
        ("A > B", {"A": 2, "B": 2}, False),
        ("A == 2", {"A": 2.0}, True),
        ("A != 2", {"A": 2}, False),
        ("1 <= A <= 4", {"A": 4}, True),
        ("1 <= A <= 4", {"A": 5}, False),
        ("1 + 2 * 3 == 7", {}, True),
        ("(1 + 2) * 3 == 9", {}, True),
        ("10 - 4 - 3 == 3", {}, True),
        ("8 / 4 / 2 == 1", {}, True),
        ("-A + 3 == 1", {"A": 2}, True),
        ("2 - -1 == 3", {}, True),
        ("1.5e1 == 15 and .5 == 0.5 and 1. == 1", {}, True),
        ("A == 1 or A == 2 and B == 3", {"A": 1, "B": 0}, True),  # and binds closer than or
        ("(A == 1 or A == 2) and B == 3", {"A": 1, "B": 0}, False),
        ("not A == 1 and B == 1", {"A": 2, "B": 1}, True),  # not binds closer than and
        ("not (A == 1 and B == 1)", {"A": 1, "B": 2}, True),
        ("not not A == 1", {"A": 1}, True),
        ("ALGO in ('Ring', null)", {}, True),
        ('ALGO in ["allreduce:tree"]', {"ALGO": "Ring"}, False),
        ("ALGO not in ('Ring',)", {"ALGO": "Ring"}, False),
        ("A in (-1, 2)", {"A": -1}, True),
        ("ALGO == null", {}, True),
        ("ALGO != null", {"ALGO": "Ring"}, True),
        ("flag == true", {"flag": True}, True),
        ("flag != true", {"flag": None}, True),
        ("mixed == 'max'", {"mixed": "max"}, True),
        ("num_continuous_decode_steps == 4", {"num_continuous_decode_steps": 4}, True),
        # null: an ordering holds, arithmetic stays null, equality takes it as a value
        ("A <= B", {"A": 5}, True),
        ("A <= B", {"B": 5}, True),
        ("A > 3", {"A": None}, True),
        ("A * 2 + 1 > 100", {}, True),
        ("A * 2 == null", {}, True),
        ("not A > 3", {}, False),
        ("A / B < 0", {"A": 1, "B": 0}, True),
        ("A == null", {"A": 0}, False),
        # kinds never mix
        ("A == 1", {"A": True}, False),
        ("A != 1", {"A": "1"}, True),
        ("A in (1, 2)", {"A": True}, False),
    ],
)
def test_what_a_rule_means(text: str, values: dict[str, Scalar], holds: bool) -> None:
    assert parse(text, NAMES).holds(values) is holds


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "found the end, expected a name, a number"),
        ("A <=", 5, "found the end"),
        ("A = 3", 3, "found '=', expected '==' for a comparison"),
        ("A", 1, "found a value, expected a comparison such as"),
        ("A and B == 1", 1, "found a value, expected a comparison"),
        ("not A", 5, "found a value, expected a comparison"),
        ("A > 1 B", 7, "found 'B', expected a comparison, 'and', 'or' or the end"),
        ("(A > 1", 7, "found the end, expected ')'"),
        ("A > 1)", 6, "found ')'"),
        ("(A > 1) + 1 > 2", 4, "found a comparison, expected a value"),
        ("A in 1", 6, "found '1', expected a list such as (1, 2, 4)"),
        ("A in ()", 3, "found an empty list"),
        ("A in (1 2)", 9, "found '2', expected ',' or ')'"),
        ("A in (B, 2)", 7, "expected a number, a quoted text, null, true or false"),
        ("A not > 2", 7, "found '>', expected 'in' after 'not'"),
        ("A == 'x", 6, "expected a closing quote"),
        ("A == True", 6, "found True, expected null, true or false"),
        ("A == None", 6, "found None, expected null, true or false"),
        ("C > 1", 1, "found the unknown name 'C', expected a known one"),
        ("AGLO == null", 1, "unknown name 'AGLO', expected a known one; did you mean 'ALGO'?"),
        ("num-continuous-decode-steps > 1", 1, "write dashes as underscores: num_continuous_decode_steps"),
        ("ALGO < 3", 1, "found what can be a text, expected a number beside '<'"),
        ("A < 'x'", 5, "found what can be a text, expected a number beside '<'"),
        ("mixed * 2 > 3", 1, "found what can be a text, expected a number beside '*'"),
        ("flag > 0", 1, "found what can be true or false, expected a number"),
        ("-ALGO == 1", 2, "found what can be a text"),
        ("ALGO == 'ring'", 9, "expected one of null, 'Ring', 'allreduce:tree'; did you mean 'Ring'?"),
        ("'tree' != ALGO", 1, "found 'tree', expected one of null, 'Ring', 'allreduce:tree'"),
        ("ALGO in ('Ring', 'Tree')", 18, "found 'Tree', expected one of"),
        ("A == 'x'", 6, "found 'x', expected a number"),
        ("A == true", 6, "found true, expected a number"),
        ("A > 1_000", 5, "found '1', expected a decimal number"),
        ("0x10 > A", 1, "found '0', expected a decimal number"),
        ("A > 1j", 5, "expected a decimal number"),
        ("1..2 > A", 1, "expected a decimal number"),
        (f"A > {'9' * 19}", 5, "found a number of 19 digits, expected at most 18"),
        ("A > 1e999", 5, "expected a finite number"),
        ("A ** 2 > 1", 4, "found '*'"),
        ("A // 2 > 1", 4, "found '/'"),
        ("A % 2 == 0", 3, "found '%'"),
        ("A[0] > 1", 2, "found '['"),
        ("A.real > 1", 2, "found '.'"),
        ("f'{A}' == 'x'", 2, "expected a comparison, 'and', 'or' or the end"),
        ("lambda: 1", 7, "found ':'"),
        ("__import__('os')", 11, "found '('"),
        ("[x for x in (1,)] == 1", 1, "found '['"),
        ("A := 3", 3, "found ':'"),
        ("A > ٣", 5, "found '٣'"),
        ("Ａ > 3", 1, "found 'Ａ'"),
        ("not " * 21 + "A > 1", 85, "found more than 20 levels, expected a simpler rule"),
        ("(" * 21 + "A" + ")" * 21 + " > 1", 22, "found more than 20 levels"),
        ("-" * 21 + "A > 1", 22, "found more than 20 levels"),
        ("1 + " * 30 + "1 > A", 85, "found more than 20 levels"),
        ("A > 1" + " " * MAX_CHARACTERS, MAX_CHARACTERS + 1, "found 505 characters, expected at most 500"),
    ],
)
def test_what_a_rule_may_not_be(text: str, column: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, NAMES)
    assert f"column {column}: " in str(caught.value)
    assert message in str(caught.value)


def test_a_rule_knows_its_names() -> None:
    assert parse("A <= B and ALGO in ('Ring',)", NAMES).names == {"A", "B", "ALGO"}
    assert parse("1 < 2", NAMES).names == frozenset()


def test_names_without_choices_are_numbers() -> None:
    assert parse("tok_s >= 1.05 * baseline", {"tok_s", "baseline"}).holds({"tok_s": 105.0, "baseline": 100.0})


@pytest.mark.parametrize("value", ["x", True])
def test_a_value_of_the_wrong_kind_is_an_input_error(value: Scalar) -> None:
    with pytest.raises(InputError, match=r"column 1: found .*, expected a number or null"):
        parse("A < 3", NAMES).holds({"A": value})


def test_numbers_beyond_all_bounds_are_an_input_error() -> None:
    with pytest.raises(InputError, match="too large"):
        parse("A / 2 > 1", NAMES).holds({"A": 10**400})


@pytest.mark.parametrize(
    ("text", "left", "right", "violation"),
    [
        ("a <= b", 3, 5, -2.0),
        ("a <= b", 5, 3, 2.0),
        ("a <= b", 5, 5, 0.0),
        ("a >= b", 5, 3, -2.0),
        ("a >= b", 3, 5, 2.0),
        ("a < b", 5, 5, sys.float_info.min),
        ("a > b", 5, 5, sys.float_info.min),
        ("a > b", 5.5, 5, -0.5),
        ("a <= b", None, 3, 0.0),
        ("a <= b", math.nan, 3, math.inf),
        ("a <= b", math.inf, math.inf, 0.0),
        ("a < b", math.inf, math.inf, math.inf),
        ("a >= b", -math.inf, 3, math.inf),
        ("a <= b", 10**400, 3, math.inf),
        ("a >= b", 10**400, 3.5, -math.inf),
    ],
)
def test_violation_is_positive_exactly_when_the_comparison_does_not_hold(
    text: str, left: float | None, right: float, violation: float
) -> None:
    comparison = parse_comparison(text, {"a", "b"})
    values: dict[str, Scalar] = {"a": left, "b": right}
    assert comparison.violation(values) == violation
    assert comparison.holds(values) is (violation <= 0)


@pytest.mark.parametrize("text", ["a == b", "a != b", "a < b and b < 3", "not a < b", "1 < a < 3", "a in (1, 2)"])
def test_a_comparison_is_one_ordering(text: str) -> None:
    with pytest.raises(InputError, match="expected one comparison of two numbers with <, <=, > or >="):
        parse_comparison(text, {"a", "b"})


def test_layout_is_no_part_of_the_meaning() -> None:
    assert normalized("A<=B  and ALGO!='Ring'") == normalized('A <= B and ALGO != "Ring"')
    assert normalized("A <= B") != normalized("A < B")


numbers = st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False, width=32))


def expressions() -> st.SearchStrategy[str]:
    """Texts of the grammar, over numbers only."""
    operands = st.recursive(
        st.sampled_from(["A", "B"]) | numbers.map(lambda n: format(n, ".6f") if n >= 0 else f"(0 - {-n:.6f})"),
        lambda inner: st.builds(lambda a, sign, b: f"({a} {sign} {b})", inner, st.sampled_from("+-*"), inner),
        max_leaves=4,
    )
    relations = st.builds(
        lambda a, sign, b: f"{a} {sign} {b}", operands, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), operands
    )
    return st.recursive(
        relations,
        lambda inner: (
            st.builds(lambda a, word, b: f"({a}) {word} ({b})", inner, st.sampled_from(["and", "or"]), inner)
            | inner.map(lambda a: f"not ({a})")
        ),
        max_leaves=3,
    ).filter(lambda text: len(text) <= MAX_CHARACTERS)


@settings(max_examples=150, deadline=None)
@given(expressions(), numbers, numbers)
def test_rules_over_numbers_agree_with_python(text: str, a: float, b: float) -> None:
    assert parse(text, {"A", "B"}).holds({"A": a, "B": b}) is bool(eval(text, {}, {"A": a, "B": b}))


WORDS = st.sampled_from(
    [
        *(
            "A",
            "B",
            "ALGO",
            "mixed",
            "flag",
            "and",
            "or",
            "not",
            "in",
            "(",
            ")",
            "[",
            "]",
            ",",
            "==",
            "!=",
            "<",
            "<=",
            ">",
        ),
        *(
            ">=",
            "+",
            "-",
            "*",
            "/",
            "**",
            ".",
            "1",
            "2.5",
            "'Ring'",
            '"x"',
            "null",
            "true",
            "false",
            "lambda",
            ":",
            ";",
        ),
        *("__import__", "__class__", "eval", "exec", "if", "else", "for", "=", ":=", "@", "%", "&", "|", "~", "^", "#"),
        *("\\", "`", "$", "?", "{", "}", "\n", "é"),
    ]
)
VALUES: st.SearchStrategy[Scalar] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["Ring", "max"])
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=60) | st.lists(WORDS, max_size=60).map("".join),
    st.dictionaries(st.sampled_from(sorted(NAMES)), VALUES),
)
def test_no_text_and_no_value_raises_anything_but_an_input_error(text: str, values: dict[str, Scalar]) -> None:
    try:
        assert parse(text, NAMES).holds(values) in (True, False)
    except InputError as error:
        assert "expected" in str(error)
    try:
        assert isinstance(parse_comparison(text, {"A", "B"}).violation(values), float)
    except InputError as error:
        assert "expected" in str(error)
