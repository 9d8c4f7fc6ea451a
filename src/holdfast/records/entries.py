"""Entries: scoped key-value data, its storage and search, and the edges between keys."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Tier = Literal["hot", "warm", "cold"]
Lifetime = Literal["transient", "session", "durable"]
Reducer = Literal["overwrite", "append", "merge", "sum"]
Direction = Literal["out", "in", "both"]

TIERS: Final[tuple[Tier, ...]] = ("hot", "warm", "cold")
LIFETIMES: Final[tuple[Lifetime, ...]] = ("transient", "session", "durable")
CONTENT_KINDS: Final = ("episodic", "semantic", "procedural", "structural")
REDUCERS: Final[tuple[Reducer, ...]] = ("overwrite", "append", "merge", "sum")
DIRECTIONS: Final[tuple[Direction, ...]] = ("out", "in", "both")

CAPABILITIES: Final = frozenset({"durable", "shared", "text", "vectors", "graph", "datalog", "keys", "history"})
"""Capabilities of a store beyond reading and writing.

`durable` survives the process, `shared` is visible to other processes, `text`, `vectors`, `graph` and `datalog` search
and connect, `keys` accepts idempotency keys, `history` returns a key's earlier values.
"""


class EntryEvent(msgspec.Struct, frozen=True, gc=False):
    """The part of a `state.written` event that an entry is made of. A page reads nothing else of its events."""

    tenant: str
    stream: str
    version: int
    at: int
    schema: int
    facts: bytes
    content: bytes | None
    salt: bytes | None
    digest: bytes | None


class StoredEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry as a backend stores it. The value is JSON encoded by the caller; the version is the backend's own.

    A version is larger than every earlier version of the same key and is never reused, even after a deletion.
    """

    value: bytes
    version: int = 0
    written_at: int = 0
    expires_at: int | None = None
    tier: str | None = None
    lifetime: str | None = None
    content_kind: str | None = None
    salience: float | None = None
    schema: str | None = None
    """Name and version of the registered type it was written as, if any: `prefs@2`."""
    words: str | None = None
    """The text to search; None where the backend does not search."""
    vector: bytes | None = None
    """The embedding of the words, as int8."""
    embedder: str | None = None
    reducer: str | None = None
    given: bytes | None = None
    """The argument of the reducer, where the write has an idempotency key: a retry is compared with it."""
    applied: tuple[str, ...] = ()
    """Ids of the newest effects that wrote it, so that a repeated effect is recognised."""

    def is_live(self, now: int) -> bool:
        """Return True if the entry has not expired."""
        return self.expires_at is None or self.expires_at > now


class EntryPageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for one page of a scope's live entries, in key order after one key. `prefix` is compared exactly."""

    now: int
    prefix: str = ""
    after: str | None = None
    limit: int = 256
    lifetime: str | None = None


class EntrySearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search query: words, which are data and never a query language, and their embedding."""

    now: int
    terms: tuple[str, ...]
    vector: bytes | None = None
    embedder: str | None = None
    limit: int = 400


class EntryMatch(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a backend found, with raw scores: larger is better, 0 is no match."""

    key: str
    entry: StoredEntry
    text: float = 0.0
    cosine: float = 0.0


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A directed edge of a kind between two keys, which may be in different scopes."""

    scope: str
    source: str
    kind: str
    target_scope: str
    target: str
    weight: float | None = None
    data: Any = None


class EdgeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for edges that begin (`out`) or end (`in`) at any of these keys of one scope.

    Edges are ordered by scope, source, kind, target scope and target.
    """

    scope: str
    keys: tuple[str, ...]
    direction: Literal["out", "in"] = "out"
    kinds: tuple[str, ...] = ()
    """Empty for every kind."""
    limit: int = 10_000


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as callers read it. Times are milliseconds since 1970."""

    scope: str
    key: str
    value: Any
    version: int
    written_at: int
    expires_at: int | None = None
    tier: str | None = None
    lifetime: str | None = None
    content_kind: str | None = None
    salience: float | None = None


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A search hit, an entry or a message. Scores are comparable within one search; 1 is the best."""

    score: float
    snippet: str
    scope: str
    key: str
    """The entry's key, or the message's id."""
    value: Any
    """The entry's value, or the Message."""
    kind: Literal["entry", "message"] = "entry"
    at: int = 0


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a key held from a version on; ERASED if it was erased, None if the key was deleted."""

    version: int
    at: int
    value: Any = None
    deleted: bool = False
    cause: str = "call"
    user: int | None = None


class TraversalResult(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a traversal reached, with the shortest path of edges from the start."""

    scope: str
    key: str
    depth: int
    path: tuple[Edge, ...]
