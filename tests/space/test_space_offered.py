"""What hosts are offered of a space, and that Optuna can sample it."""

from __future__ import annotations

import dataclasses
import math
import pickle
import warnings

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.space.load import load_space
from tuner.space.offered import OfferedSpace, SuggestTrial
from tuner.values.configuration import Configuration, Scalar
from tuner.values.host import Gpu, HostFacts

SPACE = load_space(
    """
env:
  IPC: {choices: [null, 1], requires: {engine: ">=0.5.21", gpus: ">=2"}}
  ALGO:
    choices:
      - null
      - Ring
      - {value: "allreduce:tree", requires: {nccl: ">=2.24"}}
      - {value: Tree, requires: {nccl: "<2.24"}}
    when: IPC == null
  MIN: {int: {low: 1, high: 32, log: true}, when: IPC == null and ALGO != 'Ring'}
  MAX: {int: {low: 2, high: 32, step: 2}, default: 4, when: IPC == null}
  ONLY_NEW: {choices: [null, {value: x, requires: {nccl: ">=2.30"}}]}
args:
  steps: {choices: [null, 4, 8]}
  fraction: {float: {low: 0.5, high: 0.9, step: 0.1}, default: 0.8}
  scale: {float: {low: 0.1, high: 10, log: true}}
  enable-x: {choices: [null, true], when: scale == null}
rules:
  - {rule: MIN <= MAX, why: min wins}
try_first:
  - {name: default, set: {}}
  - {name: tree, set: {ALGO: "allreduce:tree"}}
  - {name: old tree, set: {ALGO: Tree}}
  - {name: ipc, set: {IPC: 1}}
  - {name: few, set: {MAX: 2, MIN: 2}}
""",
    "x.yaml",
)


def host(engine: str | None = "0.5.23", nccl: str | None = "2.28.9", gpus: int = 8, name: str = "a") -> HostFacts:
    return HostFacts(
        name=name,
        hostname=name,
        boot_id="b",
        kernel="k",
        cpus=2,
        driver_version="580",
        gpus=tuple(Gpu(i, f"GPU-{i}", "RTX", 1, 0) for i in range(gpus)),
        links="",
        engine="sglang",
        engine_version=engine,
        nccl_version=nccl,
    )


def names(offered: OfferedSpace) -> list[str]:
    return [p.name for p in offered.parameters]


# Version guards


def test_a_host_that_meets_all_guards_but_one() -> None:
    offered = SPACE.offered(host())
    assert [str(w) for w in offered.withheld] == [
        "ALGO=Tree: needs NCCL <2.24, but NCCL on host a is 2.28.9",
        "ONLY_NEW=x: needs NCCL >=2.30, but NCCL on host a is 2.28.9",
    ]
    assert "ONLY_NEW" not in names(offered)  # nothing but "unset" is left of it
    assert next(p for p in offered.parameters if p.name == "ALGO").words == "unset, Ring, allreduce:tree"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (host(engine="0.5.17"), "needs sglang >=0.5.21, but sglang on host a is 0.5.17"),
        (host(engine=None), "needs sglang >=0.5.21, but sglang on host a is of unknown version"),
        (host(engine="main"), "needs sglang >=0.5.21, but sglang on host a is main"),
        (host(gpus=1), "needs GPUs >=2, but host a has 1"),
        (host(gpus=0), "needs GPUs >=2, but host a has 0"),
        (
            host(engine="0.5.9", gpus=0),
            "needs sglang >=0.5.21, but sglang on host a is 0.5.9; needs GPUs >=2, but host a has 0",
        ),
    ],
)
def test_a_parameter_is_withheld_with_the_reason(facts: HostFacts, reason: str) -> None:
    offered = SPACE.offered(facts)
    assert [str(w) for w in offered.withheld if w.name == "IPC"] == [f"IPC: {reason}"]
    assert "IPC" not in names(offered)


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22.post1", "0.5.22rc1", "0.5.23.dev12+g1234567", "0.6"])
def test_builds_and_pre_releases_count_as_their_version(version: str) -> None:
    assert "IPC" in names(SPACE.offered(host(engine=version)))


def test_an_unknown_nccl_gets_neither_spelling_of_tree() -> None:
    offered = SPACE.offered(host(nccl=None))
    assert next(p for p in offered.parameters if p.name == "ALGO").words == "unset, Ring"
    assert {w.value for w in offered.withheld if w.name == "ALGO"} == {"allreduce:tree", "Tree"}


