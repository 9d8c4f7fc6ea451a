"""Row changes merged or applied in memory.

`RowChangeSet` merges many changes of one row into one, so that a rebuild writes each row once: the number of
statements is proportional to the rows, not to the events. `ShadowRows` applies changes to plain dicts, to compare
with the rows that a backend stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.journal.tables import TABLES
from holdfast.records.batches import Row, RowChange, RowDelete, RowIncrement, RowInsert, RowReplace, RowUpdate

StreamNumbers = tuple[int, int]
"""Tenant and stream, as the backend's numbers."""
RowKey = tuple[Any, ...]
ROW_CHANGES = (RowInsert, RowReplace)
"""The changes that give a whole row. Not a union, which would be made anew each time that it is asked for."""


class RowChangeSet:
    """The pending changes of many rows, at most one per row."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[tuple[Any, ...], tuple[StreamNumbers, RowChange]]] = {name: {} for name in TABLES}

    def add(self, place: StreamNumbers, change: RowChange) -> None:
        """Add a change, which happens after all earlier ones."""
        table, key = TABLES[change.table], _row_key(change)
        row = (place[0], *key, place[1]) if table.per_stream else (place[0], *key)
        pending = self._pending[change.table]
        before = pending.get(row)
        pending[row] = (place, change if before is None else merge_changes(before[1], change))

    def changes(self, table: str) -> list[tuple[StreamNumbers, RowChange]]:
        """Return the pending changes of one table, in any order, since rows do not depend on each other."""
        return list(self._pending[table].values())


def coalesce_changes(changes: Sequence[RowChange]) -> list[RowChange]:
    """Return at most one change for each row of one stream, table by table."""
    pending: dict[str, dict[RowKey, RowChange]] = {}
    for change in changes:
        rows, key = pending.setdefault(change.table, {}), _row_key(change)
        before = rows.get(key)
        rows[key] = change if before is None else merge_changes(before, change)
    return [change for rows in pending.values() for change in rows.values()]


def _row_key(change: RowChange) -> RowKey:
    if isinstance(change, ROW_CHANGES):
        key = TABLES[change.table].key
        return (change.row[key[0]],) if len(key) == 1 else tuple([change.row[name] for name in key])
    return change.key


def merge_changes(first: RowChange, then: RowChange) -> RowChange:
    """Merge two successive changes of the same row into one."""
    if isinstance(first, RowUpdate) and isinstance(then, RowUpdate) and not first.amounts and not then.amounts:
        return RowUpdate(first.table, first.key, {**first.values, **then.values})
    if isinstance(then, RowDelete | RowReplace):
        return then
    if isinstance(then, RowInsert):
        # An insertion after a deletion: the row may have existed before this batch.
        return RowReplace(then.table, then.row)
    if isinstance(first, RowDelete):
        # An update of a deleted row does nothing; an increment starts a new row.
        return first if isinstance(then, RowUpdate) else RowReplace(then.table, _start_row(then))
    amounts = then.amounts
    values = then.values if isinstance(then, RowUpdate) else {}
    if isinstance(first, RowInsert | RowReplace):
        return type(first)(first.table, add_amounts({**first.row, **values}, amounts))
    assert isinstance(first, RowIncrement) == isinstance(then, RowIncrement), (
        f"{then.table} is bumped and updated: which of them makes a row?"
    )
    if isinstance(first, RowIncrement):
        return RowIncrement(first.table, first.key, _sum_amounts(first.amounts, amounts))
    kept = {name: amount for name, amount in first.amounts.items() if name not in values}
    settled = {**first.values, **values}
    moved = {name: amount for name, amount in amounts.items() if name in settled}
    rest = {name: amount for name, amount in amounts.items() if name not in settled}
    return RowUpdate(first.table, first.key, add_amounts(settled, moved), _sum_amounts(kept, rest))


def _start_row(bump: RowIncrement) -> Row:
    table = TABLES[bump.table]
    return {**dict(zip(table.key, bump.key, strict=True)), **dict.fromkeys(table.columns, 0), **bump.amounts}


def _sum_amounts(first: dict[str, int], then: dict[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + then.get(name, 0) for name in first | then}


class ShadowRows:
    """The rows that result from the changes applied so far."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[RowKey, Row]] = {name: {} for name in TABLES}

    def apply(self, change: RowChange) -> None:
        """Apply one more change."""
        table, rows = TABLES[change.table], self._rows[change.table]
        if isinstance(change, RowInsert | RowReplace):
            rows[tuple(change.row[name] for name in table.key)] = change.row
        elif isinstance(change, RowDelete):
            rows.pop(change.key, None)
        elif isinstance(change, RowUpdate):
            if change.key in rows:
                rows[change.key] = add_amounts({**rows[change.key], **change.values}, change.amounts)
        elif isinstance(change, RowIncrement):
            known = rows.get(change.key)
            rows[change.key] = _start_row(change) if known is None else add_amounts(known, change.amounts)

    def rows(self, table: str) -> dict[RowKey, Row]:
        """Return the rows of one table by key."""
        return self._rows[table]


def add_amounts(row: Row, amounts: dict[str, int]) -> Row:
    """Return a row with amounts added to some of its columns."""
    changed = dict(row)
    for name, amount in amounts.items():
        value = changed[name]
        assert isinstance(value, int), f"{name} is not a number"
        changed[name] = value + amount
    return changed
