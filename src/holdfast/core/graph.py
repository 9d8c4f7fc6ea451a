"""Walking a graph of edges: level by level, each key once, so a cycle ends where it began."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.records.entries import Edge, EdgeQuery, Reached

Node = tuple[str, str]
Step = tuple[Node, Node, Edge]
"""From, to, and the edge between them, whichever way it points."""
Edges = Callable[[EdgeQuery], Sequence[Edge]]

MOST_KEYS: Final = 400
"""Keys in one question: every backend can take so many."""


def beside(
    edges: Edges, nodes: Iterable[Node], direction: str, kinds: tuple[str, ...], most: int | None = None
) -> list[Step]:
    """Every edge at some nodes, with its other end; few questions for each scope and direction.

    With `most`, no more than so many of each question.
    """
    by_scope: dict[str, list[str]] = {}
    for scope, key in nodes:
        by_scope.setdefault(scope, []).append(key)
    found: list[Step] = []
    for scope, keys in sorted(by_scope.items()):
        wanted = sorted(keys)
        if direction in ("out", "both"):
            out = _all(edges, EdgeQuery(scope=scope, keys=(), direction="out", kinds=kinds), wanted, most)
            found += [((edge.scope, edge.source), (edge.target_scope, edge.target), edge) for edge in out]
        if direction in ("in", "both"):
            into = _all(edges, EdgeQuery(scope=scope, keys=(), direction="in", kinds=kinds), wanted, most)
            found += [((edge.target_scope, edge.target), (edge.scope, edge.source), edge) for edge in into]
    return found


def _all(edges: Edges, query: EdgeQuery, keys: list[str], most: int | None) -> list[Edge]:
    """Every edge at these keys: where an answer is full there may be more, so it is asked for with more room."""
    found: list[Edge] = []
    for start in range(0, len(keys), MOST_KEYS):
        asked = replace(query, keys=tuple(keys[start : start + MOST_KEYS]), limit=most or query.limit)
        answer = edges(asked)
        while most is None and len(answer) >= asked.limit:
            asked = replace(asked, limit=asked.limit * 8)
            answer = edges(asked)
        found += answer
    return found


def traverse(
    edges: Edges, start: Node, depth: int, direction: str, kinds: tuple[str, ...], limit: int
) -> list[Reached]:
    """Keys within so many edges, nearest first, each by a shortest way. The start is not among them."""
    paths: dict[Node, tuple[Edge, ...]] = {start: ()}
    level: list[Node] = [start]
    found: list[Reached] = []
    for distance in range(1, depth + 1):
        reached: dict[Node, tuple[Edge, ...]] = {}
        for here, there, edge in beside(edges, level, direction, kinds):
            if there not in paths and there not in reached:
                reached[there] = (*paths[here], edge)
        paths.update(reached)
        level = sorted(reached)
        found += [Reached(scope=scope, key=key, depth=distance, path=reached[scope, key]) for scope, key in level]
        if not level or len(found) >= limit:
            break
    return found[:limit]
