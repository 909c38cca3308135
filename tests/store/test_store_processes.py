"""Several processes at one database: nothing that returned is lost, and nothing is counted twice."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from postgres_server import PostgresServer, postgres  # noqa: F401
from store_process import process
from store_samples import SPEC

from tuner.store import Store
from tuner.values.launch import Phase


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tuner.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.fresh_url()


def test_kill_9_of_a_writer_loses_nothing_that_returned(url: str) -> None:
    store = Store.open(url)
    study_id = store.create_study(SPEC).id
    writer = process("write", url, study_id)
    assert writer.stdout is not None
    said = [writer.stdout.readline()]
    deadline = time.monotonic() + 1.0 + random.random()  # a moment of no meaning: anywhere in a launch
    while time.monotonic() < deadline:
        said.append(writer.stdout.readline())
    writer.kill()
    rest, errors = writer.communicate()
    assert not errors
    lines = [line.split() for line in [*said, *rest.splitlines()] if line.strip()]
    assert len(lines) > 20

    launches = {str(launch.id): launch for launch in store.launches(study_id)}
    open_ids = {launch.id for launch in store.open_launches(study_id)}
    phases = {key: store.phases(int(key)) for key in launches}
    for kind, key, *what in lines:
        if kind == "launch":
            assert launches[key].nonce == what[0]
        elif kind == "phase":
            assert Phase[what[0]] in [stored.phase for stored in phases[key]]
        elif kind == "evidence":
            assert {"seen": Phase[what[0]].value} in [stored.evidence for stored in phases[key]]
        elif kind == "window":
            assert store.windows(int(key))[0].index == 0
        else:
            assert launches[key].outcome == "measured"
    assert len(open_ids) <= 1, "only the launch under way has no outcome"
    for launch_id in open_ids:
        store.mark_lost(launch_id, "its driver was killed")
    assert store.open_launches(study_id) == ()
    store.close()


def test_of_two_processes_racing_for_the_last_launches_none_exceeds_the_budget(url: str) -> None:
    store = Store.open(url)
    study_id = store.create_study(SPEC).id
    limit = 5
    racers = [process("race", url, study_id, limit) for _ in range(2)]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    ends = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        ends.append(racer.communicate(timeout=60))
    nonces = [nonce for out, _ in ends for nonce in out.split()]
    assert [errors for _, errors in ends] == ["", ""]
    assert len(nonces) == len(set(nonces)) == limit
    assert {launch.nonce for launch in store.launches(study_id)} == set(nonces)
    store.close()


def test_several_drivers_may_open_an_empty_database_at_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = [future.result() for future in [pool.submit(Store.open, url) for _ in range(4)]]
    stores[0].create_study(SPEC)
    assert [[study.name for study in store.studies()] for store in stores] == [["kimi"]] * 4
    for store in stores:
        store.close()
