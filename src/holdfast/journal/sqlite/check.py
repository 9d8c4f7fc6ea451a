"""Checks that only SQLite can make: pages, indexes, references, the schema, and names outside the chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import apsw

from holdfast.errors import HoldfastError, InvalidValue
from holdfast.journal.sqlite import search
from holdfast.journal.sqlite.rebuild import REBUILD_KEY
from holdfast.journal.sqlite.rows import subject_digest
from holdfast.journal.sqlite.schema import APPLICATION_ID, JOURNAL_FILE, is_meta_intact, latest_schema
from holdfast.journal.sqlite.segments import TextSegments, fetch_index
from holdfast.journal.sqlite.statements import queries
from holdfast.records.reports import Finding
from holdfast.records.scope import parse_scope
from holdfast.sqlite.connection import find_schema_changes

if TYPE_CHECKING:
    from holdfast.journal.sqlite.journal import SqliteJournal


def check_database(journal: SqliteJournal) -> Iterator[Finding]:
    """Yield every finding; a check that cannot run is a finding as well."""
    for name, look in (
        ("pages", _check_pages),
        ("references", _check_references),
        ("schema", _check_schema),
        ("meta", _check_meta),
        ("subjects", _check_subjects),
        ("streams", _check_streams),
        ("artifacts", _check_artifacts),
        ("leases", _check_leases),
        ("erasures", _check_erasures),
        ("texts", _check_texts),
        ("events", _check_numbers),
    ):
        try:
            with journal.connections.reader() as connection:
                yield from list(look(connection, journal))
        except HoldfastError as error:
            yield Finding(kind=name, where="database", problem=str(error))


def _check_pages(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    for (problem,) in connection.execute("PRAGMA integrity_check"):
        if problem != "ok":
            yield Finding(kind="pages", where="database", problem=str(problem))


def _check_references(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    for table, row, target, _ in connection.execute("PRAGMA foreign_key_check"):
        yield Finding(kind="references", where=f"{table} row {row}", problem=f"refers to nothing in {target}")


def _check_schema(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    if connection.pragma("application_id") != APPLICATION_ID or connection.pragma("user_version") != latest_schema():
        yield Finding(kind="schema", where="header", problem="the file's marks are not those of this schema")
    for item in find_schema_changes(connection, JOURNAL_FILE, latest_schema()):
        yield Finding(kind="schema", where=" ".join(item), problem="is not as this release defines it")


def _check_meta(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    names = set()
    for name, value, digest in connection.execute(queries()["meta"]):
        names.add(name)
        if not is_meta_intact(name, value, digest):
            yield Finding(kind="meta", where=name, problem="was changed")
        elif name == "secret" and value != journal.secret:
            yield Finding(kind="meta", where=name, problem="is another one than that which is in use")
    if names - {REBUILD_KEY} != {"secret"}:
        yield Finding(kind="meta", where="meta", problem=f"holds {sorted(names)} instead of the secret alone")


def _check_subjects(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    for tenant, id, name, digest in connection.execute(queries()["all_subjects"]):
        wanted = None if name is None else subject_digest(journal.secret, name)
        if wanted != digest:
            yield Finding(kind="subjects", where=f"{tenant} subject {id}", problem="the name was changed")


def _check_artifacts(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    for tenant, name in connection.execute(queries()["changed_artifacts"]):
        yield Finding(kind="artifacts", where=f"{tenant} {name.hex()}", problem="its size, time or marks were changed")


def _check_leases(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    for tenant, stream in connection.execute(queries()["changed_leases"]):
        yield Finding(kind="leases", where=f"{tenant} {stream}", problem="the count of its owner's signs was changed")


def _check_erasures(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    for tenant, subject, _ in connection.execute(queries()["unfinished_erasures"]):
        problem = "is committed and not finished: old bytes may be left. Close other readers and open the journal again"
        yield Finding(kind="erasures", where=f"{tenant} subject {subject}", problem=problem)


def _check_texts(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    """Find damaged segments of the text index, and rows that name no event with words, or an erased one."""
    for (tenant,) in fetch_index(connection, "changed_text_cursors"):
        yield Finding(kind="texts", where=f"tenant {tenant}", problem="the cursor of the text index was changed")
    for tenant in search.list_indexed_tenants(connection):
        damaged = TextSegments(connection, tenant).find_damaged()
        if damaged:
            yield Finding(kind="texts", where=f"tenant {tenant}", problem=f"{len(damaged)} segments are damaged")
            continue
        strangers = search.find_orphan_rows(connection, tenant)
        if strangers:
            problem = f"{len(strangers)} rows name no message or entry that has words; rebuild makes it anew"
            yield Finding(kind="texts", where=f"tenant {tenant}", problem=problem)


def _check_numbers(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    """Find missing events: on SQLite one writer at a time numbers them, without gaps."""
    ((newest,),) = connection.execute(queries()["position"])
    ((events,),) = connection.execute("SELECT count(*) FROM events")
    if newest != events:
        yield Finding(kind="events", where="journal", problem=f"{newest} events are numbered, {events} are stored")


def _check_streams(connection: apsw.Connection, journal: SqliteJournal) -> Iterator[Finding]:
    for name, *columns in connection.execute("SELECT name, actor_id, session_id, thread_id FROM streams"):
        try:
            scope = parse_scope(name)
        except InvalidValue as error:
            yield Finding(kind="streams", where=repr(name), problem=str(error))
            continue
        if columns != [scope.get("actor"), scope.get("session"), scope.get("thread")]:
            yield Finding(kind="streams", where=name, problem="actor, session or thread do not follow from the name")
