"""A real PostgreSQL server for tests: a private data directory, a Unix socket and no TCP port.

    from postgres_server import postgres, postgres_url

`postgres` (session scope) is the running server, `postgres_url` (function scope) the URL of a fresh database in it.
Without the server's programs the tests are skipped, or fail if ``TUNER_REQUIRE_POSTGRES=1``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

NOBODY = 65534
"""The user ``nobody``: PostgreSQL refuses to run as root."""


class PostgresServer:
    """A server of its own, until `stop`."""

    def __init__(self, programs: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tuner-pg-", dir="/tmp"))  # short: a socket's path has 107 bytes
        self._as_nobody: dict[str, Any] = {}
        if os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
            self._as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._numbers = count(1)
        data = self.folder / "data"
        options = ["--auth=trust", "--username=tuner", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run(programs / "initdb", "--pgdata", data, *options)
        settings = ["listen_addresses=", "fsync=off", "max_connections=40", "shared_buffers=16MB"]
        self._log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", self.folder, *(word for s in settings for word in ("-c", s))],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            **self._as_nobody,
        )
        self._wait()

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, **self._as_nobody)
        assert done.returncode == 0, done.stderr

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self._dsn("postgres")).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def _dsn(self, database: str) -> str:
        return f"host={self.folder} user=tuner dbname={database}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Runs one statement as the superuser."""
        with psycopg.connect(self._dsn(database), autocommit=True) as connection:
            connection.execute(statement)

    def someone_waits(self) -> bool:
        """Whether any connection waits for a lock."""
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            waiting = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
        return waiting is not None and waiting[0] > 0

    def fresh_url(self, user: str = "tuner", password: str = "s3cret/word") -> str:
        """The storage URL of a new, empty database. The server trusts everybody: the password is for looks."""
        name = f"test{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return f"postgresql://{user}:{quote(password, safe='')}@/{name}?host={self.folder}"

    def stop(self) -> None:
        """Ends the server and removes what it had."""
        self._process.send_signal(signal.SIGQUIT)  # immediate: nothing of it is kept, so nothing is written back
        self._process.wait(30)
        self._log.close()
        shutil.rmtree(self.folder)


def postgres_programs() -> Path | None:
    """The folder with the newest ``initdb`` and ``postgres``, or ``None``."""
    for place in [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *map(Path, os.get_exec_path())]:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    return None


@cache
def _running(programs: Path) -> PostgresServer:
    """One server for all modules: a fixture that several of them import is a fixture of each of them."""
    server = PostgresServer(programs)
    atexit.register(server.stop)
    return server


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    programs = postgres_programs()
    if programs is None:
        line = "no PostgreSQL server here: apt-get install postgresql (nothing needs to be set up or running)"
        if os.environ.get("TUNER_REQUIRE_POSTGRES") == "1":
            pytest.fail(line)
        pytest.skip(line)
    if sys.platform != "linux":
        pytest.skip("the PostgreSQL fixture is written for Linux")
    return _running(programs)


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.fresh_url()
