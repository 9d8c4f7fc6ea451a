"""Search by meaning: embed texts that have no vector yet, store the vectors beside the journal, compare in memory.

Vectors are a cache, keyed by the digest of their text. If the embedder fails, search falls back to words.
"""

from __future__ import annotations

import hashlib
import hmac
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec

from holdfast.core.journal.codec import decode_facts
from holdfast.core.numbers import load_numpy
from holdfast.core.search.documents import STATE_WRITTEN, Hit, TextSearch, is_match, split_pieces
from holdfast.core.search.words import searchable_text
from holdfast.errors import InvalidValue, OutcomeUnknown, Unavailable
from holdfast.flow.journal import artifacts
from holdfast.ports import Embedder, Env
from holdfast.ports.capabilities import VECTORS, require

EMBED_BATCH: Final = 512
BLOCK_ROWS: Final = 4_096
"""Vectors per block. As floats they fit the processor's cache, and adding a vector copies at most one block."""
PART_GROWTH: Final = 4


def find_similar(
    env: Env, search: TextSearch, vector: bytes, embedder: Embedder, known: Mapping[int, Hit]
) -> dict[int, tuple[Hit, float]]:
    """Find the most similar texts in the searched places, with their cosines, and the cosines of the known hits."""
    blocks: list[VectorBlock] = []
    for stream in search.streams:
        try:
            embed_new(env, stream, embedder)
            blocks += _load_vectors(env, stream, embedder)
        except (Unavailable, InvalidValue):
            continue
    likeness = VectorScores(vector, blocks)
    found = {seq: (known[seq], cosine) for seq, cosine in likeness.cosines_of(known).items()}
    return {**found, **_best_admitted(env, search, likeness, known)}


def _best_admitted(
    env: Env, search: TextSearch, likeness: VectorScores, known: Mapping[int, Hit]
) -> dict[int, tuple[Hit, float]]:
    """Return the best hits that the search admits; delete stale vectors met on the way."""
    found: list[tuple[int, tuple[Hit, float]]] = []
    stale: list[int] = []
    for cosines in likeness.iter_best(search.limit):
        fresh = [seq for seq in cosines if seq not in known]
        hits = {hit.event.seq: hit for hit in env.journal.hits(env.tenant, fresh)}
        stands = {**known, **{seq: hit for seq, hit in hits.items() if is_match(search, hit)}}
        found += [(seq, (stands[seq], cosine)) for seq, cosine in cosines.items() if seq in stands]
        stale += [seq for seq in fresh if seq not in hits or _is_stale(hits[seq])]
        if len(found) >= search.limit:
            break
    if stale:
        # A search must not fail because of the cleanup; the next one does it.
        with suppress(Unavailable, OutcomeUnknown):
            require(env.journal, VECTORS).drop_vectors(env.tenant, stale)
        env.vectors.clear()
    return dict(found[: search.limit])


def _is_stale(hit: Hit) -> bool:
    """Return True if an entry is no longer current. A message is never stale: a retracted one may be shared."""
    return hit.event.type == STATE_WRITTEN and (hit.event.content is None or not hit.current)


def _load_vectors(env: Env, stream: str, embedder: Embedder) -> VectorBlocks:
    """Return every vector of a stream: cached ones, and those added since."""
    place = (env.tenant, stream, embedder.name)
    blocks: VectorBlocks = env.vectors.get(place) or ()
    more = require(env.journal, VECTORS).vectors(*place, blocks[-1].seqs[-1] if blocks else 0)
    size = embedder.dimensions
    # Each text has the vectors of its pieces, one after the other.
    whole = ((seq, kept) for seq, kept in more if len(kept) % size == 0)
    rows = [(seq, kept[at : at + size]) for seq, kept in whole for at in range(0, len(kept), size)]
    if rows:
        blocks = append_vectors(blocks, rows)
        env.vectors.put(place, blocks)
    return blocks


def embed_new(env: Env, stream: str, embedder: Embedder) -> int:
    """Embed texts without a vector and return their number. If interrupted, the next call continues."""
    count = 0
    read = partial(artifacts.read_artifact_beginning, env)
    while events := require(env.journal, VECTORS).find_unembedded(env.tenant, stream, embedder.name, EMBED_BATCH):
        facts = [decode_facts(event.type, event.schema, event.facts) for event in events]
        pairs = zip(events, facts, strict=True)
        texts = [searchable_text(event.type, some, event.content, read) for event, some in pairs]
        secret = env.journal.secret
        digests = [hmac.digest(secret, text.encode("utf-8", "replace"), hashlib.sha256)[:16] for text in texts]
        vectors = _embed_texts(env, embedder, texts, digests)
        rows = [(event.seq, digest, vectors[digest]) for event, digest in zip(events, digests, strict=True)]
        require(env.journal, VECTORS).keep_vectors(env.tenant, stream, embedder.name, rows)
        count += len(events)
        if len(events) < EMBED_BATCH:
            break
    return count


