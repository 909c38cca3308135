"""What a study found, put where people look: stdout, and a file beside the database."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rich.console import Console

from tuner.documents.objective import load_objective
from tuner.engines import engine as engine_named
from tuner.store.rows import StoredStudy
from tuner.store.store import Store
from tuner.study.canaries import confirmation_reports
from tuner.study.report import Report, markdown, show
from tuner.study.result import StageResult, StudyResult
from tuner.study.selection import space_of
from tuner.study.winner import Winner
from tuner.values.configuration import Configuration
from tuner.values.json import from_json

REPORT_MARK = "<!-- written by llm-server-tuner; changes are lost -->\n\n"


def report_of(store: Store, study: StoredStudy, index: int, result: StageResult) -> Report:
    """The report of a stage from what the database holds."""
    stage = study.spec.stages[index]
    facts = store.hosts(study.id)[0]
    winner = Winner(engine_named(study.spec.engine.name), facts, study.spec.engine.launch)
    launches = store.launches(study.id, stage.name)
    return Report(
        study=study.name,
        result=result,
        objective=load_objective(stage.objective, stage.objective_name),
        facts=facts,
        launches=launches,
        command=winner.command(result.configuration),
        storage=store.url,
        space=space_of(stage),
        canaries=confirmation_reports(store, launches, Configuration.from_key(result.configuration)),
    )


def print_result(store: Store, study: StoredStudy, out: Console) -> None:
    """Writes a finished study's reports beside the database, and prints them."""
    assert study.result is not None
    reports = [
        report_of(store, study, index, result)
        for index, result in enumerate(from_json(StudyResult, study.result).stages)
    ]
    written = write_reports(store, study, reports)
    for report in reports:
        show(report, out)
    if written:
        out.print(written, soft_wrap=True)


def write_reports(store: Store, study: StoredStudy, reports: list[Report]) -> str:
    """Writes the reports as Markdown; returns where, in words. A file that is not ours is left as it is."""
    if store.directory is None:
        return ""
    path = store.directory / f"{study.name}.md"
    try:
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(REPORT_MARK):
            return f"Report: not written, {shown_path(path)} is a file of yours"
        path.write_text(REPORT_MARK + "\n".join(markdown(report) for report in reports), encoding="utf-8")
    except OSError as error:
        return f"Report: not written ({error})"
    return f"Report: {shown_path(path)}"


def shown_path(path: Path) -> str:
    """A path as short as it can be typed from here."""
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)
