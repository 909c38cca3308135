"""A driver killed with -9 at any moment, and the search that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from search_process import MOMENTS, NAME, SEED
from search_samples import FIRST, THROUGHPUT, space, speed, tell

from tuner.search import Search, TrialState
from tuner.store import Store
from tuner.values.configuration import Configuration

HERE = Path(__file__).parent


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/tuner.db"
    Store.open(url).close()
    return url


def opened(url: str, n_startup: int = 5) -> Search:
    return Search.open(url, NAME, space=space(), objective=THROUGHPUT, seed=SEED, n_startup=n_startup)


def killed(url: str, told: int, where: str) -> list[tuple[int, Configuration]]:
    """Runs a driver until it dies there; the proposals that it saw."""
    done = subprocess.run(
        [sys.executable, HERE / "search_process.py", url, str(told), where],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}"},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return [(int(number), Configuration.from_key(key)) for number, key in lines]


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("where", MOMENTS[1:])
def test_a_driver_killed_with_9(url: str, where: str) -> None:
    seen = killed(url, 3, where)
    drawn = optuna.load_study(storage=url, study_name=NAME).trials[3].params
    search = opened(url)
    running = search.running()
    if where in ("in ask", "before tell"):
        assert [proposal.number for proposal in running] == [3]
        assert search.running() == running, "asking again changes nothing"
        assert search.told() == 3
    else:
        assert running == ()
        row = search.trials()[3]
        assert (row.state, row.configuration, row.feasible) == (TrialState.TOLD, seen[3][1], True)
        assert set(row.constraints) == {"rules", "launch", *THROUGHPUT.constraints}
    if where == "in ask":
        assert len(drawn) == 2 and len(seen) == 3, "it died with two parameters drawn"
        whole = optuna.load_study(storage=url, study_name=NAME).trials[3].params
        assert {name: whole[name] for name in drawn} == drawn and len(whole) > 2
    elif where == "before tell":
        assert running[0].configuration == seen[3][1]
    for proposal in running:
        assert tell(search, proposal, speed(proposal.values))
    for number in (4, 5):
        proposal = search.ask()
        assert proposal.number == number
        tell(search, proposal, speed(proposal.values))
    trials = optuna.load_study(storage=url, study_name=NAME).trials
    assert [trial.number for trial in trials] == list(range(6))
    assert {trial.state for trial in trials} == {optuna.trial.TrialState.COMPLETE}
    assert [row.name for row in search.trials()] == FIRST + [None] * 3, "tried first once, not again"
    assert [row.configuration for row in search.trials()][: len(seen)] == [configuration for _, configuration in seen]
    search.close()


def test_killed_while_enqueueing(url: str) -> None:
    assert killed(url, 0, "in enqueue") == []
    assert len(optuna.load_study(storage=url, study_name=NAME).trials) == 2
    search = opened(url)
    assert [search.ask().name for _ in range(4)] == [*FIRST, None]
    search.close()


def test_a_resumed_search_does_not_replay_its_seed(url: str) -> None:
    """With the same seed again, a sampler would draw the first random configurations a second time."""
    drawn = []
    for _ in range(3):
        search = opened(url, n_startup=100)
        while (proposal := search.ask()).name is not None:
            tell(search, proposal, speed(proposal.values))
        drawn.append([proposal.configuration.key, search.ask().configuration.key])
        for waiting in search.running():
            tell(search, waiting, speed(waiting.values))
        search.close()
    assert len({key for keys in drawn for key in keys}) == 6
    study = optuna.load_study(storage=url, study_name=NAME)
    assert study.user_attrs["attempt"] == 2


def test_a_half_made_study_is_made_again(url: str) -> None:
    """Killed between the creation of Optuna's study and ours being done with it."""
    optuna.create_study(storage=url, study_name=NAME, direction="minimize")
    search = opened(url)
    study = optuna.load_study(storage=url, study_name=NAME)
    assert study.direction is optuna.study.StudyDirection.MAXIMIZE
    assert study.metric_names == ["output_tok_s (tok/s)"] and len(study.trials) == 3
    search.close()


def test_two_drivers_of_one_study_propose_differently(url: str) -> None:
    """Not how it is meant to be run, but nothing is lost or told twice by it."""
    one, two = opened(url), opened(url)
    proposals = [search.ask() for _ in range(4) for search in (one, two)]
    assert sorted(p.number for p in proposals) == list(range(8))
    assert len({p.configuration for p in proposals}) == 8
    assert tell(one, proposals[1], 1.0) is True
    assert tell(two, proposals[1], 2.0) is False
    assert two.trials()[proposals[1].number].value == 1.0
    one.close()
    two.close()
