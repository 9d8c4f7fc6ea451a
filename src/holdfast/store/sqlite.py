"""The store in one SQLite file: entries with text and vector search, and a graph, for all processes of a machine.

The file is separate from any journal and opened with a journal's settings; any other file is refused. A write is one
transaction with all its index updates, and returns once it is on disk. Reading never waits for writing.

Vectors are cached in memory between searches. Every change of a scope increases its counter, so one number shows
whether there are new vectors, and only those are read. When a vector was removed, all are read again.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core.entries import edge_name
from holdfast.core.journal.codec import decode
from holdfast.core.numbers import load_numpy
from holdfast.core.search.documents import TextRow
from holdfast.journal.sqlite.schema import APPLICATION_ID as JOURNAL
from holdfast.records.entries import Edge, EdgeQuery, EntryMatch, EntryPageQuery, EntrySearchQuery, StoredEntry
from holdfast.records.settings import Settings
from holdfast.sqlite.connection import (
    Durability,
    FileFormat,
    SchemaObjects,
    build_schema,
    create_file,
    fetch_rows,
    parse_queries,
    require_sqlite,
)
from holdfast.sqlite.fts import TextIndex
from holdfast.sqlite.pool import SqlitePool
from holdfast.system import Lru

APPLICATION_ID = 0x68667374  # "hfst"
SCHEMA_VERSION = 1
WORDS_TABLE = "entry_words"
"""The table of the text index. Each row is an entry, and its place is the scope."""
PURGE_BATCH = 500
PURGE_PER_WRITE = 32
"""Expired entries that a write deletes in passing."""
PURGE_EVERY = 16
"""The number of writes between such deletions: twice as many are deleted as were written, so none pile up."""

_SQL = resources.files("holdfast.store") / "sql"
_IS_A_JOURNAL = "{path} is a journal, not a store. Open it with holdfast.open, or give another path."
_JSON = msgspec.json.Encoder()
_ENTRY_COLUMNS = (
    *("version", "written_at", "expires_at", "tier", "lifetime", "content_kind", "salience", "schema"),
    *("embedder", "applied", "value", "vector", "words"),
)
_EDGE_COLUMNS = ("scope", "source", "kind", "target_scope", "target", "weight")
CACHED_BYTES = 128_000_000
"""The limit for all scopes together: about 400,000 vectors of 256 dimensions."""
_NEVER = 2**63 - 1
_ROWS_AT_ONCE = 8_192
"""Rows widened to floats at a time: they stay in the processor's cache."""
VectorRow = tuple[int, int | None, bytes]
"""An entry's number, its expiry, and its vector."""


@cache
def queries() -> dict[str, str]:
    """Return every statement by name, without its comments."""
    return parse_queries((_SQL / "sqlite_queries.sql").read_text(encoding="utf-8"))


@cache
def _list_objects(number: int) -> tuple[SchemaObjects, SchemaObjects]:
    return build_schema(extend=_create_schema), {}


def _create_schema(connection: apsw.Connection) -> None:
    for _ in connection.execute((_SQL / "sqlite_schema.sql").read_text(encoding="utf-8")):
        pass
    TextIndex(connection, WORDS_TABLE).create()


STORE_FILE = FileFormat(
    "store",
    APPLICATION_ID,
    lambda: [(SCHEMA_VERSION, _create_schema)],
    _list_objects,
    others={JOURNAL: _IS_A_JOURNAL},
    not_a_database="{path} is no database. Give the path of a store, or of a new file.",
    if_unknown="Read the entry again.",
)


