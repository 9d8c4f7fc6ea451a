"""Rows of sessions and conversations of the journal in memory, in the plainest words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.core.states import usage_of
from holdfast.core.tables import OF_LINES, OF_SESSIONS, TABLES, kind_of
from holdfast.journal.rows_in_memory import MemoryTables
from holdfast.records.rows import Row, SessionQuery, SessionRow, Span
from holdfast.records.usage import Usage


def state_rows(tables: MemoryTables, tenant: str, stream: str) -> dict[str, list[Row]]:
    """What the state of a session or of a line is made of; nothing for other streams."""
    kind = kind_of(stream)
    if kind is None:
        return {}
    return {name: tables.of(tenant, stream, name) for name in (OF_SESSIONS if kind == "session" else OF_LINES)}


def span(tables: MemoryTables, tenant: str, stream: str, wanted: Span) -> list[Row]:
    """Rows of one stream between two versions."""
    before = TABLES[wanted.table].key[:-1]
    found = [
        row
        for row in tables.of(tenant, stream, wanted.table)
        if wanted.after < _number(row["version"]) <= wanted.until
        and tuple(row[name] for name in before) == wanted.prefix
        and (not wanted.pinned or row["pinned"])
    ]
    found.sort(key=lambda row: _number(row["version"]), reverse=wanted.backwards)
    return found[: wanted.limit]


def sessions(
    tables: MemoryTables,
    tenant: str,
    opener: Callable[[str, str, int], int | None],
    number: Callable[[str, str], int],
) -> Iterator[SessionRow]:
    """Every session with the totals of its lines."""
    by_session = _lines(tables, tenant)
    for owner, stream, row in tables.each("sessions"):
        lines = by_session.get(stream)
        if owner != tenant or not lines:
            continue
        newest, line = max((_number(thread["newest_at"]), number(tenant, name)) for name, thread in lines)
        version = _number(row["opened_version"])
        model: Any = row["model"]
        title: Any = row["title_version"]
        yield SessionRow(
            stream=stream,
            status=str(row["status"]),
            model=model,
            user=opener(tenant, stream, version),
            opened_at=_number(row["opened_at"]),
            active_at=newest,
            title_version=title,
            messages=sum(_number(thread["messages"]) for _, thread in lines),
            threads=len(lines),
            usage=sum((usage_of(thread) for _, thread in lines), Usage(cost=0)),
            place=(newest, line),
        )


def listed(every: Iterator[SessionRow], query: SessionQuery, user: int) -> list[SessionRow]:
    """Those that are asked for, the most recently active first."""
    found = [
        row
        for row in every
        if row.place < query.before
        and (query.user is None or row.user == user)
        and (query.status is None or row.status == query.status)
    ]
    return sorted(found, key=lambda row: row.place, reverse=True)[: query.limit]


def idle(tables: MemoryTables, tenant: str, now: int, after: str) -> list[str]:
    """Open sessions that have been quiet for too long."""
    found, by_session = [], _lines(tables, tenant)
    for owner, stream, row in tables.each("sessions"):
        timeout = row["idle_timeout_ms"]
        if owner == tenant and stream > after and row["status"] == "open" and isinstance(timeout, int):
            newest = max((_number(thread["newest_at"]) for _, thread in by_session.get(stream, ())), default=now)
            if timeout <= now - newest:
                found.append(stream)
    return sorted(found)


def _lines(tables: MemoryTables, tenant: str) -> dict[str, list[tuple[str, Row]]]:
    """The lines of every session, found in one look: one look for each session would be as many times as many."""
    found: dict[str, list[tuple[str, Row]]] = {}
    for owner, stream, row in tables.each("threads"):
        if owner == tenant and kind_of(stream) == "line":
            found.setdefault(stream.partition("/thread/")[0], []).append((stream, row))
    return found


def _number(value: Any) -> int:
    return int(value)
