"""Operations on a whole journal: dump, collect, back up, restore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
from msgspec.structs import replace

from holdfast.core.journal.chain import advance_head, check_numbers, new_head
from holdfast.core.journal.codec import decode_facts
from holdfast.core.journal.project import project_event
from holdfast.core.journal.tables import TABLES
from holdfast.core.lazy import lazy_module
from holdfast.errors import Busy, Corrupt, Refused, Unavailable
from holdfast.journal.sqlite import search
from holdfast.journal.sqlite.artifacts import ArtifactFiles, sync_folder
from holdfast.journal.sqlite.rows import artifact_row, event_row, stream_row, subject_digest
from holdfast.journal.sqlite.schema import meta_digest
from holdfast.journal.sqlite.statements import bind_changes, queries, select_all_sql
from holdfast.records.batches import Artifact, Head, Row
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.reports import Progress, Subject
from holdfast.sqlite.connection import create_file, fetch_rows, translate_error
from holdfast.system import publish_file

if TYPE_CHECKING:
    import shutil

    from holdfast.journal.sqlite.journal import SqliteJournal
else:
    shutil = lazy_module(__name__, "shutil")

PAGES_PER_STEP = 512


def iterate_rows(journal: SqliteJournal, table: str) -> Iterator[tuple[str, str, Row]]:
    """Yield all rows of a projection, in order of tenant, stream and key."""
    names = TABLES[table].column_names
    with journal.connections.reader() as connection:
        for tenant, stream, *values in connection.execute(select_all_sql(TABLES[table])):
            yield tenant, stream, dict(zip(names, values, strict=True))


def iterate_artifacts(journal: SqliteJournal) -> Iterator[tuple[str, Artifact]]:
    """Yield artifacts one at a time, because bodies may be large."""
    after: tuple[int, bytes] = (-1, b"")
    while True:
        with journal.connections.reader() as connection:
            row = connection.execute(queries()["all_artifacts"], after).fetchone()
            tenants = dict(fetch_rows(connection, queries()["tenant_ids"]))
        if row is None:
            return
        tenant, name, size, at, file, erased, body = row
        after = (tenants[tenant], name)
        if file and not erased:
            body = journal.files.read(tenant, name)
        yield tenant, Artifact(name=name, size=size, at=at, body=body, erased=bool(erased))


def collect_artifacts(journal: SqliteJournal, before_ms: int) -> int:
    """Remove artifacts that nothing refers to, under the write lock, so that no new reference can appear."""
    with journal.connections.reader() as connection:
        # Look without the lock first: looking takes long where there are many files, and mostly finds nothing.
        if not any(_find_unused(journal, connection, before_ms)):
            return 0

    def collect(connection: apsw.Connection) -> int:
        unused, doomed = _find_unused(journal, connection, before_ms)
        for tenant, name, _ in unused:
            connection.execute(queries()["drop_artifact"], (tenant, name))
        # Within the lock, so that no append can rely on them; a crash here leaves files for the next run.
        for path in doomed:
            journal.files.unlink(path)
        return len(doomed) + sum(not file for _, _, file in unused)

    return journal.connections.transact(collect)


def _find_unused(
    journal: SqliteJournal, connection: apsw.Connection, before_ms: int
) -> tuple[list[tuple[Any, ...]], list[Path]]:
    """Return the old artifacts that no event refers to, and the old files that are not the body of any other."""
    unused = fetch_rows(connection, queries()["unreferred_artifacts"], (before_ms,))
    gone = {(tenant, name) for tenant, name, _ in unused}
    files = fetch_rows(connection, queries()["artifact_files"])
    known = {journal.files.path(owner, name) for owner, tenant, name in files if (tenant, name) not in gone}
    return unused, [path for path in journal.files.iterate_old(before_ms) if path not in known]


def withdraw_artifact(journal: SqliteJournal, tenant: str, name: bytes) -> None:
    """Remove a file that was placed for an append which did not need it."""

    def withdraw(connection: apsw.Connection) -> None:
        if not fetch_rows(connection, queries()["known_artifact"], (tenant, name)):
            journal.files.remove(tenant, name)

    journal.connections.transact(withdraw)


@contextmanager
def publish_copy(target: Path) -> Iterator[Path]:
    """Yield the path for a new journal, and move what was written there to `target` at the end, whole or not at all.

    An application may be started at `target` meanwhile: its files are neither replaced nor deleted.
    """
    refuse_leftovers(target)
    partial = target.with_name(f"{target.name}.{os.urandom(4).hex()}.part")
    bodies = partial.with_name(partial.name + "-artifacts")
    try:
        yield partial
        if partial.with_name(partial.name + "-wal").exists():
            raise Unavailable("The copy's log could not be folded into it. Try again.")
        refuse_leftovers(target)
        _publish_journal(partial, bodies, target)
    finally:
        for end in ("", "-wal", "-shm"):
            partial.with_name(partial.name + end).unlink(missing_ok=True)
        shutil.rmtree(bodies, ignore_errors=True)


def _publish_journal(partial: Path, bodies: Path, target: Path) -> None:
    """Give a journal its final names, the database last: an application that finds it finds its artifacts as well."""
    number, folder = partial.stat().st_ino, target.with_name(target.name + "-artifacts")
    made: list[tuple[Path, int]] = []
    try:
        for path in (bodies, *sorted(bodies.rglob("*"))) if bodies.is_dir() else ():
            name = folder / path.relative_to(bodies)
            if path.is_dir():
                name.mkdir(mode=0o700)
            else:
                publish_file(path, name)
            made.append((name, name.stat().st_ino))
        for parent in {name.parent for name, _ in made}:
            sync_folder(parent)
        publish_file(partial, target)
        sync_folder(target.parent)
    except BaseException as error:
        # Nothing is taken back once the database has its name, and only what this call made.
        for name, own in reversed(made if not _is_inode(target, number) else ()):
            if _is_inode(name, own):
                with suppress(OSError):
                    remove = name.rmdir if name.is_dir() else name.unlink
                    remove()
        if isinstance(error, FileExistsError):
            raise Refused(f"{error.filename} exists already. Move it away, or give the path of a new file.") from None
        raise translate_error(error) from error


def _is_inode(path: Path, number: int) -> bool:
    try:
        return path.stat().st_ino == number
    except OSError:
        return False


def refuse_leftovers(path: Path) -> None:
    """Refuse a path with leftovers of an earlier journal: SQLite would replay an old log over the new file."""
    for end in ("", "-wal", "-shm", "-journal", "-artifacts"):
        beside = path.with_name(path.name + end)
        if beside.exists():
            raise Refused(f"{beside} exists already. Move it away, or give the path of a new file.")


def back_up(journal: SqliteJournal, target: Path, progress: Progress | None = None) -> None:
    """Write a consistent copy of database and files while other writers go on. It appears whole or not at all."""
    with publish_copy(target) as partial:
        create_file(partial)
        with journal.connections.reader() as source:
            # The snapshot begins with the first read.
            wanted = [(owner, name) for owner, _, name in fetch_rows(source, queries()["artifact_files"])]
            _copy_database(source, partial, progress)
        _copy_files(journal, ArtifactFiles(partial.with_name(partial.name + "-artifacts")), wanted)


def _copy_database(source: apsw.Connection, target: Path, progress: Progress | None) -> None:
    try:
        copy = apsw.Connection(os.fspath(target))
        try:
            with copy.backup("main", source, "main") as run:
                while not run.done:
                    run.step(PAGES_PER_STEP)
                    if progress is not None:
                        progress(run.page_count - run.remaining, run.page_count)
        finally:
            copy.close(True)
    except apsw.Error as error:
        raise translate_error(error) from error


def _copy_files(journal: SqliteJournal, copies: ArtifactFiles, wanted: Iterable[tuple[str, bytes]]) -> None:
    for tenant, name in wanted:
        try:
            body = journal.files.read(tenant, name)
        except Corrupt:
            if journal.artifact(tenant, name) is None:
                raise Busy("An artifact was erased while it was being copied. Try again.") from None
            raise
        copies.write(tenant, name, body)


def restore_items(
    journal: SqliteJournal, secret: bytes, items: Iterable[tuple[str, StoredEvent | Subject | Artifact]]
) -> int:
    """Write exact copies in one transaction: a journal is restored whole or stays empty."""

    def copy_items(connection: apsw.Connection) -> int:
        used = (
            "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM artifacts) + (SELECT count(*) FROM subjects)"
        )
        if connection.execute(used).fetchall()[0][0]:
            raise Refused("Only an empty journal can be restored into. Give the path of a new file.")
        connection.execute(queries()["update_meta"], (secret, meta_digest("secret", secret), "secret"))
        copy = _JournalCopy(connection, journal, secret)
        for tenant, item in check_numbers(items):
            copy.add_item(tenant, item)
        copy.finish()
        return copy.count

    count = journal.connections.transact(copy_items)
    journal.announce()
    return count


class _JournalCopy:
    """A writer of exact copies, which derives heads and projections from them."""

    def __init__(self, connection: apsw.Connection, journal: SqliteJournal, secret: bytes) -> None:
        self._connection = connection
        self._journal = journal
        self._secret = secret
        self._tenants: dict[str, int] = {}
        self._heads: dict[tuple[str, str], Head] = {}
        self.count = 0

    def add_item(self, tenant: str, item: StoredEvent | Subject | Artifact) -> None:
        if tenant not in self._tenants:
            self._tenants[tenant] = len(self._tenants) + 1
            self._connection.execute(queries()["insert_tenant"], (self._tenants[tenant], tenant))
        number = self._tenants[tenant]
        if isinstance(item, Subject):
            digest = None if item.name is None else subject_digest(self._secret, item.name)
            self._connection.execute(queries()["insert_subject"], (number, item.id, item.name, digest))
        elif isinstance(item, Artifact):
            if item.body is not None:
                placed = self._journal.place_artifact(tenant, item.name, item.body, item.at)
                item = replace(item, body=placed.body)
            self._connection.execute(queries()["put_artifact"], artifact_row(item, number))
        else:
            self._add_event(tenant, number, item)

    def _add_event(self, tenant: str, number: int, event: StoredEvent) -> None:
        place = (tenant, event.stream)
        head = self._heads.get(place)
        if head is None:
            head = new_head(tenant, event.stream, len(self._heads) + 1)
        after = advance_head(head, event)
        if place not in self._heads:
            self._connection.execute(queries()["insert_stream"], stream_row(number, after))
        self._heads[place] = after
        self._connection.execute(queries()["insert_event"], event_row(event, number, head.id))
        facts = decode_facts(event.type, event.schema, event.facts)
        changes = project_event(event.type, facts, event.version, event.at)
        for sql, values in bind_changes(changes, number, head.id):
            self._connection.execute(sql, values)
        self.count += 1

    def finish(self) -> None:
        for (tenant, _), head in self._heads.items():
            owner = (head.epoch, head.holder, head.lease_ms, head.closed)
            values = (head.version, head.hash, *owner, self._tenants[tenant], head.id)
            self._connection.execute(queries()["update_stream"], values)
        if self._journal.settings.index_text:
            search.repair_indexes(self._connection, self._journal.files, lambda step: step())
