"""Entries, edges and effects of the SQLite journal: the rows name events, one statement reads both."""

from __future__ import annotations

import apsw
import msgspec

from holdfast.core.tables import EFFECTS
from holdfast.journal.sqlite.connection import ask
from holdfast.journal.sqlite.event_rows import stored_event
from holdfast.journal.sqlite.statements import queries
from holdfast.records.entries import Edge, EdgeQuery, EntryPage
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.rows import Found, Row

_JSON = msgspec.json.Encoder()
_LAST = "\U0010ffff"


def entry(connection: apsw.Connection, tenant: str, stream: str, key: str) -> StoredEvent | None:
    """The event that holds a key's value."""
    rows = ask(connection, queries()["entry"], (tenant, stream, key))
    return stored_event(rows[0], tenant, stream) if rows else None


def entries(connection: apsw.Connection, tenant: str, stream: str, page: EntryPage) -> list[StoredEvent]:
    """A page of live entries."""
    # A range instead of LIKE, which has wildcards and folds case: every key with a prefix lies before prefix + LAST.
    # No key lies between one and the same with a NUL, so a page begins right after the last key of the one before.
    first = page.prefix if page.after is None else max(page.prefix, page.after + "\0")
    values = (tenant, stream, first, page.prefix + _LAST, page.now, page.lifetime, page.limit)
    return [stored_event(row, tenant, stream) for row in ask(connection, queries()["entries"], values)]


def revisions(
    connection: apsw.Connection, tenant: str, stream: str, key: str, before: int, limit: int
) -> list[StoredEvent]:
    """What changed a key, newest first."""
    rows = ask(connection, queries()["revisions"], (tenant, stream, key, before, limit))
    return [stored_event(row, tenant, stream) for row in rows]


def edges(connection: apsw.Connection, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
    """The events that made the edges at some keys."""
    kinds = _JSON.encode(query.kinds).decode() if query.kinds else None
    values = (tenant, query.scope, _JSON.encode(query.keys).decode(), kinds, query.limit)
    name = "edges_out" if query.direction == "out" else "edges_in"
    return [stored_event(row, tenant, row[-1]) for row in ask(connection, queries()[name], values)]


def linked(connection: apsw.Connection, tenant: str, edge: Edge) -> bool:
    """Whether there is an edge."""
    name = (tenant, edge.scope, edge.source, edge.kind, edge.target_scope, edge.target)
    return bool(ask(connection, queries()["linked"], name))


def expired(connection: apsw.Connection, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
    """Entries whose time is over."""
    return [
        (stream, key, version) for stream, key, version in ask(connection, queries()["expired"], (tenant, now, limit))
    ]


def scopes(connection: apsw.Connection, tenant: str, now: int, after: str, limit: int) -> list[str]:
    """Streams that have live entries."""
    return [name for (name,) in ask(connection, queries()["scopes"], (tenant, now, after, limit))]


def lanes(connection: apsw.Connection, tenant: str, sink: str | None) -> list[Found]:
    """The first of every lane with something in it."""
    rows = ask(connection, queries()["lanes"], (tenant, sink))
    return [(row[0], dict(zip(EFFECTS.names, row[1:], strict=True))) for row in rows]


def lane(connection: apsw.Connection, tenant: str, sink: str, stream: str, limit: int) -> list[Row]:
    """What waits in one lane."""
    rows = ask(connection, queries()["lane"], (tenant, sink, stream, limit))
    return [dict(zip(EFFECTS.names, row, strict=True)) for row in rows]
