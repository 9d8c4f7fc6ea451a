"""Entries: scoped key-value data, how it is kept, how it is found, and the edges between them."""

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
"""What a store may offer beyond reading and writing.

`durable` survives the process, `shared` is seen by others, `text`, `vectors`, `graph` and `datalog` find and connect,
`keys` take idempotency keys, `history` tells what a key held before."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as a backend keeps it. The value is JSON that was made above it; the version is the backend's own.

    A version is larger than every earlier one of the same key, and is never given twice, also after a deletion.
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
    """Name and version of the type that it was written as, if the caller registered one: `prefs@2`."""
    words: str | None = None
    """The text that search looks in; None where the backend does not search."""
    vector: bytes | None = None
    """What an embedder made of the words, as int8."""
    embedder: str | None = None
    reducer: str | None = None
    given: bytes | None = None
    """What a reducer was given, where the write has an idempotency key: a retry is compared with it."""
    applied: tuple[str, ...] = ()
    """Ids of the newest effects that wrote it: one that comes again is known."""

    def live(self, now: int) -> bool:
        """Whether its time is not over."""
        return self.expires_at is None or self.expires_at > now


class EntryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries of a scope: live ones in order of key, after one key. `prefix` is compared exactly."""

    now: int
    prefix: str = ""
    after: str | None = None
    limit: int = 256
    lifetime: str | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a search looks for: words that are data, never a query language, and what an embedder made of them."""

    now: int
    terms: tuple[str, ...]
    vector: bytes | None = None
    embedder: str | None = None
    limit: int = 400


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a backend found, with raw scores: larger is better, 0 is no match."""

    key: str
    entry: Stored
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
    """Edges that begin (`out`) or end (`in`) at any of these keys of one scope.

    In order of scope, source, kind, target scope and target.
    """

    scope: str
    keys: tuple[str, ...]
    direction: Literal["out", "in"] = "out"
    kinds: tuple[str, ...] = ()
    """Empty for every kind."""
    limit: int = 10_000


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as readers get it. Times are milliseconds since 1970."""

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
    """Something that was found, an entry or a message. Scores compare within one search; 1 is the best."""

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
    """What a key held from a version on; ERASED where it was erased, nothing where it was deleted."""

    version: int
    at: int
    value: Any = None
    deleted: bool = False
    cause: str = "call"
    user: int | None = None


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a traversal came to, by the shortest way: the edges that lead there from the start."""

    scope: str
    key: str
    depth: int
    path: tuple[Edge, ...]