class SqliteStore:
    """Entries in a file. Expired ones are hidden from readers at once, and deleted by later writes."""

    capabilities: frozenset[str] = frozenset({"durable", "shared", "text", "vectors", "graph"})

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Durability = "full", settings: Settings | None = None
    ) -> None:
        require_sqlite()
        # Resolved once: connections are reopened later, whatever the current folder is by then.
        self.path = Path(path).resolve()
        create_file(self.path)
        busy_ms = (settings or Settings()).busy_ms
        self._connections = SqlitePool(self.path, STORE_FILE, durability=durability, busy_ms=busy_ms, vfs=None)
        self._vectors: CollectionCache = Lru(CACHED_BYTES, weigh=lambda collection: collection.size)
        self._writes = itertools.count(1)

    # reading

    def get(self, scope: str, key: str) -> StoredEntry | None:
        with self._connections.reader(once=True) as connection:
            rows = fetch_rows(connection, queries()["get"], (scope, key))
        return _entry_from_row(rows[0]) if rows else None

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        first = page.prefix if page.after is None else max(page.prefix, page.after + "\0")
        values: list[Any] = [scope, first, _prefix_end(page.prefix), page.now, page.limit]
        if page.lifetime is not None:
            values.append(page.lifetime)
        name = "page" if page.lifetime is None else "page_of_lifetime"
        with self._connections.reader(once=True) as connection:
            rows = fetch_rows(connection, queries()[name], tuple(values))
        return [(key, _entry_from_row(row)) for key, *row in rows]

    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        """Return the best entries by words (bm25) and by vectors of the requested embedder."""
        with self._connections.reader() as connection:
            scopes = fetch_rows(connection, queries()["scope"], (scope,))
            if not scopes:
                return []
            place = ScopeSnapshot(scopes[0][0], scope, *scopes[0][1:])
            texts = _search_words(connection, place, wanted)
            cosines: dict[int, float] = {}
            if wanted.vector and wanted.embedder is not None:
                known = load_collection(self._vectors, connection, place, wanted.embedder, len(wanted.vector))
                cosines = find_nearest(known, wanted.vector, wanted.now, wanted.limit, list(texts))
            ids = _JSON.encode([*texts, *(id for id in cosines if id not in texts)]).decode()
            rows = fetch_rows(connection, queries()["found"], (ids, place.id, wanted.now))
        return [
            EntryMatch(key=key, entry=_entry_from_row(row), text=texts.get(id, 0.0), cosine=cosines.get(id, 0.0))
            for id, key, *row in rows
        ]

    # writing

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> int | None:
        def write(connection: apsw.Connection) -> int | None:
            known = fetch_rows(connection, queries()["known"], (scope, key))
            id, version, words, *vector = known[0] if known else (None, 0, None, None, None)
            if expected is not None and expected != version:
                return None
            size = None if entry.vector is None else len(entry.vector)
            reset = vector[0] is not None and vector != [size, entry.embedder]
            place, version = fetch_rows(connection, queries()["count_on"], (scope, reset))[0]
            values = _entry_values(entry, version)
            if id is None:
                ((id,),) = fetch_rows(connection, queries()["insert"], (place, key, *values))
            else:
                connection.execute(queries()["update"], (id, *values))
            if words != entry.words:
                index = TextIndex(connection, WORDS_TABLE)
                if words is not None:
                    index.remove([id])
                if entry.words is not None:
                    index.add([TextRow(id, entry.words, place=f"s{place}")])
            if next(self._writes) % PURGE_EVERY == 0:
                _purge_expired(connection, entry.written_at, PURGE_PER_WRITE)
            return int(version)

        return self._connections.transact(write)

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        def remove(connection: apsw.Connection) -> bool | None:
            known = fetch_rows(connection, queries()["known"], (scope, key))
            if expected is not None and expected != (known[0][1] if known else 0):
                return None
            if known:
                _remove_entries(connection, [(known[0][0], scope, known[0][3] is not None)])
            return bool(known)

        return self._connections.transact(remove)

    def purge(self, now: int) -> int:
        """Delete every expired entry from the file; return their number."""
        total = 0
        while True:
            removed = self._connections.transact(lambda connection: _purge_expired(connection, now, PURGE_BATCH))
            total += removed
            if removed < PURGE_BATCH:
                return total

    def truncate_log(self) -> None:
        """Empty the log, which still holds what was deleted; Busy while a reader needs it."""
        self._connections.truncate_log()

    # the graph

    def link(self, edge: Edge) -> None:
        values = (*edge_name(edge), edge.weight, _JSON.encode(edge.data))
        self._connections.transact(lambda connection: connection.execute(queries()["link"], values))

    def unlink(self, edge: Edge) -> bool:
        return bool(
            self._connections.transact(lambda connection: fetch_rows(connection, queries()["unlink"], edge_name(edge)))
        )

    def edges(self, query: EdgeQuery) -> list[Edge]:
        """Return edges at some keys, in order of source, kind and target."""
        kinds = _JSON.encode(query.kinds).decode() if query.kinds else None
        keys = _JSON.encode(sorted(set(query.keys))).decode()
        sql = queries()["edges_out" if query.direction == "out" else "edges_in"]
        with self._connections.reader(once=True) as connection:
            rows = fetch_rows(connection, sql, (query.scope, keys, kinds, query.limit))
        return [Edge(**dict(zip(_EDGE_COLUMNS, row, strict=True)), data=decode(data)) for *row, data in rows]

    def close(self) -> None:
        self._connections.close()


