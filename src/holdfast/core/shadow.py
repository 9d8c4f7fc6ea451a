"""Row changes applied to plain dicts, for one stream: what its rows should be."""

from __future__ import annotations

from typing import Any

from holdfast.core.tables import TABLES
from holdfast.records.rows import Bump, Change, Drop, Put, Replace, Row, Update

Key = tuple[Any, ...]


class ShadowRows:
    """The rows that the changes seen so far add up to."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[Key, Row]] = {name: {} for name in TABLES}

    def apply(self, change: Change) -> None:
        """One more change."""
        table, rows = TABLES[change.table], self._rows[change.table]
        if isinstance(change, Put | Replace):
            rows[tuple(change.row[name] for name in table.key)] = change.row
        elif isinstance(change, Drop):
            rows.pop(change.key, None)
        elif isinstance(change, Update):
            if change.key in rows:
                rows[change.key] = added({**rows[change.key], **change.values}, change.amounts)
        elif isinstance(change, Bump):
            start: Row = {**dict(zip(table.key, change.key, strict=True)), **dict.fromkeys(table.columns, 0)}
            rows[change.key] = added(rows.get(change.key, start), change.amounts)

    def rows(self, table: str) -> dict[Key, Row]:
        """The rows of one table by key."""
        return self._rows[table]


def added(row: Row, amounts: dict[str, int]) -> Row:
    """A row with amounts added to some of its columns."""
    changed = dict(row)
    for name, amount in amounts.items():
        value = changed[name]
        assert isinstance(value, int)
        changed[name] = value + amount
    return changed