def test_with_several_hosts_every_one_must_meet_a_guard() -> None:
    offered = SPACE.offered(host(), host(nccl="2.23.4", name="b"))
    reasons = [str(w) for w in offered.withheld if w.name == "ALGO"]
    assert reasons == [
        "ALGO=allreduce:tree: needs NCCL >=2.24, but NCCL on host b is 2.23.4",
        "ALGO=Tree: needs NCCL <2.24, but NCCL on host a is 2.28.9",
    ]
    with pytest.raises(ValueError, match="at least one host"):
        SPACE.offered()


def test_conditions_on_what_is_withheld_see_it_unset() -> None:
    offered = SPACE.offered(host(engine="0.5.17"))
    assert offered.default_values["MAX"] == 4


# What to try first


def test_first_is_what_the_host_can_take_with_notes_on_the_rest() -> None:
    offered = SPACE.offered(host(engine="0.5.17"))
    assert [f.name for f in offered.first] == ["default", "tree", "few"]
    assert offered.first_dropped == (
        "old tree: ALGO=Tree: needs NCCL <2.24, but NCCL on host a is 2.28.9",
        "ipc: IPC: needs sglang >=0.5.21, but sglang on host a is 0.5.17",
    )
    assert offered.first[0].values == offered.default_values
    assert offered.configuration(offered.first[1].values) == Configuration.of(
        {"ALGO": "allreduce:tree", "MAX": 4}, {"fraction": 0.8}
    )


def test_the_same_configuration_is_tried_first_once() -> None:
    text = "env: {A: {choices: [null, a]}}\ntry_first: [{name: x}, {name: y, set: {A: null}}]"
    offered = load_space(text, "x.yaml").offered(host())
    assert [f.name for f in offered.first] == ["x"]
    assert offered.first_dropped == ("y: the same as 'x' here",)


def test_what_guards_make_of_a_rule_is_seen_too() -> None:
    text = """
env:
  A: {choices: [null, {value: a, requires: {nccl: ">=9"}}], default: null}
  B: {choices: [null, b]}
try_first: [{name: both, set: {A: a, B: b}}, {name: alone, set: {B: b}}]
"""
    offered = load_space(text, "x.yaml").offered(host())
    assert [f.name for f in offered.first] == ["alone"]


def test_what_a_missing_parameter_does_to_a_rule_is_seen_too() -> None:
    text = """
env:
  A: {choices: [a], default: a, requires: {nccl: ">=9"}}
  B: {choices: [null, b]}
rules: [{rule: "A == 'a' or B == null"}]
try_first: [{name: default}, {name: b, set: {B: b}}]
"""
    offered = load_space(text, "x.yaml").offered(host())
    assert [f.name for f in offered.first] == ["default"]
    assert offered.first_dropped == ("b: breaks A == 'a' or B == null",)


# Assignments


def test_complete_fills_in_defaults_and_leaves_unset_what_is_not_active() -> None:
    offered = SPACE.offered(host())
    assert offered.complete({}) == offered.default_values
    unset = dict.fromkeys(("IPC", "ALGO", "MIN", "steps", "scale", "enable-x"))
    assert offered.default_values == {**unset, "MAX": 4, "fraction": 0.8}
    ipc = offered.complete({"IPC": 1})
    assert (ipc["MAX"], ipc["ALGO"]) == (None, None)
    assert offered.configuration(ipc) == Configuration.of({"IPC": 1}, {"fraction": 0.8})


def test_a_configuration_has_nothing_of_what_is_not_active() -> None:
    offered = SPACE.offered(host())
    mixed = {**offered.default_values, "IPC": 1, "ALGO": "Ring", "MAX": 4}
    assert offered.configuration(mixed) == Configuration.of({"IPC": 1}, {"fraction": 0.8})
    assert offered.parameters_for(mixed).keys().isdisjoint({"ALGO", "MAX", "MIN:set"})


def test_one_is_not_true_among_choices() -> None:
    offered = load_space("args: {x: {choices: [null, true]}, y: {choices: [null, 1]}}", "x.yaml").offered(host())
    with pytest.raises(InputError, match="y: found true, expected one of unset, 1"):
        offered.complete({"y": True})
    with pytest.raises(InputError, match="x: found 1, expected one of unset, true"):
        offered.complete({"x": 1})


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"ALGO": "Tree"}, "ALGO=Tree: needs NCCL <2.24, but NCCL on host a is 2.28.9"),
        ({"ONLY_NEW": "x"}, "ONLY_NEW=x: needs NCCL >=2.30, but NCCL on host a is 2.28.9"),
        ({"ALGO": "ring"}, "ALGO: found 'ring', expected one of unset, Ring, allreduce:tree"),
        ({"AGLO": "Ring"}, "AGLO: no such parameter; did you mean 'ALGO'?"),
        ({"MAX": 3}, "MAX: found 3, expected one of 2 … 32 by 2"),
        ({"MAX": "4"}, "MAX: found '4', expected one of"),
        ({"MAX": None}, "MAX: found null, expected one of"),
        ({"IPC": 1, "MAX": 4}, "MAX: found 4, expected unset: it needs IPC == null"),
        ({"scale": 11}, "scale: found 11, expected one of unset, 0.1 … 10 log"),
        ({"scale": True}, "scale: found true"),
        ({"steps": True}, "steps: found true"),
    ],
)
def test_what_is_not_offered_is_refused(chosen: dict[str, Scalar], message: str) -> None:
    with pytest.raises(InputError) as caught:
        SPACE.offered(host()).complete(chosen)
    assert message in str(caught.value)


