"""One driver a study: who may take it over, when, and that of several at once exactly one gets it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from postgres_server import PostgresServer, postgres  # noqa: F401
from store_process import process
from store_samples import CONFIGURATION, SPEC, spec

from tuner.errors import StoreError, StudyHeld
from tuner.store import Holder, Store, StoredLaunch
from tuner.values.launch import Role
from tuner.values.study import Budget

LEASE_S = 30.0
ROUNDS = 15
"""Studies that two processes race for, one after the other."""


class Clock:
    """Seconds that stand still until they are moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tuner.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.fresh_url()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    store = Store.open(url, clock=clock)
    yield store
    store.close()


@pytest.fixture
def other(url: str, clock: Clock) -> Iterator[Store]:
    """The store of a second driver."""
    store = Store.open(url, clock=clock)
    yield store
    store.close()


@pytest.fixture
def study_id(store: Store) -> int:
    return store.create_study(SPEC).id


def far_away(pid: int = 4711) -> Holder:
    """A driver on another machine."""
    return replace(Holder.of_this_process(), hostname="node-17", boot_id="another", pid=pid)


def launch(store: Store, study_id: int) -> StoredLaunch:
    return store.begin_launch(
        study_id,
        stage="baseline",
        host="gpu1",
        role=Role.SEARCH,
        configuration=CONFIGURATION,
        trial=0,
        budget=Budget(100),
    )