def _search_words(connection: apsw.Connection, place: ScopeSnapshot, wanted: EntrySearchQuery) -> dict[int, float]:
    """Return rows with any of the terms; fetch more by the number of expired rows, so that these displace none."""
    ((expired,),) = fetch_rows(connection, queries()["count_expired"], (wanted.now, place.id))
    found = TextIndex(connection, WORDS_TABLE).match(wanted.terms, [f"s{place.id}"], wanted.limit + expired)
    if expired:
        ids = _JSON.encode([id for id, _ in found]).decode()
        live = {id for (id,) in fetch_rows(connection, queries()["live"], (ids, wanted.now))}
        found = [each for each in found if each[0] in live]
    return dict(found[: wanted.limit])


def _purge_expired(connection: apsw.Connection, now: int, most: int) -> int:
    rows = fetch_rows(connection, queries()["expired"], (now, most))
    _remove_entries(connection, [(id, scope, bool(vector)) for id, scope, vector in rows])
    return len(rows)


def _remove_entries(connection: apsw.Connection, rows: Sequence[tuple[int, str, bool]]) -> None:
    """Remove entries, each (number, scope, has a vector), and scopes that become empty."""
    connection.executemany(queries()["delete"], [(id,) for id, _, _ in rows])
    TextIndex(connection, WORDS_TABLE).remove([id for id, _, _ in rows])
    resets = {scope for _, scope, vector in rows if vector}
    for scope in dict.fromkeys(scope for _, scope, _ in rows):
        place, _ = fetch_rows(connection, queries()["count_on"], (scope, scope in resets))[0]
        for (newest,) in fetch_rows(connection, queries()["forget_scope"], (place,)):
            connection.execute(queries()["remember_newest"], (newest,))


