"""Events, streams and sessions as rows of SQLite, and back.

Only this module knows the order of the columns of `events` and `streams`. Conversations are read newest
first, page by page, never the whole history.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from holdfast.core.journal.load import row_usage
from holdfast.core.journal.tables import SESSION_TABLES, TABLES, THREAD_TABLES, USAGE_COLUMNS, check_lookup, stream_kind
from holdfast.journal.sqlite.statements import find_sql, queries, span_sql
from holdfast.records.batches import Artifact, Head, Row, RowQuery, RowWithStream, SessionRow
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.scope import parse_scope
from holdfast.sqlite.connection import fetch_rows

_FRAME_TABLES = (
    *("frame_handles", "frame_results", "frame_reservations"),
    *("frame_calls", "frame_children", "suspended_frames"),
)


def load_state_rows(connection: apsw.Connection, tenant: int, stream: int, name: str) -> dict[str, list[Row]]:
    """Return the rows that make up the state of a session or thread; none for other streams."""
    kind = stream_kind(name)
    if kind is None:
        return {}
    tables, block = (SESSION_TABLES, "session_rows") if kind == "session" else (THREAD_TABLES, "line_rows")
    return _load_tables(connection, tables, block, (tenant, stream))


def load_frame_rows(connection: apsw.Connection, tenant: int, stream: int) -> dict[str, list[Row]]:
    """Return the rows of the live frames of a stream, and of everything that belongs to them."""
    found = _load_tables(connection, ("frames",), "live_frames", (tenant, stream))
    if not found["frames"]:
        return found | {table: [] for table in _FRAME_TABLES}
    ids = [frame["frame_id"].hex() for frame in found["frames"]]  # type: ignore[union-attr]
    return found | _load_tables(connection, _FRAME_TABLES, "frame_parts", (tenant, msgspec.json.encode(ids).decode()))


def _load_tables(
    connection: apsw.Connection, tables: Sequence[str], block: str, values: tuple[Any, ...]
) -> dict[str, list[Row]]:
    """Return rows of several tables, by the statements of one block, in this order."""
    found: dict[str, list[Row]] = {}
    for table, sql in zip(tables, queries()[block].split(";"), strict=True):
        names = ("tenant", "stream", *TABLES[table].column_names)
        found[table] = [dict(zip(names, row, strict=True)) for row in connection.execute(sql, values)]
    return found


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


def load_session(connection: apsw.Connection, tenant: str, row: Any) -> SessionRow:
    """Return a session with the totals of its threads."""
    stream, status, model, opened_at, title, user, active_at, place = row
    lines = fetch_rows(connection, queries()["session_lines"], (tenant, parse_scope(stream).get("session")))
    messages, *used = (sum(column) for column in zip(*lines, strict=True))
    # The query has the columns in this order.
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


_EVENT_COLUMNS = len(StoredEvent.__struct_fields__)


def subject_digest(secret: bytes, name: str) -> bytes:
    """Return the digest by which damage to a stored name is detected; it is erased with the name."""
    return hmac.digest(secret, name.encode(), hashlib.sha256)


def head_from_row(stream: str, row: Sequence[Any]) -> Head:
    """Return the head in the columns of `streams` that follow the name of the stream."""
    id, version, digest, epoch, holder, lease_ms, closed = row
    return Head(
        id=id,
        stream=stream,
        version=version,
        hash=digest,
        epoch=epoch,
        holder=holder,
        lease_ms=lease_ms,
        closed=bool(closed),
    )


def stream_row(tenant: int | None, head: Head) -> tuple[Any, ...]:
    """Return a new row of `streams`."""
    scope = parse_scope(head.stream)
    names = (scope.get("actor"), scope.get("session"), scope.get("thread"))
    owner = (head.epoch, head.holder, head.lease_ms, head.closed)
    return (head.id, tenant, head.stream, *names, head.version, head.hash, *owner)


def event_row(event: StoredEvent, tenant: int, stream: int) -> tuple[Any, ...]:
    """Return a new row of `events`, in the order of its columns."""
    return (event.seq, tenant, stream, *msgspec.structs.astuple(event)[3:])


def artifact_row(artifact: Artifact, tenant: int) -> tuple[Any, ...]:
    """Return a new row of `artifacts`; without a body it lies in a file, unless it was erased."""
    file = artifact.body is None and not artifact.erased
    return (tenant, artifact.name, artifact.size, artifact.at, file, artifact.erased, artifact.body)


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
