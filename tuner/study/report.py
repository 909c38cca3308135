"""What a study found, for a person: on the screen, in the dashboard's note, and as a file."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tuner.documents.objective import Objective
from tuner.space.space import SearchSpace
from tuner.store.rows import Outcome, StoredLaunch
from tuner.study.canaries import sentence
from tuner.study.ledger import CONTROL, Tally, tallies
from tuner.study.markdown import aligned, code, prose
from tuner.study.progress import human_time
from tuner.study.result import StageResult
from tuner.study.verdict import Claim, evidence
from tuner.study.winner import reasons
from tuner.values.canary import CanaryReport
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure
from tuner.values.host import HostFacts
from tuner.values.launch import Role

SHOWN = 12
"""Configurations in the table on the screen; all are in the database."""
FAILURES_SHOWN = 8
"""Failed configurations that are told with their evidence."""
SETTINGS_TITLE = "What the search space says of these settings:"


@dataclass(frozen=True)
class Report:
    """Everything that is shown of one stage.

    Attributes:
        launches: of this stage, all roles.
        command: the winner's launch, ready to paste; the control's when nothing is faster.
        storage: the database's URL, password masked.
        space: what was searched, for its size and its reasons; ``None``: neither is told.
        canaries: what the winner's confirmation launches answered, beside the default; empty: nothing was compared.
    """

    study: str
    result: StageResult
    objective: Objective
    facts: HostFacts
    launches: tuple[StoredLaunch, ...]
    command: str
    storage: str
    space: SearchSpace | None = None
    canaries: tuple[CanaryReport, ...] = ()

    @property
    def maximize(self) -> bool:
        """Whether more of the metric is better."""
        return self.objective.direction == "maximize"

    @property
    def rows(self) -> tuple[Tally, ...]:
        """The configurations of the search, measured ones first, best first."""
        sign = -1.0 if self.maximize else 1.0
        found = tallies(self.launches, self.objective.metric, frozenset())
        return tuple(sorted(found, key=lambda row: (not row.values, sign * row.value if row.values else 0.0)))

    @property
    def failed(self) -> tuple[tuple[StoredLaunch, Failure], ...]:
        """The first failed launch of each configuration that failed, with its failure."""
        found: dict[Configuration, tuple[StoredLaunch, Failure]] = {}
        for launch in self.launches:
            if launch.outcome is Outcome.FAILED and launch.failure is not None:
                found.setdefault(launch.configuration, (launch, launch.failure))
        return tuple(found.values())

    @property
    def faster(self) -> bool:
        """Whether there is a winner."""
        return self.result.claim is Claim.FASTER


# ── What is said ────────────────────────────────────────────────────────────────────────────────────────────────────


def heading(report: Report) -> tuple[str, ...]:
    """What was measured, and on what."""
    facts = report.facts
    gpus = f"{len(facts.gpus)} × {facts.gpus[0].name}" if facts.gpus else "no GPU seen"
    lines = [
        f"Study {report.study}, stage {report.result.stage}: {gpus}, {facts.engine} {facts.engine_version or '?'}, "
        f"NCCL {facts.nccl_version or '?'}"
    ]
    if facts.simulated:
        lines.append(
            f"SIMULATED host ({facts.simulated}): a stand-in server, no GPU. "
            "Its numbers say nothing about your machine."
        )
    return tuple(lines)


def title(report: Report) -> str:
    """What the table shows."""
    return f"Search: {report.objective.metric} in {report.objective.unit}, one launch each unless n says otherwise"


def cells(report: Report, row: Tally) -> tuple[str, str, str, str]:
    """One row of the table but for the configuration: trial, value, ratio to the default (> 1 is better), launches."""
    trial = "" if row.trial is None else str(row.trial)
    if not row.values:
        return trial, "failed", "", str(row.failed)
    control = next((each for each in report.rows if each.configuration == CONTROL and each.values), None)
    against = ""
    if control is not None and row.configuration != CONTROL:
        against = f"{row.value / control.value if report.maximize else control.value / row.value:.3f} ×"
    return trial, f"{row.value:.2f}", against, str(len(row.values))


def kind(report: Report, row: Tally) -> str:
    """What goes after a configuration that failed: its failure's class; empty for one that was measured."""
    found = [failure for launch, failure in report.failed if launch.configuration == row.configuration]
    return f": {found[0].failure_class.value}" if found and not row.values else ""


