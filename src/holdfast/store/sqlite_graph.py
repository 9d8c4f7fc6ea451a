"""Edges of the SQLite store: found from either end at a cost that follows the answer."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from holdfast.core.codec import decode
from holdfast.records.entries import Edge, EdgeQuery
from holdfast.store.sqlite_opening import queries

_JSON = msgspec.json.Encoder()


def link(connection: apsw.Connection, edge: Edge) -> None:
    """An edge, new or with other data."""
    connection.execute(queries()["link"], (*_name(edge), edge.weight, _JSON.encode(edge.data)))


def unlink(connection: apsw.Connection, edge: Edge) -> bool:
    """Remove an edge; False if there was none."""
    return bool(connection.execute(queries()["unlink"], _name(edge)).fetchall())


def edges(connection: apsw.Connection, query: EdgeQuery) -> list[Edge]:
    """Edges at some keys, in order of where they begin, kind, and where they end."""
    kinds = _JSON.encode(query.kinds).decode() if query.kinds else None
    keys = _JSON.encode(sorted(set(query.keys))).decode()
    name = "edges_out" if query.direction == "out" else "edges_in"
    rows: list[Any] = connection.execute(queries()[name], (query.scope, keys, kinds, query.limit)).fetchall()
    return [
        Edge(
            scope=scope,
            source=source,
            kind=kind,
            target_scope=target_scope,
            target=target,
            weight=weight,
            data=decode(data),
        )
        for scope, source, kind, target_scope, target, weight, data in rows
    ]


def _name(edge: Edge) -> tuple[str, ...]:
    return (edge.scope, edge.source, edge.kind, edge.target_scope, edge.target)
