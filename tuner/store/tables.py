"""Our tables. They live beside Optuna's in one database, hence the prefix ``tuner_``.

Times are seconds since the Unix epoch. JSON is stored as text: the same bytes on every database, and nothing here
queries inside it.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA_VERSION = 2
"""Raised with every change of the tables below."""


class Table(DeclarativeBase):
    """Base of all our tables."""


class SchemaRow(Table):
    """One row: the version of the tables."""

    __tablename__ = "tuner_schema"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class StudyRow(Table):
    """A study with its whole specification, so that it resumes with nothing but the database."""

    __tablename__ = "tuner_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(255), unique=True)
    spec: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    result: Mapped[str | None] = mapped_column(Text)
    created: Mapped[float] = mapped_column(Float(53))
    updated: Mapped[float] = mapped_column(Float(53))
    spent_s: Mapped[float] = mapped_column(Float(53), default=0.0)


class LeaseRow(Table):
    """The driver that runs a study: `tuner.store.lease.Holder`, and until when it need give no sign of life."""

    __tablename__ = "tuner_leases"

    study_id: Mapped[int] = mapped_column(ForeignKey("tuner_studies.id", ondelete="CASCADE"), primary_key=True)
    hostname: Mapped[str] = mapped_column(Text)
    boot_id: Mapped[str] = mapped_column(Text)
    pid_namespace: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(BigInteger)
    start_ticks: Mapped[int] = mapped_column(BigInteger)
    token: Mapped[str] = mapped_column(String(32))
    since: Mapped[float] = mapped_column(Float(53))
    renewed: Mapped[float] = mapped_column(Float(53))
    lapses: Mapped[float] = mapped_column(Float(53))


class HostRow(Table):
    """What preflight read on a host; one row for each time it was read."""

    __tablename__ = "tuner_hosts"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("tuner_studies.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(Text)
    boot_id: Mapped[str] = mapped_column(Text)
    facts: Mapped[str] = mapped_column(Text)
    read_at: Mapped[float] = mapped_column(Float(53))


class LaunchRow(Table):
    """One start of a server. The row is there, with its nonce, before anything is started."""

    __tablename__ = "tuner_launches"
    __table_args__ = (Index("ix_tuner_launches_study_stage", "study_id", "stage"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("tuner_studies.id", ondelete="CASCADE"))
    stage: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(16))
    configuration: Mapped[str] = mapped_column(Text)
    trial: Mapped[int | None]
    nonce: Mapped[str] = mapped_column(String(64), unique=True)
    started: Mapped[float] = mapped_column(Float(53))
    ended: Mapped[float | None] = mapped_column(Float(53))
    outcome: Mapped[str | None] = mapped_column(String(16))
    failure_class: Mapped[str | None] = mapped_column(String(64))
    failure_phase: Mapped[str | None] = mapped_column(Text)
    evidence: Mapped[str | None] = mapped_column(Text)
    remedy: Mapped[str | None] = mapped_column(Text)
    exit_status: Mapped[int | None]
    log_tail: Mapped[str | None] = mapped_column(Text)
    metrics: Mapped[str | None] = mapped_column(Text)
    tunnel_lag: Mapped[str | None] = mapped_column(Text)
    command: Mapped[str] = mapped_column(Text, default="")
    pid: Mapped[int | None] = mapped_column(BigInteger)
    start_ticks: Mapped[int | None] = mapped_column(BigInteger)
    boot_id: Mapped[str | None] = mapped_column(Text)


class PhaseRow(Table):
    """A phase of a launch; the row is there before the phase begins."""

    __tablename__ = "tuner_phases"

    id: Mapped[int] = mapped_column(primary_key=True)
    launch_id: Mapped[int] = mapped_column(ForeignKey("tuner_launches.id", ondelete="CASCADE"), index=True)
    phase: Mapped[str] = mapped_column(String(16))
    begun: Mapped[float] = mapped_column(Float(53))
    ended: Mapped[float | None] = mapped_column(Float(53))
    evidence: Mapped[str] = mapped_column(Text, default="{}")


class WindowRow(Table):
    """A measured window. `raw` is the whole `tuner.values.measurement.Window`, samples included.

    `output_tok_s` is for people with a database browser: ``NULL`` where it is not a number, which SQLite has none for.
    """

    __tablename__ = "tuner_windows"
    __table_args__ = (UniqueConstraint("launch_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    launch_id: Mapped[int] = mapped_column(ForeignKey("tuner_launches.id", ondelete="CASCADE"))
    number: Mapped[int]
    valid: Mapped[bool]
    output_tok_s: Mapped[float | None] = mapped_column(Float(53))
    raw: Mapped[str] = mapped_column(Text)
