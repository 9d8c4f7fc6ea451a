"""Events, streams, sessions, entries, edges and effects as rows of SQLite, and back.

Only this module knows the order of the columns of `events` and `streams`. Conversations are read newest
first, page by page, never the whole history. Rows of state name events, and one statement reads both.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from holdfast.core.journal.load import row_usage
from holdfast.core.journal.tables import EFFECTS, SESSION_TABLES, TABLES, THREAD_TABLES, check_lookup, stream_kind
from holdfast.journal.sqlite.statements import find_sql, queries, span_sql
from holdfast.records.batches import Head, Row, RowQuery, RowWithStream, SessionQuery, SessionRow
from holdfast.records.entries import Edge, EdgeQuery, EntryPageQuery
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.scope import parse_scope
from holdfast.sqlite.connection import fetch_rows

USAGE_COLUMNS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost",
    "unpriced_tokens",
    "estimated_tokens",
)
"""The totals of a thread, in the order of the query `session_lines`."""


def load_state_rows(connection: apsw.Connection, tenant: int, stream: int, name: str) -> dict[str, list[Row]]:
    """Return the rows that make up the state of a session or thread; none for other streams."""
    kind = stream_kind(name)
    if kind is None:
        return {}
    tables, block = (SESSION_TABLES, "session_rows") if kind == "session" else (THREAD_TABLES, "line_rows")
    found: dict[str, list[Row]] = {}
    for table, sql in zip(tables, queries()[block].split(";"), strict=True):
        names = ("tenant", "stream", *TABLES[table].column_names)
        rows = [dict(zip(names, row, strict=True)) for row in connection.execute(sql, (tenant, stream))]
        found[table] = rows
    return found


def read_event(connection: apsw.Connection, tenant: str, number: int, id: bytes) -> StoredEvent | None:
    """Return one event by its id, or None."""
    place = connection.execute(queries()["event_by_id"], (number, id)).fetchone()
    if place is None:
        return None
    (row,) = fetch_rows(connection, queries()["events_between"], (number, place[0], place[1], place[1]))
    ((stream,),) = fetch_rows(connection, "SELECT name FROM streams WHERE id = ?", (place[0],))
    return event_from_row(row, tenant, stream)


def select_rows(connection: apsw.Connection, tenant: str, query: RowQuery) -> list[RowWithStream]:
    """Return rows of a projection: of one stream between two versions, or of a tenant in order of key."""
    table, names = check_lookup(query), TABLES[query.table].column_names
    value = () if query.column is None else (query.value,)
    if query.stream is None:
        values: tuple[Any, ...] = (tenant, query.after_key, query.limit, *value)
        rows = fetch_rows(connection, find_sql(table, query.column), values)
        return [(stream, dict(zip(names, row, strict=True))) for stream, *row in rows]
    values = (tenant, query.stream, query.after, query.until, query.limit, *value)
    rows = fetch_rows(connection, span_sql(table, query.column, backwards=query.backwards), values)
    return [(query.stream, dict(zip(names, row, strict=True))) for row in rows]


def list_sessions(connection: apsw.Connection, tenant: str, query: SessionQuery) -> list[SessionRow]:
    """Return one page of sessions, with the totals of each session's threads."""
    values = (tenant, *query.before, query.limit, query.user, query.status)
    name = "sessions_by_activity" if query.user is None else "sessions_of_user"
    rows = fetch_rows(connection, queries()[name], values)
    return [_session_row(connection, tenant, row) for row in rows]


def _session_row(connection: apsw.Connection, tenant: str, row: Any) -> SessionRow:
    stream, status, model, opened_at, title, user, active_at, place = row
    lines = fetch_rows(connection, queries()["session_lines"], (tenant, parse_scope(stream).get("session")))
    messages, *used = (sum(column) for column in zip(*lines, strict=True))
    usage = row_usage(dict(zip(USAGE_COLUMNS, used, strict=True)))
    return SessionRow(
        stream=stream,
        status=status,
        model=model,
        user=user,
        opened_at=opened_at,
        active_at=active_at,
        title_version=title,
        messages=messages,
        threads=len(lines),
        usage=usage,
        place=(active_at, place),
    )


_JSON = msgspec.json.Encoder()
_LAST_CHARACTER = "\U0010ffff"


def read_entry(connection: apsw.Connection, tenant: str, stream: str, key: str) -> StoredEvent | None:
    """Return the event that holds a key's value, or None."""
    rows = fetch_rows(connection, queries()["entry"], (tenant, stream, key))
    return event_from_row(rows[0], tenant, stream) if rows else None


