"""The report of whole studies on doubles, as a terminal of 80 columns and as a pipe get it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from study_double import BASE, Bench, proto_matters, spec, url

from tuner.documents.objective import load_objective
from tuner.engines import engine
from tuner.space.load import load_space
from tuner.store.rows import Outcome, StoredLaunch
from tuner.study.canaries import confirmation_reports
from tuner.study.markdown import code
from tuner.study.report import FAILURES_SHOWN, Report, dashboard_program, markdown, show
from tuner.study.verdict import Claim
from tuner.study.winner import Winner, reasons
from tuner.testing import two_gpus
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass
from tuner.values.host import HostFacts
from tuner.values.launch import LaunchCommand

SPACE = """
env:
  NCCL_PROTO:
    choices: [null, {value: LL, why: Quick for small messages. Warned of by nobody.}, LL128, Simple]
    why: Which protocol is quicker depends on the size of a message and on the links that it goes over.
  NCCL_ALGO: {choices: [null, Ring]}
try_first:
  - {name: default, set: {}}
  - {name: both, set: {NCCL_PROTO: LL, NCCL_ALGO: Ring}}
  - {name: LL128, set: {NCCL_PROTO: LL128}}
  - {name: Simple, set: {NCCL_PROTO: Simple}}
"""
PROTOCOLS = """
env: {NCCL_PROTO: {choices: [null, LL, Simple]}}
try_first: [{name: default, set: {}}, {name: LL, set: {NCCL_PROTO: LL}}, {name: Simple, set: {NCCL_PROTO: Simple}}]
"""


def refused(command: LaunchCommand) -> float | Failure:
    """`proto_matters`, with a remedy."""
    truth = proto_matters(command)
    return replace(truth, remedy="Leave LL128 out of the space.") if isinstance(truth, Failure) else truth


def even_times(launches: tuple[StoredLaunch, ...]) -> tuple[StoredLaunch, ...]:
    """The launches as if each had taken ten minutes."""
    return tuple(
        replace(row, started_unix_s=1000.0 * n, ended_unix_s=1000.0 * n + 600) for n, row in enumerate(launches)
    )


async def report_of(
    directory: Path,
    space: str,
    launches: int,
    surface: Callable[[LaunchCommand], float | Failure] = refused,
    facts: HostFacts | None = None,
    seconds_left: Callable[[], float | None] = lambda: None,
) -> Report:
    """Runs a study and reports it."""
    study = spec(launches=launches)
    study = replace(study, stages=(replace(study.stages[0], space=space),))
    bench = Bench(url(directory), study, surface=surface, seconds_left=seconds_left)
    result = await bench.run()
    with bench.store() as store:
        rows = even_times(store.launches(1))
        canaries = confirmation_reports(store, rows, Configuration.from_key(result.configuration))
    stage, facts = study.stages[0], facts or two_gpus("double")
    return Report(
        study=study.name,
        result=result,
        objective=load_objective(stage.objective, stage.objective_name),
        facts=facts,
        launches=rows,
        command=Winner(engine("sglang"), facts, BASE).command(result.configuration),
        storage="sqlite:///studies/tuner.db",
        space=load_space(space, stage.space_name),
        canaries=canaries,
    )


def shown(report: Report, width: int = 80, *, terminal: bool = True) -> str:
    """What `show` prints, without colours; on a terminal, which pads its lines, without the padding."""
    file = io.StringIO()
    show(report, Console(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False))
    text = file.getvalue()
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n" if terminal else text


FASTER_AT_80 = """
Study double, stage baseline: 2 × Double, sglang 0.5.17, NCCL 2.28.9
Search: output_tok_s in tok/s, one launch each unless n says otherwise

 trial   output_tok_s   vs default   n   configuration
 ──────────────────────────────────────────────────────────────────────────────
     1         120.00      1.200 ×   1   NCCL_ALGO=Ring NCCL_PROTO=LL
               100.00                1   default (control)
     3          90.00      0.900 ×   1   NCCL_PROTO=Simple
     2         failed                1   NCCL_PROTO=LL128: NCCL refused the
                                         configuration

1 configuration failed:
  NCCL_PROTO=LL128 (trial 2)
    NCCL refused the configuration while starting
    NCCL error: invalid usage
    Leave LL128 out of the space.

Verdict: faster. Against the default: 1.200 × (95% interval 1.200 to 1.200, n =
3 + 3 launches), from launches made after it was chosen.
Launched again: 120.00 tok/s for the winner, 100.00 tok/s for the default.
The search had measured 120.00 tok/s for it; now it is the same within 0.1 %.
Searched: 4 of 8 configurations (1 failed); a longer study may find better.

