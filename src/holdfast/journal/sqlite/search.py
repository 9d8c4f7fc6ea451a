"""The text index and the vectors of the SQLite journal.

The text index follows the events up to a cursor of each tenant, in batches: when a search finds much pending, and when
enough was appended. A search sees everything that was appended before it. Vectors are a cache, created on first use
and remade when lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import apsw
import msgspec

from holdfast.core.journal.codec import decode, decode_facts, read_content
from holdfast.core.search.documents import (
    INDEXED_BYTES,
    STATE_WRITTEN,
    Hit,
    TextRow,
    TextSearch,
    artifact_id,
    decode_beginning,
)
from holdfast.core.search.segments import (
    MAX_ROWS,
    DamagedSegment,
    SegmentView,
    TextSegment,
    build_segment,
    hide_rows,
    rank_rows,
    view_segment,
)
from holdfast.core.search.words import content_text, searchable_text
from holdfast.errors import Corrupt, OutcomeUnknown, Unavailable
from holdfast.journal import text_index
from holdfast.journal.sqlite.artifacts import ArtifactFiles
from holdfast.journal.sqlite.rows import event_from_row
from holdfast.journal.sqlite.segments import DAMAGED, IndexCursor, SegmentMerge, TextSegments, fetch_index
from holdfast.journal.sqlite.statements import queries
from holdfast.journal.text_index import IndexedEvent, IndexLookups
from holdfast.records.events.sessions import MessageContent
from holdfast.sqlite.connection import fetch_rows
from holdfast.sqlite.fts import STEMS

if TYPE_CHECKING:
    from holdfast.journal.sqlite.journal import SqliteJournal

_JSON = msgspec.json.Encoder()
FOLLOWED_AT_ONCE, FOLLOWED_BYTES = 1_000, 8 * 1024 * 1024
"""The most texts that are indexed in one transaction, and the bytes of content after which a batch ends."""
SEARCHED_IN_MEMORY, SEARCHED_BYTES = 32, 256 * 1024
"""Pending texts, or bytes of them, from which a search stores them in the index first."""
REPAIRED_AT_ONCE = 250
"""The largest number of texts that a repair indexes while it has the write lock."""
PATIENCE_MS = 50
"""The longest wait for the write lock, which a search does not need."""


def make_lookups(connection: apsw.Connection, files: ArtifactFiles) -> IndexLookups:
    """Return the lookups that indexing makes, answered within the transaction."""

    def previous(placed: IndexedEvent) -> str:
        values = (placed.tenant, placed.stream, placed.event.version)
        rows = fetch_rows(connection, queries()["message_before"], values)
        if not rows or rows[0][0] is None:
            return ""
        return content_text(decode(rows[0][0], MessageContent), partial(beginning, placed))

    def replaced(placed: IndexedEvent, key: str) -> int | None:
        values = (placed.tenant, placed.stream, key, placed.event.version)
        rows = fetch_rows(connection, queries()["entry_before"], values)
        return rows[0][0] if rows else None

    def beginning(placed: IndexedEvent, name: str) -> str:
        return _artifact_beginning(connection, files, placed.tenant, name)

    return IndexLookups(previous, replaced, beginning)


def _artifact_beginning(connection: apsw.Connection, files: ArtifactFiles, tenant: int, name: str) -> str:
    """Return the beginning of a large text, reading only as much of it as is indexed."""
    raw = artifact_id(name)
    rows = fetch_rows(connection, queries()["artifact_beginning"], (tenant, raw, INDEXED_BYTES))
    if not rows or rows[0][2]:
        return ""
    owner, in_file, _, body = rows[0]
    return decode_beginning(files.read_beginning(owner, raw, INDEXED_BYTES) if in_file else body)


class PendingTexts(msgspec.Struct, frozen=True):
    """A batch of texts of a tenant beyond the cursor of its index, and the entries that they replace."""

    cursor: IndexCursor
    until: int
    """The event up to which the batch goes."""
    is_last: bool
    """True if there are no more."""
    gone: tuple[int, ...] = ()
    rows: tuple[TextRow, ...] = ()


def read_pending(
    connection: apsw.Connection,
    files: ArtifactFiles,
    tenant: int,
    *,
    after: int | None = None,
    limit: int = FOLLOWED_AT_ONCE,
    size: int = FOLLOWED_BYTES,
) -> PendingTexts:
    """Return the next texts of a tenant that are not indexed, behind its cursor or `after` an event."""
    known = TextSegments(connection, tenant).cursor()
    placed: list[IndexedEvent] = []
    cursor = connection.cursor()
    for row in cursor.execute(queries()["pending_texts"], (tenant, known.seq if after is None else after, limit)):
        event = event_from_row(row, row[-1], row[-2])
        facts = decode_facts(event.type, event.schema, event.facts)
        placed.append(IndexedEvent(tenant, row[2], event, facts, read_content(event)))
        size -= len(event.content or b"")
        if size <= 0:
            break
    cursor.close()
    if not placed:
        return PendingTexts(known, known.seq, True)
    ((_, gone, rows),) = text_index.index_events(placed, make_lookups(connection, files))
    is_last = size > 0 and len(placed) < limit
    return PendingTexts(known, placed[-1].event.seq, is_last, tuple(gone), tuple(rows))


def store_pending(connection: apsw.Connection, tenant: int, pending: PendingTexts, segment: TextSegment) -> bool:
    """Add pending texts as a segment, unless the index has moved on since they were read."""
    index = TextSegments(connection, tenant)
    if index.cursor() != pending.cursor:
        return False
    index.remove(pending.gone)
    index.insert(segment)
    index.advance(pending.until)
    return True


def follow_events(journal: SqliteJournal, tenant: int, merged: int = MAX_ROWS) -> None:
    """Index every pending text of a tenant, in batches, then make one merge of at most `merged` texts if one is due.

    Texts are read and split outside of the write lock. Whoever else holds it for long is not waited for.
    """
    journal.writer.forget_texts(tenant)
    read, write = journal.connections.reader, journal.connections.transact
    is_last = not journal.connections.is_writable(PATIENCE_MS)
    while not is_last:
        with read() as connection:
            pending = read_pending(connection, journal.files, tenant)
        is_last = pending.is_last
        if pending.until > pending.cursor.seq:
            segment = build_segment(pending.rows, STEMS)
            write(partial(store_pending, tenant=tenant, pending=pending, segment=segment))
        if is_last:
            with read() as connection:
                merge = TextSegments(connection, tenant).prepare_merge(merged)
            if merge is not None:
                write(partial(_store_merge, tenant=tenant, merge=merge))


def _store_merge(connection: apsw.Connection, tenant: int, merge: SegmentMerge) -> bool:
    return TextSegments(connection, tenant).store_merge(merge)


def search_texts(journal: SqliteJournal, tenant: str, wanted: TextSearch) -> list[Hit]:
    """Return the hits of one tenant, among all texts that were appended before.

    What is pending is indexed first if it is much. A reader that cannot write, and one within a snapshot, searches
    pending texts in memory instead.
    """
    pinned = journal.connections.pinned.connection is not None
    few = {"limit": SEARCHED_IN_MEMORY, "size": SEARCHED_BYTES}
    with journal.connections.reader() as connection:
        numbers = fetch_rows(connection, "SELECT id FROM tenants WHERE name = ?", (tenant,))
        if not numbers or not journal.settings.index_text:
            return []
        number = numbers[0][0]
        pending = read_pending(connection, journal.files, number, **few)
        if pinned or pending.is_last:
            return _search_segments(connection, journal.files, (tenant, number), wanted, pending)
    with suppress(Unavailable, OutcomeUnknown), journal.following.lock:  # If it fails, pending texts stay pending.
        follow_events(journal, number)
    with journal.connections.reader() as connection:
        pending = read_pending(connection, journal.files, number)
        return _search_segments(connection, journal.files, (tenant, number), wanted, pending)


def _search_segments(
    connection: apsw.Connection,
    files: ArtifactFiles,
    tenant: tuple[str, int],
    wanted: TextSearch,
    pending: PendingTexts,
) -> list[Hit]:
    """Search the segments of a tenant and its pending texts, of which the first batch is given."""
    name, number = tenant
    places = None
    if not wanted.everywhere:
        names = _JSON.encode(wanted.streams).decode()
        places = [stream for (stream,) in fetch_rows(connection, queries()["stream_ids"], (number, names))]
    words = [STEMS[term] for term in wanted.terms]
    views = TextSegments(connection, number).views(words)
    try:
        views = _add_pending(views, words, pending)
        while not pending.is_last:
            pending = read_pending(connection, files, number, after=pending.until)
            views = _add_pending(views, words, pending)
        ranked = rank_rows(views, words, places)
    except DamagedSegment:
        raise Corrupt(DAMAGED) from None
    return text_index.find_hits(ranked.best, wanted, partial(load_hits, connection, name, number))


def _add_pending(views: list[SegmentView], words: Sequence[str], pending: PendingTexts) -> list[SegmentView]:
    kept = [hide_rows(view, pending.gone) for view in views] if pending.gone else views
    return [*kept, view_segment(build_segment(pending.rows, STEMS), words)] if pending.rows else kept


def load_hits(connection: apsw.Connection, tenant: str, number: int, rows: Sequence[tuple[int, float]]) -> list[Hit]:
    """Return events by their numbers, in the same order, with the facts that tell whether they are current."""
    wanted = _JSON.encode([seq for seq, _ in rows]).decode()
    scores, found = dict(rows), {}
    for *event, stream, retracted, floor, current, expires_at in fetch_rows(
        connection, queries()["hits"], (wanted, number)
    ):
        found[event[0]] = Hit(
            event=event_from_row(event, tenant, stream),
            score=scores[event[0]],
            retracted=retracted,
            floor=floor or 0,
            current=bool(current),
            expires_at=expires_at,
        )
    return [found[seq] for seq, _ in rows if seq in found]


def list_indexed_tenants(connection: apsw.Connection) -> list[int]:
    """Return the tenants that have an index."""
    return [number for (number,) in fetch_index(connection, "indexed_tenants")]


def find_orphan_rows(connection: apsw.Connection, tenant: int) -> set[int]:
    """Return index rows without a message or entry that has words, current or not."""
    wanted = {seq for (seq,) in fetch_rows(connection, queries()["texts_ever"], (tenant,))}
    return TextSegments(connection, tenant).seqs(hidden=True) - wanted


RunStep = Callable[[Callable[[], object]], object]
"""A function that runs a step in a transaction, which may be its own."""


def repair_indexes(connection: apsw.Connection, files: ArtifactFiles, run: RunStep) -> None:
    """Make every index hold exactly the current texts; remake damaged segments.

    What is wrong is found without the write lock and mended in short steps, while others write.
    """
    changed = fetch_index(connection, "changed_text_cursors")
    for (number,) in fetch_rows(connection, "SELECT id FROM tenants ORDER BY id"):
        index = TextSegments(connection, number)
        ((newest,),) = fetch_rows(connection, queries()["position"])
        if (number,) in changed or index.cursor().seq > (newest or 0):
            run(index.reset)
        damaged = index.find_damaged()
        if damaged:
            run(partial(index.drop, damaged))
        _mend_index(connection, files, number, run)
        while index.cursor().seq < (newest or 0):  # Others may be appending: not until nothing is pending.
            pending = read_pending(connection, files, number)
            if pending.until <= pending.cursor.seq:
                break
            run(partial(store_pending, connection, number, pending, build_segment(pending.rows, STEMS)))
        while (merge := index.prepare_merge()) is not None:
            run(partial(index.store_merge, merge))


def _mend_index(connection: apsw.Connection, files: ArtifactFiles, tenant: int, run: RunStep) -> None:
    """Remove rows without a text from an index, and add the texts up to its cursor that it lacks."""
    index = TextSegments(connection, tenant)
    until, there = index.cursor().seq, index.seqs(hidden=False)
    wanted = {seq for (seq,) in fetch_rows(connection, queries()["texts"], (tenant,)) if seq <= until}
    strangers = (there - wanted) | find_orphan_rows(connection, tenant)
    if strangers:
        run(partial(index.erase, strangers))
    missing = sorted(wanted - there)
    for first in range(0, len(missing), REPAIRED_AT_ONCE):
        # Read within the step: entries may have been replaced since the index was looked at.
        run(partial(_insert_texts, connection, files, tenant, missing[first : first + REPAIRED_AT_ONCE]))


def _insert_texts(connection: apsw.Connection, files: ArtifactFiles, tenant: int, seqs: Sequence[int]) -> None:
    rows = _read_texts(connection, files, tenant, seqs)
    TextSegments(connection, tenant).insert(build_segment(rows, STEMS))


def _read_texts(connection: apsw.Connection, files: ArtifactFiles, tenant: int, seqs: Sequence[int]) -> list[TextRow]:
    """Return the index rows of messages and current entries by the seqs of their events."""
    rows = fetch_rows(connection, queries()["events_by_seq"], (_JSON.encode(seqs).decode(),))
    there = make_lookups(connection, files)
    passages = []
    for row in rows:
        event = event_from_row(row, row[-1], row[-2])
        facts = decode_facts(event.type, event.schema, event.facts)
        if event.type == STATE_WRITTEN:
            current = fetch_rows(connection, queries()["state_version"], (tenant, row[2], facts.key))
            if current != [(event.version,)]:
                continue
        content = read_content(event)
        placed = IndexedEvent(tenant, row[2], event, facts, content)
        text = searchable_text(event.type, facts, content, partial(there.beginning, placed))
        previous = there.previous(placed) if text_index.needs_context(placed, text) else ""
        if text:
            passages.append(text_index.make_text_row(placed, text, previous))
    return passages


def erase_texts(connection: apsw.Connection, files: ArtifactFiles, tenant: int, seqs: Sequence[int]) -> None:
    """Remove the words of some events from the index and from its pages, once their content is gone.

    A short message is indexed with the end of the message before it, so messages that follow are reindexed. A damaged
    index does not stand in the way: it is begun again.
    """
    index = TextSegments(connection, tenant)
    try:
        after = {seq for (seq,) in fetch_rows(connection, queries()["messages_after"], (_JSON.encode(seqs).decode(),))}
        known = (after - set(seqs)) & index.seqs(hidden=False)
        index.erase(known.union(seqs))
        _insert_texts(connection, files, tenant, sorted(known))
    except Corrupt:
        index.reset()
    STEMS.clear()


def has_vectors(connection: apsw.Connection) -> bool:
    """Return True if any text was ever embedded here."""
    return bool(fetch_rows(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'vectors'"))


def create_vector_table(connection: apsw.Connection) -> None:
    """Create the table unless it exists."""
    if not has_vectors(connection):
        for sql in queries()["create_vectors"].split(";"):
            connection.execute(sql)


def erase_vectors(connection: apsw.Connection, tenant: str, seqs: Sequence[int]) -> None:
    """Delete the vectors made from the texts of some events."""
    if has_vectors(connection):
        connection.execute(queries()["drop_vectors"], (tenant, _JSON.encode(seqs).decode()))