def _embed_texts(env: Env, embedder: Embedder, texts: Sequence[str], digests: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the vectors of each text's pieces; equal texts are embedded once, known ones not again."""
    known = require(env.journal, VECTORS).vectors_by_digest(env.tenant, embedder.name, digests)
    fresh = {digest: split_pieces(text) for digest, text in zip(digests, texts, strict=True) if digest not in known}
    made = iter(embedder.embed([piece for some in fresh.values() for piece in some]) if fresh else ())
    return {**known, **{digest: b"".join(islice(made, len(some))) for digest, some in fresh.items()}}


class VectorBlock(msgspec.Struct, frozen=True):
    """Concatenated vectors with the sequence numbers of their events, in ascending order. Immutable."""

    seqs: array[int]
    data: bytes
    lengths: Any
    """The length of each vector, as an array."""


VectorBlocks = tuple[VectorBlock, ...]


def count_vectors(blocks: VectorBlocks) -> int:
    """Count the vectors."""
    return sum(len(block.seqs) for block in blocks)


def append_vectors(known: VectorBlocks, rows: Sequence[tuple[int, bytes]]) -> VectorBlocks:
    """Return the blocks with new vectors appended. Other threads may read the old ones: only the last is copied."""
    found = list(known)
    first = 0
    while first < len(rows):
        last = found.pop() if found and len(found[-1].seqs) < BLOCK_ROWS else VectorBlock(array("q"), b"", None)
        some = rows[first : first + BLOCK_ROWS - len(last.seqs)]
        seqs = last.seqs + array("q", [seq for seq, _ in some])
        data = b"".join((last.data, *(vector for _, vector in some)))
        found.append(VectorBlock(seqs, data, _lengths(data, len(seqs))))
        first += len(some)
    return tuple(found)


def _lengths(data: bytes, count: int) -> Any:
    numpy = load_numpy()
    matrix = numpy.frombuffer(data, numpy.int8).reshape(count, -1).astype(numpy.float32)
    lengths = numpy.sqrt(numpy.vecdot(matrix, matrix))
    # A zero vector is similar to nothing: its products are 0, so any length will do.
    return numpy.where(lengths == 0, 1, lengths)


class VectorScores:
    """The cosines between one vector and the vectors of some blocks. Only positive ones are reported."""

    def __init__(self, vector: bytes, blocks: Sequence[VectorBlock]) -> None:
        numpy = load_numpy()
        if blocks:
            seqs = numpy.concatenate([numpy.frombuffer(block.seqs, numpy.int64) for block in blocks])
            # A text may have several vectors in a row: its score is that of the best piece.
            first = numpy.concatenate([[0], numpy.flatnonzero(seqs[1:] != seqs[:-1]) + 1])
            self._seqs = seqs[first]
            self._cosines = numpy.maximum.reduceat(_compute_cosines(vector, blocks), first)
        else:
            self._seqs, self._cosines = numpy.empty(0, numpy.int64), numpy.empty(0, numpy.float32)

    def cosines_of(self, seqs: Collection[int]) -> dict[int, float]:
        """Return the cosines of these events."""
        wanted = load_numpy().isin(self._seqs, list(seqs)) & (self._cosines > 0)
        return dict(zip(self._seqs[wanted].tolist(), self._cosines[wanted].tolist(), strict=True))

    def iter_best(self, size: int) -> Iterator[dict[int, float]]:
        """Iterate over the best, ties newest first, in parts of growing size: few callers need more than the first."""
        first = 0
        while part := self._best_part(first, size):
            yield part
            first, size = first + size, size * PART_GROWTH

    def _best_part(self, first: int, size: int) -> dict[int, float]:
        numpy = load_numpy()
        until = min(first + size, int(numpy.count_nonzero(self._cosines > 0)))
        if until <= first:
            return {}
        # Take everything as good as the last one wanted, so that the choice among equals does not depend on chance.
        least = numpy.partition(self._cosines, len(self._cosines) - until)[len(self._cosines) - until]
        best = numpy.flatnonzero(self._cosines >= least)
        best = best[numpy.lexsort((self._seqs[best], self._cosines[best]))[::-1]][first:until]
        return dict(zip(self._seqs[best].tolist(), self._cosines[best].tolist(), strict=True))


def _compute_cosines(vector: bytes, blocks: Sequence[VectorBlock]) -> Any:
    numpy = load_numpy()
    wanted = numpy.frombuffer(vector, numpy.int8).astype(numpy.float32)
    own = float(numpy.sqrt(numpy.vecdot(wanted, wanted))) or 1.0
    found = []
    for block in blocks:
        matrix = numpy.frombuffer(block.data, numpy.int8).reshape(len(block.seqs), -1)
        # Row by row, not as a matrix product: that starts threads, which on a busy machine cost more than they save.
        found.append(numpy.vecdot(matrix.astype(numpy.float32), wanted) / (block.lengths * own))
    return numpy.concatenate(found)
