"""What a person sees while a study works, at 80 and at 120 columns, and what a log gets."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from tuner.study.progress import LaunchLabel, LiveProgress, PlainProgress, Progress, Standing
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass
from tuner.values.launch import Phase, Role

LONG = Configuration.of(
    env={"NCCL_ALGO": "allreduce:tree", "NCCL_BUFFSIZE": 1048576, "NCCL_MAX_NCHANNELS": 2, "NCCL_PROTO": "LL,LL128"}
)
REFUSED = Failure(
    FailureClass.NCCL_REFUSED,
    "ready",
    "[TP0] RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage, NCCL version 2.28.9",
    "This NCCL has no algorithm for one of the collectives: name it for all-reduces only.",
)
STANDING = Standing(
    spent=3, budget=16, lost=0, best=60.0, best_label="trial 1", control=40.0, unit="tok/s", seconds_left=1500.0
)


def label(number: int, configuration: Configuration, role: Role = Role.SEARCH) -> LaunchLabel:
    return LaunchLabel("one", number, role, number - 1 if role is Role.SEARCH else None, configuration)


def a_few_launches(progress: Progress) -> None:
    """A control, a long configuration, a failure, a lost launch, one that gave another metric, a confirmation."""
    progress.say("Study double begins: starting Ray, connecting to 1 host(s) ... and more words than fit a line of 80.")
    for launch, outcome in (
        (label(1, Configuration(), Role.CONTROL), "40.00 tok/s"),
        (label(2, LONG), "60.12 tok/s"),
        (label(3, LONG), f"failed: {REFUSED}"),
        (label(4, Configuration.of(env={"A": 1})), f"lost: {Failure(FailureClass.LOST, 'warm-up', 'host one: gone')}"),
        (label(5, Configuration.of(env={"A": 1})), "measured, but not output_tok_s"),
        (label(6, Configuration(), Role.CONFIRMATION), "12345.67 tok/s"),
    ):
        progress.began(launch)
        progress.phase("one", Phase.READY, "weights 25 %")
        progress.ended(launch, outcome, STANDING)


def seen(width: int, tell: Callable[[LiveProgress], object]) -> str:
    """What scrolls by on a terminal of that width, without colours and padding."""
    file = io.StringIO()
    tell(LiveProgress(Console(file=file, width=width, force_terminal=True, color_system=None)))
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


AT_80 = """\
Study double begins: starting Ray, connecting to 1 host(s) ... and more words
than fit a line of 80.
  1  control          40.00 tok/s  (default)
  2  trial 1          60.12 tok/s  NCCL_ALGO=allreduce:tree
                                   NCCL_BUFFSIZE=1048576 NCCL_MAX_NCHANNELS=2
                                   NCCL_PROTO=LL,LL128
  3  trial 2               failed  NCCL_ALGO=allreduce:tree
                                   NCCL_BUFFSIZE=1048576 NCCL_MAX_NCHANNELS=2
                                   NCCL_PROTO=LL,LL128
     NCCL refused the configuration while starting: [TP0] RuntimeError: NCCL
     error in: ProcessGroupNCCL.cpp:3690, invalid usage, NCCL version 2.28.9.
     This NCCL has no algorithm for one of the collectives: name it for
     all-reduces only.
  4  trial 3                 lost  A=1
     host lost in warm-up: host one: gone
  5  trial 4                       A=1
     measured, but not output_tok_s
  6  confirmation  12345.67 tok/s  (default)
"""

AT_120 = """\
Study double begins: starting Ray, connecting to 1 host(s) ... and more words than fit a line of 80.
  1  control          40.00 tok/s  (default)
  2  trial 1          60.12 tok/s  NCCL_ALGO=allreduce:tree NCCL_BUFFSIZE=1048576 NCCL_MAX_NCHANNELS=2
                                   NCCL_PROTO=LL,LL128
  3  trial 2               failed  NCCL_ALGO=allreduce:tree NCCL_BUFFSIZE=1048576 NCCL_MAX_NCHANNELS=2
                                   NCCL_PROTO=LL,LL128
     NCCL refused the configuration while starting: [TP0] RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:3690,
     invalid usage, NCCL version 2.28.9. This NCCL has no algorithm for one of the collectives: name it for all-reduces
     only.
  4  trial 3                 lost  A=1
     host lost in warm-up: host one: gone
  5  trial 4                       A=1
     measured, but not output_tok_s
  6  confirmation  12345.67 tok/s  (default)
"""


@pytest.mark.parametrize(("width", "expected"), [(80, AT_80), (120, AT_120)])
def test_finished_launches_scroll_by_in_columns(width: int, expected: str) -> None:
    assert seen(width, a_few_launches) == expected


def region(live: LiveProgress, width: int) -> list[str]:
    """The part of the screen that changes in place."""
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(live, end="")
    return [line.rstrip() for line in file.getvalue().splitlines()]


class Clock:
    """Stands until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def quiet(clock: Clock, width: int = 120) -> LiveProgress:
    """Live progress whose scrolling part nobody reads."""
    return LiveProgress(Console(file=io.StringIO(), width=width), clock)


