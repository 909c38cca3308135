"""The connection to the database: which URLs work, short transactions, and errors that say what to do."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from tuner.errors import StoreError

BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for another process to let a SQLite file go. Ours last milliseconds."""

CONNECT_TIMEOUT_S = 10
"""How long a PostgreSQL server may take to answer."""

_SECRET_KEYS = ("password", "sslpassword")
"""Parameters of a PostgreSQL URL that are secrets, beside the password before the ``@``."""

_CAUSES = (
    ("not a database", "is not a SQLite database. Move that file away, or choose another one with --storage URL"),
    ("malformed", "is damaged. Restore a copy of it, or start afresh with --storage URL"),
    ("readonly", "is read-only. Make the file and its folder writable, or choose another one with --storage URL"),
    (
        "read-only",
        "is read-only: a standby, or a user without the right to write. Choose another one with --storage URL",
    ),
    ("locked", "is held by another process. End that one (a second driver?) and give the same command again"),
    ("unable to open", "cannot be opened. Make its folder readable and writable, or choose another with --storage URL"),
    ("is full", "has no room: the disk is full. Make room there and give the same command again"),
    ("password authentication", "does not take this user and password. Mend them in the storage URL"),
    ("no password supplied", "wants a password. Put it in the storage URL: postgresql://USER:PASSWORD@HOST/NAME"),
    ("does not exist", "is not there: no such database or user. Create it with createdb, or mend the storage URL"),
    ("permission denied", "does not let this user create or write tables. Grant that, or use another user"),
)
"""What a driver's message contains → what that means and what to do."""


def database_url(text: str) -> URL:
    """The storage URL with its driver spelled out.

    Plain ``postgresql://`` (and the ``postgres://`` of many hosting pages) means psycopg 3 here, whatever the
    installed SQLAlchemy would pick.

    Raises:
        StoreError: not a URL, another kind of database, or one that does not outlive the process.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        masked = re.sub(r"//[^/@]*@", "//***@", text)
        raise StoreError(
            f"{masked!r} is not a storage URL. Expected sqlite:///FILE or postgresql://USER@HOST/NAME."
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise StoreError(
            f"storage {masked_url(url)}: {url.drivername!r} is not supported. Use sqlite:///FILE or "
            "postgresql://USER@HOST/NAME (psycopg 3)."
        )
    in_memory = not url.database or ":memory:" in url.database or url.query.get("mode") == "memory"
    if is_sqlite(url) and in_memory:
        raise StoreError(
            f"storage {masked_url(url)}: a study must outlive its process. Name a file: sqlite:///studies/tuner.db"
        )
    return url


def is_sqlite(url: URL) -> bool:
    """Whether the URL names a SQLite file."""
    return url.get_backend_name() == "sqlite"


def masked_url(url: URL) -> str:
    """The URL as it may be shown: without its password."""
    shown = url.update_query_dict({key: "***" for key in _SECRET_KEYS if key in url.query})
    return shown.render_as_string(hide_password=True)


def explained(error: SQLAlchemyError, url: URL) -> StoreError:
    """The error as one that says what was found and what to do; no password is in it."""
    found = str(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error)
    secrets = [url.password, *(url.query.get(key) for key in _SECRET_KEYS)]
    for secret in secrets:
        if isinstance(secret, str) and secret:
            found = found.replace(secret, "***")
    found = " ".join(found.split())
    for words, meaning in _CAUSES:
        if words in found.lower():
            return StoreError(f"the database {masked_url(url)} {meaning}. ({found})")
    where = "Look at the file and its folder" if is_sqlite(url) else "See that the server runs and the URL is right"
    return StoreError(f"the database {masked_url(url)} cannot be used: {found}. {where}; --storage URL takes another.")


@contextlib.contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turns SQLAlchemy's errors into ours.

    Raises:
        StoreError: whatever SQLAlchemy or a driver raised in the block, `explained`.
    """
    try:
        yield
    except SQLAlchemyError as error:
        raise explained(error, url) from error


class Database:
    """An engine and its two kinds of transaction. Safe to use from several threads.

    Args:
        text: the storage URL.
        busy_timeout_s: how long to wait for a locked SQLite file.

    Raises:
        StoreError: the URL cannot be used; nothing is connected yet.
    """

    def __init__(self, text: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.url = database_url(text)
        try:
            if is_sqlite(self.url):
                self._make_parent()
                connect_args: dict[str, Any] = {"timeout": busy_timeout_s}
            else:
                connect_args = {"connect_timeout": CONNECT_TIMEOUT_S}
            # Parameters are kept out of error messages: they are the rows.
            self.engine = create_engine(
                self.url, connect_args=connect_args, hide_parameters=True, pool_pre_ping=not is_sqlite(self.url)
            )
        except (NoSuchModuleError, ImportError) as error:
            raise StoreError(
                f"storage {masked_url(self.url)}: its driver is not installed ({error}). Install psycopg[binary]."
            ) from None
        if is_sqlite(self.url):
            _tune_sqlite(self.engine, busy_timeout_s)

    def _make_parent(self) -> None:
        name = self.url.database or ""
        if name.startswith("file:"):
            return
        folder = Path(name).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the database {masked_url(self.url)} has no folder, and it cannot be made: {error}. "
                "Choose another one with --storage URL."
            ) from None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that holds the write lock from its start and is on disk when the block ends.

        Raises:
            StoreError: the database refused.
        """
        with self._transaction(writes=True) as session:
            yield session

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """A transaction that only reads, and never waits for a writer.

        Raises:
            StoreError: the database refused.
        """
        with self._transaction(writes=False) as session:
            yield session

    @contextlib.contextmanager
    def _transaction(self, writes: bool) -> Iterator[Session]:
        engine = self.engine.execution_options(tuner_writes=writes)
        with translated(self.url), Session(engine) as session, session.begin():
            yield session

    def close(self) -> None:
        """Lets all connections go."""
        self.engine.dispose()


def _tune_sqlite(engine: Engine, busy_timeout_s: float) -> None:
    """Write-ahead log, and transactions that we begin ourselves.

    The log persists in the file, so Optuna's own connections have it too: readers do not block the writer, and a
    trial costs a third (measured: 51–54 ms in place of 152–165 ms). With it, synchronous=NORMAL loses nothing when a
    process is killed, only when the machine loses power.
    """

    @event.listens_for(engine, "connect")
    def on_connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # or the driver begins transactions by rules of its own
        _use_wal(connection, busy_timeout_s)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A deferred transaction that reads and then writes can fail at once, busy timeout or not, when another one
        # wrote between: what is meant to write takes the lock first.
        writes = connection.get_execution_options().get("tuner_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _use_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Turns the write-ahead log on. SQLite does not wait for others here by itself, so this does."""
    deadline = time.monotonic() + busy_timeout_s
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return  # or the file system cannot do it, and says so by keeping its own mode
