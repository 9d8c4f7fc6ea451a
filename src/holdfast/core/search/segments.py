"""Segments of a text index: texts indexed together, searched together with others, and merged into larger ones.

A segment is immutable. It holds its texts by number, each with the seq of its event, its place and its length, and for
each word the texts that have it, in compressed blocks ordered by word. It holds no text.

Texts are ranked by BM25 over all segments of one collection, so the rarity of a word is counted in that collection
alone: the order of its texts is that of one FTS5 table with the same rows. Weights of words are counted in halves: a
word of the text has two, of the message before it one, of the date four.
"""

from __future__ import annotations

import math
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.numbers import load_numpy
from holdfast.core.search.documents import TextRow
from holdfast.core.search.words import index_words

Stems = Mapping[str, str]
"""The stem of every word."""
MAX_WEIGHT: Final = 255
MAX_ROWS: Final = 65_535
"""Texts of one segment: their numbers take two bytes."""
BLOCK_POSTINGS: Final = 1_500
BLOCK_WORDS: Final = 400
MERGED_AT_ONCE: Final = 8
"""Segments of about one size that are merged into one."""
SPARSE_SHARE: Final = 0.5
"""The share of hidden texts from which a segment is written anew without them."""
_LEVEL: Final = 6
_K1, _B = 1.2, 0.75
_LEAST_RARITY: Final = 1e-6
_SEQ, _PLACE, _LENGTH = "<u8", "<u4", "<u2"
_ROW_BYTES: Final = 14
_SEAL_BYTES: Final = 4


class DamagedSegment(ValueError):
    """The bytes of a segment are not as they were written."""


class Block(msgspec.Struct, array_like=True, frozen=True):
    """Some words in order, separated by spaces, with the texts that have them and the weight that each has there."""

    words: str
    counts: Sequence[int]
    rows: bytes
    weights: bytes


class TextSegment(msgspec.Struct, frozen=True):
    """Texts indexed together. `rows` holds their seqs, places and lengths, and `blocks` is ordered by first word."""

    count: int
    tokens: int
    rows: bytes
    blocks: tuple[tuple[str, bytes], ...]

    @property
    def directory(self) -> tuple[str, ...]:
        """The first word of each block."""
        return tuple(first for first, _ in self.blocks)


class SegmentView(msgspec.Struct, frozen=True):
    """The part of a segment that a search needs: its rows, the numbers of removed ones, and the postings of words."""

    rows: bytes
    removed: Collection[int]
    postings: dict[str, tuple[bytes, bytes]]


_ENCODER = msgspec.msgpack.Encoder()


def build_segment(rows: Sequence[TextRow], stems: Stems) -> TextSegment:
    """Index some texts, at most `MAX_ROWS`."""
    numpy = load_numpy()
    words = _Numbering()
    found, lengths, weights = array("I"), array("I"), array("I")
    for row in rows:
        for text, weight in ((row.text, 2), (row.prev, 1), (row.date, 4)):
            said = index_words(text)
            found.extend(map(words.__getitem__, map(stems.__getitem__, said)))
            lengths.append(len(said))
            weights.append(weight)
    counts = numpy.frombuffer(lengths, numpy.uint32)
    texts = numpy.arange(len(rows), dtype=numpy.int64).repeat(3).repeat(counts)
    # A number for each pair of word and text: sorted, they are the postings.
    keys = numpy.frombuffer(found, numpy.uint32).astype(numpy.int64) * len(rows) + texts
    pairs, at = numpy.unique(keys, return_inverse=True)
    sums = numpy.bincount(at, numpy.frombuffer(weights, numpy.uint32).repeat(counts), minlength=len(pairs))
    number, text = numpy.divmod(pairs, max(len(rows), 1))
    held = numpy.minimum(sums, MAX_WEIGHT).astype(numpy.uint8).tobytes()
    postings = _slice_postings(words, number, text.astype(_LENGTH).tobytes(), held)
    # The place of a text counts as a word of it, as it does in a table of FTS5.
    sizes = numpy.minimum(counts.reshape(-1, 3).sum(axis=1) + 1, MAX_ROWS)
    columns = ([row.rowid for row in rows], _SEQ), ([int(row.place or 0) for row in rows], _PLACE), (sizes, _LENGTH)
    encoded = _seal(b"".join(numpy.asarray(column, kind).tobytes() for column, kind in columns))
    return TextSegment(len(rows), int(sizes.sum()), encoded, _encode_blocks(postings))


