"""The projections of the journal in memory as dicts, with an undo, and the queries over them in their simplest form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Any

from holdfast.core.journal.load import row_usage
from holdfast.core.journal.row_changes import add_amounts
from holdfast.core.journal.tables import PROJECTIONS, SESSION_TABLES, TABLES, THREAD_TABLES, Table, stream_kind
from holdfast.errors import Refused
from holdfast.records.batches import (
    Head,
    Row,
    RowChange,
    RowDelete,
    RowIncrement,
    RowInsert,
    RowQuery,
    RowReplace,
    RowUpdate,
    RowWithStream,
    SessionRow,
)
from holdfast.records.entries import EdgeQuery, EntryPageQuery
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.usage import Usage

Key = tuple[Any, ...]
StreamRow = tuple[str, Row]


class MemoryTables:
    """Every projection: (tenant, key) → (stream, row). Rows may refer to `artifacts`, by tenant and name."""

    def __init__(self, artifacts: Container[tuple[str, bytes]]) -> None:
        self._rows: dict[str, dict[Key, StreamRow]] = {table.name: {} for table in PROJECTIONS}
        self._of: dict[tuple[str, str, str], dict[Key, None]] = {}
        self._histories: dict[tuple[str, str, str], list[int]] = {}
        self._log: list[tuple[str, Key, StreamRow | None, StreamRow | None]] = []
        self._artifacts = artifacts

    def mark(self) -> None:
        """Set the point to which `undo` returns."""
        self._log.clear()

    def undo(self) -> None:
        """Return to the marked point. Safe to repeat after an interruption."""
        while self._log:
            table, key, before, after = self._log[-1]
            self._replace_row(table, key, after, before)
            self._log.pop()

    def apply(self, tenant: str, stream: str, change: RowChange) -> None:
        """Apply one row change of one event."""
        table = TABLES[change.table]
        if isinstance(change, RowInsert | RowReplace):
            key = self._key(table, tenant, stream, tuple(change.row[name] for name in table.key))
            if isinstance(change, RowInsert) and key in self._rows[table.name]:
                raise Refused(f"{table.name} already has this row, so the event cannot be new. Nothing was written.")
            self._check_references(table, tenant, change.row)
            self._store(table, key, (stream, dict(change.row)))
            return
        key = self._key(table, tenant, stream, change.key)
        kept = self._rows[table.name].get(key)
        if isinstance(change, RowDelete):
            self._store(table, key, None)
        elif isinstance(change, RowUpdate):
            if kept is not None:
                row = {**kept[1], **change.values}
                self._store(table, key, (kept[0], add_amounts(row, change.amounts)))
        elif isinstance(change, RowIncrement):
            start: Row = {**dict(zip(table.key, change.key, strict=True)), **dict.fromkeys(table.columns, 0)}
            self._check_references(table, tenant, start)
            owner, row = kept if kept is not None else (stream, start)
            self._store(table, key, (owner, add_amounts(row, change.amounts)))

    def row(self, tenant: str, stream: str, table: str, key: Key) -> Row | None:
        """Return one row by its key."""
        kept = self._rows[table].get(self._key(TABLES[table], tenant, stream, key))
        return None if kept is None else kept[1]

    def stream_rows(self, tenant: str, stream: str, table: str) -> list[Any]:
        """Return the rows of one stream."""
        rows = self._rows[table]
        return [rows[key][1] for key in self._of.get((table, tenant, stream), ())]

    def all_rows(self, table: str) -> Iterator[tuple[str, str, Row]]:
        """Yield every row in order of tenant, stream and key."""
        found = ((key[0], stream, key[1:], row) for key, (stream, row) in self._rows[table].items())
        for tenant, stream, _, row in sorted(found, key=lambda item: item[:3]):
            yield tenant, stream, row

    def tenant_rows(self, tenant: str, table: str) -> Iterator[tuple[str, Any]]:
        """Yield the rows of one tenant with their streams, in any order."""
        return (kept for key, kept in self._rows[table].items() if key[0] == tenant)

    def history(self, tenant: str, stream: str, key: str) -> list[int]:
        """Return the versions at which a key of a stream was changed, in order."""
        return self._histories.get((tenant, stream, key), [])

    def _key(self, table: Table, tenant: str, stream: str, key: Key) -> Key:
        return (tenant, *key, stream) if table.per_stream else (tenant, *key)

    def _store(self, table: Table, key: Key, kept: StreamRow | None) -> None:
        before = self._rows[table.name].get(key)
        self._log.append((table.name, key, before, kept))
        self._replace_row(table.name, key, before, kept)

    def _replace_row(self, table: str, key: Key, gone: StreamRow | None, kept: StreamRow | None) -> None:
        """Replace one row by another; either may be missing."""
        if gone is not None:
            self._of.get((table, key[0], gone[0]), {}).pop(key, None)
        if kept is None:
            self._rows[table].pop(key, None)
        else:
            self._rows[table][key] = kept
            self._of.setdefault((table, key[0], kept[0]), {})[key] = None
        if table == "state_history":
            self._note_history(key, kept is not None)

    def _note_history(self, row: Key, there: bool) -> None:
        tenant, key, version, stream = row
        versions = self._histories.setdefault((tenant, stream, key), [])
        place = bisect_left(versions, version)
        known = versions[place : place + 1] == [version]
        if there and not known:
            versions.insert(place, version)
        elif known and not there:
            del versions[place]

    def _check_references(self, table: Table, tenant: str, row: Row) -> None:
        for column, target in table.references:
            value: Any = row[column]
            known: Container[Any] = self._artifacts if target == "artifacts" else self._rows[target]
            if value is not None and (tenant, value) not in known:
                raise Refused(
                    f"{table.name}.{column} refers to a row of {target} that is not there. Nothing was written."
                )


def load_state_rows(tables: MemoryTables, tenant: str, stream: str) -> dict[str, list[Row]]:
    """Return the rows that make up the state of a session or thread; none for other streams."""
    kind = stream_kind(stream)
    if kind is None:
        return {}
    return {
        name: tables.stream_rows(tenant, stream, name)
        for name in (SESSION_TABLES if kind == "session" else THREAD_TABLES)
    }


def select_rows(tables: MemoryTables, tenant: str, query: RowQuery) -> list[RowWithStream]:
    """Return rows of a projection: of one stream between two versions, or of a tenant in order of key."""
    found: list[tuple[str, Any]]
    if query.stream is None:
        key = TABLES[query.table].key
        found = [item for item in tables.tenant_rows(tenant, query.table) if item[1][key[0]] > query.after_key]
        found.sort(key=lambda item: ([item[1][name] for name in key], item[0]))
    else:
        found = [(query.stream, row) for row in tables.stream_rows(tenant, query.stream, query.table)]
        found = [item for item in found if query.after < item[1]["version"] <= query.until]
        found.sort(key=lambda item: item[1]["version"], reverse=query.backwards)
    return [item for item in found if query.column is None or item[1][query.column] == query.value][: query.limit]


def iterate_sessions(
    tables: MemoryTables,
    tenant: str,
    event_at: Callable[[str, str, int], StoredEvent],
    heads: dict[tuple[str, str], Head],
) -> Iterator[SessionRow]:
    """Yield every session with the totals of its threads."""
    by_session = _threads_by_session(tables, tenant)
    for stream, row in tables.tenant_rows(tenant, "sessions"):
        lines = by_session.get(stream)
        if not lines:
            continue
        newest, line = max((thread["newest_at"], heads[tenant, name].id) for name, thread in lines)
        yield SessionRow(
            stream=stream,
            status=row["status"],
            model=row["model"],
            user=event_at(tenant, stream, row["opened_version"]).user,
            opened_at=row["opened_at"],
            active_at=newest,
            title_version=row["title_version"],
            messages=sum(thread["messages"] for _, thread in lines),
            threads=len(lines),
            usage=sum((row_usage(thread) for _, thread in lines), Usage(cost=0)),
            place=(newest, line),
        )


def list_idle_sessions(tables: MemoryTables, tenant: str, now: int, after: str) -> list[str]:
    """Return open sessions that have been idle for their timeout."""
    found, by_session = [], _threads_by_session(tables, tenant)
    for stream, row in tables.tenant_rows(tenant, "sessions"):
        timeout = row["idle_timeout_ms"]
        if stream > after and row["status"] == "open" and timeout is not None:
            newest = max((thread["newest_at"] for _, thread in by_session.get(stream, ())), default=now)
            if timeout <= now - newest:
                found.append(stream)
    return sorted(found)


def _threads_by_session(tables: MemoryTables, tenant: str) -> dict[str, list[tuple[str, Any]]]:
    """Return the threads of every session from one scan; a scan per session would be quadratic."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for stream, row in tables.tenant_rows(tenant, "threads"):
        if stream_kind(stream) == "thread":
            found.setdefault(stream.partition("/thread/")[0], []).append((stream, row))
    return found