The winner's launch, to paste:

    NCCL_ALGO=Ring NCCL_PROTO=LL python3 -m sglang.launch_server --model-path m --tp-size 2

What the search space says of these settings:
    NCCL_ALGO=Ring: the space gives no reason for it
    NCCL_PROTO=LL: Quick for small messages. Warned of by nobody. Which protocol
    is quicker depends on the size of a message and on the links that it goes
    over.

Outputs: 8 of 8 canaries agree with the default's, to the last token.
Its settings were not tested one by one.

Spent: 10 launches (3 search, 1 control, 6 confirmation) in 1 h 40 min.
Database: sqlite:///studies/tuner.db
Dashboard: optuna-dashboard sqlite:///studies/tuner.db
"""

FASTER_PIPED = """\
# double: faster

Study double, stage baseline: 2 × Double, sglang 0.5.17, NCCL 2.28.9

Search: output_tok_s in tok/s, one launch each unless n says otherwise.

| trial | output_tok_s (tok/s) | vs default | n | configuration |
|------:|---------------------:|-----------:|--:|---|
|     1 |               120.00 |    1.200 × | 1 | `NCCL_ALGO=Ring NCCL_PROTO=LL` |
|       |               100.00 |            | 1 | default (control) |
|     3 |                90.00 |    0.900 × | 1 | `NCCL_PROTO=Simple` |
|     2 |               failed |            | 1 | `NCCL_PROTO=LL128`: NCCL refused the configuration |

1 configuration failed:

- `NCCL_PROTO=LL128` (trial 2): NCCL refused the configuration while starting
  - `NCCL error: invalid usage`
  - Leave LL128 out of the space.

Verdict: faster. Against the default: 1.200 × (95% interval 1.200 to 1.200, n = 3 + 3 launches), from launches made after it was chosen.

Launched again: 120.00 tok/s for the winner, 100.00 tok/s for the default.

The search had measured 120.00 tok/s for it; now it is the same within 0.1 %.

Searched: 4 of 8 configurations (1 failed); a longer study may find better.

The winner's launch, to paste:

    NCCL_ALGO=Ring NCCL_PROTO=LL python3 -m sglang.launch_server --model-path m --tp-size 2

What the search space says of these settings:

- `NCCL_ALGO=Ring`: the space gives no reason for it
- `NCCL_PROTO=LL`: Quick for small messages. Warned of by nobody. Which protocol is quicker depends on the size of a message and on the links that it goes over.

Outputs: 8 of 8 canaries agree with the default's, to the last token.

Its settings were not tested one by one.

Spent: 10 launches (3 search, 1 control, 6 confirmation) in 1 h 40 min.

Database: sqlite:///studies/tuner.db

