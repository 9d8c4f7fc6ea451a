"""The schema of a journal file: created, checked and migrated under the write lock, or refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import apsw

from holdfast.core.journal.codec import outer_hash
from holdfast.errors import Corrupt
from holdfast.journal.sqlite.artifacts import row_digest
from holdfast.journal.sqlite.statements import migrations, queries
from holdfast.sqlite.connection import FileFormat, SchemaObjects, build_schema, read_objects

APPLICATION_ID = 0x686F6C64  # "hold"
SECRET_BYTES = 32
SHADOW_SUFFIX = "__new"
"""The end of the names of tables that a rebuild has not finished."""


def latest_schema() -> int:
    """Return the number of the newest migration."""
    return migrations()[-1][0]


def list_migrations() -> list[tuple[int, Callable[[apsw.Connection], None]]]:
    """Return the number of each schema, and a function that migrates to it."""
    return [(number, partial(_migrate, number=number, sql=sql)) for number, _, sql in migrations()]


def _migrate(connection: apsw.Connection, number: int, sql: str) -> None:
    for _ in connection.execute(sql):
        pass
    if number == 1:
        secret = os.urandom(SECRET_BYTES)
        connection.execute(queries()["insert_meta"], ("secret", secret, meta_digest("secret", secret)))


def meta_digest(name: str, value: bytes) -> bytes:
    """Return the digest by which damage to a row of `meta` is detected."""
    return hashlib.sha256(name.encode() + b"\0" + value).digest()


def is_meta_intact(name: object, value: object, digest: object) -> bool:
    """Return True if a row of `meta` is as it was written. A damaged file may hold anything in it."""
    return isinstance(name, str) and isinstance(value, bytes) and meta_digest(name, value) == digest


def read_secret(connection: apsw.Connection) -> bytes:
    """Return this journal's own key."""
    for name, value, digest in connection.execute(queries()["meta"]):
        if name == "secret" and is_meta_intact(name, value, digest):
            return bytes(value)
    raise Corrupt("The journal's secret is missing or damaged. Run `holdfast verify` and restore from a backup.")


def list_objects(number: int) -> tuple[SchemaObjects, SchemaObjects]:
    """Return the objects of every journal of a schema, and those that it has once vectors or an index were stored."""
    return _build_objects(tuple(sql for step, _, sql in migrations() if step <= number))


@cache
def _build_objects(scripts: tuple[str, ...]) -> tuple[SchemaObjects, SchemaObjects]:
    required: dict[tuple[str, str], str] = {}

    def extend(connection: apsw.Connection) -> None:
        required.update(read_objects(connection))
        for name in ("create_vectors", "create_text_index"):
            for sql in queries()[name].split(";"):
                connection.execute(sql)

    optional = build_schema(*scripts, extend=extend)
    return required, optional


def generalise_name(text: str) -> str:
    """Return a name or definition without the mark of a rebuild."""
    return text.replace(SHADOW_SUFFIX, "")


JOURNAL_FILE = FileFormat(
    "journal",
    APPLICATION_ID,
    list_migrations,
    list_objects,
    generalise_name,
    functions={"holdfast_mac": (cast(Any, outer_hash), 2), "holdfast_row": (row_digest, -1)},
)
