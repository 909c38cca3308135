"""The memory of the tuner: studies, hosts, launches, phases and windows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.errors import BudgetSpent, StoreError
from tuner.store import lease
from tuner.store.database import BUSY_TIMEOUT_S, Database, is_sqlite, masked_url
from tuner.store.lease import Holder
from tuner.store.rows import LaunchCounts, Outcome, StoredLaunch, StoredPhase, StoredStudy, StudyState
from tuner.store.schema import prepare
from tuner.store.tables import HostRow, LaunchRow, PhaseRow, StudyRow, WindowRow
from tuner.store.text import Mask, json_text, storable, unmasked
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass
from tuner.values.host import HostFacts
from tuner.values.json import from_json
from tuner.values.launch import Phase, Role, ServerIdentity
from tuner.values.measurement import Measurement, Window
from tuner.values.study import Budget, StudySpec


class Store:
    """The database of studies. Each call is one short transaction and is durable when it returns.

    Safe to use from several threads and several processes at once. Every method may raise `StoreError`: the
    database has gone, or another process has held it for too long.

    Attributes:
        mask: applied to every text of a launch before it is stored: evidence, logs, command lines. Set it as soon
            as the study's secrets are known.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._holders: dict[int, Holder] = {}
        self.mask: Mask = unmasked

    @classmethod
    def open(cls, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S, clock: Callable[[], float] = time.time) -> Store:
        """Connects, and creates what is missing: the file's folder, the tables.

        Args:
            url: ``sqlite:///FILE`` or ``postgresql://USER:PASSWORD@HOST/NAME``.
            busy_timeout_s: how long a call waits while another process holds a SQLite file.
            clock: seconds since the Unix epoch.

        Raises:
            StoreError: the URL is wrong, or the database unreachable, read-only, not a database, or of another
                version of the tuner. The message says which, the password masked, and what to do.
        """
        store = cls(Database(url, busy_timeout_s), clock)
        try:
            prepare(store._database)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Lets all connections go. Nothing is lost: every call was durable when it returned."""
        self._database.close()

    @property
    def url(self) -> str:
        """The storage URL as it may be shown: its password masked."""
        return masked_url(self._database.url)

    @property
    def secret_url(self) -> str:
        """The whole URL, driver and password included: for Optuna, never for people."""
        return self._database.url.render_as_string(hide_password=False)

    @property
    def directory(self) -> Path | None:
        """The folder of a SQLite file, where reports go too; ``None`` for a server."""
        url = self._database.url
        return Path(url.database or "").parent if is_sqlite(url) else None

    # Studies

    def study(self, name: str) -> StoredStudy | None:
        """The study of that name, or ``None``."""
        with self._database.reading() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name))
            return None if row is None else self._stored(row)

    def studies(self) -> tuple[StoredStudy, ...]:
        """All studies, oldest first."""
        with self._database.reading() as session:
            return tuple(self._stored(row) for row in session.scalars(select(StudyRow).order_by(StudyRow.id)))

    def _stored(self, row: StudyRow) -> StoredStudy:
        try:
            return StoredStudy.of(row)
        except ValueError as error:
            raise StoreError(
                f"the database {self.url} holds study {row.name} in a form that this tuner cannot read: {error}. "
                "Use the tuner that made it, or start the study afresh with --new."
            ) from error

    def fresh_name(self, name: str) -> str:
        """The name itself if no study has it, else the first free of ``NAME-2``, ``NAME-3``, …"""
        with self._database.reading() as session:
            taken = set(session.scalars(select(StudyRow.name)))
        fresh, number = name, 1
        while fresh in taken:
            number += 1
            fresh = f"{name}-{number}"
        return fresh

    def create_study(self, spec: StudySpec) -> StoredStudy:
        """Stores a new study under the specification's name, in state *running*.

        Raises:
            StoreError: there is a study of that name.
        """
        now = self._clock()
        row = StudyRow(
            name=spec.name, spec=json_text(spec), state=StudyState.RUNNING, created=now, updated=now, spent_s=0.0
        )
        with self._database.writing() as session:
            session.add(row)
            try:
                session.flush()
            except IntegrityError:
                raise StoreError(
                    f"the database {self.url} has a study {spec.name} already. Resume it, or start another with --new."
                ) from None
            return StoredStudy.of(row)

    def replace_spec(self, name: str, spec: StudySpec) -> None:
        """Gives a study another specification: the user accepted the changes. A result that it had is none now."""
        with self._study(name) as (_, row):
            row.spec = json_text(spec)
            row.result = None

    def set_state(self, name: str, state: StudyState) -> None:
        """Stores what a study is doing."""
        with self._study(name) as (_, row):
            row.state = StudyState(state).value

    def set_result(self, name: str, result_json: str) -> None:
        """Stores how a study ended, as JSON text, masked like every other text."""
        with self._study(name) as (_, row):
            row.result = json_text(json.loads(result_json), self.mask)

    def add_seconds(self, name: str, seconds: float) -> None:
        """Adds to the time that a study has spent over all its runs."""
        with self._study(name) as (_, row):
            row.spent_s += seconds

    def _locked(self, session: Session, study_id: int) -> StudyRow:
        """The study's row, locked: what counts its launches or decides who drives it goes one after another."""
        row = session.scalar(select(StudyRow).where(StudyRow.id == study_id).with_for_update())
        if row is None:
            raise StoreError(f"the database {self.url} has no study with the number {study_id}.")
        return row

    @contextmanager
    def _study(self, name: str) -> Iterator[tuple[Session, StudyRow]]:
        """The study's row, locked, to be changed."""
        with self._database.writing() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name).with_for_update())
            if row is None:
                raise StoreError(f"the database {self.url} has no study {name}.")
            row.updated = self._clock()
            yield session, row

    # Drivers

    def claim(self, study_id: int, holder: Holder, lease_s: float) -> None:
        """Makes the holder the one driver of a study, until `lease_s` after its last sign of life.

        From here on this store begins no launch of the study once another driver has taken it over. Of several that
        claim a study at the same time one gets it. To claim what one holds renews it.

        Raises:
            StudyHeld: another driver runs the study: it lives, or nobody here can tell and its lease has not lapsed.
        """
        with self._database.writing() as session:
            lease.take(session, self._locked(session, study_id), holder, lease_s, self._clock())
        self._holders[study_id] = holder

    def renew(self, study_id: int, holder: Holder, lease_s: float) -> bool:
        """Gives a sign of life; false if the study is no longer the holder's, and the driver must stop."""
        with self._database.writing() as session:
            return lease.extend(session, study_id, holder, lease_s, self._clock())

    def release(self, study_id: int, holder: Holder) -> None:
        """Lets a study go; nothing happens if another driver has it by now."""
        with self._database.writing() as session:
            lease.give_up(session, study_id, holder)
        if self._holders.get(study_id) == holder:
            del self._holders[study_id]

    # Hosts

    def record_host(self, study_id: int, facts: HostFacts) -> None:
        """Stores what preflight read on a host."""
        with self._database.writing() as session:
            session.add(
                HostRow(
                    study_id=study_id,
                    name=storable(facts.name),
                    boot_id=storable(facts.boot_id),
                    facts=json_text(facts, self.mask),
                    read_at=self._clock(),
                )
            )

    def hosts(self, study_id: int) -> tuple[HostFacts, ...]:
        """What was read last on each host of a study, in the order in which the hosts first came."""
        with self._database.reading() as session:
            rows = session.scalars(select(HostRow).where(HostRow.study_id == study_id).order_by(HostRow.id))
            latest = {row.name: row.facts for row in rows}
        return tuple(from_json(HostFacts, facts) for facts in latest.values())

    # Launches

    def begin_launch(
        self,
        study_id: int,
        *,
        stage: str,
        host: str,
        role: Role,
        configuration: Configuration,
        trial: int | None,
        budget: Budget,
    ) -> StoredLaunch:
        """Stores a launch that is about to start, with a fresh nonce. From here on it counts against the budget.

        Counting and storing are one transaction under the study's lock, so that several hosts, or two drivers,
        cannot start more launches than the budget has. Launches that are lost *later* cannot be foreseen: with H
        hosts side by side, as many as `Budget.lost_launches` + H - 1 can be lost before the study stops.

        Args:
            budget: a `lost_launches` of 0 is read as 1: the first lost launch ends the study.

        Raises:
            BudgetSpent: it has no launch left, or as many as it allows were lost.
            StudyHeld: this store had claimed the study, and another driver has taken it over since.
            StoreError: there is no such study.
        """
        with self._database.writing() as session:
            study = self._locked(session, study_id)
            if study_id in self._holders:
                lease.require(session, study, self._holders[study_id], self._clock())
            counts = _counts(session, study_id)
            if counts.spent >= budget.launches:
                raise BudgetSpent(study.name, "launches", budget.launches)
            if counts.lost >= max(1, budget.lost_launches):
                raise BudgetSpent(study.name, "lost launches", counts.lost)
            now = self._clock()
            row = LaunchRow(
                study_id=study_id,
                stage=stage,
                host=host,
                role=Role(role).value,
                configuration=configuration.key,
                trial=trial,
                nonce=uuid4().hex,
                started=now,
                command="",
            )
            study.updated = now
            session.add(row)
            session.flush()
            return StoredLaunch.of(row)

    def end_launch(
        self, launch_id: int, measurement: Measurement | None = None, failure: Failure | None = None
    ) -> StoredLaunch:
        """Stores the outcome of a launch: measured, or what `Outcome.of` makes of the failure.

        A launch ends once: of two outcomes the first is kept, and the returned value says which that is. Windows
        that the journal has not stored yet are stored too.

        Raises:
            ValueError: neither or both of measurement and failure are given.
        """
        if (measurement is None) == (failure is None):
            raise ValueError("a launch ends with a measurement or with a failure: one of them, not both")
        with self._database.writing() as session:
            row = _launch(session, launch_id)
            if row.outcome is not None:
                return StoredLaunch.of(row)
            row.ended = self._clock()
            _end_phase(session, launch_id, row.ended)
            if measurement is not None:
                row.outcome = Outcome.MEASURED.value
                row.metrics = json_text(dict(measurement.metrics))
                row.tunnel_lag = json_text(measurement.tunnel_lag) if measurement.tunnel_lag else None
                for window in measurement.windows:
                    self._add_window(session, launch_id, window)
            if failure is not None:
                row.outcome = Outcome.of(failure).value
                row.failure_class = failure.failure_class.value
                row.failure_phase = storable(failure.phase, self.mask)
                row.evidence = storable(failure.evidence, self.mask)
                row.remedy = storable(failure.remedy, self.mask)
                row.exit_status = failure.exit_status
                row.log_tail = storable(failure.log_tail, self.mask)
            return StoredLaunch.of(row)

    def mark_lost(self, launch_id: int, evidence: str) -> StoredLaunch:
        """Ends a launch whose host went, or cannot be used."""
        return self._cut_short(launch_id, FailureClass.LOST, evidence)

    def mark_interrupted(self, launch_id: int, evidence: str) -> StoredLaunch:
        """Ends a launch that the user stopped, or that nobody saw the end of because its driver died."""
        return self._cut_short(launch_id, FailureClass.INTERRUPTED, evidence)

    def _cut_short(self, launch_id: int, failure_class: FailureClass, evidence: str) -> StoredLaunch:
        """Ends a launch in the phase that it had reached."""
        with self._database.reading() as session:
            last = session.scalar(
                select(PhaseRow.phase).where(PhaseRow.launch_id == launch_id).order_by(PhaseRow.id.desc()).limit(1)
            )
        return self.end_launch(launch_id, failure=Failure(failure_class, last or Phase.CLEAN.value, evidence))

    def launch(self, launch_id: int) -> StoredLaunch:
        """One launch as it is now."""
        with self._database.reading() as session:
            return StoredLaunch.of(_launch(session, launch_id, lock=False))

    def launches(self, study_id: int, stage: str | None = None) -> tuple[StoredLaunch, ...]:
        """The launches of a study, or of one stage of it, in the order of their start."""
        query = select(LaunchRow).where(LaunchRow.study_id == study_id).order_by(LaunchRow.id)
        if stage is not None:
            query = query.where(LaunchRow.stage == stage)
        with self._database.reading() as session:
            return tuple(StoredLaunch.of(row) for row in session.scalars(query))

    def open_launches(self, study_id: int) -> tuple[StoredLaunch, ...]:
        """The launches without an outcome: under way, or left by a driver that died."""
        query = select(LaunchRow).where(LaunchRow.study_id == study_id, LaunchRow.outcome.is_(None))
        with self._database.reading() as session:
            return tuple(StoredLaunch.of(row) for row in session.scalars(query.order_by(LaunchRow.id)))

    def counts(self, study_id: int) -> LaunchCounts:
        """How many launches of a study ended in which way."""
        with self._database.reading() as session:
            return _counts(session, study_id)

    def describe_launch(
        self, launch_id: int, *, command: str | None = None, server: ServerIdentity | None = None
    ) -> None:
        """Stores the command line as shown to people (masked), and who the server is once it started."""
        with self._database.writing() as session:
            row = _launch(session, launch_id)
            if command is not None:
                row.command = storable(command, self.mask)
            if server is not None:
                row.pid, row.start_ticks, row.boot_id = server.pid, server.start_ticks, server.boot_id

    # Phases and windows

    def begin_phase(self, launch_id: int, phase: Phase) -> None:
        """Stores that a phase begins; the one before it ends."""
        with self._database.writing() as session:
            now = self._clock()
            _end_phase(session, launch_id, now)
            session.add(PhaseRow(launch_id=launch_id, phase=phase.value, begun=now, evidence="{}"))

    def add_evidence(self, launch_id: int, evidence: dict[str, Any]) -> None:
        """Merges evidence into the launch's newest phase: values of `tuner.values`, or JSON types.

        Raises:
            ValueError: the launch has no phase yet.
            TypeError: something in the evidence is not JSON.
        """
        added = json.loads(json_text(evidence, self.mask))
        with self._database.writing() as session:
            newest = select(PhaseRow).where(PhaseRow.launch_id == launch_id).order_by(PhaseRow.id.desc()).limit(1)
            row = session.scalar(newest.with_for_update())
            if row is None:
                raise ValueError(f"launch {launch_id} has no phase yet to keep {', '.join(evidence)} with")
            row.evidence = json_text(json.loads(row.evidence) | added)

    def add_window(self, launch_id: int, window: Window, mask: Mask = unmasked) -> None:
        """Stores a measured window with its raw samples; of two with one index the first is kept.

        Args:
            mask: on top of the store's own.
        """
        with self._database.writing() as session:
            _launch(session, launch_id)
            self._add_window(session, launch_id, window, mask)

    def _add_window(self, session: Session, launch_id: int, window: Window, mask: Mask = unmasked) -> None:
        """The caller holds the launch's lock."""
        there = select(WindowRow.id).where(WindowRow.launch_id == launch_id, WindowRow.number == window.index)
        if session.scalar(there) is None:
            session.add(
                WindowRow(
                    launch_id=launch_id,
                    number=window.index,
                    valid=not window.invalid,
                    output_tok_s=None if math.isnan(window.output_tok_s) else window.output_tok_s,
                    raw=json_text(window, lambda words: self.mask(mask(words))),
                )
            )

    def phases(self, launch_id: int) -> tuple[StoredPhase, ...]:
        """The phases of a launch, in order."""
        query = select(PhaseRow).where(PhaseRow.launch_id == launch_id).order_by(PhaseRow.id)
        with self._database.reading() as session:
            return tuple(StoredPhase.of(row) for row in session.scalars(query))

    def windows(self, launch_id: int) -> tuple[Window, ...]:
        """The windows of a launch with their raw samples, in order."""
        query = select(WindowRow.raw).where(WindowRow.launch_id == launch_id).order_by(WindowRow.number)
        with self._database.reading() as session:
            return tuple(from_json(Window, raw) for raw in session.scalars(query))


def _launch(session: Session, launch_id: int, lock: bool = True) -> LaunchRow:
    query = select(LaunchRow).where(LaunchRow.id == launch_id)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise StoreError(f"the database has no launch with the number {launch_id}.")
    return row


def _end_phase(session: Session, launch_id: int, now: float) -> None:
    session.execute(update(PhaseRow).where(PhaseRow.launch_id == launch_id, PhaseRow.ended.is_(None)).values(ended=now))


def _counts(session: Session, study_id: int) -> LaunchCounts:
    query = select(LaunchRow.outcome, func.count()).where(LaunchRow.study_id == study_id).group_by(LaunchRow.outcome)
    by_outcome = {outcome: number for outcome, number in session.execute(query)}
    return LaunchCounts(
        under_way=by_outcome.get(None, 0),
        measured=by_outcome.get(Outcome.MEASURED.value, 0),
        failed=by_outcome.get(Outcome.FAILED.value, 0),
        lost=by_outcome.get(Outcome.LOST.value, 0),
        interrupted=by_outcome.get(Outcome.INTERRUPTED.value, 0),
    )
