"""Erasure: content, salts, artifacts and the name behind a pseudonym leave every byte of the disk.

One transaction removes them and appends `subject.erased`. Then the files are deleted and the log is
truncated, because until then it still holds the old pages. After a crash, unfinished steps are found
and completed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from holdfast.core.compaction.summary import passage_key
from holdfast.core.journal.codec import decode
from holdfast.errors import Busy, HoldfastError, NotFound, Unavailable
from holdfast.journal.sqlite import search
from holdfast.journal.sqlite.rows import subject_digest
from holdfast.journal.sqlite.statements import queries
from holdfast.journal.sqlite.transaction import KnownHeads, SqlitePlan
from holdfast.records.batches import Batch, BatchPart
from holdfast.records.events.envelope import SealedEvent, Source
from holdfast.records.events.frames import FrameCompacted
from holdfast.records.reports import Erasure
from holdfast.sqlite.connection import fetch_rows

if TYPE_CHECKING:
    from holdfast.journal.sqlite.journal import SqliteJournal

MARKER_STREAM = "global"


def erase_subject(
    journal: SqliteJournal, tenant: str, subject: str, marker: Callable[[int, int, int], SealedEvent], source: Source
) -> Erasure:
    """Erase everything of one subject of one tenant. Called again, it completes unfinished steps."""

    def erase(connection: apsw.Connection) -> Erasure:
        number = next((id for (id,) in fetch_rows(connection, "SELECT id FROM tenants WHERE name = ?", (tenant,))), -1)
        known = fetch_rows(connection, "SELECT id FROM subjects WHERE tenant = ? AND name = ?", (number, subject))
        digest = subject_digest(journal.secret, subject)
        begun = fetch_rows(connection, queries()["find_erasure"], (number, digest))
        if known:
            erasure = _erase_rows(connection, journal, tenant, number, known[0][0])
            note = (number, erasure.subject, digest, erasure.events, erasure.artifacts)
            connection.execute(queries()["note_erasure"], note)
            event = marker(erasure.subject, erasure.events, erasure.artifacts)
            batch = Batch(tenant=tenant, parts=(BatchPart(stream=MARKER_STREAM, events=(event,)),), source=source)
            heads = KnownHeads(connection)
            heads.read([batch])
            plan = SqlitePlan(heads, journal.files)
            plan.add(batch)
            plan.write()
            return erasure
        if begun:
            return Erasure(subject=begun[0][0], events=begun[0][1], artifacts=begun[0][2])
        raise NotFound(f"There is no subject {subject!r} in this journal, so there is nothing to erase.")

    erasure = journal.connections.transact(erase)
    journal.announce()
    try:
        finish_erasures(journal)
    except HoldfastError as error:
        raise Busy(
            f"The erasure is committed, but its last steps are not done ({error}) Old bytes are still in the log or in "
            "files. Close other readers and erase again; opening the journal tries as well."
        ) from error
    return erasure


def _erase_rows(connection: apsw.Connection, journal: SqliteJournal, name: str, tenant: int, subject: int) -> Erasure:
    seqs = _find_events(connection, tenant, subject)
    wanted = msgspec.json.encode(seqs).decode()
    doomed = fetch_rows(connection, queries()["erasable_artifacts"], (tenant, wanted))
    connection.execute(queries()["erase_content"], (wanted,))
    events = connection.changes()
    search.erase_texts(connection, journal.files, tenant, seqs)
    search.erase_vectors(connection, name, seqs)
    if doomed:
        connection.executemany(queries()["erase_artifact"], [(tenant, artifact) for artifact, _ in doomed])
    connection.execute(queries()["erase_subject"], (tenant, subject))
    return Erasure(subject=subject, events=events, artifacts=len(doomed))


def _find_events(connection: apsw.Connection, tenant: int, subject: int) -> list[int]:
    """Return the events of a subject, and those that repeat their words: summaries and passages written with them."""
    place = (tenant, subject)
    found = [seq for (seq,) in fetch_rows(connection, queries()["subject_events"], place)]
    flushed = []
    for seq, scope, summary in fetch_rows(connection, queries()["subject_summaries"], place):
        found.append(seq)
        flushed.append((scope, summary))
    for (facts,) in fetch_rows(connection, queries()["subject_compactions"], place):
        compacted = decode(facts, FrameCompacted)
        flushed.append((compacted.flushed, compacted.compaction))
    for scope, id in flushed:
        rows = fetch_rows(connection, queries()["passages"], (tenant, scope, passage_key(id, 0)))
        found += [seq for (seq,) in rows]
    return list(dict.fromkeys(found))


def resume_erasures(journal: SqliteJournal) -> None:
    """Complete an erasure that a crash interrupted; if a reader prevents it, the next start tries again."""
    with journal.connections.reader() as connection:
        unfinished = fetch_rows(connection, queries()["unfinished_erasures"])
    if unfinished:
        try:
            finish_erasures(journal)
        except Unavailable:
            pass  # The journal is sound meanwhile, and `verify` reports the unfinished erasure.


def finish_erasures(journal: SqliteJournal) -> None:
    """Run every step after the commit; each may be repeated."""

    def remove_files(connection: apsw.Connection) -> list[Any]:
        for tenant, number, name in fetch_rows(connection, queries()["unfinished_files"]):
            journal.files.remove(tenant, name)
            connection.execute(queries()["file_gone"], (number, name))
        return fetch_rows(connection, queries()["unfinished_erasures"])

    # Under the write lock: the same body may be placed again meanwhile, and must not lose its file.
    begun = journal.connections.transact(remove_files)
    journal.connections.truncate_log()
    done = [(number, subject) for _, subject, number in begun]
    # This last commit also syncs the emptied log. Erasures that began since are not finished by it.
    journal.connections.transact(lambda connection: connection.executemany(queries()["erasure_done"], done))
