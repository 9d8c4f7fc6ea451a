"""Finding by meaning: vectors are made of what has none yet, kept beside the journal, and compared in memory.

They are a cache by the digest of their text. An embedder that is out of order leaves the words to search by.

How much vectors are like another one: many of them, kept in blocks, compared at once.

numpy does the work where it is installed; without it plain Python gives the same order, only slower.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec

from holdfast.core.journal.codec import decode_facts
from holdfast.core.search.documents import KEPT, Hit, TextSearch, admits, pieces, searchable
from holdfast.errors import InvalidValue, OutcomeUnknown, Unavailable
from holdfast.flow.journal import artifacts
from holdfast.ports import Acting, Embedder, Ports
from holdfast.records.events.envelope import StoredEvent
from holdfast.sqlite.vectors import numpy_or_none, similarities
from holdfast.system import renew_in_child

BATCH: Final = 512

Place = tuple[str, str, str]
"""Tenant, stream and embedder."""


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
            self._count += size_of(blocks) - size_of(self._kept.pop(place, ()))
            self._kept[place] = blocks
            while self._count > self._most and self._kept:
                self._count -= size_of(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget everything: what was erased must not be found by what was made of it."""
        with self._lock:
            self._kept.clear()
            self._count = 0


def like(
    ports: Ports, acting: Acting, search: TextSearch, vector: bytes, embedder: Embedder, known: Mapping[int, Hit]
) -> dict[int, tuple[Hit, float]]:
    """What is most like a vector in the places searched, with its cosine; and how much what is known is like it."""
    blocks: list[Block] = []
    for stream in search.streams:
        try:
            embed_new(ports, acting, stream, embedder)
            blocks += _vectors(ports, acting, stream, embedder)
        except (Unavailable, InvalidValue):
            continue
    likeness = Likeness(vector, blocks)
    found = {seq: (known[seq], cosine) for seq, cosine in likeness.of(known).items()}
    return {**found, **_standing(ports, acting, search, likeness, known)}


def _standing(
    ports: Ports, acting: Acting, search: TextSearch, likeness: Likeness, known: Mapping[int, Hit]
) -> dict[int, tuple[Hit, float]]:
    """The best that may be given out; what stands for nothing any more is forgotten on the way."""
    found: list[tuple[int, tuple[Hit, float]]] = []
    stale: list[int] = []
    for cosines in likeness.best(search.limit):
        fresh = [seq for seq in cosines if seq not in known]
        hits = {hit.event.seq: hit for hit in ports.journal.hits(acting.tenant, fresh)}
        stands = {**known, **{seq: hit for seq, hit in hits.items() if admits(search, hit)}}
        found += [(seq, (stands[seq], cosine)) for seq, cosine in cosines.items() if seq in stands]
        stale += [seq for seq in fresh if seq not in hits or _over(hits[seq])]
        if len(found) >= search.limit:
            break
    if stale:
        # Tidying up is no reason for a search to fail: whoever comes next does it.
        with suppress(Unavailable, OutcomeUnknown):
            ports.journal.drop_vectors(acting.tenant, stale)
        assert ports.vectors is not None
        ports.vectors.clear()
    return dict(found[: search.limit])


def _over(hit: Hit) -> bool:
    """Whether an entry is no longer what its key holds. A message is never over: what was retracted may be shared."""
    return hit.event.type == KEPT and (hit.event.content is None or not hit.current)


def _vectors(ports: Ports, acting: Acting, stream: str, embedder: Embedder) -> Blocks:
    """Every vector of a stream: those in memory, and what came since."""
    assert ports.vectors is not None
    place = (acting.tenant, stream, embedder.name)
    blocks: Blocks = ports.vectors.get(place)
    more = ports.journal.vectors(acting.tenant, stream, embedder.name, blocks[-1].seqs[-1] if blocks else 0)
    rows = [(seq, piece) for seq, kept in more for piece in _apart(kept, embedder.dimensions)]
    if rows:
        blocks = grown(blocks, rows)
        ports.vectors.put(place, blocks)
    return blocks


def _apart(kept: bytes, dimensions: int) -> list[bytes]:
    """The vectors of a text's pieces, which are kept one behind the other."""
    if not kept or len(kept) % dimensions:
        return []
    return [kept[at : at + dimensions] for at in range(0, len(kept), dimensions)]


def embed_new(ports: Ports, acting: Acting, stream: str, embedder: Embedder) -> int:
    """Make vectors of what has none; gives how many texts that were. Interrupted, it goes on the next time."""
    count = 0
    while events := ports.journal.unembedded(acting.tenant, stream, embedder.name, BATCH):
        texts = [_text(ports, acting, event) for event in events]
        secret = ports.journal.secret
        digests = [hmac.digest(secret, text.encode("utf-8", "replace"), hashlib.sha256)[:16] for text in texts]
        vectors = _embedded(ports, acting, embedder, texts, digests)
        rows = [(event.seq, digest, vectors[digest]) for event, digest in zip(events, digests, strict=True)]
        ports.journal.keep_vectors(acting.tenant, stream, embedder.name, rows)
        count += len(events)
        if len(events) < BATCH:
            break
    return count


