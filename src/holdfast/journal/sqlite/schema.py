"""The schema of a journal file: created, checked and migrated under the write lock, or refused."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Any, cast

import apsw

from holdfast.core.journal.chain import content_mac
from holdfast.errors import Corrupt
from holdfast.journal.sqlite.artifacts import row_digest
from holdfast.journal.sqlite.statements import migrations, queries
from holdfast.sqlite.connection import FileFormat, read_schema_number, write_transaction

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
        with write_transaction(connection):
            # Another process may have done this while we waited for the lock.
            if recognise_schema(connection, path) < number:
                for _ in connection.execute(sql):
                    pass
                if number == 1:
                    _mark_file(connection)
                connection.pragma("user_version", number)


def recognise_schema(connection: apsw.Connection, path: Path) -> int:
    """Return the schema's number, 0 for an empty file. Reads only: a foreign file is refused untouched."""
    return read_schema_number(connection, path, "journal", APPLICATION_ID, latest_schema())


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


JOURNAL_FILE = FileFormat(
    recognise_schema,
    prepare_schema,
    functions={"holdfast_mac": (cast(Any, content_mac), 2), "holdfast_row": (row_digest, -1)},
)
