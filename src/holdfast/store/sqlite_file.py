"""The file of a SQLite store: opened with a journal's settings and its own schema; any other file is refused."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

import apsw

from holdfast.errors import NewerSchema, NotAJournal
from holdfast.journal.sqlite.schema import APPLICATION_ID as JOURNAL
from holdfast.sqlite.connection import FileFormat, parse_queries, read_in_transaction
from holdfast.sqlite.fts import TextIndex

APPLICATION_ID = 0x68667374  # "hfst"
SCHEMA_VERSION = 1
WORDS_TABLE = "entry_words"
"""The table of the text index. Each row is an entry, and its place is the scope."""

_SQL = resources.files("holdfast.store") / "sql"


@cache
def queries() -> dict[str, str]:
    """Return every statement by name, without its comments."""
    return parse_queries((_SQL / "sqlite_queries.sql").read_text(encoding="utf-8"))


def _prepare_schema(connection: apsw.Connection, path: Path) -> None:
    """Create the schema once, even if several processes open a new file together."""
    if recognise_store(connection, path) == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done this while we waited for the lock.
        if recognise_store(connection, path) < SCHEMA_VERSION:
            for _ in connection.execute((_SQL / "sqlite_schema.sql").read_text(encoding="utf-8")):
                pass
            TextIndex(connection, WORDS_TABLE).create()
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", SCHEMA_VERSION)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def recognise_store(connection: apsw.Connection, path: Path) -> int:
    """Return the schema's number, 0 for an empty file. Reads only: a foreign file is refused untouched."""
    return read_in_transaction(connection, lambda: _read_schema_number(connection, path))


def _read_schema_number(connection: apsw.Connection, path: Path) -> int:
    application = connection.pragma("application_id")
    version: int = connection.pragma("user_version")
    if application == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise NewerSchema(
                f"{path} has schema {version}; this release knows {SCHEMA_VERSION}. Upgrade holdfast to open it."
            )
        return version
    if application == JOURNAL:
        raise NotAJournal(f"{path} is a journal, not a store. Open it with holdfast.open, or give another path.")
    if application or version or connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise NotAJournal(
            f"{path} is an SQLite database of something else. Give the path of a store, or of a new file."
        )
    return 0


STORE_FILE = FileFormat(
    recognise_store,
    _prepare_schema,
    not_a_database="{path} is no database. Give the path of a store, or of a new file.",
    if_unknown="Read the entry again.",
)
