"""A search that is resumed with another space or objective."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from search_samples import LATENCY, SPACE, THROUGHPUT, space, speed, tell

from tuner.documents.objective import Objective
from tuner.errors import SpecificationChanged
from tuner.search import Search, TrialState
from tuner.store import Store

NAME = "kimi/1-baseline"
WITHOUT_TREE = SPACE.replace("[null, Ring, Tree]", "[null, Ring]").replace(
    "  - name: tree\n    set: {NCCL_ALGO: Tree}\n", "  - name: few channels\n    set: {NCCL_MAX_NCHANNELS: 2}\n"
)
assert WITHOUT_TREE.count("Tree") == 0


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/tuner.db"
    Store.open(url).close()
    return url


def opened(url: str, text: str = SPACE, objective: Objective = THROUGHPUT, accept: bool = False) -> Search:
    return Search.open(url, NAME, space=space(text), objective=objective, seed=7, accept_changes=accept)


def started(url: str, told: int = 6) -> list[str]:
    """A study with some told trials and one that its driver left; the keys of all its configurations."""
    search = opened(url)
    keys = []
    for _ in range(told):
        proposal = search.ask()
        keys.append(proposal.configuration.key)
        tell(search, proposal, None if proposal.broken_rules else speed(proposal.values))
    keys.append(search.ask().configuration.key)
    search.close()
    return keys


def test_the_same_meaning_in_another_layout_is_no_change(url: str) -> None:
    started(url, told=1)
    opened(url, SPACE.replace("why: for tests", "why: other words")).close()


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "[null, Ring, Tree]",
            "[null, Ring, Tree, NVLS]",
            'space: NCCL_ALGO: env [null, "Ring", "Tree"] → env [null, ',
        ),
        ("low: 0.5,", "low: 0.6,", "space: mem-fraction-static: args FloatRange(low=0.5, high=0.9,"),
        ('NCCL_ALGO == "Ring"', 'NCCL_ALGO != "Tree"', "space: NCCL_PROTO: env"),
        ("{NCCL_ALGO: Tree}", "{NCCL_MAX_NCHANNELS: 2}", "space: try first 'tree': NCCL_ALGO=Tree"),
    ],
)
def test_a_changed_space_is_refused_with_the_difference(url: str, old: str, new: str, line: str) -> None:
    started(url, told=1)
    assert SPACE.count(old) == 1 or old == "[null, Ring, Tree]"
    with pytest.raises(SpecificationChanged) as refused:
        opened(url, SPACE.replace(old, new))
    assert any(difference.startswith(line) for difference in refused.value.differences), refused.value.differences
    assert refused.value.study == NAME and "--accept-changes" in str(refused.value)


def test_a_changed_objective_is_refused_with_the_difference(url: str) -> None:
    started(url, told=1)
    with pytest.raises(SpecificationChanged) as refused:
        opened(url, objective=LATENCY)
    assert refused.value.differences == (
        "objective: metric: output_tok_s → ttft_p50_s",
        "objective: direction: maximize → minimize",
        "objective: unit: tok/s → s",
        "objective: constraints: output_tok_s >= 0.9 * baseline → none",
    )


def test_an_accepted_space_keeps_what_still_means_the_same(url: str) -> None:
    keys = started(url)
    search = opened(url, WITHOUT_TREE, accept=True)
    assert search.name == "kimi/1-baseline (2)"
    rows = search.trials()
    assert [row.number for row in rows[:7]] == list(range(7)), "numbers go on"
    for key, row in zip(keys[:6], rows, strict=False):
        if "Tree" in key:
            assert (row.state, row.value, row.configuration) == (TrialState.SUPERSEDED, None, None)
        else:
            assert row.state is TrialState.TOLD and row.configuration is not None and row.configuration.key == key
            assert row.feasible == (row.value is not None)
    kept = [row for row in rows if row.state is TrialState.TOLD]
    assert search.told() == len(kept) >= 3 and any("Tree" in key for key in keys[:6])
    best = search.best()
    assert best is not None and best[2] == max(row.value for row in kept if row.value is not None)
    left = [row for row in rows if row.state is TrialState.WAITING]
    asked = [search.ask() for _ in left]
    assert [proposal.number for proposal in asked] == [row.number for row in left]
    assert asked[-1].name == "few channels" and asked[-1].number == 7, "what is new to try first comes too"
    assert asked[0].configuration.key == keys[6] or "Tree" in keys[6], "the one its driver left is asked for again"
    for proposal in asked:
        tell(search, proposal, speed(proposal.values))
    proposal = search.ask()
    assert proposal.number == 8 and "Tree" not in proposal.configuration.key
    tell(search, proposal, speed(proposal.values))
    told = search.told()
    search.close()

    again = opened(url, WITHOUT_TREE)
    assert (again.name, again.told()) == ("kimi/1-baseline (2)", told), "found again without being told to accept"
    again.close()
    with pytest.raises(SpecificationChanged):
        opened(url, SPACE)
    third = opened(url, SPACE, accept=True)
    assert third.name == "kimi/1-baseline (3)" and third.told() == told
    third.close()


def test_an_accepted_objective_starts_from_nothing_but_numbers(url: str) -> None:
    keys = started(url)
    search = opened(url, objective=LATENCY, accept=True)
    rows = search.trials()
    assert {row.state for row in rows[:6]} == {TrialState.SUPERSEDED} and search.told() == 0
    assert search.best() is None and all(row.value is None for row in rows)
    again = search.ask()
    assert (again.number, again.configuration.key) == (6, keys[6]), "the one its driver left"
    first = search.ask()
    assert (first.number, first.name, first.repeat_of) == (7, "default", None)
    study = optuna.load_study(storage=url, study_name=search.name)
    assert study.direction is optuna.study.StudyDirection.MINIMIZE
    search.close()


def test_killed_while_changing_it_changes_again(url: str) -> None:
    started(url)
    changed = replace(THROUGHPUT, constraints=())
    opened(url, objective=changed, accept=True).close()
    storage = optuna.storages.RDBStorage(url)
    old = storage.get_study_id_from_name(NAME)
    new = storage.get_study_id_from_name(f"{NAME} (2)")
    import sqlite3

    path = url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:  # as if the driver had died before the last two steps
        connection.execute("DELETE FROM study_system_attributes WHERE study_id = ? AND key = 'tuner:successor'", (old,))
        connection.execute(
            "DELETE FROM study_system_attributes WHERE study_id = ? AND key = 'tuner:specification'", (new,)
        )
    connection.close()
    storage.engine.dispose()
    with pytest.raises(SpecificationChanged):
        opened(url, objective=changed)
    search = opened(url, objective=changed, accept=True)
    assert search.name == f"{NAME} (2)" and [row.number for row in search.trials()] == list(range(10))
    search.close()