def _text(ports: Ports, acting: Acting, event: StoredEvent) -> str:
    facts = decode_facts(event.type, event.schema, event.facts)
    return searchable(event.type, facts, event.content, partial(artifacts.beginning, ports, acting))


def _embedded(
    ports: Ports, acting: Acting, embedder: Embedder, texts: Sequence[str], digests: Sequence[bytes]
) -> dict[bytes, bytes]:
    """The vectors of each text's pieces; equal texts are embedded once, and those that were before not again."""
    known = ports.journal.known_vectors(acting.tenant, embedder.name, digests)
    fresh = {digest: pieces(text) for digest, text in zip(digests, texts, strict=True) if digest not in known}
    made = iter(embedder.embed([piece for some in fresh.values() for piece in some]) if fresh else ())
    return {**known, **{digest: b"".join(islice(made, len(some))) for digest, some in fresh.items()}}


ROWS: Final = 4_096
"""Vectors of a block. As floats they stay in the processor's cache, and a new one copies no more than these."""
GROWTH: Final = 4


class Block(msgspec.Struct, frozen=True):
    """Vectors one behind the other, with the numbers of their events, which never go back. It is never changed."""

    seqs: array[int]
    data: bytes
    lengths: Any
    """Of each vector, as an array; None without numpy."""


Blocks = tuple[Block, ...]


def size_of(blocks: Blocks) -> int:
    """How many vectors there are."""
    return sum(len(block.seqs) for block in blocks)


def grown(known: Blocks, rows: Sequence[tuple[int, bytes]]) -> Blocks:
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
    lengths = numpy.sqrt(numpy.vecdot(matrix, matrix))
    # A vector of zeros is like nothing, and its products are 0 already.
    return numpy.where(lengths == 0, 1, lengths)


class Likeness:
    """How much the vectors of some blocks are like one. Only what is like it at all is told."""

    def __init__(self, vector: bytes, blocks: Sequence[Block]) -> None:
        numpy = numpy_or_none()
        self._numpy = numpy
        if numpy is None:
            self._plainly = _plain_cosines(vector, blocks)
        elif blocks:
            seqs = numpy.concatenate([numpy.frombuffer(block.seqs, numpy.int64) for block in blocks])
            # A text may have several vectors, one behind the other: it is as like as the best of its pieces.
            first = numpy.concatenate([[0], numpy.flatnonzero(seqs[1:] != seqs[:-1]) + 1])
            self._seqs = seqs[first]
            self._cosines = numpy.maximum.reduceat(_cosines(numpy, vector, blocks), first)
        else:
            self._seqs, self._cosines = numpy.empty(0, numpy.int64), numpy.empty(0, numpy.float32)

    def of(self, seqs: Collection[int]) -> dict[int, float]:
        """The cosines of these."""
        if self._numpy is None:
            return {seq: self._plainly[seq] for seq in seqs if seq in self._plainly}
        wanted = self._numpy.isin(self._seqs, list(seqs)) & (self._cosines > 0)
        return dict(zip(self._seqs[wanted].tolist(), self._cosines[wanted].tolist(), strict=True))

    def best(self, size: int) -> Iterator[dict[int, float]]:
        """The best first, of equals the newest, in ever larger parts: few ask for more than the first."""
        first = 0
        while part := self._part(first, size):
            yield part
            first, size = first + size, size * GROWTH

    def _part(self, first: int, size: int) -> dict[int, float]:
        numpy = self._numpy
        if numpy is None:
            order = sorted(self._plainly, key=lambda seq: (self._plainly[seq], seq), reverse=True)
            return {seq: self._plainly[seq] for seq in order[first : first + size]}
        until = min(first + size, int(numpy.count_nonzero(self._cosines > 0)))
        if until <= first:
            return {}
        # Everything that is as good as the last one wanted, so that it does not depend on chance which of equals stay.
        least = numpy.partition(self._cosines, len(self._cosines) - until)[len(self._cosines) - until]
        best = numpy.flatnonzero(self._cosines >= least)
        best = best[numpy.lexsort((self._seqs[best], self._cosines[best]))[::-1]][first:until]
        return dict(zip(self._seqs[best].tolist(), self._cosines[best].tolist(), strict=True))


def _cosines(numpy: Any, vector: bytes, blocks: Sequence[Block]) -> Any:
    wanted = numpy.frombuffer(vector, numpy.int8).astype(numpy.float32)
    own = float(numpy.sqrt(numpy.vecdot(wanted, wanted))) or 1.0
    found = []
    for block in blocks:
        matrix = numpy.frombuffer(block.data, numpy.int8).reshape(len(block.seqs), -1)
        # Row by row and not as a matrix: that would wake threads, which beside a busy machine cost more than they save.
        found.append(numpy.vecdot(matrix.astype(numpy.float32), wanted) / (block.lengths * own))
    return numpy.concatenate(found)


def _plain_cosines(vector: bytes, blocks: Sequence[Block]) -> dict[int, float]:
    found: dict[int, float] = {}
    for block in blocks:
        rows = [block.data[at : at + len(vector)] for at in range(0, len(block.data), len(vector))]
        for seq, cosine in zip(block.seqs, similarities(vector, rows), strict=True):
            if cosine > found.get(seq, 0.0):
                found[seq] = cosine
    return found
