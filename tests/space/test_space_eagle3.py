"""The space of speculation: no launch is spent on what SGLang refuses or rewrites.

The rules of SGLang are stated a second time here (`outcome`), from its source and not from the code under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.engines.sglang import SGLang
from tuner.errors import InputError
from tuner.shipped import shipped_file
from tuner.space.load import load_space
from tuner.values.configuration import Configuration, Scalar
from tuner.values.host import Gpu, HostFacts
from tuner.values.launch import LaunchBase

SPACE = load_space(shipped_file("search_spaces", "eagle3.yaml").read_text(), "eagle3.yaml")
NCCL = load_space(shipped_file("search_spaces", "nccl.yaml").read_text(), "nccl.yaml")
GPUS = tuple(Gpu(i, f"GPU-{i}", "RTX", 1, 0) for i in range(8))
DRAFT = (("model-path", "/models/kimi"), ("tp-size", 8), ("speculative-draft-model-path", "/models/draft"))
STEPS, TOPK, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
HOSTS = [("0.5.9", "2.27.5"), ("0.5.17", "2.28.9"), ("0.5.23", "2.30.7")]


def host(engine: str = "0.5.17", nccl: str = "2.28.9") -> HostFacts:
    return HostFacts("a", "a", "b", "k", 2, "580", GPUS, "", "sglang", engine, nccl)


def base(*args: tuple[str, Scalar]) -> LaunchBase:
    return LaunchBase(command=("python3", "-m", "sglang.launch_server"), args=(*DRAFT, *args))


class Drawn:
    """A trial whose every choice is hypothesis's."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Any:
        return self._data.draw(st.sampled_from(list(choices)), name)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return self._data.draw(st.sampled_from(range(low, high + 1, step)), name)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return self._data.draw(st.floats(low, high), name)


def outcome(steps: int | None, topk: int | None, tokens: int | None) -> str:
    """What SGLang makes of the triple with EAGLE3: ``runs``, or how it fails or changes what was asked."""
    if steps is None:
        return "runs" if topk is None and tokens is None else "AssertionError"
    if topk is None:
        return "TypeError"
    if steps < 1 or topk < 1:
        return "no draft"
    if topk == 1:
        return "runs" if tokens == steps + 1 else "rewritten"
    if tokens is None:
        return "TypeError"
    return "runs" if tokens - 1 <= topk + (steps - 1) * topk**2 else "selected index k out of range"


