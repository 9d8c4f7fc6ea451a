"""The segments of each tenant's text index, as rows of the journal: read, added, merged and removed.

A segment is a row of `text_segments` and its blocks are rows of `text_blocks`, numbered below it; block 0 holds its
texts. Both are shared by all tenants, so another tenant costs no table. What a search reads is named by row numbers.

Every change here belongs to the caller's transaction. A change that was prepared outside of it names the generation of
the index that it was made from: erasing and repairing begin another one, so that nothing is brought back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.core.search.segments import (
    MAX_ROWS,
    DamagedSegment,
    SegmentView,
    TextSegment,
    choose_merge,
    find_block,
    find_rows,
    merge_segments,
    read_postings,
    read_rows,
)
from holdfast.errors import Corrupt
from holdfast.journal.sqlite.artifacts import row_digest
from holdfast.journal.sqlite.statements import queries
from holdfast.sqlite.connection import fetch_rows

_BLOCK_BITS = 20
_JSON = msgspec.json.Encoder()
_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder(tuple[str, ...])
_NUMBERS = msgspec.msgpack.Decoder(tuple[int, ...])
DAMAGED = "The text index is damaged. Run `holdfast rebuild`: it is made again from the events."


def has_index(connection: apsw.Connection) -> bool:
    """Return True if any text was ever indexed here."""
    return bool(fetch_rows(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'text_cursors'"))


def create_index(connection: apsw.Connection) -> None:
    """Create the tables unless they exist."""
    if not has_index(connection):
        for sql in queries()["create_text_index"].split(";"):
            connection.execute(sql)


def fetch_index(connection: apsw.Connection, name: str, *values: int) -> list[Any]:
    """Return every row of a named query of the index; none if there is no index yet."""
    try:
        return fetch_rows(connection, queries()[name], values)
    except apsw.SQLError:
        if has_index(connection):
            raise
        return []


class IndexCursor(msgspec.Struct, frozen=True):
    """How far the texts of a tenant are indexed, and the generation of its index."""

    seq: int = 0
    generation: int = 0


class SegmentRow(msgspec.Struct, frozen=True, array_like=True):
    """A segment as it is listed: its size, the first word of each block, and the numbers of removed texts."""

    id: int
    count: int
    directory: bytes
    removed: bytes
    body: bytes
    digest: bytes

    @property
    def removed_rows(self) -> tuple[int, ...]:
        """The numbers of removed texts."""
        return _NUMBERS.decode(self.removed)


class SegmentMerge(msgspec.Struct, frozen=True):
    """Segments as they were when this was prepared, and the one that takes their place."""

    replaced: tuple[SegmentRow, ...]
    merged: TextSegment


class TextSegments:
    """The text index of one tenant, on a connection."""

    def __init__(self, connection: apsw.Connection, tenant: int) -> None:
        self._connection = connection
        self._tenant = tenant

    # reading

    def cursor(self) -> IndexCursor:
        """Return how far this tenant is indexed."""
        rows = fetch_index(self._connection, "text_cursor", self._tenant)
        return IndexCursor(*rows[0]) if rows else IndexCursor()

    def segments(self) -> list[SegmentRow]:
        """Return every segment, oldest first; raise Corrupt if a row of them is not as it was written."""
        found = self._list_rows()
        if not all(map(self._is_intact, found)):
            raise Corrupt(DAMAGED)
        return found

    def _list_rows(self) -> list[SegmentRow]:
        return [SegmentRow(*row) for row in fetch_index(self._connection, "text_segments", self._tenant)]

    def _is_intact(self, one: SegmentRow) -> bool:
        return row_digest(self._tenant, one.id, one.count, one.directory, one.removed, one.body) == one.digest

    def find_damaged(self) -> list[int]:
        """Return the ids of segments that are not as they were written."""
        return [one.id for one in self._list_rows() if not (self._is_intact(one) and self._has_its_blocks(one))]

    def _has_its_blocks(self, one: SegmentRow) -> bool:
        try:
            return _digest(self.load(one)) == one.body
        except Corrupt:
            return False

    def views(self, words: Sequence[str]) -> list[SegmentView]:
        """Return what a search for stems of words needs of every segment, read at once."""
        segments = self.segments()
        wanted: dict[int, list[str]] = {one.id << _BLOCK_BITS: [] for one in segments}
        for one in segments:
            directory = _UNPACK.decode(one.directory)
            for word in dict.fromkeys(words):
                number = find_block(directory, word)
                if number is not None:
                    wanted.setdefault((one.id << _BLOCK_BITS) + 1 + number, []).append(word)
        bodies = self._bodies(wanted)
        postings: dict[int, dict[str, tuple[bytes, bytes]]] = {one.id: {} for one in segments}
        try:
            for place, some in wanted.items():
                if some:
                    postings[place >> _BLOCK_BITS].update(read_postings(bodies[place], some))
            return [SegmentView(bodies[one.id << _BLOCK_BITS], one.removed_rows, postings[one.id]) for one in segments]
        except (KeyError, DamagedSegment):
            raise Corrupt(DAMAGED) from None

    def _bodies(self, places: Collection[int]) -> dict[int, bytes]:
        if not places:
            return {}
        wanted = _JSON.encode(list(places)).decode()
        return dict(fetch_rows(self._connection, queries()["text_blocks"], (wanted,)))

    def load(self, row: SegmentRow) -> TextSegment:
        """Return a whole segment."""
        first = row.id << _BLOCK_BITS
        held = fetch_rows(self._connection, queries()["text_blocks_between"], (first, first + (1 << _BLOCK_BITS)))
        directory = _UNPACK.decode(row.directory)
        if [id for id, _ in held] != list(range(first, first + 1 + len(directory))):
            raise Corrupt(DAMAGED)
        rows, *bodies = (body for _, body in held)
        try:
            lengths = read_rows(rows)[2]
        except DamagedSegment:
            raise Corrupt(DAMAGED) from None
        return TextSegment(row.count, int(lengths.sum()), rows, tuple(zip(directory, bodies, strict=True)))

    def seqs(self, *, hidden: bool) -> set[int]:
        """Return the seq of every indexed text, with those that are no longer current if `hidden`."""
        found: set[int] = set()
        for one in self.segments():
            held = read_rows(self._read_body(one))[0].tolist()
            removed = frozenset(() if hidden else one.removed_rows)
            found.update(seq for number, seq in enumerate(held) if number not in removed)
        return found

    def _read_body(self, one: SegmentRow) -> bytes:
        place = one.id << _BLOCK_BITS
        try:
            body = self._bodies([place])[place]
            read_rows(body)
        except (KeyError, DamagedSegment):
            raise Corrupt(DAMAGED) from None
        return body

    # writing

    def insert(self, segment: TextSegment) -> None:
        """Add a segment, unless it is empty."""
        if not segment.count:
            return
        create_index(self._connection)
        directory = _PACK.encode(segment.directory)
        values = (self._tenant, segment.count, directory, _PACK.encode(()), _digest(segment))
        ((id,),) = fetch_rows(self._connection, queries()["insert_text_segment"], values)
        bodies = [segment.rows, *(body for _, body in segment.blocks)]
        places = ((id << _BLOCK_BITS) + number for number in range(len(bodies)))
        self._connection.executemany(queries()["insert_text_block"], list(zip(places, bodies, strict=True)))

    def drop(self, ids: Iterable[int]) -> None:
        """Remove whole segments."""
        for id in ids:
            first = id << _BLOCK_BITS
            self._connection.execute(queries()["drop_text_blocks"], (first, first + (1 << _BLOCK_BITS)))
            self._connection.execute(queries()["drop_text_segment"], (self._tenant, id))

    def reset(self) -> None:
        """Begin the index again."""
        self.drop([one.id for one in self._list_rows()])
        self.begin_generation()
        self.advance(0)

    def advance(self, seq: int) -> None:
        """Note that every text up to this one is indexed."""
        self._move_cursor(seq, self.cursor().generation)

    def begin_generation(self) -> None:
        """Refuse whatever was prepared from this index until now."""
        known = self.cursor()
        self._move_cursor(known.seq, known.generation + 1)

    def _move_cursor(self, seq: int, generation: int) -> None:
        create_index(self._connection)
        self._connection.execute(queries()["move_text_cursor"], (self._tenant, seq, generation))

    def remove(self, seqs: Collection[int]) -> None:
        """Hide texts that are no longer current. Their words stay until their segment is written anew."""
        if seqs:
            for one in self.segments():
                gone = self._find_rows(one, seqs)
                if not gone.issubset(one.removed_rows):
                    removed = sorted(gone.union(one.removed_rows))
                    self._connection.execute(queries()["hide_texts"], (_PACK.encode(removed), self._tenant, one.id))

    def erase(self, seqs: Collection[int]) -> None:
        """Remove texts with their words: the segments that hold them are written anew."""
        self.begin_generation()
        for one in self.segments():
            gone = self._find_rows(one, seqs)
            if gone:
                left = _merge([(self.load(one), gone.union(one.removed_rows))])
                self.drop([one.id])
                self.insert(left)

    def _find_rows(self, one: SegmentRow, seqs: Collection[int]) -> frozenset[int]:
        """Return the numbers of a segment's texts that are among these, hidden or not."""
        return find_rows(self._read_body(one), seqs)

    def prepare_merge(self, most: int = MAX_ROWS) -> SegmentMerge | None:
        """Return the next merge that keeps segments few, of at most `most` texts, or None."""
        segments = self.segments()
        chosen = choose_merge([(one.count, len(one.removed_rows)) for one in segments], most)
        if not chosen:
            return None
        parts = tuple(segments[number] for number in chosen)
        return SegmentMerge(parts, _merge([(self.load(one), one.removed_rows) for one in parts]))

    def store_merge(self, merge: SegmentMerge) -> bool:
        """Write a merge, unless one of its segments has changed since it was prepared."""
        if not set(merge.replaced).issubset(self.segments()):
            return False
        self.drop([one.id for one in merge.replaced])
        self.insert(merge.merged)
        return True


def _merge(parts: Sequence[tuple[TextSegment, Collection[int]]]) -> TextSegment:
    try:
        return merge_segments(parts)
    except DamagedSegment:
        raise Corrupt(DAMAGED) from None


def _digest(segment: TextSegment) -> bytes:
    seen = hashlib.blake2b(segment.rows, digest_size=8)
    for word, body in segment.blocks:
        seen.update(word.encode() + b"\0" + body)
    return seen.digest()
