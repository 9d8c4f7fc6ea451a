"""Entries, edges and effects of the journal in memory, in the plainest words."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Any

from holdfast.journal.rows_in_memory import MemoryTables
from holdfast.records.entries import EdgeQuery, EntryPage
from holdfast.records.rows import Found, Row


def entries(tables: MemoryTables, tenant: str, stream: str, page: EntryPage) -> list[Row]:
    """Live entries in order of key."""
    found = [row for row in tables.of(tenant, stream, "state") if _wanted(row, page)]
    return sorted(found, key=lambda row: str(row["key"]))


def _wanted(row: Any, page: EntryPage) -> bool:
    return (
        row["key"].startswith(page.prefix)
        and (page.after is None or row["key"] > page.after)
        and (row["expires_at"] is None or row["expires_at"] > page.now)
        and (page.lifetime is None or row["lifetime"] == page.lifetime)
    )


def revisions(tables: MemoryTables, tenant: str, stream: str, key: str, before: int) -> list[int]:
    """The versions at which a key was changed, newest first."""
    versions = tables.history(tenant, stream, key)
    return versions[: bisect_left(versions, before)][::-1]


def expired(tables: MemoryTables, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
    """Entries whose time is over."""
    rows: Iterator[tuple[str, str, Any]] = tables.each("state")
    over = (
        (stream, row["key"], row["version"])
        for owner, stream, row in rows
        if owner == tenant and row["expires_at"] is not None and row["expires_at"] <= now
    )
    return list(islice(over, limit))


def live(tables: MemoryTables, tenant: str, now: int, after: str) -> list[tuple[str, int]]:
    """Stream and version of entries whose time is not over, in streams after one."""
    rows: Iterator[tuple[str, str, Any]] = tables.each("state")
    return [
        (stream, row["version"])
        for owner, stream, row in rows
        if owner == tenant and stream > after and (row["expires_at"] is None or row["expires_at"] > now)
    ]


def edges(tables: MemoryTables, tenant: str, query: EdgeQuery) -> list[Found]:
    """Edges at some keys, with the streams that they begin in."""
    if query.direction == "out":
        found = [(query.scope, row) for row in tables.of(tenant, query.scope, "edges") if row["source"] in query.keys]
    else:
        found = [
            (stream, row)
            for owner, stream, row in tables.all("edges")
            if owner == tenant and row["target_scope"] == query.scope and row["target"] in query.keys
        ]
    kept = [item for item in found if not query.kinds or item[1]["kind"] in query.kinds]
    return sorted(kept, key=_order)[: query.limit]


def _order(item: Found) -> tuple[str, ...]:
    stream, row = item
    return (stream, *(str(row[name]) for name in ("source", "kind", "target_scope", "target")))


def lanes(tables: MemoryTables, tenant: str, sink: str | None) -> list[Found]:
    """The first of every lane with something in it."""
    first: dict[tuple[str, str], Any] = {}
    for owner, stream, row in tables.all("effects"):
        if owner == tenant and sink in (None, row["sink"]):
            known: Any = first.setdefault((str(row["sink"]), stream), row)
            if known["version"] > row["version"]:
                first[str(row["sink"]), stream] = row
    return [(stream, first[name, stream]) for name, stream in sorted(first)]


def lane(tables: MemoryTables, tenant: str, sink: str, stream: str) -> list[Row]:
    """What waits in one lane."""
    rows: list[Any] = [row for row in tables.of(tenant, stream, "effects") if row["sink"] == sink]
    return sorted(rows, key=lambda row: row["version"])
