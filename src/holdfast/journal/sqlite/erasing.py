"""Erasure: content, salts, artifacts and the name behind a pseudonym leave every byte of the disk.

One transaction removes them and appends `subject.erased`. Then the files go, and the log is
truncated, because until then it still holds the old pages. Each step is found again and
finished after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import apsw

from holdfast.errors import Busy, NotFound
from holdfast.journal.sqlite.connection import ask
from holdfast.journal.sqlite.plan import Plan
from holdfast.journal.sqlite.statements import queries
from holdfast.records.batches import Batch, Part
from holdfast.records.events.envelope import Sealed, Source
from holdfast.records.reports import Erasure

if TYPE_CHECKING:
    from holdfast.journal.sqlite.journal import SqliteJournal

MARKER_STREAM = "global"


def erase(
    journal: SqliteJournal, tenant: str, subject: str, marker: Callable[[int, int, int], Sealed], source: Source
) -> Erasure:
    """Everything that belongs to one subject of one tenant."""
    with journal.writing.transaction() as connection:
        row = connection.execute("SELECT id FROM tenants WHERE name = ?", (tenant,)).fetchone()
        number = -1 if row is None else row[0]
        row = connection.execute("SELECT id FROM subjects WHERE tenant = ? AND name = ?", (number, subject)).fetchone()
        if row is None:
            raise NotFound(f"There is no subject {subject!r} in this journal, so there is nothing to erase.")
        erasure = _erase(connection, number, row[0])
        event = marker(erasure.subject, erasure.events, erasure.artifacts)
        batch = Batch(tenant=tenant, parts=(Part(stream=MARKER_STREAM, events=(event,)),), source=source)
        plan = Plan(connection, journal.secret, journal.files, [batch], begin=False)
        plan.add(batch)
        plan.write()
    journal.announce()
    finish(journal)
    truncate_log(journal)
    return erasure


def _erase(connection: apsw.Connection, tenant: int, subject: int) -> Erasure:
    ((events,),) = ask(connection, queries()["erasable"], (tenant, subject))
    doomed = connection.execute(queries()["erasable_artifacts"], (tenant, subject)).fetchall()
    connection.execute(queries()["erase_content"], (tenant, subject))
    if doomed:
        connection.executemany(queries()["erase_artifact"], [(tenant, name) for name, _ in doomed])
    connection.execute(queries()["erase_subject"], (tenant, subject))
    return Erasure(subject=subject, events=events, artifacts=len(doomed))


def finish(journal: SqliteJournal) -> None:
    """Remove the files of artifacts that are erased; also what a crash left undone."""
    with journal.reading() as connection:
        left = connection.execute(queries()["unfinished_files"]).fetchall()
    if not left:
        return
    # Under the write lock, and asked again: the same body may have come back meanwhile.
    with journal.writing.transaction() as connection:
        for tenant, number, name in ask(connection, queries()["unfinished_files"]):
            journal.files.remove(tenant, name)
            connection.execute(queries()["file_gone"], (number, name))


def truncate_log(journal: SqliteJournal) -> None:
    """Empty the log, which still holds what was erased."""
    with journal.writing.exclusively() as connection:
        try:
            total, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            total = -1
    if total != 0:
        raise Busy(
            "The erasure is committed, but a reader keeps the log from being emptied, so old bytes are still in it. "
            "Close other readers and erase again."
        )
