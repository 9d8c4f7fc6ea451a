"""The projections as dicts: row changes applied in the plainest way, with an undo."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, cast

from holdfast.core.shadow import added
from holdfast.core.tables import PROJECTIONS, TABLES, Table
from holdfast.errors import Refused
from holdfast.records.rows import Bump, Change, Drop, Found, Put, Replace, Row, Update, Value

Key = tuple[Any, ...]
Kept = tuple[str, Row]


class MemoryTables:
    """Every projection: (tenant, key) → (stream, row)."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[Key, Kept]] = {table.name: {} for table in PROJECTIONS}
        self._of: dict[tuple[str, str, str], dict[Key, None]] = {}
        self._histories: dict[tuple[str, str, str], list[int]] = {}
        self._log: list[tuple[str, Key, Kept | None, Kept | None]] = []
        self.known_artifacts: set[tuple[str, bytes]] = set()

    def mark(self) -> None:
        """A point to come back to."""
        self._log.clear()

    def undo(self) -> None:
        """Back to the point. What stopped in the middle may be done again."""
        while self._log:
            table, key, before, after = self._log[-1]
            self._set(table, key, after, before)
            self._log.pop()

    def apply(self, tenant: str, stream: str, change: Change) -> None:
        """One row change of one event."""
        table = TABLES[change.table]
        if isinstance(change, Put | Replace):
            key = self._key(table, tenant, stream, tuple(change.row[name] for name in table.key))
            if isinstance(change, Put) and key in self._rows[table.name]:
                raise Refused(f"{table.name} already has this row, so the event cannot be new. Nothing was written.")
            self._refer(table, tenant, change.row)
            self._store(table, key, (stream, dict(change.row)))
            return
        key = self._key(table, tenant, stream, change.key)
        kept = self._rows[table.name].get(key)
        if isinstance(change, Drop):
            self._store(table, key, None)
        elif isinstance(change, Update):
            if kept is not None:
                row = {**kept[1], **change.values}
                self._store(table, key, (kept[0], added(row, change.amounts)))
        elif isinstance(change, Bump):
            start: Row = {**dict(zip(table.key, change.key, strict=True)), **dict.fromkeys(table.columns, 0)}
            self._refer(table, tenant, start)
            owner, row = kept if kept is not None else (stream, start)
            self._store(table, key, (owner, added(row, change.amounts)))

    def row(self, tenant: str, stream: str, table: str, key: Key) -> Row | None:
        """One row by its key."""
        kept = self._rows[table].get(self._key(TABLES[table], tenant, stream, key))
        return None if kept is None else kept[1]

    def of(self, tenant: str, stream: str, table: str) -> list[Row]:
        """The rows of one stream."""
        rows = self._rows[table]
        return [rows[key][1] for key in self._of.get((table, tenant, stream), ())]

    def all(self, table: str) -> Iterator[tuple[str, str, Row]]:
        """Every row in order of tenant, stream and key."""
        found = ((key[0], stream, key[1:], row) for key, (stream, row) in self._rows[table].items())
        for tenant, stream, _, row in sorted(found, key=lambda item: item[:3]):
            yield tenant, stream, row

    def each(self, table: str) -> Iterator[tuple[str, str, Row]]:
        """Every row, in any order."""
        return ((key[0], stream, row) for key, (stream, row) in self._rows[table].items())

    def history(self, tenant: str, stream: str, key: str) -> list[int]:
        """The versions at which a key of a stream was changed, in order."""
        return self._histories.get((tenant, stream, key), [])

    def found(self, tenant: str, table: str, column: str | None, value: Value, after: bytes) -> list[Found]:
        """Rows of one tenant by a column, in order of key after its first."""
        key = TABLES[table].key
        found = [
            (stream, row)
            for owner, stream, row in self.all(table)
            if owner == tenant and cast(bytes, row[key[0]]) > after and (column is None or row[column] == value)
        ]
        return sorted(found, key=lambda item: [cast(bytes, item[1][name]) for name in key])

    def _key(self, table: Table, tenant: str, stream: str, key: Key) -> Key:
        return (tenant, *key, stream) if table.per_stream else (tenant, *key)

    def _store(self, table: Table, key: Key, kept: Kept | None) -> None:
        before = self._rows[table.name].get(key)
        self._log.append((table.name, key, before, kept))
        self._set(table.name, key, before, kept)

    def _set(self, table: str, key: Key, gone: Kept | None, kept: Kept | None) -> None:
        """One row in place of another, either of which may be missing."""
        if gone is not None:
            self._of.get((table, key[0], gone[0]), {}).pop(key, None)
        if kept is None:
            self._rows[table].pop(key, None)
        else:
            self._rows[table][key] = kept
            self._of.setdefault((table, key[0], kept[0]), {})[key] = None
        if table == "state_history":
            self._note(key, kept is not None)

    def _note(self, row: Key, there: bool) -> None:
        tenant, key, version, stream = row
        versions = self._histories.setdefault((tenant, stream, key), [])
        place = bisect_left(versions, version)
        known = versions[place : place + 1] == [version]
        if there and not known:
            versions.insert(place, version)
        elif known and not there:
            del versions[place]

    def _refer(self, table: Table, tenant: str, row: Row) -> None:
        for column, target in table.references:
            value: Any = row[column]
            if value is None:
                continue
            known = (
                (tenant, value) in self.known_artifacts
                if target == "artifacts"
                else (tenant, value) in self._rows[target]
            )
            if not known:
                raise Refused(
                    f"{table.name}.{column} refers to a row of {target} that is not there. Nothing was written."
                )
