"""What a study found, for a person: on the screen, in the dashboard's note, and as a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.documents.objective import Objective
from tuner.store.rows import Outcome, StoredLaunch
from tuner.study.ledger import CONTROL, Tally, tallies
from tuner.study.progress import human_time
from tuner.study.result import StageResult
from tuner.study.verdict import Claim
from tuner.values.host import HostFacts
from tuner.values.launch import Role

SHOWN = 12
"""Configurations in the table on the screen; all are in the database."""


@dataclass(frozen=True)
class Report:
    """Everything that is shown of one stage.

    Attributes:
        launches: of this stage, all roles.
        command: the winner's launch, ready to paste; the control's when nothing is faster.
        storage: the database's URL, password masked.
    """

    study: str
    result: StageResult
    objective: Objective
    facts: HostFacts
    launches: tuple[StoredLaunch, ...]
    command: str
    storage: str


def show(report: Report, console: Console) -> None:
    """Prints the report."""
    console.print()
    for line in heading(report):
        console.print(Text(line, style="bold yellow" if report.facts.simulated else "bold"), soft_wrap=True)
    console.print(table(report))
    for line in findings(report):
        console.print(Text(line), soft_wrap=True)


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


def table(report: Report) -> Table:
    """The configurations of the search, best first, with the control, and what failed."""
    objective = report.objective
    rows = tallies(report.launches, objective.metric, frozenset())
    control = next((row for row in rows if row.configuration == CONTROL), None)
    result = Table(title=f"Search: {objective.metric} in {objective.unit}, one launch each unless n says otherwise")
    for column in ("trial", objective.metric, "vs default", "n", "configuration"):
        result.add_column(column, justify="left" if column == "configuration" else "right", overflow="fold")
    ordered = sorted(rows, key=lambda row: sort_key(row, maximize=objective.direction == "maximize"))
    for row in ordered[:SHOWN]:
        result.add_row(*cells(row, control, report.launches, maximize=objective.direction == "maximize"))
    if len(ordered) > SHOWN:
        result.caption = f"{len(ordered) - SHOWN} more in the database"
    return result


def sort_key(row: Tally, *, maximize: bool) -> tuple[bool, float]:
    """Measured ones first, best first."""
    return (not row.values, (-row.value if maximize else row.value) if row.values else 0.0)


def cells(row: Tally, control: Tally | None, launches: Sequence[StoredLaunch], *, maximize: bool) -> tuple[str, ...]:
    """One row of the table."""
    trial = "" if row.trial is None else str(row.trial)
    name = "default (control)" if row.configuration == CONTROL else str(row.configuration)
    if not row.values:
        failure = next(
            launch.failure
            for launch in launches
            if launch.configuration == row.configuration and launch.failure is not None
        )
        return trial, "failed", "", str(row.failed), f"{name}: {failure.failure_class.value}"
    against = ""
    if control is not None and control.values and row is not control:
        ratio = row.value / control.value
        against = f"{ratio if maximize else 1 / ratio:.3f} ×"
    return trial, f"{row.value:.2f}", against, str(len(row.values)), name


def findings(report: Report) -> tuple[str, ...]:
    """The verdict, what to paste, and where the rest is."""
    result, objective = report.result, report.objective
    lines = ["", f"Verdict: {result.claim.value}. {result.sentence[0].upper()}{result.sentence[1:]}."]
    if result.confirmed_value is not None and result.control_value is not None:
        lines.append(
            f"Confirmed: {result.confirmed_value:.2f} {objective.unit}, "
            f"against {result.control_value:.2f} of the default."
        )
    if result.search_value is not None and result.confirmed_value is not None:
        change = result.confirmed_value / result.search_value - 1
        lines.append(
            f"The search had measured {result.search_value:.2f} for it; launched again it is {change:+.1%} from that."
        )
    lines += [f"Note: {note}" for note in result.notes]
    lines.append("")
    if result.claim is Claim.FASTER:
        lines += ["The winner's launch, to paste:", "", f"    {report.command}", ""]
    else:
        lines += ["Keep the launch that you have:", "", f"    {report.command}", ""]
    lines += cost(report)
    lines += [f"Database: {report.storage}", f"Dashboard: optuna-dashboard {report.storage}"]
    return tuple(lines)


def cost(report: Report) -> list[str]:
    """What the study spent, and on a simulated host what it would have spent on the real one."""
    ended = [launch for launch in report.launches if launch.ended_unix_s is not None]
    kept = [launch for launch in ended if launch.outcome is not Outcome.LOST]
    seconds = sum((launch.ended_unix_s or math.nan) - launch.started_unix_s for launch in ended)
    roles = ", ".join(
        f"{count} {role.value}" for role in Role if (count := sum(launch.role is role for launch in kept))
    )
    lines = [f"Spent: {len(kept)} launches ({roles}) in {human_time(seconds)}."]
    if report.facts.simulated and report.facts.real_launch_s:
        real = report.facts.real_launch_s * len(kept)
        lines.append(
            f"On the machine that it imitates, at {human_time(report.facts.real_launch_s)} a launch, "
            f"the same study would take about {human_time(real)}."
        )
    return lines


def markdown(report: Report) -> str:
    """The report as Markdown: the dashboard's note and the file beside the database."""
    objective = report.objective
    maximize = objective.direction == "maximize"
    rows = tallies(report.launches, objective.metric, frozenset())
    control = next((row for row in rows if row.configuration == CONTROL), None)
    lines = [f"# {report.study}: {report.result.claim.value}", "", *heading(report), ""]
    lines += [
        f"| trial | {objective.metric} ({objective.unit}) | vs default | n | configuration |",
        "|--:|--:|--:|--:|---|",
    ]
    for row in sorted(rows, key=lambda row: sort_key(row, maximize=maximize)):
        values = cells(row, control, report.launches, maximize=maximize)
        lines.append("| " + " | ".join(value.replace("|", "\\|") for value in values) + " |")
    lines += findings(report)
    return "\n".join(lines) + "\n"
