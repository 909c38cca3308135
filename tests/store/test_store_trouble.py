"""Databases that cannot be used: each is found when it is opened, and the message says what to do."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from postgres_server import NOBODY, PostgresServer, postgres  # noqa: F401
from store_samples import SPEC

from tuner.errors import BudgetSpent, SpecificationChanged, StoreError, StudyHeld
from tuner.store import Store


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Root may write everywhere; as root this becomes ``nobody`` for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="tuner-store-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def stored(path: Path) -> str:
    """The URL of a database with one study at the path."""
    url = f"sqlite:///{path}"
    store = Store.open(url)
    store.create_study(SPEC)
    store.close()
    return url


def test_a_read_only_file(folder: Path) -> None:
    url = stored(folder / "tuner.db")
    for file in folder.iterdir():
        file.chmod(0o444)
    with an_ordinary_user(), pytest.raises(StoreError, match=r"(is read-only|cannot be opened)\. Make .*--storage URL"):
        Store.open(url)


def test_a_read_only_folder(folder: Path) -> None:
    url = stored(folder / "tuner.db")
    folder.chmod(0o555)
    with an_ordinary_user(), pytest.raises(StoreError, match=r"(is read-only|cannot be opened)\. Make .*--storage URL"):
        Store.open(url)
    with an_ordinary_user(), pytest.raises(StoreError, match=r"has no folder, and it cannot be made.*--storage URL"):
        Store.open(f"sqlite:///{folder}/new/tuner.db")


def test_a_database_opened_read_only(folder: Path) -> None:
    stored(folder / "tuner.db")
    with pytest.raises(StoreError, match="is read-only"):
        Store.open(f"sqlite:///file:{folder}/tuner.db?mode=ro&uri=true")


def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    path.write_text("name: kimi\n" * 1000)
    with pytest.raises(StoreError, match=r"tuner\.db is not a SQLite database\. Move that file away"):
        Store.open(f"sqlite:///{path}")
    assert path.read_text().startswith("name: kimi"), "it is left as it was"


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.open(f"sqlite:///{tmp_path}")


def test_a_locked_database_waits_and_then_says_so(tmp_path: Path) -> None:
    url = stored(tmp_path / "tuner.db")
    store = Store.open(url, busy_timeout_s=0.4)
    holder = sqlite3.connect(tmp_path / "tuner.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    with pytest.raises(StoreError, match="is held by another process"):
        store.add_seconds("kimi", 1.0)
    assert 0.3 < time.monotonic() - begun < 5
    found = store.study("kimi")
    assert found is not None and found.spent_s == 0.0, "readers never wait"
    with pytest.raises(StoreError, match="is held by another process"):
        Store.open(url, busy_timeout_s=0.1)
    holder.execute("COMMIT")
    holder.close()
    store.add_seconds("kimi", 1.0)
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("studies/tuner.db", "is not a storage URL. Expected sqlite:///FILE or postgresql://"),
        ("//me:hunter2@db/x", "'//***@db/x' is not a storage URL"),
        ("mysql://me:hunter2@db/x", "mysql://me:***@db/x: 'mysql' is not supported. Use sqlite:///FILE or"),
        ("postgresql+asyncpg://me:hunter2@db/x", "'postgresql+asyncpg' is not supported"),
        ("sqlite://", "a study must outlive its process. Name a file"),
        ("sqlite:///:memory:", "a study must outlive its process. Name a file"),
        ("sqlite:///file:x?mode=memory&uri=true", "a study must outlive its process. Name a file"),
    ],
)
def test_urls_that_cannot_be_used(url: str, message: str) -> None:
    with pytest.raises(StoreError) as refused:
        Store.open(url)
    assert message in str(refused.value) and "hunter2" not in str(refused.value)


def test_an_unreachable_server_is_named_without_its_password() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        url = f"postgres://me:hunter2@127.0.0.1:{port}/tuner?sslpassword=topsecret"
        with pytest.raises(StoreError) as refused:
            Store.open(url)
    text = str(refused.value)
    assert f"postgresql+psycopg://me:***@127.0.0.1:{port}/tuner" in text and "server runs" in text
    assert "hunter2" not in text and "topsecret" not in text


def test_postgresql_in_trouble(postgres: PostgresServer) -> None:  # noqa: F811
    url = postgres.fresh_url()
    missing = url.replace("/test", "/absent")
    with pytest.raises(StoreError, match=r"no such database or user\. Create it with createdb"):
        Store.open(missing)

    store = Store.open(url)
    assert "s3cret" not in store.url and ":***@" in store.url and "s3cret" in store.secret_url
    store.create_study(SPEC)
    database = url.partition("@/")[2].partition("?")[0]
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
    postgres.execute(f"{ended}'{database}'")
    store.add_seconds("kimi", 1.0)  # a connection that died while idle is replaced
    store.close()

    postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with pytest.raises(StoreError, match="is read-only: a standby, or a user without the right to write"):
        Store.open(url)
    postgres.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    postgres.execute("DROP ROLE IF EXISTS guest")
    postgres.execute("CREATE ROLE guest LOGIN")
    empty = postgres.fresh_url(user="guest")
    with pytest.raises(StoreError, match="does not let this user create or write tables"):
        Store.open(empty)


def test_errors_cross_process_boundaries_whole() -> None:
    import pickle

    for error in (
        BudgetSpent("kimi", "launches", 18),
        StoreError("x"),
        SpecificationChanged("kimi", ("seed: 1 → 2",)),
        StudyHeld("kimi", "node-17", 4711, 1.7e9, 3.0, 27.0),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
