"""Rows of sessions and conversations, read by place: newest first, page by page, never the whole history."""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.core.states import usage_of
from holdfast.core.tables import OF_LINES, OF_SESSIONS, TABLES, kind_of
from holdfast.journal.sqlite.connection import ask
from holdfast.journal.sqlite.event_rows import stored_event
from holdfast.journal.sqlite.statements import queries
from holdfast.journal.sqlite.statements import span as span_sql
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.rows import Row, SessionQuery, SessionRow, Span
from holdfast.records.scope import parse_scope

USED = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost",
    "unpriced_tokens",
    "estimated_tokens",
)
"""The sums of a line, as the query of a session's lines gives them."""


def state_rows(connection: apsw.Connection, tenant: int, stream: int, name: str) -> dict[str, list[Row]]:
    """What the state of a session or of a line is made of; nothing for other streams."""
    kind = kind_of(name)
    if kind is None:
        return {}
    tables, block = (OF_SESSIONS, "session_rows") if kind == "session" else (OF_LINES, "line_rows")
    found: dict[str, list[Row]] = {}
    for table, sql in zip(tables, queries()[block].split(";"), strict=True):
        names = ("tenant", "stream", *TABLES[table].names)
        rows = [dict(zip(names, row, strict=True)) for row in connection.execute(sql, (tenant, stream))]
        found[table] = rows
    return found


def event(connection: apsw.Connection, tenant: str, number: int, id: bytes) -> StoredEvent | None:
    """One event by its id."""
    place = connection.execute(queries()["event_by_id"], (number, id)).fetchone()
    if place is None:
        return None
    (row,) = ask(connection, queries()["events_between"], (number, place[0], place[1], place[1]))
    ((stream,),) = ask(connection, "SELECT name FROM streams WHERE id = ?", (place[0],))
    return stored_event(row, tenant, stream)


def span(connection: apsw.Connection, tenant: str, stream: str, wanted: Span) -> list[Row]:
    """Rows of one stream between two versions."""
    table = TABLES[wanted.table]
    sql = span_sql(table, backwards=wanted.backwards, pinned=wanted.pinned)
    values = (tenant, stream, wanted.after, wanted.until, wanted.limit, *wanted.prefix)
    names = table.names
    return [dict(zip(names, row, strict=True)) for row in ask(connection, sql, values)]


def sessions(connection: apsw.Connection, tenant: str, query: SessionQuery) -> list[SessionRow]:
    """One page of the list, with the totals of each session's lines."""
    values = (tenant, *query.before, query.limit, query.user, query.status)
    name = "sessions_by_activity" if query.user is None else "sessions_of_user"
    rows = ask(connection, queries()[name], values)
    return [_session(connection, tenant, row) for row in rows]


def _session(connection: apsw.Connection, tenant: str, row: Any) -> SessionRow:
    stream, status, model, opened_at, title, user, active_at, place = row
    lines = ask(connection, queries()["session_lines"], (tenant, parse_scope(stream).get("session")))
    messages, *used = (sum(column) for column in zip(*lines, strict=True))
    usage = usage_of(dict(zip(USED, used, strict=True)))
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
