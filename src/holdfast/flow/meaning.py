"""Finding by meaning: vectors are made of what has none yet, kept beside the journal, and compared in memory.

They are a cache by the digest of their text. An embedder that is out of order leaves the words to search by.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.ambient import renew_in_child
from holdfast.core.codec import decode_facts
from holdfast.core.searchable import KEPT, Hit, TextSearch, admits, searchable
from holdfast.errors import InvalidValue, Unavailable
from holdfast.ports import Acting, Embedder, Ports
from holdfast.records.events.envelope import StoredEvent
from holdfast.vectors import numpy_or_none, similarities

BATCH: Final = 512
GROWTH: Final = 4
ROWS: Final = 4_096
"""Vectors of a block. As floats they stay in the processor's cache, and a new one copies no more than these."""

Place = tuple[str, str, str]
"""Tenant, stream and embedder."""


class Block(msgspec.Struct, frozen=True):
    """Vectors one behind the other, with the numbers of their events, which grow. It is never changed."""

    seqs: array[int]
    data: bytes
    lengths: Any
    """Of each vector, as an array; None without numpy."""


Blocks = tuple[Block, ...]


class VectorCache:
    """Vectors of streams in memory, those that were longest not asked for forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Place, Blocks] = OrderedDict()
        self._count = 0
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    def get(self, place: Place) -> Blocks:
        """What is known of a stream."""
        with self._lock:
            if place in self._kept:
                self._kept.move_to_end(place)
            return self._kept.get(place, ())

    def put(self, place: Place, blocks: Blocks) -> None:
        """What is known of it now."""
        with self._lock:
            self._count += _size(blocks) - _size(self._kept.pop(place, ()))
            self._kept[place] = blocks
            while self._count > self._most and self._kept:
                self._count -= _size(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget everything: what was erased must not be found by what was made of it."""
        with self._lock:
            self._kept.clear()
            self._count = 0


def _size(blocks: Blocks) -> int:
    return sum(len(block.seqs) for block in blocks)


def _grown(known: Blocks, rows: Sequence[tuple[int, bytes]]) -> Blocks:
    """The same and what came since. Other threads may read what is known: full blocks are kept, the last is copied."""
    found = list(known)
    first = 0
    while first < len(rows):
        last = found.pop() if found and len(found[-1].seqs) < ROWS else Block(array("q"), b"", None)
        some = rows[first : first + ROWS - len(last.seqs)]
        seqs = last.seqs + array("q", [seq for seq, _ in some])
        data = b"".join((last.data, *(vector for _, vector in some)))
        found.append(Block(seqs, data, _lengths(data, len(seqs))))
        first += len(some)
    return tuple(found)


def _lengths(data: bytes, count: int) -> Any:
    numpy = numpy_or_none()
    if numpy is None:
        return None
    matrix = numpy.frombuffer(data, numpy.int8).reshape(count, -1).astype(numpy.float32)
    lengths = numpy.sqrt(numpy.einsum("ij,ij->i", matrix, matrix))
    # A vector of zeros is like nothing, and its products are 0 already.
    return numpy.where(lengths == 0, 1, lengths)


def like(
    ports: Ports, acting: Acting, search: TextSearch, vector: bytes, embedder: Embedder
) -> list[tuple[Hit, float]]:
    """What is most like a vector in the places searched, with its cosine; best first, of equals the newest."""
    blocks: list[Block] = []
    for stream in search.streams:
        try:
            embed_new(ports, acting, stream, embedder)
            blocks += _vectors(ports, acting, stream, embedder)
        except (Unavailable, InvalidValue):
            continue
    return _standing(ports, acting, search, _nearest(vector, blocks, search.limit)) if blocks else []


def _nearest(vector: bytes, blocks: Sequence[Block], size: int) -> Iterator[dict[int, float]]:
    """Events by how much their vectors are like one, best first and of equals the newest, in ever larger parts."""
    numpy = numpy_or_none()
    if numpy is None:
        yield from _nearest_plainly(vector, blocks, size)
        return
    seqs = numpy.concatenate([numpy.frombuffer(block.seqs, numpy.int64) for block in blocks])
    cosines = _cosines(numpy, vector, blocks)
    first, alike = 0, int(numpy.count_nonzero(cosines > 0))
    while first < alike:
        until = min(first + size, alike)
        # Everything that is as good as the last one wanted, so that it does not depend on chance which of equals stay.
        least = numpy.partition(cosines, len(cosines) - until)[len(cosines) - until]
        best = numpy.flatnonzero(cosines >= least)
        best = best[numpy.lexsort((seqs[best], cosines[best]))[::-1]][first:until]
        yield dict(zip(seqs[best].tolist(), cosines[best].tolist(), strict=True))
        first, size = until, size * GROWTH


