"""Ask and tell: what is tried first, conditions, constraints, failures."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from search_samples import FIRST, LATENCY, SPACE, THROUGHPUT, space, speed, tell

from tuner.documents.objective import Objective
from tuner.errors import InputError, StoreError
from tuner.search import Search, TrialState
from tuner.search.sampler import sampler_seed
from tuner.store import Store
from tuner.values.configuration import Configuration

sys.path.append(str(Path(__file__).parents[1] / "store"))
from postgres_server import PostgresServer, postgres  # noqa: F401

NAME = "kimi/1-baseline"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/tuner.db"
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.fresh_url()
    store = Store.open(url)
    store.close()
    return store.secret_url


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/tuner.db"
    Store.open(url).close()
    return url


def opened(url: str, objective: Objective = THROUGHPUT, text: str = SPACE, n_startup: int = 5) -> Search:
    return Search.open(url, NAME, space=space(text), objective=objective, seed=7, n_startup=n_startup)


@pytest.fixture
def search(sqlite: str) -> Iterator[Search]:
    search = opened(sqlite)
    yield search
    search.close()


def test_a_search_on_each_database(url: str) -> None:
    search = opened(url)
    seen = []
    for number in range(12):
        proposal = search.ask()
        seen.append(proposal)
        assert proposal.number == number
        assert proposal.configuration == space().configuration(proposal.values)
        assert proposal.broken_rules == space().broken_rules(proposal.values)
        assert tell(search, proposal, None if proposal.broken_rules else speed(proposal.values))
    assert [proposal.name for proposal in seen] == FIRST + [None] * 9
    assert seen[0].configuration == Configuration.of(args={"mem-fraction-static": 0.88})
    best = search.best()
    assert best is not None and best[0] == min(
        (p.number for p in seen if not p.broken_rules and speed(p.values) == best[2]),
        key=lambda number: (seen[number].configuration.settings, number),
    )
    assert best[2] == max(speed(p.values) for p in seen if not p.broken_rules)
    assert search.told() == 12 and search.running() == ()
    assert search.trials()[2].name == "ring with LL" and search.trials()[2].value == speed(seen[2].values)
    search.note("# Winner\n" + "long " * 1000)
    search.close()


def test_parameters_are_asked_for_only_under_their_condition(search: Search, sqlite: str) -> None:
    for _ in range(14):
        proposal = search.ask()
        assert (proposal.values["NCCL_PROTO"] is None) or proposal.values["NCCL_ALGO"] == "Ring"
        tell(search, proposal, speed(proposal.values))
    study = optuna.load_study(storage=sqlite, study_name=NAME)
    for trial in study.trials:
        assert ("NCCL_PROTO" in trial.params) == (trial.params["NCCL_ALGO"] == "Ring")
        assert ("NCCL_MAX_NCHANNELS" in trial.params) == trial.params["NCCL_MAX_NCHANNELS:set"]


def test_every_told_trial_has_every_constraint(search: Search, sqlite: str) -> None:
    outcomes: list[float | None] = [40.0, None, 45.0]
    for value in outcomes:
        tell(search, search.ask(), value, violation=-1.0 if value else 0.0)
    names = {"rules", "launch", *THROUGHPUT.constraints}
    study = optuna.load_study(storage=sqlite, study_name=NAME)
    assert [set(trial.constraints) for trial in study.trials] == [names] * 3
    assert study.metric_names == ["output_tok_s (tok/s)"]
    assert [row.feasible for row in search.trials()] == [True, False, True]
    assert search.trials()[1].attributes["feasible"] == "no"
    assert search.trials()[1].attributes["constraint launch"] == "violated by 1"
    assert search.trials()[2].attributes[f"constraint {THROUGHPUT.constraints[0]}"] == "holds, 1 to spare"


@pytest.mark.parametrize("objective", [THROUGHPUT, LATENCY], ids=["maximize", "minimize"])
def test_a_failure_is_never_best(sqlite: str, objective: Objective) -> None:
    search = opened(sqlite, objective)
    failed = [search.ask()]
    tell(search, failed[0])
    for value in (3.0, 1.0, 2.0):
        tell(search, search.ask(), value)
        failed.append(search.ask())
        tell(search, failed[-1])
    rows = search.trials()
    assert [rows[proposal.number].value for proposal in failed] == [None] * 4
    best = search.best()
    wanted = 3.0 if objective.direction == "maximize" else 1.0
    assert best is not None and best[2] == wanted
    study = optuna.load_study(storage=sqlite, study_name=NAME)
    assert (study.best_trial.number, study.best_value) == (best[0], wanted), "Optuna agrees"
    assert study.trials[0].state is optuna.trial.TrialState.FAIL, "nothing was measured yet: no value to tell"
    worst = {"maximize": [3.0, 1.0, 1.0], "minimize": [3.0, 3.0, 3.0]}[objective.direction]
    told = [study.trials[proposal.number] for proposal in failed[1:]]
    assert [trial.value for trial in told] == worst
    assert all(trial.state is optuna.trial.TrialState.COMPLETE for trial in told)
    assert search.told() == 7
    search.close()


def test_only_failures_means_no_best(search: Search) -> None:
    for _ in range(3):
        tell(search, search.ask())
    assert search.best() is None and search.told() == 3


def test_a_failure_ranks_behind_whatever_ran(search: Search, sqlite: str) -> None:
    tell(search, search.ask(), 40.0, violation=0.0)
    tell(search, search.ask(), 10.0, violation=26.0)
    tell(search, search.ask())
    broken = search.ask()
    name = THROUGHPUT.constraints[0]
    search.tell(broken.number, value=None, constraints={"rules": 2.0, "launch": 0.0, name: 0.0}, attributes={})
    study = optuna.load_study(storage=sqlite, study_name=NAME)
    sums = [sum(v for v in trial.constraints.values() if v > 0) for trial in study.trials]
    assert sums == [0.0, 26.0, 27.0, 28.0]
    assert study.trials[3].constraints["launch"] == 0.0, "the cause is told as what it was"


def test_a_failure_needs_no_violated_constraint_to_be_infeasible(search: Search) -> None:
    tell(search, search.ask(), 40.0)
    number = search.ask().number
    assert search.tell(number, value=None, constraints={}, attributes={})
    assert search.trials()[number].constraints["launch"] == 1.0


def test_constraints_reach_the_sampler(sqlite: str) -> None:
    """More is faster, and above 10 infeasible: without the constraint a sampler would go there."""
    text = "args: {x: {int: {low: 0, high: 20}, default: 0}}"
    late: dict[bool, list[int]] = {}
    for constrained in (True, False):
        objective = replace(THROUGHPUT, constraints=("ttft_p50_s <= 1",))
        name = f"constrained {constrained}"
        search = Search.open(sqlite, name, space=space(text), objective=objective, seed=3)
        values = []
        for _ in range(24):
            proposal = search.ask()
            x = int(str(proposal.values["x"]))
            values.append(x)
            violation = float(x - 10) if constrained else 0.0
            constraints = {"rules": 0.0, "launch": 0.0, "ttft_p50_s <= 1": violation}
            search.tell(proposal.number, value=float(x), constraints=constraints, attributes={})
        late[constrained] = values[12:]
        best = search.best()
        assert best is not None and (best[2] <= 10) is constrained
        search.close()
    inside = {key: sum(x <= 10 for x in values) for key, values in late.items()}
    assert inside[True] >= 6 and inside[False] <= 3, inside


def test_a_trial_is_told_once(search: Search) -> None:
    proposal = search.ask()
    assert tell(search, proposal, 40.0, violation=-2.0) is True
    assert tell(search, proposal, 99.0, violation=5.0) is False
    row = search.trials()[0]
    assert (row.value, row.feasible, row.constraints[THROUGHPUT.constraints[0]]) == (40.0, True, -2.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_only_finite_numbers_are_told(search: Search, bad: float) -> None:
    proposal = search.ask()
    with pytest.raises(ValueError, match=r"only finite numbers.*value = "):
        tell(search, proposal, bad)
    with pytest.raises(ValueError, match=r"only finite numbers.*output_tok_s >= 0\.9 \* baseline = "):
        tell(search, proposal, 40.0, violation=bad)
    assert search.trials()[0].state is TrialState.RUNNING, "nothing of it was written"
    assert tell(search, proposal, 40.0)


def test_what_cannot_be_told(search: Search) -> None:
    proposal = search.ask()
    with pytest.raises(ValueError, match=r"trial 1 of kimi/1-baseline was not asked for"):
        search.tell(1, value=1.0, constraints={}, attributes={})
    with pytest.raises(ValueError, match=r"trial 99 .* was not asked for"):
        search.tell(99, value=1.0, constraints={}, attributes={})
    with pytest.raises(ValueError, match=r"unknown constraints \['speed'\]"):
        search.tell(proposal.number, value=1.0, constraints={"speed": 1.0}, attributes={})
    with pytest.raises(ValueError, match="a measured trial must say how far it is from"):
        search.tell(proposal.number, value=1.0, constraints={"rules": 0.0}, attributes={})


def test_a_repeated_configuration_names_the_first_trial(sqlite: str) -> None:
    text = "args: {x: {choices: [1, 2], default: 1}}\ntry_first: [{name: two, set: {x: 2}}]"
    search = opened(sqlite, LATENCY, text)
    seen: dict[Configuration, int] = {}
    for _ in range(8):
        proposal = search.ask()
        assert proposal.repeat_of == seen.get(proposal.configuration)
        seen.setdefault(proposal.configuration, proposal.number)
        tell(search, proposal, 1.0)
    assert len(seen) == 2
    waiting, again = search.ask(), search.ask()
    assert waiting.repeat_of in seen.values() and again.repeat_of in seen.values(), "one not told yet is no answer"
    search.close()


def test_attributes_are_short(search: Search) -> None:
    proposal = search.ask()
    name = THROUGHPUT.constraints[0]
    search.tell(proposal.number, value=1.0, constraints={name: 0.0}, attributes={"evidence": "é" * 5000})
    attributes = search.trials()[0].attributes
    assert max(map(len, attributes.values())) == 1000 and attributes["evidence"].endswith("é…")
    assert attributes["configuration"] == "--mem-fraction-static 0.88"


def test_equal_seeds_propose_equally_and_others_do_not(tmp_path: Path) -> None:
    def proposed(name: str, seed: int) -> list[str]:
        url = f"sqlite:///{tmp_path}/{name}.db"
        Store.open(url).close()
        search = Search.open(url, NAME, space=space(), objective=THROUGHPUT, seed=seed, n_startup=4)
        found = []
        for _ in range(6):
            proposal = search.ask()
            found.append(proposal.configuration.key)
            tell(search, proposal, speed(proposal.values))
        search.close()
        return found[3:]

    assert proposed("a", 1) == proposed("b", 1) != proposed("c", 2)


def test_each_seed_worker_and_attempt_has_a_sampler_seed_of_its_own() -> None:
    triples = [(seed, worker, attempt) for seed in range(12) for worker in range(12) for attempt in range(12)]
    seeds = {sampler_seed(*triple) for triple in triples}
    assert len(seeds) == len(triples) and all(0 <= seed < 2**32 for seed in seeds)
    assert sampler_seed(1, 11, 1) != sampler_seed(1, 1, 11) and 1 not in seeds


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (("ttft_p50_s <= " + "0" * 400 + "1",), "has 415 characters, at most 400 are kept"),
        (("launch",), "may not be called 'launch'"),
        (("a <= 1", "a <= 1"), "has the constraint 'a <= 1' twice"),
    ],
)
def test_constraints_that_cannot_be_kept(sqlite: str, constraints: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as refused:
        opened(sqlite, replace(THROUGHPUT, constraints=constraints))
    assert message in str(refused.value)


def test_what_is_not_in_the_space_is_not_enqueued(sqlite: str) -> None:
    offered = space()
    wrong = replace(offered.first[1], values={**offered.first[1].values, "NCCL_ALGO": "Collnet"})
    with pytest.raises(InputError, match="'tree' is to be tried first but is not in the space"):
        Search.open(sqlite, NAME, space=replace(offered, first=(wrong,)), objective=THROUGHPUT, seed=1)


def test_a_database_that_goes_away_is_a_store_error(tmp_path: Path, postgres: PostgresServer) -> None:  # noqa: F811
    bad = tmp_path / "text.db"
    bad.write_text("no database\n" * 1000)
    with pytest.raises(StoreError, match="is not a SQLite database"):
        opened(f"sqlite:///{bad}")
    url = postgres.fresh_url()
    search = opened(url)
    database = url.partition("@/")[2].partition("?")[0]
    search.close()
    postgres.execute(f"DROP DATABASE {database}")
    with pytest.raises(StoreError, match="no such database") as gone:
        search.ask()
    assert "s3cret" not in str(gone.value)


def test_tables_of_another_optuna_say_so(sqlite: str) -> None:
    opened(sqlite).close()
    with sqlite3.connect(sqlite.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    connection.close()
    with pytest.raises(StoreError, match=r"was made by another version of Optuna: .*--storage URL"):
        opened(sqlite)


def test_a_study_of_somebody_else_is_left_alone(sqlite: str) -> None:
    foreign = optuna.create_study(storage=sqlite, study_name=NAME)
    foreign.tell(foreign.ask(), 1.0)
    with pytest.raises(StoreError, match="that this tuner did not start"):
        opened(sqlite)
    assert len(foreign.trials) == 1


def test_nothing_is_said_by_optuna(sqlite: str) -> None:
    """In a process of its own: pytest has filters and handlers of its own."""
    code = (
        "import logging, sys\n"
        "from search_samples import THROUGHPUT, space, tell\n"
        "from tuner.search import Search\n"
        "search = Search.open(sys.argv[1], 'n', space=space(), objective=THROUGHPUT, seed=1)\n"
        "for value in [None, 1.0, None, 2.0] + [3.0] * 6: tell(search, search.ask(), value)\n"
        "search.note('x')\n"
        "root = logging.getLogger()\n"
        "assert root.level == logging.WARNING and not root.handlers, root\n"
    )
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code, sqlite],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{here.parents[1]}:{here}"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
