"""SQL as text: named blocks of `sql/queries.sql`, and row changes built from the table descriptions.

The only names that enter a statement are those of `core.journal.tables`; every value is bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.core.journal.tables import TABLES, Table
from holdfast.records.batches import RowChange, RowDelete, RowIncrement, RowInsert, RowReplace
from holdfast.sqlite.connection import parse_queries

_SQL = Path(__file__).with_name("sql")


@cache
def queries() -> dict[str, str]:
    """Return every named block, without its comments."""
    return parse_queries((_SQL / "queries.sql").read_text(encoding="utf-8"))


def schema_sql() -> str:
    """Return the current schema."""
    return (_SQL / "schema.sql").read_text(encoding="utf-8")


@cache
def migrations() -> tuple[tuple[int, str, str], ...]:
    """Return (number, name, sql) of every migration, in order."""
    found = []
    for file in (_SQL / "migrations").iterdir():
        if file.name.endswith(".sql"):
            number, name = file.name.removesuffix(".sql").split("_", 1)
            found.append((int(number), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def bind_changes(
    changes: Iterable[RowChange], tenant: int, stream: int, suffix: str = ""
) -> list[tuple[str, tuple[Any, ...]]]:
    """Return row changes as statements with their values. `suffix` names shadow tables during a rebuild."""
    bound: list[tuple[str, tuple[Any, ...]]] = []
    for change in changes:
        table, name = TABLES[change.table], change.table + suffix if suffix else change.table
        if isinstance(change, RowInsert):
            bound.append((_insert_sql(name, tuple(change.row)), (tenant, stream, *change.row.values())))
        elif isinstance(change, RowReplace):
            sql = _upsert_sql(name, table, tuple(change.row), "excluded.{0}")
            bound.append((sql, (tenant, stream, *change.row.values())))
        elif isinstance(change, RowIncrement):
            sql = _upsert_sql(name, table, (*table.key, *change.amounts), "{0} + excluded.{0}")
            bound.append((sql, (tenant, stream, *change.key, *change.amounts.values())))
        else:
            key = (tenant, *change.key, stream) if table.per_stream else (tenant, *change.key)
            if isinstance(change, RowDelete):
                bound.append((_delete_sql(name, table), key))
            else:
                sql = _update_sql(name, table, tuple(change.values), tuple(change.amounts))
                bound.append((sql, (*change.values.values(), *change.amounts.values(), *key)))
    return bound


def key_columns(table: Table) -> tuple[str, ...]:
    """Return the columns of a table's primary key."""
    return ("tenant", *table.key, *(("stream",) if table.per_stream else ()))


def _key_condition(table: Table) -> str:
    return " AND ".join(f"{name} = ?" for name in key_columns(table))


@cache
def _insert_sql(name: str, columns: tuple[str, ...]) -> str:
    names = ("tenant", "stream", *columns)
    return f"INSERT INTO {name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


@cache
def _upsert_sql(name: str, table: Table, columns: tuple[str, ...], value: str) -> str:
    """Return the statement that inserts a row, or changes each column of the row that is there to `value`."""
    others = [column for column in columns if column not in table.key] or [table.key[-1]]
    values = ", ".join(f"{column} = {value.format(column)}" for column in others)
    return f"{_insert_sql(name, columns)} ON CONFLICT ({', '.join(key_columns(table))}) DO UPDATE SET {values}"


@cache
def _update_sql(name: str, table: Table, columns: tuple[str, ...], amounts: tuple[str, ...]) -> str:
    values = ", ".join([*(f"{column} = ?" for column in columns), *(f"{column} = {column} + ?" for column in amounts)])
    return f"UPDATE {name} SET {values} WHERE {_key_condition(table)}"


@cache
def _delete_sql(name: str, table: Table) -> str:
    return f"DELETE FROM {name} WHERE {_key_condition(table)}"


def select_all_sql(table: Table) -> str:
    """Return the query for all rows with tenant and stream names, in order of tenant, stream and key."""
    columns = ", ".join(f"p.{column}" for column in table.column_names)
    order = ", ".join(("t.name", "s.name", *(f"p.{column}" for column in table.key)))
    return (
        f"SELECT t.name, s.name, {columns} FROM {table.name} AS p JOIN tenants AS t ON t.id = p.tenant "
        f"JOIN streams AS s ON s.id = p.stream ORDER BY {order}"
    )


@cache
def find_sql(table: Table, column: str | None) -> str:
    """Return the query for rows by one column, or all, with stream names, in order of key; tenants are named."""
    columns = ", ".join(f"p.{name}" for name in table.column_names)
    where = "" if column is None else f"AND p.{column} = ?4 "
    return (
        f"SELECT s.name, {columns} FROM {table.name} AS p JOIN streams AS s ON s.id = p.stream "
        f"WHERE p.tenant = (SELECT id FROM tenants WHERE name = ?1) AND p.{table.key[0]} > ?2 {where}"
        f"ORDER BY {', '.join(f'p.{name}' for name in table.key)} LIMIT ?3"
    )


_SPAN_INDEXES = {
    # A partial index is used only if its condition is in the statement.
    ("messages", "pinned"): ("INDEXED BY idx_messages_pinned ", "AND pinned = 1 "),
    ("effects", "sink"): ("INDEXED BY idx_effects_lane ", ""),
}


@cache
def span_sql(table: Table, column: str | None, *, backwards: bool) -> str:
    """Return the query for rows of one stream between two versions, all or by one column.

    Bound are the names of tenant and stream, then after, until, limit and the column's value.
    """
    index, condition = _SPAN_INDEXES.get((table.name, column or ""), ("", ""))
    where = "" if column is None else f"AND {column} = ?6 "
    return (
        f"SELECT {', '.join(table.column_names)} FROM {table.name} {index}"
        "WHERE tenant = (SELECT id FROM tenants WHERE name = ?1) "
        "AND stream = (SELECT s.id FROM streams AS s JOIN tenants AS t ON t.id = s.tenant "
        "WHERE t.name = ?1 AND s.name = ?2) "
        f"AND version > ?3 AND version <= ?4 {where}{condition}"
        f"ORDER BY version {'DESC' if backwards else 'ASC'} LIMIT ?5"
    )


def drop_sql(kind: str, name: str) -> str:
    """Return the statement that drops a table or view, if it exists."""
    return f"DROP {kind} IF EXISTS {name}"


def merge_sql(shadow: str, table: str) -> str:
    """Return the statements that replace the rows of streams, a JSON array of ids, by those of a shadow table."""
    # A damaged row may have the key of a rebuilt one in another stream: the rebuilt one is right.
    return (
        f"DELETE FROM {table} WHERE stream IN (SELECT value FROM json_each(?)); "
        f"INSERT OR REPLACE INTO {table} SELECT * FROM {shadow}; {drop_sql('TABLE', shadow)}"
    )


def rename_sql(old: str, new: str) -> str:
    """Return the statement that renames a table."""
    return f"ALTER TABLE {old} RENAME TO {new}"