def _cosines(numpy: Any, vector: bytes, blocks: Sequence[Block]) -> Any:
    wanted = numpy.frombuffer(vector, numpy.int8).astype(numpy.float32)
    own = float(numpy.sqrt(wanted @ wanted)) or 1.0
    found = []
    for block in blocks:
        matrix = numpy.frombuffer(block.data, numpy.int8).reshape(len(block.seqs), -1)
        # Not a product of matrices: that would wake threads, which beside a busy machine cost more than they save.
        found.append(numpy.vecdot(matrix.astype(numpy.float32), wanted) / (block.lengths * own))
    return numpy.concatenate(found)


def _nearest_plainly(vector: bytes, blocks: Sequence[Block], size: int) -> Iterator[dict[int, float]]:
    scored: list[tuple[float, int]] = []
    for block in blocks:
        rows = [block.data[at : at + len(vector)] for at in range(0, len(block.data), len(vector))]
        scored += zip(similarities(vector, rows), block.seqs, strict=True)
    best = sorted(((cosine, seq) for cosine, seq in scored if cosine > 0), reverse=True)
    first = 0
    while first < len(best):
        yield {seq: cosine for cosine, seq in best[first : first + size]}
        first, size = first + size, size * GROWTH


def _standing(
    ports: Ports, acting: Acting, search: TextSearch, nearest: Iterator[dict[int, float]]
) -> list[tuple[Hit, float]]:
    """The best that may be given out; what stands for nothing any more is forgotten on the way."""
    found: list[tuple[Hit, float]] = []
    stale: list[int] = []
    for cosines in nearest:
        hits = ports.journal.hits(acting.tenant, list(cosines))
        found += [(hit, cosines[hit.event.seq]) for hit in hits if admits(search, hit)]
        # A message stands for good; an entry until its key has another value.
        lasting = {hit.event.seq for hit in hits if hit.event.type != KEPT or (hit.current and hit.event.content)}
        stale += [seq for seq in cosines if seq not in lasting]
        if len(found) >= search.limit:
            break
    if stale:
        ports.journal.drop_vectors(acting.tenant, stale)
        assert ports.vectors is not None
        ports.vectors.clear()
    return found[: search.limit]


def _vectors(ports: Ports, acting: Acting, stream: str, embedder: Embedder) -> Blocks:
    """Every vector of a stream: those in memory, and what came since."""
    assert ports.vectors is not None
    place = (acting.tenant, stream, embedder.name)
    blocks: Blocks = ports.vectors.get(place)
    more = ports.journal.vectors(acting.tenant, stream, embedder.name, blocks[-1].seqs[-1] if blocks else 0)
    rows = [row for row in more if len(row[1]) == embedder.dimensions]
    if rows:
        blocks = _grown(blocks, rows)
        ports.vectors.put(place, blocks)
    return blocks


def embed_new(ports: Ports, acting: Acting, stream: str, embedder: Embedder) -> int:
    """Make vectors of what has none; gives how many texts that were. Interrupted, it goes on the next time."""
    count = 0
    while events := ports.journal.unembedded(acting.tenant, stream, embedder.name, BATCH):
        texts = [_text(event) for event in events]
        secret = ports.journal.secret
        digests = [hmac.digest(secret, text.encode("utf-8", "replace"), hashlib.sha256)[:16] for text in texts]
        vectors = _embedded(ports, acting, embedder, texts, digests)
        rows = [(event.seq, digest, vectors[digest]) for event, digest in zip(events, digests, strict=True)]
        ports.journal.keep_vectors(acting.tenant, stream, embedder.name, rows)
        count += len(events)
        if len(events) < BATCH:
            break
    return count


def _text(event: StoredEvent) -> str:
    return searchable(event.type, decode_facts(event.type, event.schema, event.facts), event.content)


def _embedded(
    ports: Ports, acting: Acting, embedder: Embedder, texts: Sequence[str], digests: Sequence[bytes]
) -> dict[bytes, bytes]:
    """A vector for each digest; equal texts are embedded once, and those that were before not again."""
    known = ports.journal.known_vectors(acting.tenant, embedder.name, digests)
    fresh = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
    made = embedder.embed(list(fresh.values())) if fresh else []
    return {**known, **dict(zip(fresh, made, strict=True))}