def list_entries(tables: MemoryTables, tenant: str, stream: str, page: EntryPageQuery) -> list[Row]:
    """Return live entries in order of key."""
    found = [
        row
        for row in tables.stream_rows(tenant, stream, "state")
        if row["key"].startswith(page.prefix)
        and (page.after is None or row["key"] > page.after)
        and (row["expires_at"] is None or row["expires_at"] > page.now)
        and page.lifetime in (None, row["lifetime"])
    ]
    return sorted(found, key=lambda row: row["key"])


def list_revisions(tables: MemoryTables, tenant: str, stream: str, key: str, before: int) -> list[int]:
    """Return the versions below `before` at which a key was changed, newest first."""
    versions = tables.history(tenant, stream, key)
    return versions[: bisect_left(versions, before)][::-1]


def list_expired(tables: MemoryTables, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
    """Return (stream, key, version) of expired entries."""
    over = (
        (stream, row["key"], row["version"])
        for stream, row in tables.tenant_rows(tenant, "state")
        if row["expires_at"] is not None and row["expires_at"] <= now
    )
    return list(islice(over, limit))


def list_edges(tables: MemoryTables, tenant: str, query: EdgeQuery) -> list[RowWithStream]:
    """Return edges at some keys, with the streams that they begin in."""
    if query.direction == "out":
        found = [
            (query.scope, row)
            for row in tables.stream_rows(tenant, query.scope, "edges")
            if row["source"] in query.keys
        ]
    else:
        found = [
            (stream, row)
            for stream, row in tables.tenant_rows(tenant, "edges")
            if row["target_scope"] == query.scope and row["target"] in query.keys
        ]
    kept = [item for item in found if not query.kinds or item[1]["kind"] in query.kinds]
    order = ("source", "kind", "target_scope", "target")
    return sorted(kept, key=lambda item: (item[0], *(str(item[1][name]) for name in order)))[: query.limit]


def list_lanes(tables: MemoryTables, tenant: str, sink: str | None) -> list[RowWithStream]:
    """Return the first effect of every lane that has one."""
    first: dict[tuple[str, str], Any] = {}
    for stream, row in sorted(tables.tenant_rows(tenant, "effects"), key=lambda item: item[1]["version"]):
        if sink in (None, row["sink"]):
            first.setdefault((row["sink"], stream), row)
    return [(stream, first[name, stream]) for name, stream in sorted(first)]
