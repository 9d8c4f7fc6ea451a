"""The schema of a journal file: created, checked and migrated under the write lock, or refused."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

import apsw

from holdfast.errors import Corrupt, NewerSchema, NotAJournal
from holdfast.journal.sqlite.statements import migrations, queries
from holdfast.sqlite.connection import read_in_transaction

APPLICATION_ID = 0x686F6C64  # "hold"
SECRET_BYTES = 32


def latest_schema() -> int:
    """Return the number of the newest migration."""
    return migrations()[-1][0]


def prepare_schema(connection: apsw.Connection, path: Path) -> None:
    """Bring a file to the newest schema, creating it in a new file. Safe with several processes."""
    if recognise_schema(connection, path) == latest_schema():
        return
    for number, _, sql in migrations():
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have done this while we waited for the lock.
            if recognise_schema(connection, path) < number:
                for _ in connection.execute(sql):
                    pass
                if number == 1:
                    _mark_file(connection)
                connection.pragma("user_version", number)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def recognise_schema(connection: apsw.Connection, path: Path) -> int:
    """Return the schema's number, 0 for an empty file. Reads only: a foreign file is refused untouched."""
    return read_in_transaction(connection, lambda: _read_schema_number(connection, path))


def _read_schema_number(connection: apsw.Connection, path: Path) -> int:
    application = connection.pragma("application_id")
    version: int = connection.pragma("user_version")
    if application == APPLICATION_ID:
        if version > latest_schema():
            raise NewerSchema(
                f"{path} has schema {version}; this release knows {latest_schema()}. Upgrade holdfast to open it."
            )
        return version
    if application or version or connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise NotAJournal(
            f"{path} is an SQLite database of something else. Give the path of a journal, or of a new file."
        )
    return 0


def _mark_file(connection: apsw.Connection) -> None:
    connection.pragma("application_id", APPLICATION_ID)
    secret = secrets.token_bytes(SECRET_BYTES)
    connection.execute(queries()["insert_meta"], ("secret", secret, meta_digest("secret", secret)))


def meta_digest(name: str, value: bytes) -> bytes:
    """Return the digest by which damage to a row of `meta` is detected."""
    return hashlib.sha256(name.encode() + b"\0" + value).digest()


def read_secret(connection: apsw.Connection) -> bytes:
    """Return this journal's own key."""
    for name, value, digest in connection.execute(queries()["meta"]):
        if name == "secret" and meta_digest(name, value) == digest:
            return bytes(value)
    raise Corrupt("The journal's secret is missing or damaged. Run `holdfast verify` and restore from a backup.")
