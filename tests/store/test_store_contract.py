"""What the store promises, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from postgres_server import PostgresServer, postgres, postgres_url  # noqa: F401
from sqlalchemy import insert, inspect, select, text
from store_samples import CONFIGURATION, FACTS, SPEC, measured, spec, window

from tuner.errors import BudgetSpent, StoreError
from tuner.store import LaunchCounts, LaunchJournal, Outcome, Store, StoredLaunch, StudyState
from tuner.store.tables import LaunchRow, StudyRow, Table
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass
from tuner.values.launch import LaunchCommand, Phase, Role, ServerIdentity
from tuner.values.study import Budget

BUDGET = Budget(launches=3, lost_launches=2)
IDENTITY = ServerIdentity("n", 4711, 9_876_543_210, "b0071d", "/sys/fs/cgroup/x", "/tmp/x.log")
OUT_OF_MEMORY = Failure(
    FailureClass.OUT_OF_MEMORY_LOAD, "ready", "CUDA out of memory", "Lower --mem-fraction-static.", -9, "line 1\nline 2"
)
HOST_LOST = Failure(FailureClass.LOST, "measure", "no answer for 30 s")
LAST_LAUNCH = {
    "stage": "baseline",
    "host": "gpu2",
    "role": "search",
    "configuration": CONFIGURATION.key,
    "nonce": "n",
    "started": 1.0,
    "command": "",
}


class Clock:
    """Seconds that pass by one at each look."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class StoreContract:
    """Inherited for each database; `url` is a storage URL of an empty one."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = Store.open(url, clock=Clock())
        yield store
        store.close()

    @pytest.fixture
    def study_id(self, store: Store) -> int:
        return store.create_study(SPEC).id

    def launch(self, store: Store, study_id: int, budget: Budget = BUDGET, trial: int | None = 0) -> StoredLaunch:
        return store.begin_launch(
            study_id,
            stage="baseline",
            host="gpu1",
            role=Role.SEARCH if trial is not None else Role.CONTROL,
            configuration=CONFIGURATION,
            trial=trial,
            budget=budget,
        )

    def test_a_study_comes_back_whole(self, store: Store, url: str) -> None:
        created = store.create_study(SPEC)
        store.add_seconds("kimi", 12.5)
        store.add_seconds("kimi", 0.25)
        store.set_state("kimi", StudyState.STOPPED)
        store.set_result("kimi", json.dumps({"claim": "faster", "n": [1, None]}))
        other = Store.open(url)
        found = other.study("kimi")
        other.close()
        assert found is not None and found.spec == SPEC and found.id == created.id
        assert (found.state, found.spent_s) == (StudyState.STOPPED, 12.75)
        assert json.loads(found.result or "") == {"claim": "faster", "n": [1, None]}
        assert found.created_unix_s == created.created_unix_s < found.updated_unix_s
        assert (created.state, created.result, created.spent_s) == (StudyState.RUNNING, None, 0.0)

    def test_names_are_unique_and_fresh_ones_count_up(self, store: Store) -> None:
        assert store.fresh_name("kimi") == "kimi"
        for name in ("kimi", "kimi-2", "kimi-4"):
            store.create_study(spec(name))
        assert store.fresh_name("kimi") == "kimi-3"
        assert [study.name for study in store.studies()] == ["kimi", "kimi-2", "kimi-4"]
        with pytest.raises(StoreError, match=r"has a study kimi already.*--new"):
            store.create_study(SPEC)
        assert store.study("nothing") is None
        with pytest.raises(StoreError, match="no study nothing"):
            store.set_state("nothing", StudyState.FINISHED)

    def test_a_specification_is_replaced(self, store: Store, study_id: int) -> None:
        changed = replace(SPEC, budget=Budget(40))
        store.replace_spec("kimi", changed)
        found = store.study("kimi")
        assert found is not None and (found.id, found.spec) == (study_id, changed)

    def test_the_newest_facts_of_each_host(self, store: Store, study_id: int) -> None:
        newer = replace(FACTS, boot_id="rebooted")
        second = replace(FACTS, name="gpu2")
        for facts in (FACTS, second, newer):
            store.record_host(study_id, facts)
        assert store.hosts(study_id) == (newer, second)

    def test_a_launch_is_there_before_it_starts_and_ends_measured(self, store: Store, study_id: int) -> None:
        begun = self.launch(store, study_id, trial=5)
        assert store.open_launches(study_id) == (begun,)
        assert (begun.outcome, begun.ended_unix_s, begun.pid, begun.trial) == (None, None, None, 5)
        assert len(begun.nonce) == 32 and begun.configuration == CONFIGURATION
        ended = store.end_launch(begun.id, measured())
        assert store.open_launches(study_id) == ()
        assert store.launches(study_id) == (ended,)
        assert ended == replace(
            begun, outcome=Outcome.MEASURED, metrics=dict(measured().metrics), ended_unix_s=ended.ended_unix_s
        )
        assert ended.ended_unix_s is not None and ended.ended_unix_s > begun.started_unix_s
        assert store.windows(begun.id) == measured().windows

    @pytest.mark.parametrize(
        ("failure", "outcome"),
        [
            (OUT_OF_MEMORY, Outcome.FAILED),
            (HOST_LOST, Outcome.LOST),
            (Failure(FailureClass.PORT_TAKEN, "clean", "nginx listens on 30000"), Outcome.LOST),
        ],
        ids=lambda case: case.name if isinstance(case, Outcome) else case.failure_class.name,
    )
    def test_a_failure_comes_back_whole(self, store: Store, study_id: int, failure: Failure, outcome: Outcome) -> None:
        ended = store.end_launch(self.launch(store, study_id).id, failure=failure)
        assert (ended.outcome, ended.failure, dict(ended.metrics)) == (outcome, failure, {})
        assert store.launches(study_id) == (ended,)

    def test_the_first_outcome_is_kept(self, store: Store, study_id: int) -> None:
        launch = self.launch(store, study_id)
        lost = store.mark_lost(launch.id, "the driver died")
        assert store.end_launch(launch.id, measured()) == lost
        assert store.mark_lost(launch.id, "again") == lost == store.launch(launch.id)
        assert store.counts(study_id) == LaunchCounts(under_way=0, measured=0, failed=0, lost=1, interrupted=0)

    def test_an_outcome_is_one_thing(self, store: Store, study_id: int) -> None:
        launch = self.launch(store, study_id)
        with pytest.raises(ValueError, match="one of them"):
            store.end_launch(launch.id)
        with pytest.raises(ValueError, match="one of them"):
            store.end_launch(launch.id, measured(), OUT_OF_MEMORY)
        with pytest.raises(StoreError, match="no launch with the number 999"):
            store.end_launch(999, measured())
        assert store.open_launches(study_id) == (launch,)

    def test_mark_lost_names_the_phase_that_was_under_way(self, store: Store, study_id: int) -> None:
        launch = self.launch(store, study_id)
        for phase in (Phase.CLEAN, Phase.START, Phase.READY):
            store.begin_phase(launch.id, phase)
        ended = store.mark_lost(launch.id, "driver died")
        assert ended.failure == Failure(FailureClass.LOST, "ready", "driver died")
        assert [phase.ended_unix_s is None for phase in store.phases(launch.id)] == [False, False, False]

    def test_launches_by_stage(self, store: Store, study_id: int) -> None:
        first = self.launch(store, study_id)
        second = store.begin_launch(
            study_id,
            stage="eagle3",
            host="gpu2",
            role=Role.CONTROL,
            configuration=Configuration(),
            trial=None,
            budget=BUDGET,
        )
        assert store.launches(study_id) == (first, second)
        assert store.launches(study_id, "eagle3") == (second,)
        assert first.nonce != second.nonce

    def test_the_budget_counts_every_started_launch_but_the_lost(self, store: Store, study_id: int) -> None:
        store.end_launch(self.launch(store, study_id).id, measured())
        store.end_launch(self.launch(store, study_id).id, failure=OUT_OF_MEMORY)
        store.mark_lost(self.launch(store, study_id).id, "driver died")
        under_way = self.launch(store, study_id)
        counts = store.counts(study_id)
        assert counts == LaunchCounts(under_way=1, measured=1, failed=1, lost=1, interrupted=0) and counts.spent == 3
        with pytest.raises(BudgetSpent, match="all 3 launches of its budget are spent") as refused:
            self.launch(store, study_id)
        assert (refused.value.study, refused.value.kind, refused.value.limit) == ("kimi", "launches", 3)
        assert len(store.launches(study_id)) == 4, "a refused launch leaves no row"
        store.mark_lost(under_way.id, "driver died")
        with pytest.raises(BudgetSpent, match=r"2 of its launches were lost.*budget\.lost_launches"):
            self.launch(store, study_id)
        self.launch(store, study_id, Budget(launches=3, lost_launches=3))

    def test_interrupted_launches_are_kept_and_cost_nothing(self, store: Store, study_id: int) -> None:
        budget = Budget(launches=2, lost_launches=1)
        for _ in range(5):
            launch = self.launch(store, study_id, budget)
            store.begin_phase(launch.id, Phase.CLEAN)
            store.begin_phase(launch.id, Phase.MEASURE)
            ended = store.mark_interrupted(launch.id, "Ctrl-C")
            assert ended.failure == Failure(FailureClass.INTERRUPTED, "measure", "Ctrl-C")
            assert (ended.outcome, ended.spent, launch.spent) == (Outcome.INTERRUPTED, False, True)
        counts = store.counts(study_id)
        assert counts == LaunchCounts(under_way=0, measured=0, failed=0, lost=0, interrupted=5) and counts.spent == 0
        assert [row.outcome for row in store.launches(study_id)] == [Outcome.INTERRUPTED] * 5
        store.end_launch(self.launch(store, study_id, budget).id, measured())
        store.end_launch(self.launch(store, study_id, budget).id, failure=OUT_OF_MEMORY)
        with pytest.raises(BudgetSpent, match="all 2 launches"):
            self.launch(store, study_id, budget)
        assert [row.spent for row in store.launches(study_id)] == [False] * 5 + [True] * 2

    def test_no_lost_launches_allowed_means_stop_at_the_first(self, store: Store, study_id: int) -> None:
        budget = Budget(launches=3, lost_launches=0)
        store.mark_lost(self.launch(store, study_id, budget).id, "gone")
        with pytest.raises(BudgetSpent, match="1 of its launches were lost"):
            self.launch(store, study_id, budget)

    def test_budgets_of_two_studies_do_not_mix(self, store: Store, study_id: int) -> None:
        other = store.create_study(spec("other")).id
        for _ in range(3):
            self.launch(store, study_id)
        assert self.launch(store, other).study_id == other
        with pytest.raises(StoreError, match="no study with the number 999"):
            self.launch(store, 999)

    def test_many_threads_cannot_exceed_the_budget(self, store: Store, study_id: int) -> None:
        budget = Budget(launches=5)
        results: list[str] = []

        def start() -> None:
            for _ in range(3):
                try:
                    results.append(self.launch(store, study_id, budget).nonce)
                except BudgetSpent:
                    results.append("")

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        nonces = [nonce for nonce in results if nonce]
        assert len(results) == 12 and len(nonces) == len(set(nonces)) == 5
        assert {launch.nonce for launch in store.launches(study_id)} == set(nonces)

    async def test_the_journal_stores_each_phase_before_it_begins(self, store: Store, study_id: int, url: str) -> None:
        launch = self.launch(store, study_id)
        reader = Store.open(url)
        seen: list[tuple[Phase, str]] = []

        def on_phase(phase: Phase) -> None:
            seen.append((phase, reader.phases(launch.id)[-1].phase))

        journal = LaunchJournal(store, launch, on_phase=on_phase)
        assert journal.nonce == launch.nonce
        await journal.begin(Phase.CLEAN)
        await journal.record(port=30000, found=("a", 1.5))
        await journal.begin(Phase.START)
        await journal.record(command=LaunchCommand(("python3", "-m", "x y"), (("A", "b c"),), 30000, "n"))
        await journal.record(identity=IDENTITY)
        await journal.begin(Phase.MEASURE)
        await journal.window(window(0))
        await journal.window(window(1))
        await journal.window(window(1, tok_s=99.0))
        clean, start, measure = reader.phases(launch.id)
        reader.close()
        assert seen == [(phase, phase) for phase in (Phase.CLEAN, Phase.START, Phase.MEASURE)]
        assert clean.evidence == {"port": 30000, "found": ["a", 1.5]}
        assert clean.ended_unix_s == start.begun_unix_s and measure.ended_unix_s is None
        assert start.evidence["identity"]["pid"] == 4711 and start.evidence["command"]["argv"][-1] == "x y"
        assert store.windows(launch.id) == (window(0), window(1)), "of two windows with one index the first is kept"
        stored = store.launch(launch.id)
        assert (stored.pid, stored.start_ticks, stored.boot_id) == (4711, 9_876_543_210, "b0071d")
        assert stored.command == "A='b c' python3 -m 'x y'"
        store.end_launch(launch.id, measured())
        assert store.windows(launch.id) == (window(0), window(1))

    async def test_evidence_needs_a_phase_and_must_be_plain(self, store: Store, study_id: int) -> None:
        journal = LaunchJournal(store, self.launch(store, study_id))
        with pytest.raises(ValueError, match="no phase yet to keep port with"):
            await journal.record(port=1)
        await journal.begin(Phase.CLEAN)
        with pytest.raises(TypeError, match="cannot store a object"):
            await journal.record(thing=object())

    def test_no_secret_is_stored(self, store: Store, study_id: int, url: str) -> None:
        secret = 'it\'s "s3cr\\et" ü'
        other = "tok-42"
        store.mask = lambda text: text.replace(secret, "***")
        launch = self.launch(store, study_id)
        journal = LaunchJournal(store, launch, mask=lambda text: text.replace(other, "***"))

        async def keep() -> None:
            await journal.begin(Phase.START)
            words = ("serve", "--api-key", secret, f"--x={other}")
            await journal.record(command=LaunchCommand(words, (("HF_TOKEN", secret), ("T", other)), 1, "n"))
            await journal.record(said=[{secret: f"a {secret} b", "n": {"deep": (other,)}}])
            await journal.window(window(error=f"401 {secret} {other}"))

        asyncio.run(keep())
        failure = Failure(FailureClass.CRASHED, "ready", f"x {secret}", f"y {secret}", 1, f"log {secret}")
        ended = store.end_launch(launch.id, failure=failure)
        store.set_result("kimi", json.dumps({"command": f"run {secret}"}))
        store.record_host(study_id, replace(FACTS, links=f"link {secret}"))
        assert ended.failure is not None and ended.failure.log_tail == "log ***"
        assert ended.command == "HF_TOKEN='***' T='***' serve --api-key '***' '--x=***'"
        assert store.windows(launch.id)[0].requests[0].error == "401 *** ***"
        assert store.phases(launch.id)[0].evidence["said"] == [{"***": "a *** b", "n": {"deep": ["***"]}}]
        for cell in self.all_text(store):
            assert "s3cr" not in cell and other not in cell, cell

    def all_text(self, store: Store) -> list[str]:
        """Every cell of every table of ours, as text."""
        with store._database.reading() as session:
            tables = Table.metadata.sorted_tables
            return [str(cell) for table in tables for row in session.execute(select(table)) for cell in row]

    def test_text_that_databases_refuse_is_stored_escaped(self, store: Store, study_id: int) -> None:
        launch = self.launch(store, study_id)
        broken = b"caf\xe9 \x00 end".decode("utf-8", "surrogateescape")
        store.begin_phase(launch.id, Phase.START)
        store.add_evidence(launch.id, {"log": broken})
        ended = store.end_launch(launch.id, failure=Failure(FailureClass.CRASHED, "start", broken, "", -11, broken))
        assert ended.failure is not None and ended.failure.log_tail == "caf\\udce9 \\x00 end"
        assert store.launch(launch.id) == ended
        assert store.phases(launch.id)[0].evidence["log"] == "caf\\udce9 \\x00 end"

    def test_numbers_are_stored_exactly(self, store: Store, study_id: int) -> None:
        launch = self.launch(store, study_id)
        odd = replace(window(), output_tok_s=math.nan, duration_s=1 / 3, loop_lag_p99_s=5e-324)
        store.add_window(launch.id, odd)
        found = store.windows(launch.id)[0]
        assert math.isnan(found.output_tok_s) and (found.duration_s, found.loop_lag_p99_s) == (1 / 3, 5e-324)

    def test_optuna_shares_the_database(self, store: Store, study_id: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.RDBStorage(store.secret_url)
        study = optuna.create_study(storage=storage, study_name="kimi/1-baseline")
        study.tell(study.ask(), 1.0)
        assert store.study("kimi") is not None
        storage.engine.dispose()

    @pytest.mark.parametrize("version", [1, 99])
    def test_tables_of_another_version_are_refused(self, store: Store, url: str, version: int) -> None:
        with store._database.writing() as session:
            session.execute(text("UPDATE tuner_schema SET version = :version"), {"version": version})
            session.execute(text("DROP TABLE tuner_leases"))
        with pytest.raises(StoreError, match=rf"tables of version {version}.*knows version 2.*--storage"):
            Store.open(url)
        with store._database.reading() as session:
            assert not inspect(session.connection()).has_table("tuner_leases"), "a refused database is left as it is"

    def test_a_study_that_cannot_be_read_says_so(self, store: Store, study_id: int) -> None:
        with store._database.writing() as session:
            session.execute(text("UPDATE tuner_studies SET spec = '{}'"))
        with pytest.raises(StoreError, match="holds study kimi in a form that this tuner cannot read"):
            store.study("kimi")


class TestStoreOnSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/deep/er/tuner.db"

    def test_the_file_keeps_its_write_ahead_log_for_optuna(self, store: Store, study_id: int, tmp_path: Path) -> None:
        store.close()
        with sqlite3.connect(tmp_path / "deep" / "er" / "tuner.db") as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()

    def test_reports_go_beside_the_file(self, store: Store, tmp_path: Path) -> None:
        assert store.directory == tmp_path / "deep" / "er" and (store.directory / "tuner.db").exists()


class TestStoreOnPostgres(StoreContract):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:  # noqa: F811
        return postgres_url

    def test_a_launch_waits_for_another_that_is_being_counted(
        self,
        store: Store,
        study_id: int,
        url: str,
        postgres: PostgresServer,  # noqa: F811
    ) -> None:
        """The moment in which two drivers would both see one launch left."""
        one = Budget(launches=1)
        with ThreadPoolExecutor(1) as pool:
            with store._database.writing() as session:
                session.execute(select(StudyRow).where(StudyRow.id == study_id).with_for_update())
                session.execute(insert(LaunchRow).values(LAST_LAUNCH | {"study_id": study_id}))
                second = pool.submit(self.launch, store, study_id, one)
                while not second.done() and not postgres.someone_waits():
                    time.sleep(0.01)
                assert not second.done()
            with pytest.raises(BudgetSpent):
                second.result(30)
        assert store.counts(study_id).spent == 1

    def test_a_server_has_no_folder(self, store: Store) -> None:
        assert store.directory is None
