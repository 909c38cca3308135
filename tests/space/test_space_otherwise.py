"""Parameters that follow from others where their condition does not hold."""

from __future__ import annotations

import pytest

from tuner.errors import InputError
from tuner.space.load import load_space
from tuner.space.space import SearchSpace
from tuner.values.configuration import Scalar

TEXT = """
args:
  tokens:
    choices: [4, 8]
    default: 4
    when: topk > 1
    otherwise: steps + 1
  topk: {choices: [1, 4], default: 1, when: "mode != null"}
  steps: {int: {low: 1, high: 7}, default: 3, when: "mode != null"}
  mode: {choices: [null, EAGLE3]}
"""


def space(text: str = TEXT) -> SearchSpace:
    return load_space(text, "s.yaml")


def test_it_comes_after_what_it_follows_from() -> None:
    names = [p.name for p in space().parameters]
    assert names.index("tokens") > max(names.index("topk"), names.index("steps"))


def test_it_is_unset_where_what_it_follows_from_is() -> None:
    offered = space().unguarded
    assert offered.complete({"mode": "EAGLE3", "steps": 5})["tokens"] == 6
    # An ordering with an unset side holds: `topk > 1` is true without speculation, so the default is taken there.
    assert offered.complete({})["tokens"] == 4
    strict = space(TEXT.replace("when: topk > 1", "when: topk in (4)")).unguarded
    assert strict.complete({})["tokens"] is None
    assert strict.complete({"mode": "EAGLE3", "topk": 4})["tokens"] == 4


def test_a_configuration_holds_what_follows_whatever_else_is_written() -> None:
    values: dict[str, Scalar] = {"mode": "EAGLE3", "steps": 2, "topk": 1, "tokens": 8}
    assert dict(space().unguarded.configuration(values).args)["tokens"] == 3


def test_it_is_part_of_what_the_space_means() -> None:
    other = space(TEXT.replace("steps + 1", "steps + 2"))
    assert other.fingerprint != space().fingerprint
    assert space().differences(other) == ("args.tokens.otherwise: was 'steps + 1', is now 'steps + 2'",)
    assert space(TEXT.replace("steps + 1", '"steps  +  1"')).fingerprint == space().fingerprint


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("steps + 1", "stepps + 1", "args.tokens.otherwise: in 'stepps + 1', column 1: found the unknown name"),
        ("steps + 1", "steps > 1", "found a comparison, expected a value"),
        ("steps + 1", "mode", "found what can be a text, expected a number"),
        ("steps + 1", "steps + mode", "found what can be a text, expected a number beside '+'"),
        ("steps + 1", "steps +", "found the end"),
        ("steps + 1", "steps 1", "expected '+ - * /' or the end of the value"),
        ("steps + 1", "tokens + 1", "found a circle of conditions"),
        ("steps + 1", "1" + " + 1" * 200, "expected at most 500"),
        ("    when: topk > 1\n", "", "found otherwise without when, expected both or neither"),
    ],
)
def test_a_faulty_formula_is_named(old: str, new: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        space(TEXT.replace(old, new))
    assert says in str(caught.value)
