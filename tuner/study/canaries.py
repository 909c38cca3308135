"""What the database holds of correctness canaries: the reference, what was found, and how that is said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.load.canary import SUSPECT
from tuner.store.rows import Outcome, StoredLaunch
from tuner.store.store import Store
from tuner.study.ledger import CONTROL
from tuner.values.canary import CanaryAnswer, CanaryReport, Finding
from tuner.values.configuration import Configuration
from tuner.values.json import from_json
from tuner.values.launch import Phase, Role


def reference_answers(store: Store, study_id: int) -> tuple[CanaryAnswer, ...] | None:
    """The answers of the study's first measured control launch that has any: a resumed study reads the same ones.

    ``None``: there are none yet, so that nothing can be compared.
    """
    for launch in store.launches(study_id):
        if launch.role is not Role.CONTROL or launch.outcome is not Outcome.MEASURED:
            continue
        for stored in _evidence(store, launch.id, "canaries"):
            answers = tuple(from_json(CanaryAnswer, json.dumps(each)) for each in stored)
            if any(answer.usable for answer in answers):
                return answers
    return None


def confirmation_reports(
    store: Store, launches: Sequence[StoredLaunch], configuration: Configuration
) -> tuple[CanaryReport, ...]:
    """What was found in the measured confirmation launches of a configuration, where there was something to compare."""
    if configuration == CONTROL:
        return ()
    found = []
    for launch in launches:
        if (launch.role, launch.outcome, launch.configuration) == (
            Role.CONFIRMATION,
            Outcome.MEASURED,
            configuration,
        ):
            reports = [from_json(CanaryReport, json.dumps(each)) for each in _evidence(store, launch.id, "outputs")]
            found += [report for report in reports if report.comparisons]
    return tuple(found)


def outputs_right(store: Store, launch_id: int) -> bool:
    """Whether a launch that went on after its windows may count: its outputs were looked at and not found wrong.

    A launch of a version without canaries has no such phase, and counts.
    """
    if not any(row.phase is Phase.CANARIES for row in store.phases(launch_id)):
        return True
    reports = [from_json(CanaryReport, json.dumps(each)) for each in _evidence(store, launch_id, "outputs")]
    return bool(reports) and not any(report.corrupted for report in reports)


def sentence(reports: Sequence[CanaryReport]) -> str:
    """How a configuration's outputs compare with the default's over its launches; empty if nothing was compared."""
    findings: dict[str, list[Finding]] = {}
    earliest: int | None = None
    for report in reports:
        for one in report.comparisons:
            findings.setdefault(one.canary, []).append(one.finding)
            if one.divergence is not None:
                earliest = one.divergence if earliest is None else min(earliest, one.divergence)
    if not findings:
        return ""
    same = sum(all(each is Finding.SAME for each in found) for found in findings.values())
    if earliest is None:
        return f"Outputs: {same} of {len(findings)} canaries agree with the default's, to the last token."
    words = (
        f"Outputs: {same} of {len(findings)} canaries agree with the default's to the last token, "
        f"the earliest difference at token {earliest + 1}"
    )
    doubtful = sum(any(each in SUSPECT for each in found) for found in findings.values())
    if not doubtful:
        return f"{words}: normal between NCCL algorithms."
    return (
        f"{words}. Between NCCL algorithms late differences are normal; {doubtful} of these came early, or where the "
        "model was sure: compare the outputs on tasks of your own."
    )


def _evidence(store: Store, launch_id: int, name: str) -> Iterator[Any]:
    """Evidence of that name in the launch's canary phase: once, or not at all."""
    for row in store.phases(launch_id):
        if row.phase is Phase.CANARIES and name in row.evidence:
            yield row.evidence[name]
