"""Optuna's side of the database: connections, silence, and errors in our words."""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from collections.abc import Iterator
from typing import Any

import optuna

from tuner.errors import StoreError
from tuner.store.database import BUSY_TIMEOUT_S, CONNECT_TIMEOUT_S, database_url, is_sqlite, masked_url, translated


class _Connection(sqlite3.Connection):
    """A connection as quick as the store's own: with the write-ahead log, NORMAL survives the death of a process."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.execute("PRAGMA synchronous = NORMAL")


@contextlib.contextmanager
def database_errors(url: str) -> Iterator[None]:
    """Turns errors of the database under Optuna into `StoreError`, the password masked."""
    where = database_url(url)
    try:
        with translated(where):
            yield
    except optuna.exceptions.StorageInternalError as error:
        with translated(where):
            raise error.__cause__ or StoreError(f"the database {masked_url(where)} cannot be used: {error}") from None


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Group TPE and metric names have been "experimental" for years; nobody who runs a study can act on that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """Optuna's storage at a URL that `tuner.store.Store` opened before.

    Raises:
        StoreError: it cannot be used, or another version of Optuna made its tables.
    """
    # Optuna's own logger, not the root: its lines about each trial would break the live display.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    where = database_url(url)
    settings: dict[str, Any]
    if is_sqlite(where):
        settings = {"connect_args": {"timeout": BUSY_TIMEOUT_S, "factory": _Connection}}
    else:
        settings = {"connect_args": {"connect_timeout": CONNECT_TIMEOUT_S}, "pool_pre_ping": True}
    with database_errors(url):
        try:
            # Optuna fills {…} templates into the URL it is given.
            text = where.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
            return optuna.storages.RDBStorage(text, engine_kwargs=settings)
        except RuntimeError as error:
            raise StoreError(
                f"the database {masked_url(where)} was made by another version of Optuna: {error} "
                "Or start a new database with --storage URL."
            ) from error