def failure_title(report: Report) -> str:
    """How many configurations failed; empty if none did."""
    count = len(report.failed)
    return f"{count} configuration{'s' if count > 1 else ''} failed:" if count else ""


def failures_left_out(report: Report) -> str:
    """How many failures are not told; empty if all are."""
    left = len(report.failed) - FAILURES_SHOWN
    return f"{left} more in the database" if left > 0 else ""


def findings(report: Report) -> tuple[str, ...]:
    """The verdict with its numbers, how much was searched, and what else a reader must know."""
    lines = [verdict(report), *confirmed(report), searched(report)]
    return (*lines, *(f"Note: {closed(note)}" for note in report.result.notes))


def verdict(report: Report) -> str:
    """The claim and what it rests on."""
    result = report.result
    words = result.sentence
    if result.interval is not None and result.claim is not Claim.NO_EFFECT:
        words = f"against the default: {evidence(result.claim, result.interval, report.objective.margin)}"
    return f"Verdict: {result.claim.value}. {closed(words[0].upper() + words[1:])}"


def confirmed(report: Report) -> list[str]:
    """The numbers of the launches that the verdict rests on, and how lucky the search was."""
    result, unit = report.result, report.objective.unit
    if result.confirmed_value is None or result.control_value is None:
        return []
    name = "the winner" if report.faster else "the best of the search"
    if result.confirmed is not None and not report.faster:
        name += f" ({Configuration.from_key(result.confirmed)})"
    lines = [
        f"Launched again: {result.confirmed_value:.2f} {unit} for {name}, "
        f"{result.control_value:.2f} {unit} for the default."
    ]
    if result.search_value is not None:
        change = result.confirmed_value / result.search_value - 1
        again = f"{abs(100 * change):.1f} % {'more' if change > 0 else 'less'}"
        if abs(change) < 0.001:
            again = "the same within 0.1 %"
        beside = left_out(result)
        with_it = f" together with {beside}, left out since" if beside else ""
        lines.append(f"The search had measured {result.search_value:.2f} {unit} for it{with_it}; now it is {again}.")
    return lines


def left_out(result: StageResult) -> str:
    """The settings that the search's candidate had and the confirmed one has not; empty if none."""
    if result.confirmed is None or result.searched is None:
        return ""
    kept, before = Configuration.from_key(result.confirmed), Configuration.from_key(result.searched)
    gone = Configuration(
        tuple(pair for pair in before.env if pair not in kept.env),
        tuple(pair for pair in before.args if pair not in kept.args),
    )
    return str(gone) if gone.settings else ""


def searched(report: Report) -> str:
    """How much of the space was launched."""
    rows = report.rows
    count, failed = len(rows), sum(not row.values for row in rows)
    also = f" ({failed} failed)" if failed else ""
    if report.space is None:
        return f"Searched: {count} configuration{'s' * (count != 1)}{also}."
    offered = report.space.offered(report.facts)
    if math.isinf(offered.size):
        return f"Searched: {count} of infinitely many configurations{also}; a longer study may find better."
    size = int(offered.size)
    if count >= size:
        return f"Searched: all {size:,} configurations{also}."
    # Where settings depend on each other, not every combination of values is a configuration of its own.
    at_most = "at most " if offered.rules or any(parameter.when for parameter in offered.parameters) else ""
    return f"Searched: {count} of {at_most}{size:,} configurations{also}; a longer study may find better."


