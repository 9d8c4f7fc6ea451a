"""SqliteJournal: the journal port on one file. Writes go through the group commit, reads through the pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from holdfast.core.journal.load import build_state
from holdfast.core.journal.tables import TABLES
from holdfast.core.search.documents import Hit, TextSearch
from holdfast.errors import Closed, Corrupt, NotFound
from holdfast.journal.group_commit import GroupCommit
from holdfast.journal.sqlite import check as sqlite_check
from holdfast.journal.sqlite import erase as sqlite_erase
from holdfast.journal.sqlite import maintenance
from holdfast.journal.sqlite import rebuild as sqlite_rebuild
from holdfast.journal.sqlite import rows as sqlite_rows
from holdfast.journal.sqlite import search as sqlite_search
from holdfast.journal.sqlite.artifacts import ArtifactFiles
from holdfast.journal.sqlite.rows import event_from_row
from holdfast.journal.sqlite.schema import JournalConnections, read_secret
from holdfast.journal.sqlite.statements import queries
from holdfast.journal.sqlite.transaction import SqliteWriter
from holdfast.ports.capabilities import GROUPS
from holdfast.records.batches import (
    AppendResult,
    Artifact,
    Batch,
    Head,
    HeadQuery,
    Row,
    RowQuery,
    RowWithStream,
    SessionQuery,
    SessionRow,
)
from holdfast.records.entries import Edge, EdgeQuery, EntryPageQuery
from holdfast.records.events.envelope import SealedEvent, Source, StoredEvent
from holdfast.records.frames import StreamState
from holdfast.records.reports import Erasure, EventQuery, Finding, Progress, Subject
from holdfast.records.settings import Settings
from holdfast.sqlite.connection import Durability, create_file, fetch_rows, require_sqlite

_MAX_SEQ = 2**62
_JSON = msgspec.json.Encoder()
_FRAME_TABLES = (
    "frame_handles",
    "frame_results",
    "frame_reservations",
    "frame_calls",
    "frame_children",
    "suspended_frames",
)


class SqliteJournal:
    """A journal in one file, for any number of threads and processes of one machine."""

    capabilities: frozenset[str] = frozenset({"shared", *(group.name for group in GROUPS)})

    def __init__(
        self,
        path: Path,
        *,
        settings: Settings | None = None,
        durability: Durability = "full",
        vfs: str | None = None,
    ) -> None:
        require_sqlite()
        self.settings = settings or Settings()
        # Resolved once: connections are reopened later, whatever the current folder is by then, and SQLite keeps its
        # log beside the file that a link leads to.
        self.path = path = path.resolve()
        create_file(path)
        self.connections = JournalConnections(path, durability=durability, busy_ms=self.settings.busy_ms, vfs=vfs)
        self.files = ArtifactFiles(path.with_name(path.name + "-artifacts"))
        self._watchers: list[Callable[[], None]] = []
        self._secret: bytes | None = None
        try:
            self.writer = SqliteWriter(
                self.connections, self.files, self.announce, index=bool(self.settings.index_text)
            )
            assert self.secret
            sqlite_erase.resume_erasures(self)
        except BaseException:
            self.connections.close()
            raise
        self._seen = (-1, 0)
        self._start()
        self.connections.after_fork.append(self._start)

    def _start(self) -> None:
        """Create the lock and the queue, which a forked child must not inherit."""
        settings = self.settings
        self._group = GroupCommit(self.writer.commit, members=settings.group_members, size=settings.group_bytes)
        self._polling = threading.Lock()

    @property
    def secret(self) -> bytes:
        # Not cached before the first event: an import into the empty journal, by any process, replaces it.
        if self._secret is None:
            with self.reader() as connection:
                secret = read_secret(connection)
                ((newest,),) = fetch_rows(connection, queries()["position"])
            if not newest:
                return secret
            self._secret = secret
        return self._secret

    # writing

    def append(self, batch: Batch) -> AppendResult:
        if self.connections.closed:
            raise Closed
        return self._group.submit(batch)

    def announce(self) -> None:
        """Notify the watchers of this process of a commit."""
        for callback in list(self._watchers):
            callback()

    # reading

    def reader(self, *, once: bool = False) -> AbstractContextManager[apsw.Connection]:
        """Return a connection for reading, in one consistent transaction, or for one statement."""
        return self.connections.reader(once=once)

    def head(self, tenant: str, stream: str) -> Head | None:
        known = self.connections.heads  # Within a snapshot a head is asked for often and does not change.
        if known is None:
            return self._read_head(tenant, stream)
        if (tenant, stream) not in known:
            known[tenant, stream] = self._read_head(tenant, stream)
        return known[tenant, stream]

    def _read_head(self, tenant: str, stream: str) -> Head | None:
        with self.reader(once=True) as connection:
            rows = fetch_rows(connection, queries()["head"], (tenant, stream))
        return _make_head(stream, rows[0]) if rows else None

    def heads(self, tenant: str, query: HeadQuery) -> list[Head]:
        values: tuple[Any, ...]
        name, values = "heads", (tenant, query.after, query.limit)
        if query.streams is not None:
            name, values = "heads_by_name", (tenant, _JSON.encode(query.streams).decode())
        elif query.live:
            name, values = "live_heads", (tenant, query.after_id, query.limit)
        with self.reader(once=True) as connection:
            rows = fetch_rows(connection, queries()[name], values)
        return [_make_head(row[1], (row[0], *row[2:])) for row in rows]

    def tenants(self, *, live: bool = False) -> list[str]:
        with self.reader(once=True) as connection:
            rows = fetch_rows(connection, queries()["live_tenants" if live else "tenant_ids"])
        return _check_tenant_names(row[0] for row in rows)

    def load(self, tenant: str, stream: str) -> StreamState:
        with self.reader() as connection:
            row = connection.execute(queries()["head"], (tenant, stream)).fetchone()
            if row is None:
                return StreamState()
            number = self._tenant_id(connection, tenant)
            frames = _row_dicts("frames", connection.execute(queries()["live_frames"], (number, row[0])))
            rows: dict[str, list[Row]] = {"frames": frames, **{name: [] for name in _FRAME_TABLES}}
            if frames:
                rows.update(_frame_rows(connection, number, frames))
            rows.update(sqlite_rows.load_state_rows(connection, number, row[0], stream))
        return build_state(_make_head(stream, row), rows)

    def event(self, tenant: str, id: bytes) -> StoredEvent | None:
        with self.reader() as connection:
            return sqlite_rows.read_event(connection, tenant, self._tenant_id(connection, tenant), id)

    def select(self, tenant: str, query: RowQuery) -> list[RowWithStream]:
        with self.reader(once=True) as connection:
            return sqlite_rows.select_rows(connection, tenant, query)

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionRow]:
        with self.reader() as connection:
            return sqlite_rows.list_sessions(connection, tenant, query)

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        with self.reader(once=True) as connection:
            return [name for (name,) in fetch_rows(connection, queries()["idle_sessions"], (tenant, after, now, limit))]

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        with self.reader(once=True) as connection:
            return sqlite_rows.read_entry(connection, tenant, stream, key)

    def entries(self, tenant: str, stream: str, page: EntryPageQuery) -> list[StoredEvent]:
        with self.reader(once=True) as connection:
            return sqlite_rows.list_entries(connection, tenant, stream, page)

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        with self.reader(once=True) as connection:
            return sqlite_rows.list_revisions(connection, tenant, stream, key, before, limit)

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        with self.reader(once=True) as connection:
            return sqlite_rows.list_edges(connection, tenant, query)

    def has_edge(self, tenant: str, edge: Edge) -> bool:
        with self.reader(once=True) as connection:
            return sqlite_rows.has_edge(connection, tenant, edge)

    def find_expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        with self.reader(once=True) as connection:
            return sqlite_rows.list_expired(connection, tenant, now, limit)

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        with self.reader(once=True) as connection:
            return sqlite_rows.list_scopes(connection, tenant, now, after, limit)

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        with self.reader() as connection:
            return sqlite_search.search_texts(connection, tenant, search)

    def hits(self, tenant: str, seqs: Sequence[int]) -> list[Hit]:
        with self.reader(once=True) as connection:
            return sqlite_search.load_hits(
                connection, tenant, self._tenant_id(connection, tenant), [(seq, 0.0) for seq in seqs]
            )

    def find_unembedded(self, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
        with self.reader() as connection:
            return sqlite_search.find_unembedded(connection, tenant, stream, embedder, limit)

    def vectors_by_digest(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        with self.reader() as connection:
            return sqlite_search.vectors_by_digest(connection, tenant, embedder, digests)

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        with self.connections.transaction() as connection:
            sqlite_search.keep_vectors(connection, tenant, stream, embedder, rows)

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        with self.reader() as connection:
            return sqlite_search.vectors_after(connection, tenant, stream, embedder, after)

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        with self.connections.transaction() as connection:
            sqlite_search.drop_vectors(connection, tenant, seqs)

    def lanes(self, tenant: str, sink: str | None = None) -> list[RowWithStream]:
        with self.reader(once=True) as connection:
            return sqlite_rows.list_lanes(connection, tenant, sink)

    def renew_lease(self, tenant: str, stream: str, epoch: int) -> bool:
        with self.connections.transaction() as connection:
            connection.execute(queries()["renew_lease"], (tenant, stream, epoch))
            return bool(connection.changes())

    def renewals(self, tenant: str, stream: str) -> int:
        with self.reader(once=True) as connection:
            rows = fetch_rows(connection, queries()["renewals"], (tenant, stream))
        return int(rows[0][0]) if rows else 0

    def read(self, query: EventQuery) -> list[StoredEvent]:
        if query.stream is None:
            with self.reader() as connection:
                return _read_tenant(connection, self._tenant_id(connection, query.tenant), query)
        name = "events_of_stream_backwards" if query.backwards else "events_of_stream"
        values = _query_values(query, query.tenant, query.stream, _encode_types(query))
        with self.reader(once=True) as connection:
            rows = fetch_rows(connection, queries()[name], values)
        return [event_from_row(found, query.tenant, query.stream) for found in rows]

    def events_by_key(self, tenant: str, stream: str, key: str) -> list[StoredEvent]:
        with self.reader(once=True) as connection:
            rows = fetch_rows(connection, queries()["event_by_key"], (tenant, stream, key))
        found = [event_from_row(row, tenant, stream) for row in rows]
        if not found or not found[0].rest:
            return found
        first, many = found[0].version, found[0].rest + 1
        return self.read(EventQuery(tenant=tenant, stream=stream, after=first - 1, until=first + many - 1, limit=many))

    def snapshot(self) -> AbstractContextManager[None]:
        return self.connections.snapshot()

    def position(self) -> int:
        if self.connections.pinned is not None:
            return self.connections.position
        # `data_version` changes when any other connection, of any process, has committed. It is
        # cheap to poll; the table is only read when it changed.
        with self._polling, self.connections.poller() as (connection, fresh):
            changed = connection.pragma("data_version")
            if fresh or changed != self._seen[0]:
                ((newest,),) = fetch_rows(connection, queries()["position"])
                self._seen = (changed, newest)
            return self._seen[1]

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def _tenant_id(self, connection: apsw.Connection, name: str) -> int:
        row = connection.execute("SELECT id FROM tenants WHERE name = ?", (name,)).fetchone()
        return -1 if row is None else int(row[0])

    # artifacts and subjects

    def artifact(self, tenant: str, name: bytes) -> bytes | None:
        with self.reader() as connection:
            row = connection.execute(queries()["get_artifact"], (tenant, name)).fetchone()
        if row is None:
            raise NotFound(f"There is no artifact {name.hex()} in this journal.")
        file, erased, body = row
        if erased:
            return None
        return self.files.read(tenant, name) if file else body

    def place_artifact(self, tenant: str, name: bytes, body: bytes, at: int) -> Artifact:
        if len(body) <= self.settings.inline_artifact_bytes:
            return Artifact(name=name, size=len(body), at=at, body=body)
        self.files.write(tenant, name, body)
        return Artifact(name=name, size=len(body), at=at, body=None)

    def withdraw_artifact(self, tenant: str, name: bytes) -> None:
        maintenance.withdraw_artifact(self, tenant, name)

    def collect(self, before_ms: int) -> int:
        return maintenance.collect_artifacts(self, before_ms)

    def subjects(self, tenant: str) -> list[Subject]:
        with self.reader() as connection:
            rows = fetch_rows(connection, queries()["subjects"], (tenant,))
        return [Subject(id=id, name=name) for id, name in rows]

    def erase(
        self, tenant: str, subject: str, marker: Callable[[int, int, int], SealedEvent], source: Source
    ) -> Erasure:
        return sqlite_erase.erase_subject(self, tenant, subject, marker, source)

    # the whole

    def count(self) -> int:
        with self.reader(once=True) as connection:
            ((events,),) = fetch_rows(connection, "SELECT count(*) FROM events")
        return int(events)

    def rows(self, table: str) -> Iterator[tuple[str, str, Row]]:
        return maintenance.iterate_rows(self, table)

    def rebuild(self, progress: Progress | None = None) -> int:
        return sqlite_rebuild.rebuild_projections(self, progress)

    def check(self) -> Iterator[Finding]:
        return sqlite_check.check_database(self)

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        return maintenance.iterate_artifacts(self)

    def restore(self, secret: bytes, items: Iterable[tuple[str, StoredEvent | Subject | Artifact]]) -> int:
        return maintenance.restore_items(self, secret, items)

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        maintenance.back_up(self, target, progress)

    def close(self) -> None:
        self.connections.close()


def _make_head(stream: str, row: Sequence[Any]) -> Head:
    return Head(id=row[0], stream=stream, version=row[1], hash=row[2], epoch=row[3], holder=row[4], closed=bool(row[5]))


def _check_tenant_names(found: Iterable[Any]) -> list[str]:
    names = list(found)
    if not all(isinstance(name, str) for name in names):
        raise Corrupt("A tenant has lost its name. Run `holdfast verify` and restore from a backup.")
    return sorted(names)


def _encode_types(query: EventQuery) -> str | None:
    return _JSON.encode(query.types).decode() if query.types else None


def _query_values(query: EventQuery, tenant: int | str, stream: int | str, types: str | None) -> tuple[Any, ...]:
    until = _MAX_SEQ if query.until is None else query.until
    return (tenant, stream, query.after, until, types, query.limit)


def _read_tenant(connection: apsw.Connection, tenant: int, query: EventQuery) -> list[StoredEvent]:
    # A single type has its own index; several are filtered while walking the cursor.
    one = len(query.types) == 1
    name = "events_of_type" if one else "events_of_tenant"
    types = query.types[0] if one else _encode_types(query)
    sql = queries()[name + "_backwards" if query.backwards else name]
    return [
        event_from_row(row, query.tenant, row[-1])
        for row in connection.execute(sql, _query_values(query, tenant, 0, types))
    ]


def _row_dicts(table: str, rows: Iterable[Sequence[Any]]) -> list[Row]:
    names = ("tenant", "stream", *TABLES[table].column_names)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _frame_rows(connection: apsw.Connection, tenant: int, frames: list[Row]) -> dict[str, list[Row]]:
    ids = _JSON.encode([frame["frame_id"].hex() for frame in frames]).decode()  # type: ignore[union-attr]
    found: dict[str, list[Row]] = {}
    for name, sql in zip(_FRAME_TABLES, queries()["frame_parts"].split(";"), strict=True):
        found[name] = _row_dicts(name, connection.execute(sql, (tenant, ids)))
    return found