@pytest.mark.parametrize(
    ("width", "line", "standing"),
    [
        (
            80,
            "one [7]  loading: weights 25 %      90 s  trial 6: NCCL_ALGO=allreduce:tree NCC…",
            ["launches 3/16 · control 40.0 tok/s · best so far 60.0 tok/s (1.50 ×) by trial 1",
             "about 25 min left"],
        ),
        (
            120,
            "one [7]  loading: weights 25 %      90 s  trial 6: NCCL_ALGO=allreduce:tree NCCL_BUFFSIZE=1048576 "
            "NCCL_MAX_NCHANNELS=2 …",
            ["launches 3/16 · control 40.0 tok/s · best so far 60.0 tok/s (1.50 ×) by trial 1 · about 25 min left"],
        ),
    ],
)  # fmt: skip
def test_the_live_region_cuts_what_is_too_long(width: int, line: str, standing: list[str]) -> None:
    live = quiet(clock := Clock(), width)
    launch = label(7, LONG)
    live.began(label(1, Configuration()))
    live.ended(label(1, Configuration()), "40.00 tok/s", STANDING)
    live.began(launch)
    live.phase("one", Phase.READY, "weights 25 %")
    clock.now += 90
    assert region(live, width) == [line, *standing]


def test_the_live_region_keeps_its_place_between_two_launches() -> None:
    live = quiet(Clock())
    launch = label(1, LONG)
    assert region(live, 120) == []  # nothing before the first launch
    live.say("one: 2 × Double")
    assert region(live, 120) == []
    live.began(launch)
    live.ended(launch, "40.00 tok/s", STANDING)
    between = region(live, 120)
    assert between == ["one [1]", str(STANDING)]
    live.began(label(2, LONG))
    assert len(region(live, 120)) == len(between)


def test_a_phase_is_named_by_what_is_done_and_timed_from_its_start() -> None:
    live = quiet(clock := Clock())
    live.began(label(1, Configuration()))
    said = []
    for phase in Phase:
        live.phase("one", phase)
        clock.now += 10
        live.phase("one", phase, "")  # told again, as a detail is: the clock goes on
        clock.now += 5
        said += [re.sub(" +", " ", line) for line in region(live, 120)]
    assert said == [
        f"one [1] {doing} 15 s trial 0: (default)"
        for doing in (
            "looking at the host",
            "starting",
            "loading",
            "checking settings",
            "warming up",
            "measuring",
            "comparing outputs",
            "stopping",
        )
    ]


def test_a_terminal_is_left_with_what_was_said_alone() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    with LiveProgress(console) as live:
        live.say("first")
        live.began(label(1, LONG))
        live.say("second")
    visible = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).replace("\r", "\n")
    assert [line for line in visible.splitlines() if line.strip() and not line.startswith("one [1]")] == [
        "first",
        "second",
    ]


def test_a_log_gets_one_line_when_a_launch_begins_and_one_when_it_ends() -> None:
    file = io.StringIO()
    a_few_launches(PlainProgress(Console(file=file, width=80)))
    lines = file.getvalue().splitlines()
    assert len(lines) == 1 + 2 * 6
    assert lines[5:7] == [
        f"[3] one: trial 2: {LONG}",
        "[3] one: failed: NCCL refused the configuration while starting: "
        f"{REFUSED.evidence}. {REFUSED.remedy} | {STANDING}",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "launches 3/16 · control 40.0 tok/s · best so far 60.0 tok/s (1.50 ×) by trial 1 · about 25 min left"),
        ({"best": 40.0, "best_label": "trial 0"}, "launches 3/16 · control 40.0 tok/s · about 25 min left"),
        ({"best": None, "control": None, "seconds_left": None}, "launches 3/16"),
        ({"control": None, "seconds_left": None}, "launches 3/16 · best so far 60.0 tok/s by trial 1"),
        (
            {"lost": 2, "interrupted": 1, "best": None, "control": None, "seconds_left": 7500.0},
            "launches 3/16 · lost 2 · interrupted 1 · about 2 h 05 min left",
        ),
    ],
)
def test_standing(changes: dict[str, object], expected: str) -> None:
    assert str(replace(STANDING, **changes)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure(FailureClass.BAD_FLAG, "ready", "error: unrecognized arguments: --x"),
         "bad flag while starting: error: unrecognized arguments: --x"),
        (Failure(FailureClass.CRASHED, "start", "exit 1", "Look."), "crashed at the start: exit 1. Look."),
        (Failure(FailureClass.PORT_TAKEN, "clean", "pid 7 has it.", "Stop it."),
         "port taken before the start: pid 7 has it. Stop it."),
        (Failure(FailureClass.NOT_IN_EFFECT, "took effect", "A is 1"),
         "configuration did not take effect when its settings were checked: A is 1"),
        (Failure(FailureClass.CRASHED, "warm-up", "SIGSEGV!", "Look."), "crashed in warm-up: SIGSEGV! Look."),
        (Failure(FailureClass.CRASHED, "measure", "exit 1"), "crashed under load: exit 1"),
        (Failure(FailureClass.KILLED, "stop", "signal 9"), "killed from outside while stopping: signal 9"),
        (Failure(FailureClass.OUT_OF_MEMORY_RUN, "measure", "CUDA"), "out of memory under load: CUDA"),
        (Failure(FailureClass.HANG_START, "ready", "silent"), "hang during start: silent"),
        (Failure(FailureClass.CRASHED, "launch", "mine"), "crashed (launch): mine"),
        (Failure(FailureClass.CRASHED, "", "mine"), "crashed: mine"),
    ],
)  # fmt: skip
def test_a_failure_in_words(failure: Failure, expected: str) -> None:
    assert str(failure) == expected
