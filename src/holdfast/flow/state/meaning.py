"""Finding by meaning: vectors are made of what has none yet, kept beside the journal, and compared in memory.

They are a cache by the digest of their text. An embedder that is out of order leaves the words to search by.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

from holdfast.ambient import renew_in_child
from holdfast.core.codec import decode_facts
from holdfast.core.search.searchable import KEPT, Hit, TextSearch, admits, pieces, searchable
from holdfast.errors import InvalidValue, OutcomeUnknown, Unavailable
from holdfast.flow import artifacts
from holdfast.flow.state.likeness import Block, Blocks, Likeness, grown, size_of
from holdfast.ports import Acting, Embedder, Ports
from holdfast.records.events.envelope import StoredEvent

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