class _Numbering(dict[str, int]):
    """Words by number, in the order of their first use."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def _slice_postings(
    words: Collection[str], numbers: Any, rows: bytes, weights: bytes
) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the texts of each word, given the ascending number of the word of each pair of word and text."""
    numpy = load_numpy()
    ends = numpy.searchsorted(numbers, numpy.arange(len(words)), side="right").tolist()
    first = 0
    for word, last in zip(words, ends, strict=True):
        yield word, rows[2 * first : 2 * last], weights[first:last]
        first = last


def _encode_blocks(postings: Iterable[tuple[str, bytes, bytes]]) -> tuple[tuple[str, bytes], ...]:
    blocks: list[tuple[str, bytes]] = []
    words: list[str] = []
    held: list[tuple[bytes, bytes]] = []
    room = BLOCK_POSTINGS

    def close() -> None:
        numbers, weights = (b"".join(column) for column in zip(*held, strict=True))
        block = Block(" ".join(words), tuple(len(each) for _, each in held), _pack_steps(numbers), weights)
        blocks.append((words[0], _seal(zlib.compress(_ENCODER.encode(block), _LEVEL))))
        words.clear()
        held.clear()

    for word, numbers, weights in sorted(postings):
        words.append(word)
        held.append((numbers, weights))
        room -= len(weights)
        if room <= 0 or len(words) >= BLOCK_WORDS:
            close()
            room = BLOCK_POSTINGS
    if words:
        close()
    return tuple(blocks)


def _pack_steps(numbers: bytes) -> bytes:
    """Return the steps from number to number, low bytes first: they are small and compress better."""
    numpy = load_numpy()
    found = numpy.diff(numpy.frombuffer(numbers, _LENGTH), prepend=numpy.zeros(1, _LENGTH))
    return bytes(found.astype(_LENGTH).view(numpy.uint8).reshape(-1, 2).T.tobytes())


def _unpack_steps(steps: bytes) -> bytes:
    numpy = load_numpy()
    found = numpy.frombuffer(steps, numpy.uint8).reshape(2, -1).T.copy().view(_LENGTH)
    return bytes(numpy.cumsum(found, dtype=_LENGTH).tobytes())


def _seal(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_SEAL_BYTES, "little") + body


def _open(sealed: bytes) -> bytes:
    body = sealed[_SEAL_BYTES:]
    if zlib.crc32(body).to_bytes(_SEAL_BYTES, "little") != sealed[:_SEAL_BYTES]:
        raise DamagedSegment("its checksum does not match")
    return body


def decode_block(body: bytes) -> Block:
    """Return a block; raise DamagedSegment if its bytes are not one."""
    try:
        words, counts, steps, weights = msgspec.msgpack.decode(zlib.decompress(_open(body)))
    except (zlib.error, msgspec.DecodeError, TypeError, ValueError) as error:
        raise DamagedSegment(str(error)) from None
    if not 2 * sum(counts) == 2 * len(weights) == len(steps):
        raise DamagedSegment("the columns of a block differ in length")
    if len(words.split(" ")) != len(counts):
        raise DamagedSegment("a block has not one count for each word")
    return Block(words, counts, _unpack_steps(steps), weights)


def find_block(directory: Sequence[str], word: str) -> int | None:
    """Return the number of the block that would hold a word; None if it comes before them all."""
    number = bisect_right(directory, word) - 1
    return None if number < 0 else number


def read_postings(body: bytes, words: Collection[str]) -> dict[str, tuple[bytes, bytes]]:
    """Return the rows and weights of those of the words that a block holds."""
    block = decode_block(body)
    held = block.words.split(" ")
    found: dict[str, tuple[bytes, bytes]] = {}
    for word in words:
        at = bisect_left(held, word)
        if at < len(held) and held[at] == word:
            first = sum(block.counts[:at])
            last = first + block.counts[at]
            found[word] = (block.rows[2 * first : 2 * last], block.weights[first:last])
    return found


