"""The text index and the vectors of the SQLite journal.

The text index is written with the events, and repaired from them. Vectors are a cache, created on first
use and remade when lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import apsw
import msgspec

from holdfast.core.journal.codec import decode, decode_facts
from holdfast.core.search.documents import INDEXED_BYTES, STATE_WRITTEN, Hit, TextSearch, artifact_id, decode_beginning
from holdfast.core.search.words import content_text, searchable_text
from holdfast.journal import text_index
from holdfast.journal.sqlite.artifacts import ArtifactFiles
from holdfast.journal.sqlite.rows import event_from_row
from holdfast.journal.sqlite.statements import queries
from holdfast.journal.text_index import IndexedEvent, IndexLookups
from holdfast.records.events.sessions import MessageContent
from holdfast.sqlite.connection import fetch_rows
from holdfast.sqlite.fts import TextIndex, tenant_index

_JSON = msgspec.json.Encoder()
REPAIR_BATCH = 250
MOSTLY_SHARE = 0.8
"""The share of all events from which a place counts as nearly everything."""


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


def search_texts(connection: apsw.Connection, tenant: str, wanted: TextSearch) -> list[Hit]:
    """Return the hits of one tenant."""
    numbers = fetch_rows(connection, "SELECT id FROM tenants WHERE name = ?", (tenant,))
    if not numbers:
        return []
    number = numbers[0][0]
    index = tenant_index(connection, number)
    if not index.exists():
        return []
    places, mostly = None, False
    if not wanted.everywhere:
        names = _JSON.encode(wanted.streams).decode()
        streams = fetch_rows(connection, queries()["stream_ids"], (number, names))
        ((events,),) = fetch_rows(connection, queries()["position"])
        places = [stream for stream, _ in streams]
        mostly = bool(places) and sum(version for _, version in streams) >= MOSTLY_SHARE * events
    load = partial(load_hits, connection, tenant, number)
    return text_index.find_hits(index.match, places, wanted, load, mostly=mostly)


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
    numbers = [number for (number,) in fetch_rows(connection, "SELECT id FROM tenants ORDER BY id")]
    return [number for number in numbers if tenant_index(connection, number).exists()]


def find_orphan_rows(connection: apsw.Connection, tenant: int) -> set[int]:
    """Return index rows without a message or entry that has words, current or not."""
    wanted = {seq for (seq,) in fetch_rows(connection, queries()["texts_ever"], (tenant,))}
    return set(tenant_index(connection, tenant).rowids()) - wanted


RunStep = Callable[[Callable[[], object]], object]
"""A function that runs a step in a transaction, which may be its own."""


def repair_indexes(connection: apsw.Connection, files: ArtifactFiles, run: RunStep) -> None:
    """Make every index hold exactly the current texts; rebuild a damaged one.

    What is wrong is found without the write lock and mended in short steps, while others write.
    """
    for (number,) in fetch_rows(connection, "SELECT id FROM tenants ORDER BY id"):
        index = tenant_index(connection, number)
        if index.exists() and not index.is_sound():
            run(index.drop)
        # In this order: a text that is appended in between is added twice, rather than removed.
        there = set(index.rowids()) if index.exists() else set()
        wanted = {seq for (seq,) in fetch_rows(connection, queries()["texts"], (number,))}
        if wanted and not index.exists():
            run(index.create)
        for some in _batches(there - wanted):
            run(partial(index.remove, some))
        for some in _batches(wanted - there):
            run(partial(_fill_index, connection, files, number, index, some))


def _batches(seqs: set[int]) -> Iterator[list[int]]:
    ordered = sorted(seqs)
    return (ordered[first : first + REPAIR_BATCH] for first in range(0, len(ordered), REPAIR_BATCH))


def _fill_index(
    connection: apsw.Connection, files: ArtifactFiles, tenant: int, index: TextIndex, seqs: list[int]
) -> None:
    rows = fetch_rows(connection, queries()["events_by_seq"], (_JSON.encode(seqs).decode(),))
    there = make_lookups(connection, files)
    passages = []
    for row in rows:
        event = event_from_row(row, "", "")
        facts = decode_facts(event.type, event.schema, event.facts)
        if event.type == STATE_WRITTEN:
            current = fetch_rows(connection, queries()["state_version"], (tenant, row[2], facts.key))
            if current != [(event.version,)]:
                continue  # It was replaced since its index was looked at.
        placed = IndexedEvent(tenant, row[2], event, facts, event.content)
        text = searchable_text(event.type, facts, event.content, partial(there.beginning, placed))
        previous = there.previous(placed) if text_index.needs_context(placed, text) else ""
        if text:
            passages.append(text_index.make_text_row(placed, text, previous))
    index.add(passages)


def erase_texts(connection: apsw.Connection, files: ArtifactFiles, tenant: int, seqs: Sequence[int]) -> None:
    """Remove the words of some events from the index and from its pages, once their content is gone.

    A short message is indexed with the end of the message before it, so messages that follow are reindexed.
    """
    index = tenant_index(connection, tenant)
    if index.exists():
        indexed, wanted = set(index.rowids()), _JSON.encode(seqs).decode()
        doomed = indexed.intersection(seqs)
        after = {seq for (seq,) in fetch_rows(connection, queries()["messages_after"], (wanted,))}
        known = indexed & after - doomed
        if doomed or known:
            index.remove(sorted(doomed | known))
            _fill_index(connection, files, tenant, index, sorted(known))
            index.scrub()


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