def _prefix_end(prefix: str) -> str | bytes:
    """Return the first text after all with this prefix; if there is none, bytes, which sort after every text."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            # Surrogates are not characters.
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return b""


def _entry_values(entry: StoredEntry, version: int) -> list[Any]:
    kept = {"version": version, "applied": _JSON.encode(entry.applied).decode() if entry.applied else None}
    return [kept[name] if name in kept else getattr(entry, name) for name in _ENTRY_COLUMNS]


def _entry_from_row(row: Sequence[Any]) -> StoredEntry:
    kept = dict(zip(_ENTRY_COLUMNS, row, strict=True))
    applied = kept.pop("applied")
    return StoredEntry(**kept, applied=() if applied is None else decode(applied, tuple[str, ...]))


class ScopeSnapshot(msgspec.Struct, frozen=True):
    """A scope as a reader sees it: its number, its newest change, and the last change that removed a vector."""

    id: int
    name: str
    newest: int
    reset: int


class VectorCollection(msgspec.Struct, frozen=True):
    """Every vector of one scope, embedder and length, as of one change."""

    newest: int
    ids: array[int]
    expiries: array[int]
    data: bytes
    """The vectors, one after the other."""
    lengths: Any
    """The length of each vector, as an array."""
    positions: dict[int, int]

    @property
    def size(self) -> int:
        """The approximate bytes in memory."""
        return len(self.data) + 120 * len(self.ids)


CollectionCache = Lru[tuple[str, str, int], VectorCollection]


def _extend_collection(known: VectorCollection, rows: Iterable[VectorRow], newest: int) -> VectorCollection:
    ids, expiries, data = known.ids[:], known.expiries[:], bytearray(known.data)
    positions, changed = dict(known.positions), []
    for id, expires_at, vector in rows:
        at = positions.setdefault(id, len(ids))
        if at == len(ids):
            ids.append(id)
            expiries.append(0)
        expiries[at] = _NEVER if expires_at is None else expires_at
        data[at * len(vector) : (at + 1) * len(vector)] = vector
        changed.append(at)
    made = VectorCollection(newest, ids, expiries, bytes(data), None, positions)
    return replace(made, lengths=_vector_lengths(made, known.lengths, changed))


def _vector_lengths(collection: VectorCollection, known: Any, changed: Sequence[int]) -> Any:
    numpy = load_numpy()
    matrix = _matrix(numpy, collection)
    found = numpy.empty(len(matrix), numpy.float32)
    if known is not None:
        found[: len(known)] = known
    for start in range(0, len(changed), _ROWS_AT_ONCE):
        some = changed[start : start + _ROWS_AT_ONCE]
        rows = matrix[some].astype(numpy.float32)
        lengths = numpy.sqrt(numpy.einsum("ij,ij->i", rows, rows))
        # A vector of zeros is similar to nothing, and its products are 0 already.
        found[some] = numpy.where(lengths == 0, 1, lengths)
    return found


def _matrix(numpy: Any, collection: VectorCollection) -> Any:
    return numpy.frombuffer(collection.data, numpy.int8).reshape(len(collection.ids), -1)


def load_collection(
    cache: CollectionCache, connection: apsw.Connection, place: ScopeSnapshot, embedder: str, dimensions: int
) -> VectorCollection:
    """Return the vectors of a scope, reading those that are not cached."""
    name = (place.name, embedder, dimensions)
    known = cache.get(name)
    if known is not None and known.newest >= place.newest:
        return known
    if known is None or known.newest < place.reset:
        known = VectorCollection(0, array("q"), array("q"), b"", None, {})
    wanted = (place.id, known.newest, embedder, dimensions)
    rows: list[Any] = connection.execute(queries()["vectors"], wanted).fetchall()
    known = _extend_collection(known, rows, place.newest) if rows else replace(known, newest=place.newest)
    cache.put(name, known)
    return known


def find_nearest(
    collection: VectorCollection, vector: bytes, now: int, limit: int, also: Sequence[int]
) -> dict[int, float]:
    """Return the positive cosines of the most similar live rows and of the rows in `also`."""
    if not collection.ids:
        return {}
    numpy = load_numpy()
    cosines = _cosines(numpy, collection, vector)
    cosines[numpy.frombuffer(collection.expiries, numpy.int64) <= now] = 0
    best = numpy.flatnonzero(cosines > 0)
    if len(best) > limit:
        # Include all that tie with the last one that fits, so that chance does not decide which of them stay.
        least = numpy.partition(cosines, len(cosines) - limit)[len(cosines) - limit]
        best = numpy.flatnonzero(cosines >= least)
        best = best[numpy.lexsort((best, -cosines[best]))][:limit]
    found = {collection.ids[at]: float(cosines[at]) for at in best.tolist()}
    for id in also:
        at = collection.positions.get(id)
        if at is not None and cosines[at] > 0:
            found[id] = float(cosines[at])
    return found


def _cosines(numpy: Any, collection: VectorCollection, vector: bytes) -> Any:
    wanted = numpy.frombuffer(vector, numpy.int8).astype(numpy.float32)
    matrix = _matrix(numpy, collection)
    found = numpy.empty(len(matrix), numpy.float32)
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        # Row by row, not as a matrix product: its threads cost more than they save on a busy machine.
        some = matrix[start : start + _ROWS_AT_ONCE].astype(numpy.float32)
        found[start : start + _ROWS_AT_ONCE] = numpy.vecdot(some, wanted)
    own = numpy.sqrt(numpy.vecdot(wanted, wanted))
    found /= collection.lengths * (own or 1)
    return found