def list_entries(connection: apsw.Connection, tenant: str, stream: str, page: EntryPageQuery) -> list[StoredEvent]:
    """Return the events of a page of live entries."""
    # A range instead of LIKE, which has wildcards and folds case: every key with a prefix lies before prefix + LAST.
    # A page begins behind the last key of the previous one, or at the prefix if that comes later.
    first, behind = (page.prefix, False) if page.after is None else max((page.prefix, False), (page.after, True))
    values = (tenant, stream, first, page.prefix + _LAST_CHARACTER, page.now, page.lifetime, page.limit, behind)
    return [event_from_row(row, tenant, stream) for row in fetch_rows(connection, queries()["entries"], values)]


def list_revisions(
    connection: apsw.Connection, tenant: str, stream: str, key: str, before: int, limit: int
) -> list[StoredEvent]:
    """Return the events that changed a key, newest first."""
    rows = fetch_rows(connection, queries()["revisions"], (tenant, stream, key, before, limit))
    return [event_from_row(row, tenant, stream) for row in rows]


def list_edges(connection: apsw.Connection, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
    """Return the events that made the edges at some keys."""
    kinds = _JSON.encode(query.kinds).decode() if query.kinds else None
    values = (tenant, query.scope, _JSON.encode(query.keys).decode(), kinds, query.limit)
    name = "edges_out" if query.direction == "out" else "edges_in"
    return [event_from_row(row, tenant, row[-1]) for row in fetch_rows(connection, queries()[name], values)]


def has_edge(connection: apsw.Connection, tenant: str, edge: Edge) -> bool:
    """Return True if an edge exists."""
    name = (tenant, edge.scope, edge.source, edge.kind, edge.target_scope, edge.target)
    return bool(fetch_rows(connection, queries()["linked"], name))


def list_expired(connection: apsw.Connection, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
    """Return (stream, key, version) of expired entries."""
    return [
        (stream, key, version)
        for stream, key, version in fetch_rows(connection, queries()["expired"], (tenant, now, limit))
    ]


def list_scopes(connection: apsw.Connection, tenant: str, now: int, after: str, limit: int) -> list[str]:
    """Return the streams that have live entries."""
    return [name for (name,) in fetch_rows(connection, queries()["scopes"], (tenant, now, after, limit))]


def list_lanes(connection: apsw.Connection, tenant: str, sink: str | None) -> list[RowWithStream]:
    """Return the first effect of every lane that has one."""
    # Without a sink: from the first name to a blob, which SQLite sorts behind every text.
    first, last = ("", b"") if sink is None else (sink, sink)
    rows = fetch_rows(connection, queries()["lanes"], (tenant, first, last))
    return [(row[0], dict(zip(EFFECTS.column_names, row[1:], strict=True))) for row in rows]


_EVENT_COLUMNS = len(StoredEvent.__struct_fields__)


def subject_digest(secret: bytes, name: str) -> bytes:
    """Return the digest by which damage to a stored name is detected; it is erased with the name."""
    return hmac.digest(secret, name.encode(), hashlib.sha256)


def stream_row(tenant: int | None, head: Head) -> tuple[Any, ...]:
    """Return a new row of `streams`."""
    scope = parse_scope(head.stream)
    names = (scope.get("actor"), scope.get("session"), scope.get("thread"))
    return (head.id, tenant, head.stream, *names, head.version, head.hash, head.epoch, head.holder, head.closed)


def event_row(event: StoredEvent, tenant: int, stream: int) -> tuple[Any, ...]:
    """Return a new row of `events`, in the order of its columns."""
    return (
        event.seq,
        tenant,
        stream,
        event.version,
        event.id,
        event.at,
        event.type,
        event.schema,
        event.key,
        event.rest,
        event.epoch,
        event.origin,
        event.trust,
        event.user,
        event.subject,
        event.causation,
        event.correlation,
        event.app,
        event.facts,
        event.content,
        event.salt,
        event.mac,
        event.hash,
    )


def event_from_row(row: Sequence[Any], tenant: str, stream: str) -> StoredEvent:
    """Return the event in a row of `events`."""
    # Positional: naming each field costs more than all the rest, and this runs for every event.
    return StoredEvent(row[0], tenant, stream, *row[3:_EVENT_COLUMNS])


def read_append(
    connection: apsw.Connection, tenant: tuple[str, int | None], stream: tuple[str, int], version: int
) -> list[StoredEvent]:
    """Return the events of one append to a stream whose first event has this version."""
    values = (tenant[1], stream[1], version, version)
    (row,) = fetch_rows(connection, queries()["events_between"], values)
    first = event_from_row(row, tenant[0], stream[0])
    if not first.rest:
        return [first]
    values = (tenant[1], stream[1], version, version + first.rest)
    rows = fetch_rows(connection, queries()["events_between"], values)
    return [event_from_row(row, tenant[0], stream[0]) for row in rows]
