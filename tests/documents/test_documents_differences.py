"""What counts as another study, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tuner.documents.differences import differences
from tuner.values.host import HostAddress
from tuner.values.json import from_json, to_json
from tuner.values.launch import LaunchBase
from tuner.values.study import Budget, EngineSpec, HostSpec, StageSpec, StudySpec
from tuner.values.workload import Workload

SPACE = """\
env:
  NCCL_ALGO: {choices: [null, Ring], why: the algorithm}
rules:
  - rule: NCCL_ALGO != 'Ring' or NCCL_ALGO == 'Ring'
"""
OBJECTIVE = "metric: output_tok_s\nmargin: 0.01\n"
LAUNCH = LaunchBase(
    command=("python3", "-m", "sglang.launch_server"),
    args=(("tp-size", 8), ("trust-remote-code", True)),
    env=(("NCCL_DEBUG", "INFO"), ("HF_TOKEN", "$HF_TOKEN")),
    forbid=("NCCL_NVLS_ENABLE=1",),
)
SPEC = StudySpec(
    name="mine",
    hosts=(HostSpec(HostAddress("gpu1", user="me")), HostSpec(HostAddress("sim"), simulated="flat")),
    engine=EngineSpec("sglang", LAUNCH),
    workload=Workload(),
    budget=Budget(60, 12.0, 5),
    stages=(StageSpec("baseline", SPACE, "nccl.yaml", OBJECTIVE, "throughput.yaml"),),
)


def launch(**changes: object) -> StudySpec:
    """The study with another launch."""
    return replace(SPEC, engine=replace(SPEC.engine, launch=replace(LAUNCH, **changes)))  # type: ignore[arg-type]


def stage(**changes: object) -> StudySpec:
    """The study with another first stage."""
    return replace(SPEC, stages=(replace(SPEC.stages[0], **changes),))  # type: ignore[arg-type]


SAME: dict[str, Callable[[], StudySpec]] = {
    "itself": lambda: SPEC,
    "through the database": lambda: from_json(StudySpec, to_json(SPEC)),
    "more launches": lambda: replace(SPEC, budget=Budget(61, 12.0, 5)),
    "more hours": lambda: replace(SPEC, budget=Budget(60, 13.0, 5)),
    "no limit of hours": lambda: replace(SPEC, budget=Budget(60, None, 6)),
    "a host moved": lambda: replace(
        SPEC, hosts=(HostSpec(HostAddress("gpu1", "10.0.0.2", 2222, "you", "k", "j", "h", "py"), port=1), SPEC.hosts[1])
    ),
    "order of hosts": lambda: replace(SPEC, hosts=SPEC.hosts[::-1]),
    "order of arguments": lambda: launch(args=LAUNCH.args[::-1], env=LAUNCH.env[::-1]),
    "a comment": lambda: stage(space="# hello\n" + SPACE, objective=OBJECTIVE + "# hello\n"),
    "layout": lambda: stage(space=SPACE.replace("[null, Ring]", "[ ~,\n      'Ring' ]")),
    "a reason": lambda: stage(space=SPACE.replace("the algorithm", "the algorithm of all-reduces")),
    "defaults written out": lambda: stage(objective="name: other\nmetric: output_tok_s\ndirection: maximize\n"),
    "file names": lambda: stage(space_name="copy.yaml", objective_name="copy.yaml"),
}


@pytest.mark.parametrize("same", SAME.values(), ids=SAME)
def test_the_same_study(same: Callable[[], StudySpec]) -> None:
    assert differences(SPEC, same()) == ()


CHANGED: dict[str, Callable[[], StudySpec]] = {
    "name: mine → yours": lambda: replace(SPEC, name="yours"),
    "hosts.gpu1: reached by SSH → absent": lambda: replace(SPEC, hosts=SPEC.hosts[1:]),
    "hosts.sim: simulated flat → simulated other": lambda: replace(
        SPEC, hosts=(SPEC.hosts[0], replace(SPEC.hosts[1], simulated="other"))
    ),
    "engine.name: sglang → vllm": lambda: replace(SPEC, engine=replace(SPEC.engine, name="vllm")),
    "engine.start_deadline_s: 1800.0 → 60.0": lambda: replace(SPEC, engine=replace(SPEC.engine, start_deadline_s=60.0)),
    "engine.command: python3 -m sglang.launch_server → '/my py' x": lambda: launch(command=("/my py", "x")),
    "engine.args.tp-size: 8 → 4": lambda: launch(args=(("tp-size", 4), ("trust-remote-code", True))),
    "engine.args.trust-remote-code: true → absent": lambda: launch(args=(("tp-size", 8),)),
    'engine.env.NCCL_ALGO: absent → "Ring"': lambda: launch(env=(*LAUNCH.env, ("NCCL_ALGO", "Ring"))),
    'engine.allow: [] → ["LD_PRELOAD"]': lambda: launch(allow=("LD_PRELOAD",)),
    'engine.forbid: ["NCCL_NVLS_ENABLE=1"] → []': lambda: launch(forbid=()),
    "workload.concurrency: 1 → 8": lambda: replace(SPEC, workload=Workload(concurrency=8)),
    "budget.launches: 60 → 59": lambda: replace(SPEC, budget=Budget(59, 12.0, 5)),
    "budget.hours: 12.0 → 11.5": lambda: replace(SPEC, budget=Budget(60, 11.5, 5)),
    "budget.lost_launches: 5 → 4": lambda: replace(SPEC, budget=Budget(60, 12.0, 4)),
    'stages[0].name: "baseline" → "other"': lambda: stage(name="other"),
    "stages[0].seed: 0 → 1": lambda: stage(seed=1),
    "stages[0].confirmation_launches: 6 → 8": lambda: stage(confirmation_launches=8),
    "stages[0].objective.margin: 0.01 → 0.02": lambda: stage(objective="metric: output_tok_s\nmargin: 0.02\n"),
    "stages[1]: absent → eagle3": lambda: replace(SPEC, stages=(*SPEC.stages, replace(SPEC.stages[0], name="eagle3"))),
}


@pytest.mark.parametrize(("line", "changed"), CHANGED.items(), ids=[line.split(":")[0] for line in CHANGED])
def test_another_study_is_told_by_one_line(line: str, changed: Callable[[], StudySpec]) -> None:
    assert differences(SPEC, changed()) == (line,)


def test_a_space_that_means_something_else() -> None:
    (line,) = differences(SPEC, stage(space=SPACE.replace("[null, Ring]", "[null, Ring, Tree]")))
    assert line.startswith("stages[0].space.env.NCCL_ALGO.choices: ") and "Tree" in line


def test_a_metric_brings_its_unit_and_direction_into_the_lines() -> None:
    lines = differences(SPEC, stage(objective="metric: ttft_p50_s\n"))
    assert [line.split(":")[0] for line in lines] == [
        "stages[0].objective.metric",
        "stages[0].objective.direction",
        "stages[0].objective.unit",
    ]


def test_texts_that_this_version_cannot_read_are_compared_as_texts() -> None:
    old = replace(SPEC, stages=(replace(SPEC.stages[0], space="future: 1\n", objective="future: 1\n"),))
    assert differences(old, old) == ()
    space, *objective = differences(old, SPEC)
    assert space.startswith("stages[0].space: the texts differ, and cannot be compared by meaning: ")
    assert objective


def test_a_long_value_is_cut_when_shown_but_compared_whole() -> None:
    long = "x" * 1000
    old, new = launch(env=(("A", long + "1"),)), launch(env=(("A", long + "2"),))
    (line,) = differences(old, new)
    assert len(line) < 500
