"""Many changes of one row as one: what a rebuild writes once instead of over and over.

A frame's row changes with nearly every event of its life. Within a batch only the sum of
its changes matters, so the number of statements follows the rows and not the events.

Row changes applied to plain dicts, for one stream: what its rows should be.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.journal.tables import TABLES
from holdfast.records.batches import Bump, Change, Drop, Put, Replace, Row, Update

Place = tuple[int, int]
"""Tenant and stream, as a backend numbers them."""


class Coalesced:
    """The pending changes of many rows, at most one for each."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[tuple[Any, ...], tuple[Place, Change]]] = {name: {} for name in TABLES}

    def add(self, place: Place, change: Change) -> None:
        """One more change, which happens after all before it."""
        table = TABLES[change.table]
        key = tuple(change.row[name] for name in table.key) if isinstance(change, Put | Replace) else change.key
        row = (place[0], *key, place[1]) if table.per_stream else (place[0], *key)
        pending = self._pending[change.table]
        before = pending.get(row)
        pending[row] = (place, change if before is None else merged(before[1], change))

    def changes(self, table: str) -> list[tuple[Place, Change]]:
        """What is to be done to one table; rows do not depend on each other, so in any order."""
        return list(self._pending[table].values())


def merged(first: Change, then: Change) -> Change:
    """One change that does what two changes of the same row do."""
    if isinstance(then, Drop | Replace):
        return then
    if isinstance(then, Put):
        # After a Drop: the row may have been there before this batch.
        return Replace(then.table, then.row)
    if isinstance(first, Drop):
        # No row, no change; only amounts for a row that may be new begin again.
        return first if isinstance(then, Update) else Replace(then.table, _fresh(then))
    mixed = (isinstance(first, Bump), isinstance(then, Bump)) in ((True, False), (False, True))
    assert not mixed or isinstance(first, Put | Replace), (
        f"{then.table} is bumped and updated: which of them makes a row?"
    )
    amounts = then.amounts
    values = then.values if isinstance(then, Update) else {}
    if isinstance(first, Put | Replace):
        return type(first)(first.table, _summed({**first.row, **values}, amounts))
    if isinstance(first, Bump):
        return Bump(first.table, first.key, _totals(first.amounts, amounts))
    kept = {name: amount for name, amount in first.amounts.items() if name not in values}
    settled = {**first.values, **values}
    moved = {name: amount for name, amount in amounts.items() if name in settled}
    rest = {name: amount for name, amount in amounts.items() if name not in settled}
    return Update(first.table, first.key, _summed(settled, moved), _totals(kept, rest))


def _fresh(bump: Bump) -> Row:
    table = TABLES[bump.table]
    return {**dict(zip(table.key, bump.key, strict=True)), **dict.fromkeys(table.columns, 0), **bump.amounts}


def _summed(row: Row, amounts: dict[str, int]) -> Row:
    changed = dict(row)
    for name, amount in amounts.items():
        value = changed[name]
        assert isinstance(value, int), f"{name} is not a number"
        changed[name] = value + amount
    return changed


def _totals(first: dict[str, int], then: dict[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + then.get(name, 0) for name in (*first, *(n for n in then if n not in first))}


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
