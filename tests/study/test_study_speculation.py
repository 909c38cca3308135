"""The arithmetic of speculation: the two cases that the project started from, and what must hold of any."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.study.speculation import MEASURED, MOTIVATING, Case, Communication, CycleCost, explain

TIME = st.floats(1e-4, 1.0)
ACCEPT = st.floats(1.0, 9.0)


def test_the_motivating_case() -> None:
    cost = MOTIVATING.cost
    assert cost.plain_tok_s == pytest.approx(71.4, abs=0.05)
    assert cost.break_even == pytest.approx(33 / 14)
    assert f"{cost.break_even:.2f}" == "2.36"
    assert int(cost.tok_s(1.6)) == 48
    assert not cost.pays(1.6)
    assert round(cost.tok_s(2.9)) == 88
    assert cost.pays(2.9)
    verify = MOTIVATING.verify
    assert verify is not None
    assert verify.allreduces == 122
    assert verify.step_s == pytest.approx(25e-3)
    assert verify.allreduce_s == pytest.approx(205e-6, rel=0.001)
    assert verify.share(30e-3) == pytest.approx(5 / 6)
    assert "assumed" in MOTIVATING.label


def test_the_measured_case() -> None:
    cost = MEASURED.cost
    assert cost.plain_step_s == pytest.approx(4.92e-3, rel=0.001)
    assert cost.cycle_s == pytest.approx(7.39e-3, rel=0.001)
    assert cost.break_even == pytest.approx(1.50, abs=0.005)
    assert cost.speed_up(1.006) == pytest.approx(0.67, abs=0.005)
    # The start at accept length 2.42 measured 342 tok/s, 1.68 times; its cycle was 7.09 ms, this one's 7.39 ms.
    assert cost.tok_s(2.42) == pytest.approx(328, abs=1)
    assert cost.speed_up(2.42) == pytest.approx(1.68, rel=0.045)
    other = CycleCost.from_rates(203.1, 342, 2.42)
    assert other.cycle_s == pytest.approx(7.08e-3, rel=0.002)
    assert other.speed_up(2.42) == pytest.approx(1.68, abs=0.005)


def test_eight_streams_need_more() -> None:
    cost = CycleCost.from_rates(1321, 673, 1.006, streams=8)
    assert cost.speed_up(1.006) == pytest.approx(0.51, abs=0.005)
    assert cost.break_even == pytest.approx(2.0, abs=0.05)
    assert cost.plain_tok_s == pytest.approx(1321)


def test_a_message_is_as_large_as_its_tokens() -> None:
    sizes = [Communication(61, 7168, 2, tokens, 20e-6).message_bytes for tokens in (1, 4, 8)]
    assert sizes == [14336, 57344, 114688]


@given(TIME, TIME, ACCEPT, st.integers(1, 64))
def test_it_pays_above_the_break_even_and_only_there(plain: float, cycle: float, accept: float, streams: int) -> None:
    cost = CycleCost(plain, cycle, streams=streams)
    assert cost.pays(accept) == (cost.speed_up(accept) > 1)
    assert cost.speed_up(accept) == pytest.approx(cost.tok_s(accept) / cost.plain_tok_s)
    assert cost.tok_s(cost.break_even) == pytest.approx(cost.plain_tok_s)
    assert CycleCost(plain, cost.longest_cycle_s(accept)).break_even == pytest.approx(accept)
    again = CycleCost.from_rates(cost.plain_tok_s, cost.tok_s(accept), accept, streams=streams)
    assert again.plain_step_s == pytest.approx(plain)
    assert again.cycle_s == pytest.approx(cycle)


@given(st.floats(5e-6, 5e-5), st.floats(1.0, 5.0), st.floats(1e-3, 5e-3), st.floats(1e-3, 9e-3), ACCEPT)
def test_links_that_are_said_to_do_make_it_break_even(
    one: float, larger: float, compute: float, more: float, accept: float
) -> None:
    plain, verify = Communication(61, 7168, 2, 1, one), Communication(61, 7168, 2, 4, one * larger)
    case = Case("drawn", CycleCost(compute + plain.step_s, compute + more + verify.step_s), verify, plain)
    fraction = case.links_needed(accept)
    if fraction is None or fraction == 0:
        return
    better = CycleCost(compute + fraction * plain.step_s, compute + more + fraction * verify.step_s)
    assert better.break_even == pytest.approx(accept, rel=1e-6)


def test_why_it_does_not_pay() -> None:
    assert explain(MOTIVATING, 1.6) == (
        "Numbers assumed: a model of 61 layers on 8 GPUs over PCIe; a step without speculation at 70 tok/s.",
        "A plain step takes 14.00 ms (71.4 tok/s), a cycle of drafting and verifying 33.00 ms.",
        "A cycle must yield 33.00 ms / 14.00 ms = 2.36 tokens to break even; it yields 1.60.",
        "That is 48.5 tok/s, 0.68 times the speed without: speculation does not pay here.",
        "Drafting is 3.00 ms of the cycle (9%).",
        "122 all-reduces of 57,344 bytes take 25.00 ms, 76% of the cycle.",
        "To pay, the drafter would need an accept length above 2.36 at this cycle, or the cycle less than 22.40 ms "
        "with this drafter: 10.60 ms less.",
        "A drafter that costs nothing would not be enough: the break-even would be 2.14.",
    )


def test_why_it_pays_and_no_remedy_then() -> None:
    sentences = explain(MOTIVATING, 2.9)
    assert sentences[3] == "That is 87.9 tok/s, 1.23 times the speed without: speculation pays here."
    assert not any("To pay" in sentence for sentence in sentences)
    strict = explain(MOTIVATING, 2.9, margin=0.25)
    assert "does not pay" in strict[3]
    assert "above 2.95" in strict[6]
    assert "less than 32.48 ms with this drafter: 0.52 ms less" in strict[6]


def test_what_links_would_have_to_do() -> None:
    plain, verify = Communication(61, 7168, 2, 1, 20e-6), Communication(61, 7168, 2, 4, 80e-6)
    case = Case("drawn", CycleCost(4e-3, 13e-3), verify, plain)
    # 13 - 9.76 + 9.76 f = 2.5 (4 - 2.44 + 2.44 f): f = 0.66 / 3.66
    assert case.links_needed(2.5) == pytest.approx(0.66 / 3.66)
    assert explain(case, 2.5)[-1] == "All-reduces in 18% of their time would do, in plain and verify step alike."
    assert case.links_needed(1.2) is None
    assert explain(case, 1.2)[-1].startswith("Faster links alone would not be enough")


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be(bad: float) -> None:
    with pytest.raises(ValueError, match="plain step"):
        CycleCost(bad, 1.0)
    with pytest.raises(ValueError, match="verify cycle"):
        CycleCost(1.0, bad)
    with pytest.raises(ValueError, match="tok/s with"):
        CycleCost.from_rates(1.0, bad, 2.0)
    with pytest.raises(ValueError, match="accept length"):
        explain(MEASURED, bad)
    with pytest.raises(ValueError, match="all-reduce"):
        Communication(61, 7168, 2, 1, bad)


def test_parts_that_are_larger_than_the_whole() -> None:
    with pytest.raises(ValueError, match="draft"):
        CycleCost(1.0, 2.0, draft_s=2.0)
    with pytest.raises(ValueError, match=r"found 2\.44 s of all-reduces in a step of 1 s"):
        Communication(61, 7168, 2, 1, 0.02).share(1.0)
    with pytest.raises(ValueError, match="layers 0"):
        Communication(0, 7168, 2, 1, 0.02)
    with pytest.raises(ValueError, match="0 streams"):
        CycleCost(1.0, 2.0, streams=0)
