"""Rebuild projections: into shadow tables while others write, then swapped in one transaction.

Foreign keys are off on this connection only: dropping a table with them on would delete
the rows that refer to it. They are checked before the commit. Other processes notice the
swap by SQLite's schema version and prepare their statements again.

With `since`, only the rows of streams with events after that cursor are rebuilt: all events of these streams are
replayed into the shadow tables, whose rows then replace theirs.

The write lock is held for short pieces of the work only, with a pause after each, in which waiting
processes get it: owners must be able to give signs of life meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from holdfast.core.journal.codec import decode_facts
from holdfast.core.journal.project import project_event
from holdfast.core.journal.row_changes import RowChangeSet
from holdfast.core.journal.tables import PROJECTIONS
from holdfast.errors import Busy, Corrupt, InvalidValue
from holdfast.journal.sqlite import search
from holdfast.journal.sqlite.artifacts import ArtifactFiles
from holdfast.journal.sqlite.schema import SHADOW_SUFFIX, meta_digest
from holdfast.journal.sqlite.statements import bind_changes, drop_sql, merge_sql, queries, rename_sql
from holdfast.records.reports import Progress
from holdfast.sqlite.connection import MAX_BUSY_STEP, fetch_rows

if TYPE_CHECKING:
    from holdfast.journal.sqlite.journal import SqliteJournal

REBUILD_KEY = "rebuild"
REBUILD_BATCH = 4_000


def rebuild_projections(journal: SqliteJournal, progress: Progress | None, since: int) -> int:
    """Rebuild every projection, or the rows of streams that changed after a cursor; return how many events it took."""
    try:
        with journal.connections.extra_writer() as connection:
            connection.pragma("foreign_keys", 0)
            return _ProjectionRebuild(
                connection, journal.files, progress, since, index=bool(journal.settings.index_text)
            ).run()
    finally:
        journal.announce()


class _ProjectionRebuild:
    def __init__(
        self, connection: apsw.Connection, files: ArtifactFiles, progress: Progress | None, since: int, *, index: bool
    ) -> None:
        self._connection = connection
        self._files = files
        self._index = index
        self._progress = progress
        self._since = since
        self._replayed: dict[tuple[int, int], int] = {}
        """With `since`, the streams that are rebuilt, as (tenant, stream), and the versions up to which they are."""
        self._total = 0
        self._applied = 0
        self._count = 0
        self._token = os.urandom(16)

    def run(self) -> int:
        self._run_in_transaction(self._make_shadows)
        if self._since:
            self._replay_streams()
        while self._newest_seq() - self._applied > REBUILD_BATCH:
            self._run_in_transaction(lambda: self._apply(REBUILD_BATCH))
        self._run_in_transaction(self._finish)
        if self._index:
            search.repair_indexes(self._connection, self._files, self._run_in_transaction)
        self._run_in_transaction(self._forget_token)
        return self._count

    def _forget_token(self) -> None:
        self._connection.execute(queries()["drop_meta"], (REBUILD_KEY,))

    def _run_in_transaction(self, work: Any) -> None:
        """Run a short piece of the work, then leave the write lock to others until all that wait have looked."""
        began = time.monotonic()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            if work != self._make_shadows and self._owner() != self._token:
                raise Busy("Another rebuild has taken over and will finish the work. Nothing was changed by this one.")
            work()
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        time.sleep(min(time.monotonic() - began, 1.2 * MAX_BUSY_STEP))

    def _newest_seq(self) -> int:
        return int(fetch_rows(self._connection, queries()["position"])[0][0])

    def _owner(self) -> bytes | None:
        found = fetch_rows(self._connection, queries()["get_meta"], (REBUILD_KEY,))
        return found[0][0] if found else None

    def _make_shadows(self) -> None:
        # The newest rebuild owns the shadow tables: an earlier one notices and stops.
        self._connection.execute(queries()["drop_meta"], (REBUILD_KEY,))
        digest = meta_digest(REBUILD_KEY, self._token)
        self._connection.execute(queries()["insert_meta"], (REBUILD_KEY, self._token, digest))
        for table in PROJECTIONS:
            self._connection.execute(drop_sql("TABLE", table.name + SHADOW_SUFFIX))
            sql = self._schema_sql("table", table.name)
            self._connection.execute(sql.replace(table.name, table.name + SHADOW_SUFFIX, 1))

    def _schema_sql(self, kind: str, name: str) -> str:
        wanted = "SELECT sql FROM sqlite_schema WHERE type = ? AND name = ?"
        return str(fetch_rows(self._connection, wanted, (kind, name))[0][0])

    def _replay_streams(self) -> None:
        """Apply all events of the streams that changed; `_apply` continues with those that come meanwhile."""
        self._applied = self._newest_seq()
        changed = fetch_rows(self._connection, queries()["streams_after"], (self._since,))
        self._total = sum(version for _, _, version in changed)
        rows: list[Any] = []
        sql = queries()["events_between"]
        for *place, _ in changed:
            known = 0
            while page := fetch_rows(self._connection, sql, (*place, known + 1, known + REBUILD_BATCH - len(rows))):
                rows += page
                known = self._replayed[page[-1][1:3]] = page[-1][3]
                if len(rows) == REBUILD_BATCH:
                    self._run_in_transaction(partial(self._project, rows))
                    rows = []
        self._run_in_transaction(partial(self._project, rows))

    def _apply(self, limit: int) -> int:
        rows = fetch_rows(self._connection, queries()["events_after"], (self._applied, 2**63 - 1, limit))
        if self._since:  # Other streams are left as they are, and events that were replayed are not applied again.
            self._project([row for row in rows if row[3] > self._replayed.get(row[1:3], row[3])])
        else:
            self._project(rows)
        if rows:
            self._applied = rows[-1][0]
        return len(rows)

    def _project(self, rows: Sequence[Any]) -> None:
        coalesced = RowChangeSet()
        for row in rows:
            try:
                changes = project_event(row[6], decode_facts(row[6], row[7], row[18]), row[3], row[5])
            except InvalidValue as error:
                raise Corrupt(f"Event {row[0]} cannot be projected ({error}) Run `holdfast verify`.") from None
            for change in changes:
                coalesced.add((row[1], row[2]), change)
        for table in PROJECTIONS:
            statements = []
            for place, change in coalesced.changes(table.name):
                statements += bind_changes((change,), *place, SHADOW_SUFFIX)
            self._execute(statements)
        self._count += len(rows)
        if self._progress is not None:
            self._progress(self._count, self._total or self._newest_seq())

    def _execute(self, statements: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Make one call per SQL text: each row occurs once, so the order does not matter."""
        runs: dict[str, list[tuple[Any, ...]]] = {}
        for sql, values in statements:
            runs.setdefault(sql, []).append(values)
        for sql, run in runs.items():
            self._connection.executemany(sql, run)

    def _finish(self) -> None:
        while self._apply(REBUILD_BATCH):
            pass
        if self._since:
            self._merge_shadows()
        else:
            self._swap_shadows()
        broken = fetch_rows(self._connection, "PRAGMA foreign_key_check")
        if broken:
            raise Corrupt(f"Rebuilt rows refer to rows that are not there ({broken[0]}). Run `holdfast verify`.")

    def _merge_shadows(self) -> None:
        streams = msgspec.json.encode([stream for _, stream in self._replayed]).decode()
        for table in PROJECTIONS:
            self._connection.execute(merge_sql(table.name + SHADOW_SUFFIX, table.name), (streams,))

    def _swap_shadows(self) -> None:
        names = [table.name for table in PROJECTIONS]
        indexes = self._table_sql("index", names)
        views = fetch_rows(self._connection, "SELECT name, sql FROM sqlite_schema WHERE type = 'view'")
        for name, _ in views:
            # A view over a table that is being renamed would block the rename.
            self._connection.execute(drop_sql("VIEW", name))
        for name in reversed(names):
            self._connection.execute(drop_sql("TABLE", name))
        for name in names:
            self._connection.execute(rename_sql(name + SHADOW_SUFFIX, name))
        for sql in (*indexes, *(sql for _, sql in views)):
            self._connection.execute(sql)

    def _table_sql(self, kind: str, tables: Iterable[str]) -> list[str]:
        found = self._connection.execute(
            "SELECT tbl_name, sql FROM sqlite_schema WHERE type = ? AND sql IS NOT NULL", (kind,)
        )
        wanted = set(tables)
        return [sql for table, sql in found if table in wanted]