@contextmanager
def child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A `store_process` that has said its first line (``got``, ``ready``); it is gone when the block ends."""
    started = process(*arguments)
    try:
        assert started.stdout is not None
        first = started.stdout.readline()
        assert first, started.communicate()[1]
        assert first.split()[0] in ("got", "ready")
        yield started
    finally:
        started.kill()
        started.communicate()


def test_a_second_driver_is_told_who_runs_the_study(store: Store, other: Store, study_id: int, clock: Clock) -> None:
    store.claim(study_id, far_away(), LEASE_S)
    clock.now += 12
    with pytest.raises(StudyHeld) as held:
        other.claim(study_id, Holder.of_this_process(), LEASE_S)
    assert re.fullmatch(
        r"study kimi is being run by pid 4711 on node-17 since 2023-11-1\d \d\d:\d\d:20[+-]\d\d:\d\d \(last sign of "
        r"life 12 s ago\); wait for it, or stop it there \(kill 4711\)\. If node-17 is gone itself, the study is free "
        r"in 18 s\.",
        str(held.value),
    )
    assert held.value.since_unix_s == 1_700_000_000.0


def test_a_lease_is_renewed_lapses_and_is_taken_over(store: Store, other: Store, study_id: int, clock: Clock) -> None:
    first, second = far_away(), Holder.of_this_process()
    store.claim(study_id, first, LEASE_S)
    clock.now += LEASE_S - 1
    assert store.renew(study_id, first, LEASE_S)
    clock.now += LEASE_S - 1
    with pytest.raises(StudyHeld) as held:
        other.claim(study_id, second, LEASE_S)
    assert (held.value.since_unix_s, held.value.silent_s, held.value.lapses_s) == (1_700_000_000.0, LEASE_S - 1, 1.0)

    clock.now += 1
    other.claim(study_id, second, LEASE_S)
    assert not store.renew(study_id, first, LEASE_S)
    store.release(study_id, first)  # is not its own to release any more
    assert other.renew(study_id, second, LEASE_S)
    with pytest.raises(StudyHeld, match=f"pid {os.getpid()} "):
        store.claim(study_id, first, LEASE_S)


def test_a_lapsed_lease_that_nobody_took_is_still_the_holders(
    store: Store, other: Store, study_id: int, clock: Clock
) -> None:
    holder = far_away()
    store.claim(study_id, holder, LEASE_S)
    clock.now += 10 * LEASE_S
    assert store.renew(study_id, holder, LEASE_S)
    with pytest.raises(StudyHeld):
        other.claim(study_id, Holder.of_this_process(), LEASE_S)


def test_a_released_study_is_free_at_once(store: Store, other: Store, study_id: int) -> None:
    holder = far_away()
    store.claim(study_id, holder, LEASE_S)
    store.release(study_id, holder)
    assert not store.renew(study_id, holder, LEASE_S)
    other.claim(study_id, far_away(4712), LEASE_S)


def test_to_claim_again_renews_and_keeps_the_start(store: Store, other: Store, study_id: int, clock: Clock) -> None:
    holder = far_away()
    store.claim(study_id, holder, LEASE_S)
    clock.now += 20
    store.claim(study_id, holder, LEASE_S)
    with pytest.raises(StudyHeld) as held:
        other.claim(study_id, far_away(4712), LEASE_S)
    assert (held.value.since_unix_s, held.value.lapses_s) == (1_700_000_000.0, LEASE_S)


def test_studies_are_leased_apart(store: Store, other: Store, study_id: int) -> None:
    second = store.create_study(spec("second")).id
    store.claim(study_id, far_away(), LEASE_S)
    other.claim(second, far_away(4712), LEASE_S)
    with pytest.raises(StudyHeld, match="study second is being run by pid 4712"):
        store.claim(second, far_away(), LEASE_S)
    with pytest.raises(StoreError, match="no study with the number 999"):
        store.claim(999, far_away(), LEASE_S)


def test_a_driver_that_lost_its_study_begins_no_launch(store: Store, other: Store, study_id: int, clock: Clock) -> None:
    store.claim(study_id, far_away(), LEASE_S)
    assert launch(store, study_id).spent
    clock.now += LEASE_S
    second = far_away(4712)
    other.claim(study_id, second, LEASE_S)
    with pytest.raises(StudyHeld, match="pid 4712"):
        launch(store, study_id)
    launch(other, study_id)
    other.release(study_id, second)
    with pytest.raises(StoreError, match="was taken over by another driver, which has ended since"):
        launch(store, study_id)
    store.release(study_id, second)  # somebody else's: forgets nothing
    with pytest.raises(StoreError, match="was taken over"):
        launch(store, study_id)
    assert len(store.launches(study_id)) == 2, "a refused launch leaves no row"


def test_a_driver_of_this_machine_holds_its_study_while_it_lives(store: Store, url: str, study_id: int) -> None:
    """Running or stopped by the terminal: it has the study. A zombie has not, nor one that is gone."""
    with child("hold", url, study_id) as driver:
        me = Holder.of_this_process()
        for number in (None, signal.SIGSTOP):
            if number is not None:
                driver.send_signal(number)
            with pytest.raises(StudyHeld, match=f"pid {driver.pid} on {me.hostname} "):
                store.claim(study_id, me, LEASE_S)
        driver.kill()
        os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)  # dead and not buried
        assert Path(f"/proc/{driver.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        store.claim(study_id, me, LEASE_S)
        store.release(study_id, me)
    with child("hold", url, study_id) as driver:
        driver.kill()
        driver.wait()
        store.claim(study_id, me, LEASE_S)


def test_a_pid_that_was_given_to_another_process_is_no_sign_of_life(store: Store, study_id: int) -> None:
    me = Holder.of_this_process()
    assert not me.is_dead()
    former = replace(me, start_ticks=me.start_ticks - 1, token="former")
    store.claim(study_id, former, LEASE_S)
    store.claim(study_id, me, LEASE_S)
    assert not store.renew(study_id, former, LEASE_S)


def test_two_holders_of_one_process_are_two(store: Store, other: Store, study_id: int) -> None:
    store.claim(study_id, Holder.of_this_process(), LEASE_S)
    with pytest.raises(StudyHeld):
        other.claim(study_id, Holder.of_this_process(), LEASE_S)


@pytest.mark.parametrize(
    ("field", "value"), [("hostname", "node-17"), ("boot_id", "before"), ("pid_namespace", "pid:[1]"), ("boot_id", "")]
)
def test_a_process_that_cannot_be_seen_from_here_is_never_called_dead(
    store: Store, study_id: int, clock: Clock, field: str, value: str
) -> None:
    """Another machine, an earlier boot, a container beside this one: their pids mean nothing here."""
    me = Holder.of_this_process()
    gone = replace(me, start_ticks=me.start_ticks - 1, token="gone")
    assert gone.is_dead()
    there = Holder(**vars(gone) | {field: value})
    assert not there.is_dead()
    store.claim(study_id, there, LEASE_S)
    clock.now += LEASE_S - 1
    with pytest.raises(StudyHeld):
        store.claim(study_id, me, LEASE_S)
    clock.now += 1
    store.claim(study_id, me, LEASE_S)


@pytest.mark.parametrize("left", ["free", "left by a dead driver"])
def test_of_two_processes_racing_for_a_study_exactly_one_gets_it(url: str, left: str) -> None:
    store = Store.open(url)
    studies = [store.create_study(spec(f"study-{number}")).id for number in range(ROUNDS)]
    if left != "free":
        me = Holder.of_this_process()
        for study_id in studies:
            store.claim(study_id, replace(me, start_ticks=me.start_ticks - 1, token=f"dead {study_id}"), 600.0)
    with ExitStack() as stack:
        racers = [stack.enter_context(child("claim", url, *studies)) for _ in range(2)]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = []
        for racer in racers:  # both live until both have said all: none takes over what the other left
            assert racer.stdout is not None
            lines = [racer.stdout.readline().split() for _ in range(ROUNDS + 1)]
            assert lines.pop() == ["end"]
            said += lines
    for study_id in studies:
        assert sorted(words[0] for words in said if words[1] == str(study_id)) == ["got", "held"]
    store.close()
