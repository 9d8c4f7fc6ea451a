"""Finding entries: by their words and by what they mean, and along the edges between them."""

from __future__ import annotations

from typing import Any

from holdfast.core import entries as rules
from holdfast.core import graph
from holdfast.core.codec import encode
from holdfast.core.search.ranking import Candidate, rank
from holdfast.core.search.searchable import INDEXED_CHARS
from holdfast.core.search.words import snippet, terms, text_of
from holdfast.core.values import plain
from holdfast.errors import InvalidValue, TooLarge, Unavailable
from holdfast.flow.state.searching import MOST_RESULTS, check_query
from holdfast.flow.state.storing import Storage, check_writable, needs, value_of
from holdfast.records.entries import Edge, Match, Reached, SearchResult, Wanted
from holdfast.records.ids import check_id
from holdfast.records.scope import Address, Scope

MOST_REACHED = 100_000
CANDIDATES = 100
"""Best by words and best by meaning that are ranked together. Measured, more change next to nothing."""


def search(storage: Storage, scope: Address, query: str, limit: int) -> list[SearchResult]:
    """Entries of one scope, best first. A store that cannot search finds nothing."""
    place, query = Scope.of(scope).text, check_query(query)
    words = terms(query)
    rules.check_limit("limit", limit, MOST_RESULTS)
    if not words or not storage.store.capabilities & {"text", "vectors"}:
        return []
    now = storage.clock.now_ms()
    over = {key for key, _ in storage.transients.over(storage.place(place), now)}
    vector, name = query_vector(storage, query)
    wanted = Wanted(now=now, terms=words, vector=vector, embedder=name, limit=max(CANDIDATES, 2 * limit))
    matches = storage.store.search(place, wanted)
    # What a transient entry lies over is not what a reader would get.
    return ranked(place, [match for match in matches if match.key not in over], words, limit)


def query_vector(storage: Storage, query: str) -> tuple[bytes | None, str | None]:
    """What an embedder makes of a question. One that is out of order leaves the words."""
    embedder = storage.embedder
    if embedder is None or "vectors" not in storage.store.capabilities:
        return None, None
    try:
        return embedder.embed([query], query=True)[0], embedder.name
    except (Unavailable, InvalidValue):
        return None, None


def ranked(scope: str, matches: list[Match], words: tuple[str, ...], limit: int) -> list[SearchResult]:
    """Matches as results, best first; equal ones newest first."""
    matches = sorted(matches, key=lambda match: match.key)
    candidates = [
        Candidate(
            id=number,
            text=match.text,
            cosine=match.cosine,
            salience=match.entry.salience,
            newest=match.entry.written_at,
        )
        for number, match in enumerate(matches)
    ]
    found = []
    for number, score in rank(candidates, mean_length=0.0, limit=limit):
        match = matches[number]
        value = value_of(match.entry)
        text = text_of(value, INDEXED_CHARS)
        found.append(
            SearchResult(
                score=score,
                snippet=snippet(text, words),
                scope=scope,
                key=match.key,
                value=value,
                at=match.entry.written_at,
            )
        )
    return found


def edge_between(
    scope: Address,
    source: str,
    kind: str,
    target: str,
    *,
    target_scope: Address | None = None,
    weight: float | None = None,
    data: Any = None,
) -> Edge:
    """An edge as it is stored, checked."""
    place = Scope.of(scope).text
    value = plain(data)
    encode(value)
    return Edge(
        scope=place,
        source=rules.check_entry_key(source),
        kind=check_id(kind, "kind"),
        target_scope=place if target_scope is None else Scope.of(target_scope).text,
        target=rules.check_entry_key(target),
        weight=None if weight is None else rules.check_number("weight", weight),
        data=value,
    )


def link(storage: Storage, edge: Edge) -> None:
    """Connect two keys. They need not have values; the same edge again takes new weight and data."""
    needs(storage, "graph", "a graph")
    check_writable(storage, edge.source, edge.target)
    size = len(encode(edge.data, storage.settings.nesting))
    if size > storage.settings.event_bytes:
        raise TooLarge(
            f"The data of an edge has {size:,} bytes; {storage.settings.event_bytes:,} are allowed. "
            "Keep it in an entry, or raise HOLDFAST_EVENT_BYTES."
        )
    storage.store.link(edge)


def unlink(storage: Storage, edge: Edge) -> bool:
    """Take an edge away; gives whether it was there."""
    needs(storage, "graph", "a graph")
    check_writable(storage, edge.source, edge.target)
    return storage.store.unlink(edge)


def neighbours(
    storage: Storage, scope: Address, key: str, kinds: Any, direction: str, limit: int | None = None
) -> list[Edge]:
    """The edges at a key, or the first of them."""
    needs(storage, "graph", "a graph")
    node = (Scope.of(scope).text, rules.check_entry_key(key))
    way, wanted = rules.check_direction(direction), rules.check_kinds(kinds)
    most = None if limit is None else rules.check_limit("limit", limit, MOST_REACHED)
    steps = graph.beside(storage.store.edges, [node], way, wanted, most)
    # An edge from a key to itself is found from both ends.
    found = {(edge.scope, edge.source, edge.kind, edge.target_scope, edge.target): edge for _, _, edge in steps}
    return list(found.values())[:most]


def traverse(
    storage: Storage, scope: Address, key: str, depth: int, kinds: Any, direction: str, limit: int | None
) -> list[Reached]:
    """Every key within so many edges of one, nearest first."""
    needs(storage, "graph", "a graph")
    node = (Scope.of(scope).text, rules.check_entry_key(key))
    return graph.traverse(
        storage.store.edges,
        node,
        rules.check_limit("depth", depth, rules.MAX_DEPTH),
        rules.check_direction(direction),
        rules.check_kinds(kinds),
        MOST_REACHED if limit is None else rules.check_limit("limit", limit, MOST_REACHED),
    )