def test_names_that_are_unset_need_not_be_offered() -> None:
    offered = SPACE.offered(host(engine="0.5.17"))
    assert offered.complete({"IPC": None}) == offered.default_values


def test_broken_rules_are_told_with_their_reason() -> None:
    offered = SPACE.offered(host())
    assert offered.broken_rules(offered.complete({"MIN": 8})) == ("MIN <= MAX (min wins)",)
    assert offered.broken_rules(offered.complete({"MIN": 8, "MAX": 8})) == ()


def test_sizes() -> None:
    assert SPACE.offered(host()).size == math.inf  # scale is continuous
    text = """
env:
  A: {choices: [null, a, {value: b, requires: {nccl: ">=9"}}]}
  B: {int: {low: 1, high: 9, step: 2}}
  C: {int: {low: 1, high: 9}, default: 1}
args:
  d: {float: {low: 0, high: 0.3, step: 0.1}, default: 0.1}
  e: {float: {low: 2, high: 2}}
"""
    space = load_space(text, "x.yaml")
    assert space.unguarded.size == 3 * (5 + 1) * 9 * 4 * 2
    assert space.offered(host()).size == 2 * (5 + 1) * 9 * 4 * 2


def test_spaces_are_frozen_and_can_be_sent() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPACE.rules = ()  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE
    assert pickle.loads(pickle.dumps(SPACE.offered(host()))) == SPACE.offered(host())


# Optuna


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_optunas_trials_are_what_is_asked_for() -> None:
    offered = SPACE.offered(host())
    values = offered.complete({"IPC": 1, "steps": 4})
    fixed: SuggestTrial = optuna.trial.FixedTrial(offered.parameters_for(values))
    asked: SuggestTrial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    assert offered.suggest(fixed) == values
    assert offered.complete(offered.suggest(asked))


def test_a_tpe_study_samples_the_space_with_its_conditions() -> None:
    offered = SPACE.offered(host())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, multivariate=True, group=True))
    for first in offered.first:
        study.enqueue_trial(offered.parameters_for(first.values))
    seen: list[dict[str, Scalar]] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(dynamic|out of|fixed parameter|categor).*")
        for _ in range(30):
            trial = study.ask()
            values = offered.suggest(trial)
            assert list(values) == names(offered)
            assert offered.complete(values) == values  # each value is one that is offered, and active
            active = set(trial.params)
            assert ("ALGO" in active) == (values["IPC"] is None)
            assert ("MIN:set" in active) == (values["IPC"] is None and values["ALGO"] != "Ring")
            assert ("MIN" in active) == (values["MIN"] is not None)
            assert ("enable-x" in active) == (values["scale"] is None)
            assert trial.params == offered.parameters_for(values)
            seen.append(values)
            study.tell(trial, float(offered.configuration(values).settings))
    assert [dict(f.values) for f in offered.first] == seen[: len(offered.first)]
    assert {v["IPC"] for v in seen} == {None, 1}
    assert {v["MIN"] is None for v in seen} == {True, False}
    assert len({offered.configuration(v).key for v in seen}) > 15


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31))
def test_an_enqueued_assignment_comes_back_as_the_same_configuration(seed: int) -> None:
    offered = SPACE.offered(host())
    drawn = offered.suggest(optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask())
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed + 1))
    study.enqueue_trial(offered.parameters_for(drawn))
    again = offered.suggest(study.ask())
    assert again == drawn
    assert offered.configuration(again) == offered.configuration(drawn)
    assert Configuration.from_key(offered.configuration(again).key) == offered.configuration(drawn)


def test_a_flag_stays_a_flag_and_a_number_a_number() -> None:
    offered = load_space("args: {x: {choices: [null, true]}, y: {choices: [null, 1]}}", "x.yaml").offered(host())
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(offered.parameters_for({"x": True, "y": 1}))
    configuration = offered.configuration(offered.suggest(study.ask()))
    assert repr(configuration.args) == "(('x', True), ('y', 1))"
    assert str(configuration) == "--x --y 1"
