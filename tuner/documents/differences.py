"""What differs between two specifications of a study: why a resume is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict

from tuner.documents.objective import load_objective
from tuner.documents.reading import read
from tuner.errors import InputError
from tuner.values.study import Budget, StageSpec, StudySpec

_ABSENT = "absent"


def differences(old: StudySpec, new: StudySpec) -> tuple[str, ...]:
    """What would make the results of two specifications incomparable, one line each: path, old → new.

    Not differences: a larger budget; how a host is reached (address, port, user, keys, interpreter), as long as its
    name stays; the order of arguments and variables; file names; comments, layout and `why` lines of spaces and
    objectives.
    """
    before, after = dict(_facts(old)), dict(_facts(new))
    paths = [path for path in before if before[path] != after.get(path)]
    paths += [path for path in after if path not in before]
    lines = [f"{path}: {_cut(before.get(path, _ABSENT))} → {_cut(after.get(path, _ABSENT))}" for path in paths]
    return (*lines, *_budget(old.budget, new.budget))


def _facts(spec: StudySpec) -> Iterator[tuple[str, str]]:
    """Everything that is compared, as path and value in words."""
    yield "name", spec.name
    for host in spec.hosts:
        yield f"hosts.{host.address.name}", f"simulated {host.simulated}" if host.simulated else "reached by SSH"
    engine = spec.engine
    yield "engine.name", engine.name
    yield "engine.command", shlex.join(engine.launch.command)
    yield from ((f"engine.args.{name}", _shown(value)) for name, value in engine.launch.args)
    yield from ((f"engine.env.{name}", _shown(value)) for name, value in engine.launch.env)
    yield "engine.allow", _shown(sorted(engine.launch.allow))
    yield "engine.forbid", _shown(sorted(engine.launch.forbid))
    for key in ("start_deadline_s", "no_progress_s", "stop_grace_s", "lease_s"):
        yield f"engine.{key}", _shown(getattr(engine, key))
    yield from ((f"workload.{key}", _shown(value)) for key, value in asdict(spec.workload).items())
    for index, stage in enumerate(spec.stages):
        path = f"stages[{index}]"
        yield f"{path}.name", stage.name
        yield f"{path}.confirmation_launches", _shown(stage.confirmation_launches)
        yield f"{path}.seed", _shown(stage.seed)
        yield from _leaves(f"{path}.space", _space(stage))
        yield from _leaves(f"{path}.objective", _objective(stage))


def _budget(old: Budget, new: Budget) -> Iterator[str]:
    """A smaller budget; a larger one only goes on with what was begun."""
    if new.launches < old.launches:
        yield f"budget.launches: {old.launches} → {new.launches}"
    if new.hours is not None and (old.hours is None or new.hours < old.hours):
        yield f"budget.hours: {_shown(old.hours)} → {_shown(new.hours)}"
    if new.lost_launches < old.lost_launches:
        yield f"budget.lost_launches: {old.lost_launches} → {new.lost_launches}"


class _Anything(BaseModel):
    """Any mapping: a text is compared as the data that it is."""

    model_config = ConfigDict(extra="allow")


def _space(stage: StageSpec) -> Any:
    """The space as data; the text itself where this version cannot read it."""
    try:
        return read(stage.space, _Anything, stage.space_name).model_dump()
    except InputError:
        return stage.space


def _objective(stage: StageSpec) -> Any:
    """The objective with its defaults; the text itself where this version cannot read it."""
    try:
        return {**asdict(load_objective(stage.objective, stage.objective_name)), "name": None}
    except InputError:
        return stage.objective


def _leaves(path: str, data: Any) -> Iterator[tuple[str, str]]:
    """Paths and values of nested data. A list of plain values is one value, for their order can matter."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key != "why":
                yield from _leaves(f"{path}.{key}", value)
    elif isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
        for index, item in enumerate(data):
            yield from _leaves(f"{path}[{index}]", item)
    else:
        yield path, _shown(data)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