def warnings(report: Report) -> tuple[str, ...]:
    """How the winner's outputs compare with the default's, and what nobody has shown about it."""
    winner = Configuration.from_key(report.result.configuration)
    lines = [sentence(report.canaries) or "The outputs of this configuration were not compared with the default's."]
    if winner.settings > 1:
        lines.append("Its settings were not tested one by one.")
    return tuple(lines)


def settings(report: Report) -> tuple[tuple[str, str], ...]:
    """(setting, the space's reason for it) of the winner, as `tuner.study.winner.reasons` gives them."""
    if report.space is None or not report.faster:
        return ()
    found = reasons(report.space, Configuration.from_key(report.result.configuration))
    return tuple((setting, why or "the space gives no reason for it") for setting, why in found)


def cost(report: Report) -> list[str]:
    """What the study spent, and on a simulated host what it would have spent on the real one."""
    ended = [launch for launch in report.launches if launch.ended_unix_s is not None]
    kept = [launch for launch in ended if launch.spent]
    seconds = sum((launch.ended_unix_s or math.nan) - launch.started_unix_s for launch in ended)
    roles = ", ".join(
        f"{count} {role.value}" for role in Role if (count := sum(launch.role is role for launch in kept))
    )
    beside = "".join(
        f", {count} more {outcome.value}"
        for outcome in (Outcome.LOST, Outcome.INTERRUPTED)
        if (count := sum(launch.outcome is outcome for launch in ended))
    )
    lines = [f"Spent: {len(kept)} launches ({roles}){beside} in {human_time(seconds)}."]
    if report.facts.simulated and report.facts.real_launch_s:
        real = report.facts.real_launch_s * len(kept)
        lines.append(
            f"On the machine that it imitates, at {human_time(report.facts.real_launch_s)} a launch, "
            f"the same study would take about {human_time(real)}."
        )
    return lines


def where(report: Report) -> tuple[str, str]:
    """The database, and the command that shows it."""
    return f"Database: {report.storage}", f"Dashboard: {dashboard_program()} {shlex.quote(report.storage)}"


def dashboard_program(path: str | None = None, python: str = sys.executable) -> str:
    """How ``optuna-dashboard`` is called from here: by its name if that is on PATH, else beside the running Python.

    Args:
        path: directories to look in, as in ``PATH``; ``None``: the environment's.
        python: the running interpreter.
    """
    beside = Path(os.path.abspath(python)).with_name("optuna-dashboard")  # noqa: PTH100 - a venv's link is not followed
    if shutil.which("optuna-dashboard", path=path) is not None or not beside.exists():
        return "optuna-dashboard"
    return shlex.quote(str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside))


def closed(text: str) -> str:
    """The text as a sentence that ends."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


# ── On a terminal ───────────────────────────────────────────────────────────────────────────────────────────────────


def show(report: Report, console: Console) -> None:
    """Prints the report: for a terminal of that width, or as Markdown into a file or pipe."""
    if not console.is_terminal:
        console.print(Text(markdown(report, shown=SHOWN)), soft_wrap=True, end="")
        return
    console.print()
    for line in heading(report):
        console.print(Text(line, style="bold yellow" if report.facts.simulated else "bold"))
    console.print(Text(title(report)))
    console.print(table(report))
    show_failures(report, console)
    sentences(findings(report), console)
    console.print()
    console.print(Text(command_title(report)))
    console.print()
    console.print(Text(f"    {report.command}"), soft_wrap=True)  # one line, however long: it is to be pasted
    console.print()
    if report.faster:
        show_settings(report, console)
    sentences(cost(report), console)
    for line in where(report):
        console.print(Text(line), soft_wrap=True)


def show_settings(report: Report, console: Console) -> None:
    """What the space says of the winner's settings, and what nobody has shown about them."""
    if found := settings(report):
        console.print(Text(SETTINGS_TITLE))
        for setting, why in found:
            console.print(Padding(Text.assemble((setting, "bold"), f": {why}"), (0, 0, 0, 4)))
        console.print()
    for line in warnings(report):
        console.print(Text(line, style="yellow"))
    console.print()


