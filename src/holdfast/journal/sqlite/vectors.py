"""Vectors of what can be found, beside the text index: a cache, made when first needed and again when lost."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from holdfast.journal.sqlite.connection import ask
from holdfast.journal.sqlite.event_rows import stored_event
from holdfast.journal.sqlite.statements import queries
from holdfast.records.events.envelope import StoredEvent

_JSON = msgspec.json.Encoder()


def there(connection: apsw.Connection) -> bool:
    """Whether anything was ever embedded here."""
    return bool(ask(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'vectors'"))


def create(connection: apsw.Connection) -> None:
    """Make the table, unless it is there."""
    if not there(connection):
        for sql in queries()["create_vectors"].split(";"):
            connection.execute(sql)


def missing(connection: apsw.Connection, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
    """Texts of a stream that have no vector yet, oldest first."""
    after = 0
    if there(connection):
        ((after,),) = ask(connection, queries()["newest_vector"], (tenant, stream, embedder))
    rows = ask(connection, queries()["texts_after"], (tenant, stream, after or 0, limit))
    return [stored_event(row, tenant, stream) for row in rows]


def known(connection: apsw.Connection, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    """Vectors of texts that were embedded before, by digest."""
    if not there(connection):
        return {}
    wanted = _JSON.encode([digest.hex() for digest in digests]).decode()
    return dict(ask(connection, queries()["known_vectors"], (tenant, embedder, wanted)))


def keep(
    connection: apsw.Connection, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]
) -> None:
    """Note vectors of events that still have their content: what was erased meanwhile is left out."""
    create(connection)
    connection.executemany(
        queries()["keep_vector"], [(tenant, stream, embedder, seq, digest, vector) for seq, digest, vector in rows]
    )


def after(connection: apsw.Connection, tenant: str, stream: str, embedder: str, seq: int) -> list[tuple[int, bytes]]:
    """Vectors of a stream, in order of their events."""
    if not there(connection):
        return []
    return ask(connection, queries()["vectors_after"], (tenant, stream, embedder, seq))


def drop(connection: apsw.Connection, tenant: str, seqs: Sequence[int]) -> None:
    """Forget vectors of what no longer stands."""
    if there(connection):
        connection.execute(queries()["drop_vectors"], (tenant, _JSON.encode(list(seqs)).decode()))


def forget(connection: apsw.Connection, tenant: int, subject: int) -> None:
    """Forget what was made of a subject's words."""
    if there(connection):
        connection.execute(queries()["forget_vectors"], (tenant, subject))