@pytest.mark.parametrize(("engine", "nccl"), HOSTS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_the_engine_refuses_nothing_that_meets_the_rules(engine: str, nccl: str, data: st.DataObject) -> None:
    facts = host(engine, nccl)
    offered = SPACE.offered(facts)
    values = offered.suggest(Drawn(data))
    if offered.broken_rules(values):
        return
    configuration = offered.configuration(values)
    assert SGLang().refused(configuration, facts, base()) == ()
    args = dict(configuration.args)
    if args.get("speculative-algorithm") is None:
        assert not any(name.startswith("speculative") for name in args)
    else:
        triple = [args[name] for name in (STEPS, TOPK, TOKENS)]
        assert all(isinstance(number, int) for number in triple)
        assert outcome(*triple) == "runs"  # type: ignore[arg-type]
    assert offered.complete(values) == values


_COUNT = st.none() | st.integers(0, 9)


@settings(max_examples=300, deadline=None)
@given(steps=_COUNT, topk=_COUNT, tokens=st.none() | st.integers(1, 80))
def test_whatever_sglang_would_stop_at_or_rewrite_is_caught_by_rules_and_by_the_adapter(
    steps: int | None, topk: int | None, tokens: int | None
) -> None:
    triple: dict[str, Scalar] = {STEPS: steps, TOPK: topk, TOKENS: tokens}
    values: dict[str, Scalar] = {"speculative-algorithm": "EAGLE3", **triple}
    refused = SGLang().refused(Configuration.of(args=values), host(), base())
    broken = SPACE.unguarded.broken_rules(values)
    if outcome(steps, topk, tokens) != "runs":
        assert refused
        assert broken or steps == 0 or topk == 0  # no value of the space is 0
    elif not refused:  # what runs may be refused: the limit of the tree is the stricter one
        assert steps is None or not broken or tokens is None or tokens <= steps
    else:
        assert topk is not None and steps is not None and tokens is not None
        assert tokens > steps * topk + 1


_EAGLE3 = {"speculative-algorithm": "EAGLE3", STEPS: 3, TOPK: 1, TOKENS: 4}
_TREE = {**_EAGLE3, TOPK: 4, TOKENS: 8}


@pytest.mark.parametrize(
    ("args", "launch", "engine", "says"),
    [
        (_TREE, [("page-size", 64), ("attention-backend", "cutlass_mla")], "0.5.17", "page-size 64"),
        (_TREE, [("page-size", 64), ("attention-backend", "triton")], "0.5.9", "page-size 64"),
        (_TREE, [("attention-backend", "trtllm_mha")], "0.5.17", "topk 1 only"),
        (_EAGLE3, [("enable-mixed-chunk", True)], "0.5.17", "--enable-mixed-chunk"),
        (_TREE, [("speculative-use-rejection-sampling", True)], "0.5.17", "rejection-sampling"),
        (_TREE, [("speculative-adaptive", True)], "0.5.17", "--speculative-adaptive"),
        ({"speculative-algorithm": "NGRAM"}, [("enable-dp-attention", True)], "0.5.17", "--enable-dp-attention"),
        ({"speculative-algorithm": "EAGLE9"}, [], "0.5.17", "unknown"),
        (
            {**_EAGLE3, "speculative-draft-attention-backend": "triton"},
            [],
            "0.5.6",
            "speculative-draft-attention-backend",
        ),
    ],
)
def test_limits_that_depend_on_the_study_file_are_caught_before_a_launch(
    args: Mapping[str, Scalar], launch: list[tuple[str, Scalar]], engine: str, says: str
) -> None:
    refused = SGLang().refused(Configuration.of(args=dict(args)), host(engine), base(*launch))
    assert says in "\n".join(refused)


def test_useless_proposals_are_rare() -> None:
    offered = SPACE.offered(host())
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [offered.suggest(study.ask()) for _ in range(400)]
    speculative = [values for values in drawn if values["speculative-algorithm"] is not None]
    useless = [v for v in speculative if any("speculative" in rule for rule in offered.broken_rules(v))]
    assert 150 < len(speculative) < 250
    assert 0 < len(useless) < 0.4 * len(speculative)  # of them three quarters draw a tree, a quarter a chain
    assert all(v[TOPK] != 1 for v in useless)


def test_a_chain_needs_no_draft_tokens_and_takes_no_others() -> None:
    offered = SPACE.offered(host())
    chain: dict[str, Scalar] = {"speculative-algorithm": "EAGLE3", STEPS: 5, TOPK: 1}
    values = offered.complete(chain)
    assert values[TOKENS] == 6
    assert ("speculative-num-draft-tokens", 6) in offered.configuration(values).args
    assert TOKENS not in offered.parameters_for(values)
    assert offered.complete({**chain, TOKENS: 6}) == values
    with pytest.raises(InputError, match="found 8, expected 6, which follows unless"):
        offered.complete({**chain, TOKENS: 8})


def test_nccls_parameters_are_those_of_the_first_stage() -> None:
    """What the first stage found is a point of this space, and its trials have the same distributions."""
    ours = {p.name: (p.distribution, p.default, str(p.when), p.guard) for p in SPACE.parameters}
    theirs = {p.name: (p.distribution, p.default, str(p.when), p.guard) for p in NCCL.parameters}
    del theirs["num-continuous-decode-steps"]  # it has no effect
    assert theirs.items() <= ours.items()


def test_what_every_study_starts_with() -> None:
    offered = SPACE.offered(host())
    triples = []
    for first in offered.first:
        configuration = offered.configuration(first.values)
        args = dict(configuration.args)
        triples.append((dict(configuration.env).get("NCCL_PROTO"), *(args.get(name) for name in (STEPS, TOPK, TOKENS))))
    chosen = [(None, None, None), (3, 1, 4), (5, 4, 8), (1, 1, 2)]
    assert triples == [(proto, *triple) for proto in (None, "LL") for triple in chosen]
    assert offered.first_dropped == ()


def test_the_adaptive_steps_and_the_draft_model_are_not_the_spaces_to_choose() -> None:
    assert not {"speculative-adaptive", "speculative-draft-model-path"} & set(SPACE.arg_names)
