"""Entries, edges and effects of the journal in memory, in the plainest words."""

from __future__ import annotations

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
    rows: list[Any] = tables.of(tenant, stream, "state_history")
    return sorted((row["version"] for row in rows if row["key"] == key and row["version"] < before), reverse=True)


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


def lanes(tables: MemoryTables, tenant: str) -> list[tuple[str, str]]:
    """Every lane with something in it."""
    return sorted({(str(row["sink"]), stream) for owner, stream, row in tables.all("effects") if owner == tenant})


def lane(tables: MemoryTables, tenant: str, sink: str, stream: str) -> list[Row]:
    """What waits in one lane."""
    rows: list[Any] = [row for row in tables.of(tenant, stream, "effects") if row["sink"] == sink]
    return sorted(rows, key=lambda row: row["version"])
