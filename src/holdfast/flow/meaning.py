"""Finding by meaning: vectors are made of what has none yet, kept beside the journal, and compared in memory.

They are a cache by the digest of their text. An embedder that is out of order leaves the words to search by.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from holdfast.ambient import renew_in_child
from holdfast.core.codec import decode_facts
from holdfast.core.searchable import KEPT, Hit, TextSearch, admits, searchable
from holdfast.errors import InvalidValue, Unavailable
from holdfast.ports import Acting, Embedder, Ports
from holdfast.records.events.envelope import StoredEvent
from holdfast.vectors import similarities

BATCH: Final = 512
GROWTH: Final = 4

Place = tuple[str, str, str]
"""Tenant, stream and embedder."""


class VectorCache:
    """Vectors of streams in memory, those that were longest not asked for forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Place, tuple[list[int], list[bytes]]] = OrderedDict()
        self._count = 0
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    def get(self, place: Place) -> tuple[list[int], list[bytes]]:
        """What is known of a stream."""
        with self._lock:
            if place in self._kept:
                self._kept.move_to_end(place)
            return self._kept.get(place, ([], []))

    def put(self, place: Place, seqs: list[int], vectors: list[bytes]) -> None:
        """What is known of it now."""
        with self._lock:
            self._count += len(seqs) - len(self._kept.pop(place, ([], []))[0])
            self._kept[place] = (seqs, vectors)
            while self._count > self._most and self._kept:
                _, (gone, _) = self._kept.popitem(last=False)
                self._count -= len(gone)

    def clear(self) -> None:
        """Forget everything: what was erased must not be found by what was made of it."""
        with self._lock:
            self._kept.clear()
            self._count = 0


def like(
    ports: Ports, acting: Acting, search: TextSearch, vector: bytes, embedder: Embedder
) -> list[tuple[Hit, float]]:
    """What is most like a vector in the places searched, with its cosine; best first, of equals the newest."""
    scored: list[tuple[float, int]] = []
    for stream in search.streams:
        try:
            embed_new(ports, acting, stream, embedder)
            seqs, vectors = _vectors(ports, acting, stream, embedder)
            scored += zip(similarities(vector, vectors), seqs, strict=True)
        except (Unavailable, InvalidValue):
            continue
    best = sorted(((cosine, seq) for cosine, seq in scored if cosine > 0), reverse=True)
    return _standing(ports, acting, search, best)


def _standing(
    ports: Ports, acting: Acting, search: TextSearch, best: list[tuple[float, int]]
) -> list[tuple[Hit, float]]:
    """The best that may be given out; what stands for nothing any more is forgotten on the way."""
    found: list[tuple[Hit, float]] = []
    stale: list[int] = []
    first, size = 0, search.limit
    while first < len(best) and len(found) < search.limit:
        cosines = {seq: cosine for cosine, seq in best[first : first + size]}
        hits = ports.journal.hits(acting.tenant, list(cosines))
        found += [(hit, cosines[hit.event.seq]) for hit in hits if admits(search, hit)]
        gone = set(cosines) - {hit.event.seq for hit in hits if hit.event.content is not None and hit.current}
        stale += [seq for seq in gone if not any(hit.event.seq == seq and hit.event.type != KEPT for hit in hits)]
        first, size = first + size, size * GROWTH
    if stale:
        ports.journal.drop_vectors(acting.tenant, stale)
        assert ports.vectors is not None
        ports.vectors.clear()
    return found[: search.limit]


def _vectors(ports: Ports, acting: Acting, stream: str, embedder: Embedder) -> tuple[list[int], list[bytes]]:
    """Every vector of a stream: those in memory, and what came since."""
    assert ports.vectors is not None
    place = (acting.tenant, stream, embedder.name)
    seqs, vectors = ports.vectors.get(place)
    more = ports.journal.vectors(acting.tenant, stream, embedder.name, seqs[-1] if seqs else 0)
    if more:
        # New lists: another thread may be reading the old ones.
        seqs = seqs + [seq for seq, vector in more if len(vector) == embedder.dimensions]
        vectors = vectors + [vector for _, vector in more if len(vector) == embedder.dimensions]
        ports.vectors.put(place, seqs, vectors)
    return seqs, vectors


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