Dashboard: optuna-dashboard sqlite:///studies/tuner.db
"""  # noqa: E501 - a pipe gets whole lines


@pytest.fixture(autouse=True)
def dashboard_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not a venv is active, the dashboard is called by its name."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "optuna-dashboard").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
async def report(tmp_path: Path) -> Report:
    """Of a study with a winner of two settings and a failure."""
    return await report_of(tmp_path, SPACE, launches=10)


def test_faster_on_a_terminal(report: Report) -> None:
    assert report.result.claim is Claim.FASTER
    assert shown(report) == FASTER_AT_80


def test_faster_in_a_pipe_is_markdown_as_in_the_file(report: Report) -> None:
    piped = shown(report, terminal=False)
    assert piped == FASTER_PIPED
    assert piped == markdown(report)


def test_the_command_alone_is_longer_than_a_line(report: Report) -> None:
    long = replace(report, command="NCCL_PROTO=LL " + "python3 -m sglang.launch_server --model-path m " * 4)
    for width in (80, 120):
        assert [line.strip() for line in shown(long, width).splitlines() if len(line) > width] == [long.command.strip()]


def test_a_pipe_gets_no_box_and_no_trailing_space(report: Report) -> None:
    piped = shown(report, terminal=False)
    assert not set(piped) & set("─━│┃┏┡└")
    assert not [line for line in piped.splitlines() if line != line.rstrip()]


def findings(report: Report) -> list[str]:
    """The lines from the verdict to the command, in a pipe."""
    lines = [line for line in shown(report, terminal=False).splitlines() if line]
    first = next(n for n, line in enumerate(lines) if line.startswith("Verdict"))
    return lines[first : next(n for n, line in enumerate(lines) if line.startswith("    "))]


async def test_a_space_that_was_searched_to_its_end(tmp_path: Path) -> None:
    assert findings(await report_of(tmp_path, PROTOCOLS, launches=20)) == [
        "Verdict: faster. Against the default: 1.200 × (95% interval 1.200 to 1.200, n = 3 + 3 launches), "
        "from launches made after it was chosen.",
        "Launched again: 120.00 tok/s for the winner, 100.00 tok/s for the default.",
        "The search had measured 120.00 tok/s for it; now it is the same within 0.1 %.",
        "Searched: all 3 configurations.",
        "Note: the search left 11 of its 14 launches unspent: its last proposals had all been measured before, "
        "or break rules.",
        "The winner's launch, to paste:",
    ]


async def test_no_effect_claims_no_more_than_was_measured(tmp_path: Path) -> None:
    def nothing_matters(command: LaunchCommand) -> float | Failure:
        return refused(command) if ("NCCL_PROTO", "LL128") in command.env else 100.0

    assert findings(await report_of(tmp_path, SPACE, launches=10, surface=nothing_matters)) == [
        "Verdict: no effect. None of the 2 configurations measured differs from the default by more than ±1 %; "
        "1 more failed.",
        "Searched: 4 of 8 configurations (1 failed); a longer study may find better.",
        "Note: the 6 launches kept for confirmation were not made: there was nothing to confirm.",
        "Keep the launch that you have:",
    ]


async def test_no_effect_after_the_best_was_launched_again(tmp_path: Path) -> None:
    def hardly(command: LaunchCommand) -> float | Failure:
        return 100.5 if ("NCCL_PROTO", "LL") in command.env else 100.0

    assert findings(await report_of(tmp_path, PROTOCOLS, launches=9, surface=hardly)) == [
        "Verdict: no effect. None of the 2 configurations measured differs from the default by more than ±1 %; "
        "the best of them, launched again: 1.005 × (95% interval 1.005 to 1.005, n = 3 + 3 launches).",
        "Launched again: 100.50 tok/s for the best of the search (NCCL_PROTO=LL), 100.00 tok/s for the default.",
        "The search had measured 100.50 tok/s for it; now it is the same within 0.1 %.",
        "Searched: all 3 configurations.",
        "Keep the launch that you have:",
    ]


async def test_when_the_time_is_up(tmp_path: Path) -> None:
    asked = iter([1e9, 1e9])  # enough for two launches of the search

    def left() -> float:
        return next(asked, -1.0)

    assert findings(await report_of(tmp_path, PROTOCOLS, launches=9, seconds_left=left)) == [
        "Verdict: not enough launches. The budget ended before the winner could be confirmed by launches of its own.",
        "Searched: 2 of 3 configurations; a longer study may find better.",
        "Note: the search left 1 of its 3 launches unspent: the time was up.",
        "Note: the 6 launches kept for confirmation were not made: the time was up.",
        "Keep the launch that you have:",
    ]


async def test_what_the_engine_never_reads_was_measured_by_the_search_alone(tmp_path: Path) -> None:
    space = """