def view_segment(segment: TextSegment, words: Sequence[str], removed: Collection[int] = ()) -> SegmentView:
    """Return the part of a segment in memory that a search for these stems needs."""
    postings: dict[str, tuple[bytes, bytes]] = {}
    for word in dict.fromkeys(words):
        number = find_block(segment.directory, word)
        if number is not None:
            postings.update(read_postings(segment.blocks[number][1], (word,)))
    return SegmentView(segment.rows, removed, postings)


def hide_rows(view: SegmentView, seqs: Collection[int]) -> SegmentView:
    """Return a view without the texts of these events."""
    gone = find_rows(view.rows, seqs)
    return SegmentView(view.rows, gone.union(view.removed), view.postings) if gone else view


def find_rows(rows: bytes, seqs: Collection[int]) -> frozenset[int]:
    """Return the numbers of a segment's texts that belong to these events."""
    numpy = load_numpy()
    wanted = numpy.fromiter(seqs, numpy.uint64, len(seqs))
    return frozenset(numpy.flatnonzero(numpy.isin(read_rows(rows)[0], wanted)).tolist() if seqs else ())


def read_rows(rows: bytes) -> tuple[Any, Any, Any]:
    """Return the seqs, places and lengths of a segment's texts as arrays."""
    numpy = load_numpy()
    body = _open(rows)
    count, rest = divmod(len(body), _ROW_BYTES)
    if rest:
        raise DamagedSegment("the rows of a segment are cut off")
    return (
        numpy.frombuffer(body, _SEQ, count),
        numpy.frombuffer(body, _PLACE, count, 8 * count),
        numpy.frombuffer(body, _LENGTH, count, 12 * count),
    )


