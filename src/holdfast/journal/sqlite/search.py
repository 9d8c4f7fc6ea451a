"""The text index and the vectors of the SQLite journal.

The text index is written with the events, and repaired from them. Vectors are a cache, created on first
use and remade when lost.

"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import apsw
import msgspec

from holdfast.core.journal.codec import decode, decode_facts
from holdfast.core.search.documents import (
    INDEXED_BYTES,
    SAID,
    Hit,
    TextSearch,
    artifact_id,
    beginning_of,
    said,
    searchable,
)
from holdfast.core.search.words import OWN_CONTEXT
from holdfast.journal import text_index
from holdfast.journal.sqlite.artifacts import ArtifactFiles
from holdfast.journal.sqlite.rows import stored_event
from holdfast.journal.sqlite.statements import queries
from holdfast.journal.text_index import Around, Placed
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.events.sessions import MessageContent
from holdfast.sqlite.connection import ask
from holdfast.sqlite.fts import TextIndex

_JSON = msgspec.json.Encoder()
BATCH = 1_000
MOSTLY = 0.8
"""The share of all events from which a place counts as nearly everything."""


def around(connection: apsw.Connection, files: ArtifactFiles) -> Around:
    """Return the lookups that indexing makes, answered within the transaction."""

    def previous(placed: Placed) -> str:
        values = (placed.tenant, placed.stream, placed.event.version)
        rows = ask(connection, queries()["message_before"], values)
        if not rows or rows[0][0] is None:
            return ""
        return said(decode(rows[0][0], MessageContent), partial(beginning, placed))

    def replaced(placed: Placed, key: str) -> int | None:
        values = (placed.tenant, placed.stream, key, placed.event.version)
        rows = ask(connection, queries()["entry_before"], values)
        return rows[0][0] if rows else None

    def beginning(placed: Placed, name: str) -> str:
        return _beginning(connection, files, placed.tenant, name)

    return Around(previous, replaced, beginning)


def _beginning(connection: apsw.Connection, files: ArtifactFiles, tenant: int, name: str) -> str:
    """Return the beginning of a large text, reading only as much of it as is indexed."""
    raw = artifact_id(name)
    rows = ask(connection, queries()["artifact_beginning"], (tenant, raw, INDEXED_BYTES))
    if not rows or rows[0][2]:
        return ""
    owner, in_file, _, body = rows[0]
    return beginning_of(files.beginning(owner, raw, INDEXED_BYTES) if in_file else body)


def search(connection: apsw.Connection, tenant: str, wanted: TextSearch) -> list[Hit]:
    """Return the hits of one tenant."""
    numbers = ask(connection, "SELECT id FROM tenants WHERE name = ?", (tenant,))
    if not numbers:
        return []
    number = numbers[0][0]
    places, mostly = None, False
    if not wanted.everywhere:
        names = _JSON.encode(wanted.streams).decode()
        streams = ask(connection, queries()["stream_ids"], (number, names))
        ((events,),) = ask(connection, queries()["position"])
        places = [stream for stream, _ in streams]
        mostly = bool(places) and sum(version for _, version in streams) >= MOSTLY * events

    def found(rows: Sequence[tuple[int, float]]) -> list[Hit]:
        return hits(connection, tenant, number, rows)

    return text_index.find(connection, number, places, wanted, found, mostly=mostly)


def hits(connection: apsw.Connection, tenant: str, number: int, rows: Sequence[tuple[int, float]]) -> list[Hit]:
    """Return events by their numbers, in the same order, with the facts that tell whether they are current."""
    wanted = _JSON.encode([seq for seq, _ in rows]).decode()
    by_seq = {row[0]: row for row in ask(connection, queries()["hits"], (wanted, number))}
    return [_hit(by_seq[seq], tenant, score) for seq, score in rows if seq in by_seq]


def _hit(row: tuple[object, ...], tenant: str, score: float) -> Hit:
    *event, stream, retracted, floor, current, expires_at = row
    return Hit(
        event=stored_event(event, tenant, stream),  # type: ignore[arg-type]
        score=score,
        retracted=retracted,  # type: ignore[arg-type]
        floor=floor or 0,  # type: ignore[arg-type]
        current=bool(current),
        expires_at=expires_at,  # type: ignore[arg-type]
    )


def tables(connection: apsw.Connection) -> list[int]:
    """Return the tenants that have an index."""
    numbers = [number for (number,) in ask(connection, "SELECT id FROM tenants ORDER BY id")]
    return [number for number in numbers if TextIndex(connection, text_index.table(number)).exists()]


def strangers(connection: apsw.Connection, tenant: int) -> set[int]:
    """Return index rows without a message or entry that has words, current or not."""
    wanted = {seq for (seq,) in ask(connection, queries()["texts_ever"], (tenant,))}
    return set(TextIndex(connection, text_index.table(tenant)).rowids()) - wanted


def repair(connection: apsw.Connection, files: ArtifactFiles) -> None:
    """Make every index hold exactly the current texts; rebuild a damaged one."""
    for (number,) in ask(connection, "SELECT id FROM tenants ORDER BY id"):
        index = TextIndex(connection, text_index.table(number))
        if index.exists() and not index.sound():
            index.drop()
        wanted = {seq for (seq,) in ask(connection, queries()["texts"], (number,))}
        if not index.exists():
            if not wanted:
                continue
            index.create()
        there = set(index.rowids())
        index.remove(sorted(there - wanted))
        missing = sorted(wanted - there)
        for first in range(0, len(missing), BATCH):
            _fill(connection, files, number, index, missing[first : first + BATCH])


def _fill(connection: apsw.Connection, files: ArtifactFiles, tenant: int, index: TextIndex, seqs: list[int]) -> None:
    rows = ask(connection, queries()["events_by_seq"], (_JSON.encode(seqs).decode(),))
    there = around(connection, files)
    passages = []
    for row in rows:
        placed = Placed(tenant, row[2], stored_event(row, "", ""))
        event = placed.event
        facts = decode_facts(event.type, event.schema, event.facts)
        text = searchable(event.type, facts, event.content, partial(there.beginning, placed))
        previous = there.previous(placed) if event.type == SAID and len(text) <= OWN_CONTEXT else ""
        if text:
            passages.append(text_index.passage(placed, text, previous))
    index.add(passages)


def forget_texts(connection: apsw.Connection, files: ArtifactFiles, tenant: int, subject: int) -> None:
    """Remove a subject's words from the index and from its pages, once their content is gone.

    A short message is indexed with the end of the message before it, so messages that follow are reindexed.
    """
    index = TextIndex(connection, text_index.table(tenant))
    if index.exists():
        doomed = {seq for (seq,) in ask(connection, queries()["texts_of_subject"], (tenant, subject))}
        if doomed:
            after = {seq for (seq,) in ask(connection, queries()["messages_after_subject"], (tenant, subject))} - doomed
            known = after & set(index.rowids())
            index.remove(sorted(doomed | known))
            _fill(connection, files, tenant, index, sorted(known))
            index.scrub()


def there(connection: apsw.Connection) -> bool:
    """Return True if any text was ever embedded here."""
    return bool(ask(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'vectors'"))


def create(connection: apsw.Connection) -> None:
    """Create the table unless it exists."""
    if not there(connection):
        for sql in queries()["create_vectors"].split(";"):
            connection.execute(sql)


def missing(connection: apsw.Connection, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
    """Return texts of a stream that have no vector yet, oldest first."""
    after = 0
    if there(connection):
        ((after,),) = ask(connection, queries()["newest_vector"], (tenant, stream, embedder))
    rows = ask(connection, queries()["texts_after"], (tenant, stream, after or 0, limit))
    return [stored_event(row, tenant, stream) for row in rows]


def known(connection: apsw.Connection, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return vectors of texts that were embedded before, by digest."""
    if not there(connection):
        return {}
    wanted = _JSON.encode([digest.hex() for digest in digests]).decode()
    return dict(ask(connection, queries()["known_vectors"], (tenant, embedder, wanted)))


def keep(
    connection: apsw.Connection, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]
) -> None:
    """Store vectors of events that still have their content; events erased meanwhile are left out."""
    create(connection)
    connection.executemany(
        queries()["keep_vector"], [(tenant, stream, embedder, seq, digest, vector) for seq, digest, vector in rows]
    )


def after(connection: apsw.Connection, tenant: str, stream: str, embedder: str, seq: int) -> list[tuple[int, bytes]]:
    """Return the vectors of a stream, in order of their events."""
    if not there(connection):
        return []
    return ask(connection, queries()["vectors_after"], (tenant, stream, embedder, seq))


def drop(connection: apsw.Connection, tenant: str, seqs: Sequence[int]) -> None:
    """Delete the vectors of events that are no longer current."""
    if there(connection):
        connection.execute(queries()["drop_vectors"], (tenant, _JSON.encode(list(seqs)).decode()))


def forget_vectors(connection: apsw.Connection, tenant: int, subject: int) -> None:
    """Delete the vectors made from a subject's texts."""
    if there(connection):
        connection.execute(queries()["forget_vectors"], (tenant, subject))