env: {NCCL_PROTO: {choices: [null, LL]}}
args: {num-continuous-decode-steps: {choices: [null, 2]}}
try_first: [{name: default, set: {}}, {name: both, set: {NCCL_PROTO: LL, num-continuous-decode-steps: 2}}]
"""
    drift = iter([100.0] * 4 + [120.0] * 4)  # a launch asks four times: as it starts, in warm-up, and in two windows

    def faster_since(command: LaunchCommand) -> float:
        return next(drift, 126.0 if ("NCCL_PROTO", "LL") in command.env else 100.0)

    report = await report_of(tmp_path, space, launches=8, surface=faster_since)
    assert findings(report)[1:] == [
        "Launched again: 126.00 tok/s for the winner, 100.00 tok/s for the default.",
        "The search had measured 120.00 tok/s for it together with --num-continuous-decode-steps 2, left out since; "
        "now it is 5.0 % more.",
        "Searched: 2 of 4 configurations; a longer study may find better.",
        "Note: num-continuous-decode-steps was left out of the winner: SGLang declares it and reads it nowhere.",
        "The winner's launch, to paste:",
    ]
    assert "tested one by one" not in shown(report)  # one setting is left: it was


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("env: {NCCL_NTHREADS: {choices: [null, 64], when: NCCL_PROTO == null}, NCCL_PROTO: {choices: [null, LL]}}",
         "Searched: 3 of at most 4 configurations; a longer study may find better."),
        ("args: {mem-fraction-static: {float: {low: 0.5, high: 0.9}, default: 0.8}}",
         "Searched: 3 of infinitely many configurations; a longer study may find better."),
        (None, "Searched: 3 configurations."),
    ],
)  # fmt: skip
async def test_how_much_was_searched(tmp_path: Path, space: str | None, said: str) -> None:
    report = await report_of(tmp_path, PROTOCOLS, launches=9)
    assert said in findings(replace(report, space=None if space is None else load_space(space, "space.yaml")))


def failed_launches(report: Report, count: int) -> tuple[StoredLaunch, ...]:
    """So many configurations that failed, each twice."""
    failed = next(row for row in report.launches if row.outcome is Outcome.FAILED)
    each = [Configuration.of(args={"max-running-requests": n}) for n in range(count)]
    return tuple(replace(failed, trial=n, configuration=c) for _ in range(2) for n, c in enumerate(each))


def test_at_most_eight_failures_are_told(report: Report) -> None:
    many = replace(report, launches=failed_launches(report, FAILURES_SHOWN + 3))
    for text in (shown(many), shown(many, terminal=False)):
        assert "11 configurations failed:" in text
        assert text.count("NCCL error: invalid usage") == FAILURES_SHOWN
        assert "3 more in the database" in text
    exactly = replace(report, launches=failed_launches(report, FAILURES_SHOWN))
    assert "more in the database" not in shown(exactly)


def test_lost_and_interrupted_launches_are_counted_beside_those_spent(report: Report) -> None:
    lost, interrupted, *rest = report.launches
    rows = (replace(lost, outcome=Outcome.LOST), replace(interrupted, outcome=Outcome.INTERRUPTED), *rest)
    assert (
        "Spent: 8 launches (2 search, 6 confirmation), 1 more lost, 1 more interrupted in 1 h 40 min."
        in shown(replace(report, launches=rows), width=120).splitlines()
    )


def test_a_strangers_text_is_neither_html_nor_a_table(report: Report) -> None:
    strange = Configuration.of(env={"NCCL_ALGO": "a|b`<img src=x>"})
    failure = Failure(FailureClass.CRASHED, "measure", "<b>`dead`</b>", "Look at <log>.")
    row = replace(failed_launches(report, 1)[0], configuration=strange, failure=failure)
    text = markdown(replace(report, launches=(row,)))
    assert "| `` NCCL_ALGO=a\\|b`<img src=x> ``: crashed |" in text
    assert "  - `` <b>`dead`</b> ``\n  - Look at &lt;log>.\n" in text


def test_inline_code_holds_any_text() -> None:
    assert [code(text) for text in ("a", "a`b", "``", "two\nlines")] == [
        "`a`",
        "`` a`b ``",
        "``` `` ```",
        "`two lines`",
    ]


def test_reasons_of_choice_and_parameter_by_kind() -> None:
    space = load_space(SPACE, "space.yaml")
    chosen = Configuration.of(env={"NCCL_PROTO": "Simple", "ELSE": 1}, args={"NCCL_PROTO": "LL"})
    why = "Which protocol is quicker depends on the size of a message and on the links that it goes over."
    assert reasons(space, chosen) == (("ELSE=1", ""), ("NCCL_PROTO=Simple", why), ("--NCCL_PROTO LL", ""))


def test_the_dashboard_is_called_as_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "with space"
    for directory in (here / ".venv" / "bin", there / "bin", tmp_path / "none"):
        directory.mkdir(parents=True)
    for program in (here / ".venv" / "bin" / "optuna-dashboard", there / "bin" / "optuna-dashboard"):
        program.touch(mode=0o755)
    monkeypatch.chdir(here)
    python = here / ".venv" / "bin" / "python"
    python.symlink_to("/usr/bin/python3")  # as in a venv, whose programs are not beside what the link leads to
    nowhere = str(tmp_path / "none")
    assert dashboard_program(nowhere, str(python)) == ".venv/bin/optuna-dashboard"
    assert dashboard_program(nowhere, ".venv/bin/python") == ".venv/bin/optuna-dashboard"
    assert dashboard_program(nowhere, str(there / "bin" / "python")) == f"'{there}/bin/optuna-dashboard'"
    assert dashboard_program(str(there / "bin"), str(python)) == "optuna-dashboard"
    assert dashboard_program(nowhere, str(tmp_path / "none" / "python")) == "optuna-dashboard"


async def test_outputs_that_nobody_compared_are_not_vouched_for(tmp_path: Path) -> None:
    """Such as those of a target of the user's own."""
    report = await report_of(tmp_path, PROTOCOLS, 12)
    assert "Outputs: 8 of 8" in markdown(report)
    caveat = "The outputs of this configuration were not compared with the default's."
    assert caveat not in markdown(report)
    assert caveat in markdown(replace(report, canaries=()))
