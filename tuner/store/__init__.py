"""SQLAlchemy's door: launches, phases, windows and host facts, in the same database as Optuna's study."""

from __future__ import annotations

from tuner.store.journal import LaunchJournal
from tuner.store.lease import Holder
from tuner.store.rows import LaunchCounts, Outcome, StoredLaunch, StoredPhase, StoredStudy, StudyState
from tuner.store.store import Store

__all__ = [
    "Holder",
    "LaunchCounts",
    "LaunchJournal",
    "Outcome",
    "Store",
    "StoredLaunch",
    "StoredPhase",
    "StoredStudy",
    "StudyState",
]