def choose_merge(sizes: Sequence[tuple[int, int]], most: int = MAX_ROWS) -> tuple[int, ...]:
    """Choose the segments to merge next, from the size of each and its number of hidden texts; none if they are few.

    They are several of about one size with at most `most` texts together, or one that is mostly hidden.
    """
    levels: dict[int, list[int]] = {}
    for number, (count, hidden) in enumerate(sizes):
        if hidden > SPARSE_SHARE * count:
            return (number,)
        same = levels.setdefault((count.bit_length() - 1) // 3, [])
        same.append(number)
        if len(same) == MERGED_AT_ONCE:
            if sum(sizes[each][0] for each in same) <= most:
                return tuple(same)
            same.clear()  # As large as segments become.
    return ()


def merge_segments(parts: Sequence[tuple[TextSegment, Collection[int]]]) -> TextSegment:
    """Return one segment with the texts of several, each given with the numbers of its removed ones, left out."""
    numpy = load_numpy()
    columns: list[tuple[Any, Any, Any]] = []
    merged: dict[str, tuple[list[bytes], list[bytes]]] = {}
    base = 0
    for segment, removed in parts:
        kept = _kept_rows(segment.count, removed)
        columns.append(tuple(column[kept] for column in read_rows(segment.rows)))
        fresh = base + numpy.cumsum(kept) - 1
        base += int(kept.sum())
        for _, body in segment.blocks:
            for word, rows, weights in _renumber(decode_block(body), kept, fresh):
                held = merged.setdefault(word, ([], []))
                held[0].append(rows)
                held[1].append(weights)
    if base > MAX_ROWS:
        raise ValueError(f"a segment of {base:,} texts is too large")
    joined = [numpy.concatenate(column) for column in zip(*columns, strict=True)]
    blocks = _encode_blocks((word, b"".join(rows), b"".join(weights)) for word, (rows, weights) in merged.items())
    kinds = (_SEQ, _PLACE, _LENGTH)
    encoded = b"".join(column.astype(kind).tobytes() for column, kind in zip(joined, kinds, strict=True))
    return TextSegment(base, int(joined[2].sum()), _seal(encoded), blocks)


def _kept_rows(count: int, removed: Collection[int]) -> Any:
    kept = load_numpy().ones(count, bool)
    if removed:
        kept[list(removed)] = False
    return kept


def _renumber(block: Block, kept: Any, fresh: Any) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield a block's words with the new numbers of the rows that are kept; words that have none are left out."""
    numpy = load_numpy()
    rows, weights = numpy.frombuffer(block.rows, _LENGTH), numpy.frombuffer(block.weights, numpy.uint8)
    if len(rows) and int(rows.max()) >= len(kept):
        raise DamagedSegment("a word is in a text that the segment does not have")
    standing = kept[rows]
    ends = numpy.cumsum(standing)[numpy.cumsum(block.counts) - 1]
    numbers, held = fresh[rows[standing]].astype(_LENGTH).tobytes(), weights[standing].tobytes()
    first = 0
    for word, last in zip(block.words.split(" "), ends.tolist(), strict=True):
        if last > first:
            yield word, numbers[2 * first : 2 * last], held[first:last]
        first = last


class RankedRows:
    """The texts of a collection that have some of the words, with their scores."""

    def __init__(self, seqs: Any, scores: Any) -> None:
        self._seqs, self._scores = seqs, scores

    def best(self, limit: int) -> list[tuple[int, float]]:
        """Return (seq, score) of the best texts; of equal scores the newer one first."""
        numpy = load_numpy()
        seqs, scores = self._seqs, self._scores
        if limit < len(scores):
            least = numpy.partition(scores, len(scores) - limit)[len(scores) - limit]
            chosen = scores >= least
            seqs, scores = seqs[chosen], scores[chosen]
        order = numpy.lexsort((-seqs.astype(numpy.int64), -scores))[:limit]
        return list(zip(seqs[order].tolist(), scores[order].tolist(), strict=True))


def rank_rows(views: Sequence[SegmentView], words: Sequence[str], places: Collection[int] | None) -> RankedRows:
    """Rank the texts of a collection by stems of words, in these places only (None: all of them).

    Words that occur several times count as often. The places do not change the scores.
    """
    numpy = load_numpy()
    columns = [read_rows(view.rows) for view in views]
    loaded = [(*each, _kept_rows(len(each[0]), view.removed)) for each, view in zip(columns, views, strict=True)]
    total = sum(int(kept.sum()) for *_, kept in loaded)
    if not total:
        return RankedRows(numpy.empty(0, numpy.uint64), numpy.empty(0))
    mean = sum(int(lengths[kept].sum()) for _, _, lengths, kept in loaded) / total
    found = {word: [_read_pair(view.postings.get(word)) for view in views] for word in dict.fromkeys(words)}
    rarity = {word: _weigh_rarity(total, pairs, loaded) for word, pairs in found.items()}
    seqs, scores = [], []
    for at, (numbers, where, lengths, kept) in enumerate(loaded):
        sums = numpy.zeros(len(numbers))
        for word in words:
            rows, weights = found[word][at]
            often = weights / 2
            sums[rows] += rarity[word] * (often * (_K1 + 1) / (often + _K1 * (1 - _B + _B * lengths[rows] / mean)))
        chosen = kept & (sums > 0)
        if places is not None:
            chosen &= numpy.isin(where, list(places))
        seqs.append(numbers[chosen])
        scores.append(sums[chosen])
    return RankedRows(numpy.concatenate(seqs), numpy.concatenate(scores))


def _read_pair(postings: tuple[bytes, bytes] | None) -> tuple[Any, Any]:
    numpy = load_numpy()
    rows, weights = postings or (b"", b"")
    return numpy.frombuffer(rows, _LENGTH), numpy.frombuffer(weights, numpy.uint8)


def _weigh_rarity(total: int, pairs: Sequence[tuple[Any, Any]], loaded: Sequence[tuple[Any, Any, Any, Any]]) -> float:
    """Return the weight of a word by the share of texts that have it."""
    having = sum(int(kept[rows].sum()) for (rows, _), (*_, kept) in zip(pairs, loaded, strict=True))
    weight = math.log((total - having + 0.5) / (having + 0.5))
    return weight if weight > 0 else _LEAST_RARITY
