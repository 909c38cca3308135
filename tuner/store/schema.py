"""Makes our tables, or sees that those which are there are of this tuner's version."""

from __future__ import annotations

from sqlalchemy import inspect, select, text, update

from tuner.errors import StoreError
from tuner.store.database import Database, is_sqlite, masked_url
from tuner.store.tables import SCHEMA_VERSION, SchemaRow, Table

_LOCK = 0x74756E6572
"""PostgreSQL advisory lock under which tables are made; the letters of "tuner"."""


def prepare(database: Database) -> None:
    """Makes the tables unless they are there. A write even then: a read-only database is found now, not later.

    Raises:
        StoreError: the tables are of another version; nothing was changed.
    """
    with database.writing() as session:
        if not is_sqlite(database.url):
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        connection = session.connection()
        found = None
        if inspect(connection).has_table(SchemaRow.__tablename__):
            found = session.scalar(select(SchemaRow.version))
        if found is None:
            Table.metadata.create_all(connection)
            session.add(SchemaRow(version=SCHEMA_VERSION))
        elif found != SCHEMA_VERSION:
            raise StoreError(
                f"the database {masked_url(database.url)} has tables of version {found}, and this tuner knows version "
                f"{SCHEMA_VERSION}. Use the tuner that made it, or start a new database with --storage URL."
            )
        else:
            session.execute(update(SchemaRow).values(version=SCHEMA_VERSION))