def sentences(lines: Iterable[str], console: Console) -> None:
    """Each on a line of its own, wrapped between words."""
    for line in lines:
        console.print(Text(line))


def command_title(report: Report) -> str:
    """What the command is."""
    return "The winner's launch, to paste:" if report.faster else "Keep the launch that you have:"


def table(report: Report) -> Table:
    """The configurations of the search, best first, with the control, and what failed."""
    rows = report.rows
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("trial", report.objective.metric, "vs default", "n", "configuration"):
        last = column == "configuration"
        result.add_column(column, justify="left" if last else "right", overflow="fold", no_wrap=not last)
    for row in rows[:SHOWN]:
        name = "default (control)" if row.configuration == CONTROL else str(row.configuration)
        result.add_row(*map(Text, (*cells(report, row), name + kind(report, row))))
    if len(rows) > SHOWN:
        result.caption = f"{len(rows) - SHOWN} more in the database"
    return result


def show_failures(report: Report, console: Console) -> None:
    """A block for each configuration that failed: what, why, what to do."""
    if not report.failed:
        return
    console.print(Text(failure_title(report)))
    for launch, failure in report.failed[:FAILURES_SHOWN]:
        console.print(Padding(Text(f"{launch.configuration} ({launch_name(launch)})", style="bold"), (0, 0, 0, 2)))
        console.print(Padding(Text(failure.what), (0, 0, 0, 4)))
        console.print(Padding(Text(failure.evidence, style="dim"), (0, 0, 0, 4)))
        if failure.remedy:
            console.print(Padding(Text(failure.remedy), (0, 0, 0, 4)))
    if left := failures_left_out(report):
        console.print(Text(f"  {left}"))
    console.print()


def launch_name(launch: StoredLaunch) -> str:
    """``trial 7``, or the role of a launch that is no trial."""
    return f"trial {launch.trial}" if launch.trial is not None else launch.role.value


# ── As Markdown ─────────────────────────────────────────────────────────────────────────────────────────────────────


def markdown(report: Report, shown: int | None = None) -> str:
    """The report as Markdown: the dashboard's note, the file beside the database, and what a pipe gets.

    Args:
        shown: configurations in the table; ``None``: all.
    """
    blocks = [f"# {report.study}: {report.result.claim.value}", *heading(report), f"{title(report)}."]
    rows = report.rows[:shown]
    blocks.append(markdown_table(report, rows))
    if len(rows) < len(report.rows):
        blocks.append(f"{len(report.rows) - len(rows)} more in the database.")
    if report.failed:
        blocks += [failure_title(report), markdown_failures(report)]
    blocks += [prose(line) for line in findings(report)]
    blocks += [command_title(report), f"    {report.command}"]
    if report.faster:
        if reasons_ := settings(report):
            blocks.append(SETTINGS_TITLE)
            blocks.append("\n".join(f"- {code(setting)}: {prose(why)}" for setting, why in reasons_))
        blocks += warnings(report)
    blocks += [*cost(report), *where(report)]
    return "\n\n".join(blocks) + "\n"


def markdown_table(report: Report, rows: Iterable[Tally]) -> str:
    """The configurations as a table."""
    header = ("trial", f"{report.objective.metric} ({report.objective.unit})", "vs default", "n", "configuration")
    lines = []
    for row in rows:
        name = "default (control)" if row.configuration == CONTROL else code(str(row.configuration))
        lines.append((*cells(report, row), name + kind(report, row)))
    return aligned(header, lines)


def markdown_failures(report: Report) -> str:
    """A bullet for each configuration that failed: what, why, what to do."""
    lines = []
    for launch, failure in report.failed[:FAILURES_SHOWN]:
        lines.append(f"- {code(str(launch.configuration))} ({launch_name(launch)}): {failure.what}")
        lines.append(f"  - {code(failure.evidence)}")
        if failure.remedy:
            lines.append(f"  - {prose(failure.remedy)}")
    if left := failures_left_out(report):
        lines.append(f"- {left}")
    return "\n".join(lines)
