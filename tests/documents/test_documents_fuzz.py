"""Whatever a file holds, a person is told what is wrong with it; nothing else comes out of the readers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.documents.differences import differences
from tuner.documents.objective import load_objective
from tuner.documents.study_file import load_study
from tuner.errors import InputError
from tuner.shipped import shipped_file
from tuner.values.json import from_json, to_json
from tuner.values.study import StudySpec

SIMULATED = shipped_file("studies", "simulated")
STUDY: dict[str, Any] = {
    "name": "mine",
    "hosts": [{"name": "gpu1", "hostname": "h", "port": 22, "user": "me", "jump": "b", "server_port": "auto"}],
    "engine": {"command": "python3 -m x", "args": {"tp-size": 8}, "env": {"A": "1"}, "allow": ["a"], "forbid": ["A=1"]},
    "workload": {"endpoint": "chat", "concurrency": 2, "request_timeout_s": 5},
    "budget": {"launches": 20, "hours": 2},
    "stages": [{"name": "baseline", "space": "nccl", "objective": "throughput", "confirmation_launches": 4}],
    "storage": "sqlite:///x.db",
}
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["$A", "$", "a b"])
)
data = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of nested data."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@quick
@given(seed=st.integers(0, 10_000), value=data, add=st.booleans())
def test_a_value_that_does_not_belong_there(seed: int, value: Any, add: bool) -> None:
    study = json.loads(json.dumps(STUDY))
    container, key = random.Random(seed).choice(places(study))
    if add and isinstance(container, dict):
        key = f"{key}x"
    container[key] = value
    try:
        spec, _ = load_study(json.dumps(study), SIMULATED)
    except InputError as error:
        assert error.problems and all(error.problems)
    else:  # it did belong there: then the specification can be stored, and is the same when it comes back
        assert differences(spec, from_json(StudySpec, to_json(spec))) == ()


@quick
@given(st.text(max_size=200))
@pytest.mark.parametrize("load", [load_study, load_objective])
def test_any_text(load: Any, text: str) -> None:
    try:
        load(text, "x.yaml")
    except InputError as error:
        assert str(error).startswith("x.yaml")


@quick
@given(at=st.integers(0, 1500), length=st.integers(0, 30), put=st.text(":[]{}#&*!|>'\"%@`-? \n\tabc$0.", max_size=5))
def test_a_shipped_study_with_a_slip_of_the_hand(at: int, length: int, put: str) -> None:
    text = SIMULATED.read_text(encoding="utf-8")
    try:
        load_study(text[:at] + put + text[at + length :], SIMULATED)
    except InputError as error:
        assert all(problem.startswith(str(SIMULATED)) for problem in error.problems)


def test_a_study_file_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped study file is understood from any folder."""
    monkeypatch.chdir(tmp_path)
    assert load_study(SIMULATED.read_text(encoding="utf-8"), SIMULATED)[0].name == "simulated"
