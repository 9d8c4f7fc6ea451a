"""Edges in Cozo: one relation, and an index from where they end."""

from __future__ import annotations

from typing import Final

from holdfast.core.codec import decode, encode
from holdfast.records.entries import Edge, EdgeQuery
from holdfast.store.cozo_engine import CozoEngine

_EDGE: Final = "scope, source, kind, target_scope, target, weight, data"
_NAME: Final = "scope, source, kind, target_scope, target"
_NAMED: Final = "[[$scope, $source, $kind, $target_scope, $target]]"
_LINK = f"""
?[{_EDGE}] <- [[$scope, $source, $kind, $target_scope, $target, $weight, $data]]
:put edge {{{_NAME} => weight, data}}
"""
_LINKED = f"""
asked[{_NAME}] <- {_NAMED}
?[weight] := asked[{_NAME}], *edge{{{_NAME}, weight}}
"""
_UNLINK = f"?[{_NAME}] <- {_NAMED} :rm edge {{{_NAME}}}"
_AT = {
    "out": "wanted[source], scope = $scope",
    "in": "wanted[target], target_scope = $scope, *edge:incoming{target_scope, target, kind, scope, source}",
}


def link(engine: CozoEngine, edge: Edge) -> None:
    """Write an edge, in place of the same one with other data."""
    weight = None if edge.weight is None else float(edge.weight)
    engine.write(_LINK, **_ends(edge), weight=weight, data=encode(edge.data).decode())


def unlink(engine: CozoEngine, edge: Edge) -> bool:
    """Remove an edge; False if there was none."""
    found = bool(engine.read(_LINKED, **_ends(edge)))
    if found:
        engine.write(_UNLINK, **_ends(edge))
    return found


def edges(engine: CozoEngine, query: EdgeQuery) -> list[Edge]:
    """Edges at some keys, in order of their names."""
    if not query.keys:
        return []
    side = "source" if query.direction == "out" else "target"
    script = (
        f"wanted[{side}] <- $keys "
        + ("kinds[kind] <- $kinds " if query.kinds else "")
        + f"?[{_EDGE}] := {_AT[query.direction]}, *edge{{{_EDGE}}}"
        + (", kinds[kind]" if query.kinds else "")
        + f" :order {_NAME} :limit $limit"
    )
    keys, kinds = [[key] for key in query.keys], [[kind] for kind in query.kinds]
    rows = engine.read(script, scope=query.scope, keys=keys, kinds=kinds, limit=query.limit)
    return [
        Edge(
            scope=scope,
            source=source,
            kind=kind,
            target_scope=target_scope,
            target=target,
            weight=weight,
            data=decode(data.encode()),
        )
        for scope, source, kind, target_scope, target, weight, data in rows
    ]


def _ends(edge: Edge) -> dict[str, str]:
    return {
        "scope": edge.scope,
        "source": edge.source,
        "kind": edge.kind,
        "target_scope": edge.target_scope,
        "target": edge.target,
    }
