"""The store in one SQLite file: entries with text and vector search, and a graph, for all processes of a machine.

The file is its own, apart from any journal. A write is one transaction with everything that finds it again, and
returns once it is on disk. Reading never waits for writing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from holdfast.core.codec import decode
from holdfast.fts import Passage, TextIndex
from holdfast.journal.sqlite.connection import Durability, ask, create_file, require_sqlite
from holdfast.records.entries import Edge, EdgeQuery, EntryPage, Match, Stored, Wanted
from holdfast.records.settings import Settings
from holdfast.store import sqlite_graph
from holdfast.store.sqlite_opening import WORDS, StoreConnections, queries
from holdfast.store.sqlite_vectors import Place, Vectors, nearest

PURGED_AT_ONCE = 500
PURGED_BESIDE = 32
"""Expired entries that a write takes along."""
PURGE_EVERY = 16
"""Writes of this process. Each takes along twice as many as it can have made, so they do not pile up."""

_JSON = msgspec.json.Encoder()


class SqliteStore:
    """Entries in a file. Expired ones are gone for readers at once, and from the file with later writes."""

    capabilities: frozenset[str] = frozenset({"durable", "shared", "text", "vectors", "graph"})

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Durability = "full", settings: Settings | None = None
    ) -> None:
        require_sqlite()
        # Once and for all: connections are opened again later, whatever the current folder is by then.
        self.path = Path(path).resolve()
        create_file(self.path)
        busy_ms = (settings or Settings()).busy_ms
        self._connections = StoreConnections(self.path, durability=durability, busy_ms=busy_ms)
        self._vectors = Vectors()
        self._connections.after_fork.append(self._vectors.after_fork)
        self._writes = itertools.count(1)

    # reading

    def get(self, scope: str, key: str) -> Stored | None:
        with self._connections.reading(once=True) as connection:
            rows = ask(connection, queries()["get"], (scope, key))
        return _stored(rows[0]) if rows else None

    def page(self, scope: str, page: EntryPage) -> list[tuple[str, Stored]]:
        first = page.prefix if page.after is None else max(page.prefix, page.after + "\0")
        values: list[Any] = [scope, first, _end(page.prefix), page.now, page.limit]
        if page.lifetime is not None:
            values.append(page.lifetime)
        name = "page" if page.lifetime is None else "page_of_lifetime"
        with self._connections.reading(once=True) as connection:
            rows = ask(connection, queries()[name], tuple(values))
        return [(key, _stored(row)) for key, *row in rows]

    def search(self, scope: str, wanted: Wanted) -> list[Match]:
        """By words as bm25 says, and by vectors of the embedder that is asked for; the best of either."""
        with self._connections.reading() as connection:
            place = _place(connection, scope)
            if place is None:
                return []
            texts = _by_words(connection, place, wanted)
            cosines: dict[int, float] = {}
            if wanted.vector and wanted.embedder is not None:
                known = self._vectors.collection(connection, place, wanted.embedder, len(wanted.vector))
                cosines = nearest(known, wanted.vector, wanted.now, wanted.limit, list(texts))
            ids = _JSON.encode([*texts, *(id for id in cosines if id not in texts)]).decode()
            rows = ask(connection, queries()["found"], (ids, place.id, wanted.now))
        return [
            Match(key=key, entry=_stored(row), text=texts.get(id, 0.0), cosine=cosines.get(id, 0.0))
            for id, key, *row in rows
        ]

    # writing

    def put(
        self, scope: str, key: str, entry: Stored, expected: int | None = None, once: str | None = None
    ) -> int | None:
        with self._connections.transaction() as connection:
            known = ask(connection, queries()["known"], (scope, key))
            id, version, words, *vector = known[0] if known else (None, 0, None, None, None)
            if expected is not None and expected != version:
                return None
            reset = vector[0] is not None and vector != [_length(entry.vector), entry.embedder]
            place, version = ask(connection, queries()["count_on"], (scope, reset))[0]
            values = _values(entry, version)
            if id is None:
                ((id,),) = ask(connection, queries()["insert"], (place, key, *values))
            else:
                connection.execute(queries()["update"], (id, *values))
            _index(connection, place, id, words, entry.words)
            if next(self._writes) % PURGE_EVERY == 0:
                _purge(connection, entry.written_at, PURGED_BESIDE)
        return int(version)

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        with self._connections.transaction() as connection:
            known = ask(connection, queries()["known"], (scope, key))
            if expected is not None and expected != (known[0][1] if known else 0):
                return None
            if known:
                _remove(connection, [(known[0][0], scope, known[0][3] is not None)])
            return bool(known)

    def purge(self, now: int) -> int:
        """Remove every entry whose time is over from the file; gives how many there were."""
        total = 0
        while True:
            with self._connections.transaction() as connection:
                removed = _purge(connection, now, PURGED_AT_ONCE)
            total += removed
            if removed < PURGED_AT_ONCE:
                return total

    # the graph

    def link(self, edge: Edge) -> None:
        with self._connections.transaction() as connection:
            sqlite_graph.link(connection, edge)

    def unlink(self, edge: Edge) -> bool:
        with self._connections.transaction() as connection:
            return sqlite_graph.unlink(connection, edge)

    def edges(self, query: EdgeQuery) -> list[Edge]:
        with self._connections.reading(once=True) as connection:
            return sqlite_graph.edges(connection, query)

    def close(self) -> None:
        self._connections.close()


def _place(connection: apsw.Connection, scope: str) -> Place | None:
    rows = ask(connection, queries()["scope"], (scope,))
    return Place(rows[0][0], scope, *rows[0][1:]) if rows else None


def _by_words(connection: apsw.Connection, place: Place, wanted: Wanted) -> dict[int, float]:
    """Rows that have any of the terms. As many more as are expired, so that these take nobody's place."""
    ((expired,),) = ask(connection, queries()["count_expired"], (wanted.now, place.id))
    found = TextIndex(connection, WORDS).match(wanted.terms, [_token(place.id)], wanted.limit + expired)
    if expired:
        ids = _JSON.encode([id for id, _ in found]).decode()
        live = {id for (id,) in ask(connection, queries()["live"], (ids, wanted.now))}
        found = [each for each in found if each[0] in live]
    return dict(found[: wanted.limit])


