"""What differs between two specifications of a study: why a resume is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from tuner.documents.objective import load_objective
from tuner.errors import InputError
from tuner.space.load import load_space
from tuner.values.study import Budget, StageSpec, StudySpec

_ABSENT = "absent"


def differences(old: StudySpec, new: StudySpec) -> tuple[str, ...]:
    """What would make the results of two specifications incomparable, one line each: path, old → new.

    Not differences: a larger budget; how a host is reached (address, port, user, keys, interpreter), as long as its
    name stays; the order of arguments and variables; file names; whatever does not change what a space or an objective
    means (comments, layout, reasons, defaults written out).
    """
    lines = list(_changes("", _facts(old), _facts(new)))
    for index, (before, after) in enumerate(zip_longest(old.stages, new.stages)):
        lines += _stage_changes(f"stages[{index}]", before, after)
    return (*lines, *_budget_cuts(old.budget, new.budget))


def _changes(prefix: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """A line for each path whose value is not the same, in the old one's order."""
    for path in [*before, *(path for path in after if path not in before)]:
        if before.get(path) != after.get(path):
            yield f"{prefix}{path}: {_cut(before.get(path, _ABSENT))} → {_cut(after.get(path, _ABSENT))}"


def _facts(spec: StudySpec) -> dict[str, str]:
    """Path and value, in words, of all but stages and budget."""
    engine = spec.engine
    launch = engine.launch
    return {
        "name": spec.name,
        **{
            f"hosts.{host.address.name}": f"simulated {host.simulated}" if host.simulated else "reached by SSH"
            for host in spec.hosts
        },
        "engine.name": engine.name,
        "engine.command": shlex.join(launch.command),
        **{f"engine.args.{name}": _shown(value) for name, value in launch.args},
        **{f"engine.env.{name}": _shown(value) for name, value in launch.env},
        "engine.allow": _shown(sorted(launch.allow)),
        "engine.forbid": _shown(sorted(launch.forbid)),
        **{
            f"engine.{key}": _shown(getattr(engine, key))
            for key in ("start_deadline_s", "no_progress_s", "stop_grace_s", "lease_s")
        },
        **{f"workload.{key}": _shown(value) for key, value in asdict(spec.workload).items()},
    }


def _stage_changes(path: str, old: StageSpec | None, new: StageSpec | None) -> Iterator[str]:
    if old is None or new is None:
        yield f"{path}: {old.name if old else _ABSENT} → {new.name if new else _ABSENT}"
        return

    def plain(stage: StageSpec) -> dict[str, str]:
        kept = ("name", "confirmation_launches", "seed")
        return {key: _shown(getattr(stage, key)) for key in kept}

    yield from _changes(f"{path}.", plain(old), plain(new))
    if old.space != new.space:
        yield from _space_changes(f"{path}.space", old, new)
    if old.objective != new.objective:
        yield from _changes(f"{path}.objective", _objective(old), _objective(new))


def _space_changes(path: str, old: StageSpec, new: StageSpec) -> Iterator[str]:
    try:
        changes = load_space(old.space, old.space_name).differences(load_space(new.space, new.space_name))
    except InputError as error:  # stored by another version of the tuner
        yield f"{path}: the texts differ, and cannot be compared by meaning: {error.problems[0]}"
    else:
        yield from (f"{path}.{change}" for change in changes)


def _objective(stage: StageSpec) -> dict[str, str]:
    """What the objective means; the text itself where this version of the tuner cannot read it."""
    try:
        meaning = asdict(load_objective(stage.objective, stage.objective_name))
    except InputError:
        return {"": _shown(stage.objective)}
    del meaning["name"]
    return {f".{key}": _shown(value) for key, value in meaning.items()}


def _budget_cuts(old: Budget, new: Budget) -> Iterator[str]:
    """A smaller budget; a larger one only goes on with what was begun."""
    if new.launches < old.launches:
        yield f"budget.launches: {old.launches} → {new.launches}"
    if new.hours is not None and (old.hours is None or new.hours < old.hours):
        yield f"budget.hours: {_shown(old.hours)} → {_shown(new.hours)}"
    if new.lost_launches < old.lost_launches:
        yield f"budget.lost_launches: {old.lost_launches} → {new.lost_launches}"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
