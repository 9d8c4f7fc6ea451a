"""Vectors of the SQLite store, kept in memory between searches: a hint with a cap, and the rows are the truth.

Every change of a scope counts on, so one number says whether anything is new, and only what is new is read. When
a vector has gone, all are read again. A collection is never changed: a search goes on with the one that it has.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.store.sqlite_opening import queries
from holdfast.vectors import numpy_or_none, similarities

CACHED_BYTES = 128_000_000
"""Of all scopes together: about 400,000 vectors of 256 dimensions."""

_NEVER = 2**63 - 1
_ROWS_AT_ONCE = 8_192
"""Rows that are widened to floats at a time: they stay in the processor's cache."""

Row = tuple[int, int | None, bytes]
"""An entry's number, when its time is over, and its vector."""


class Place(msgspec.Struct, frozen=True):
    """A scope as a reader sees it: its number, its newest change, and the change by which a vector last went."""

    id: int
    name: str
    newest: int
    reset: int


class Collection(msgspec.Struct, frozen=True):
    """Every vector of one scope, embedder and length, as of one change."""

    newest: int
    ids: array[int]
    expiries: array[int]
    data: bytes
    """The vectors, one behind the other."""
    lengths: Any
    """Of each vector, as an array; None without numpy."""
    positions: dict[int, int]

    @property
    def size(self) -> int:
        """Bytes in memory, more or less."""
        return len(self.data) + 120 * len(self.ids)


def _empty() -> Collection:
    return Collection(0, array("q"), array("q"), b"", None, {})


def _grown(known: Collection, rows: Iterable[Row], newest: int) -> Collection:
    """The same with rows that are new or changed."""
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
    made = Collection(newest, ids, expiries, bytes(data), None, positions)
    return msgspec.structs.replace(made, lengths=_lengths(made, known.lengths, changed))


def _lengths(collection: Collection, known: Any, changed: Sequence[int]) -> Any:
    numpy = numpy_or_none()
    if numpy is None:
        return None
    matrix = _matrix(numpy, collection)
    found = numpy.empty(len(matrix), numpy.float32)
    if known is not None:
        found[: len(known)] = known
    for start in range(0, len(changed), _ROWS_AT_ONCE):
        some = changed[start : start + _ROWS_AT_ONCE]
        rows = matrix[some].astype(numpy.float32)
        lengths = numpy.sqrt(numpy.einsum("ij,ij->i", rows, rows))
        # A vector of zeros is like nothing, and its products are 0 already.
        found[some] = numpy.where(lengths == 0, 1, lengths)
    return found


def _matrix(numpy: Any, collection: Collection) -> Any:
    return numpy.frombuffer(collection.data, numpy.int8).reshape(len(collection.ids), -1)


class Vectors:
    """The collections that were used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, int], Collection] = OrderedDict()
        self.after_fork()

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    def collection(self, connection: apsw.Connection, place: Place, embedder: str, dimensions: int) -> Collection:
        """The vectors of a scope, read as far as they are not known."""
        name = (place.name, embedder, dimensions)
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
        if known is not None and known.newest >= place.newest:
            return known
        if known is None or known.newest < place.reset:
            known = _empty()
        wanted = (place.id, known.newest, embedder, dimensions)
        rows: list[Any] = connection.execute(queries()["vectors"], wanted).fetchall()
        known = _grown(known, rows, place.newest) if rows else msgspec.structs.replace(known, newest=place.newest)
        self._keep(name, known)
        return known

    def _keep(self, name: tuple[str, str, int], collection: Collection) -> None:
        with self._lock:
            self._known[name] = collection
            self._known.move_to_end(name)
            total = sum(each.size for each in self._known.values())
            while total > CACHED_BYTES and self._known:
                total -= self._known.popitem(last=False)[1].size


def nearest(collection: Collection, vector: bytes, now: int, limit: int, also: Sequence[int]) -> dict[int, float]:
    """The cosines of the live rows that are most alike, and of these others; only those above 0."""
    if not collection.ids:
        return {}
    numpy = numpy_or_none()
    if numpy is None:
        return _nearest_plainly(collection, vector, now, limit, also)
    cosines = _cosines(numpy, collection, vector)
    cosines[numpy.frombuffer(collection.expiries, numpy.int64) <= now] = 0
    best = numpy.flatnonzero(cosines > 0)
    if len(best) > limit:
        # All that are as good as the last one that fits, so that it does not depend on chance which of equals stay.
        least = numpy.partition(cosines, len(cosines) - limit)[len(cosines) - limit]
        best = numpy.flatnonzero(cosines >= least)
        best = best[numpy.lexsort((best, -cosines[best]))][:limit]
    found = {collection.ids[at]: float(cosines[at]) for at in best.tolist()}
    for id in also:
        at = collection.positions.get(id)
        if at is not None and cosines[at] > 0:
            found[id] = float(cosines[at])
    return found


def _cosines(numpy: Any, collection: Collection, vector: bytes) -> Any:
    wanted = numpy.frombuffer(vector, numpy.int8).astype(numpy.float32)
    matrix = _matrix(numpy, collection)
    found = numpy.empty(len(matrix), numpy.float32)
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        # Row by row and not as a matrix: that would wake threads, which beside a busy machine cost more than they save.
        some = matrix[start : start + _ROWS_AT_ONCE].astype(numpy.float32)
        found[start : start + _ROWS_AT_ONCE] = numpy.vecdot(some, wanted)
    own = numpy.sqrt(numpy.vecdot(wanted, wanted))
    found /= collection.lengths * (own or 1)
    return found


def _nearest_plainly(
    collection: Collection, vector: bytes, now: int, limit: int, also: Sequence[int]
) -> dict[int, float]:
    size = len(vector)
    rows = [collection.data[at : at + size] for at in range(0, len(collection.data), size)]
    scored = [
        (cosine, id)
        for cosine, id, expiry in zip(similarities(vector, rows), collection.ids, collection.expiries, strict=True)
        if cosine > 0 and expiry > now
    ]
    scored.sort(key=lambda each: -each[0])
    others = set(also)
    return {id: cosine for at, (cosine, id) in enumerate(scored) if at < limit or id in others}