def _index(connection: apsw.Connection, place: int, id: int, before: str | None, after: str | None) -> None:
    if before == after:
        return
    index = TextIndex(connection, WORDS)
    if before is not None:
        index.remove([id])
    if after is not None:
        index.add([Passage(id, after, place=_token(place))])


def _purge(connection: apsw.Connection, now: int, most: int) -> int:
    rows = ask(connection, queries()["expired"], (now, most))
    _remove(connection, [(id, scope, bool(vector)) for id, scope, vector in rows])
    return len(rows)


def _remove(connection: apsw.Connection, rows: Sequence[tuple[int, str, bool]]) -> None:
    """Remove entries, each (number, scope, has a vector), and scopes that hold nothing more."""
    connection.executemany(queries()["delete"], [(id,) for id, _, _ in rows])
    TextIndex(connection, WORDS).remove([id for id, _, _ in rows])
    resets: dict[str, bool] = {}
    for _, scope, vector in rows:
        resets[scope] = resets.get(scope, False) or vector
    for scope, reset in resets.items():
        place, _ = ask(connection, queries()["count_on"], (scope, reset))[0]
        for (newest,) in ask(connection, queries()["forget_scope"], (place,)):
            connection.execute(queries()["remember_newest"], (newest,))


def _token(place: int) -> str:
    """What the text index calls a scope."""
    return f"s{place}"


def _end(prefix: str) -> str | bytes:
    """The first text behind all that begin like this. Where there is none, bytes: they are behind every text."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            # The numbers of surrogates are no characters.
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return b""


def _length(vector: bytes | None) -> int | None:
    return None if vector is None else len(vector)


def _values(entry: Stored, version: int) -> tuple[Any, ...]:
    return (
        version,
        entry.written_at,
        entry.expires_at,
        entry.tier,
        entry.lifetime,
        entry.content_kind,
        entry.salience,
        entry.schema,
        entry.embedder,
        _JSON.encode(entry.applied).decode() if entry.applied else None,
        entry.value,
        entry.vector,
        entry.words,
    )


def _stored(row: Sequence[Any]) -> Stored:
    version, written_at, expires_at, tier, lifetime, content_kind, salience, schema = row[:8]
    embedder, applied, value, vector, words = row[8:]
    return Stored(
        value=value,
        version=version,
        written_at=written_at,
        expires_at=expires_at,
        tier=tier,
        lifetime=lifetime,
        content_kind=content_kind,
        salience=salience,
        schema=schema,
        words=words,
        vector=vector,
        embedder=embedder,
        applied=() if applied is None else decode(applied, tuple[str, ...]),
    )
