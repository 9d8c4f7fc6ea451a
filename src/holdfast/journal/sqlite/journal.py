"""SqliteJournal: the journal port on one file. Writes go through the group commit, reads through the pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from holdfast.core.journal.load import build_state
from holdfast.core.journal.tables import TABLES
from holdfast.core.search.documents import Hit, TextSearch
from holdfast.errors import Closed, Corrupt, NotFound
from holdfast.journal.sqlite import check as sqlite_check
from holdfast.journal.sqlite import erase as sqlite_erase
from holdfast.journal.sqlite import maintenance
from holdfast.journal.sqlite import rebuild as sqlite_rebuild
from holdfast.journal.sqlite import rows as sqlite_rows
from holdfast.journal.sqlite import search as sqlite_search
from holdfast.journal.sqlite.artifacts import ArtifactFiles
from holdfast.journal.sqlite.rows import event_from_row, head_from_row
from holdfast.journal.sqlite.schema import JOURNAL_FILE, read_secret
from holdfast.journal.sqlite.statements import queries
from holdfast.journal.sqlite.transaction import GroupCommit, SqliteWriter
from holdfast.ports.capabilities import GROUPS
from holdfast.records.batches import (
    AppendResult,
    Artifact,
    Batch,
    Head,
    HeadQuery,
    RowQuery,
    RowWithStream,
    SessionQuery,
    SessionRow,
)
from holdfast.records.entries import Edge, EdgeQuery, EntryEvent, EntryPageQuery
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.frames import StreamState
from holdfast.records.reports import EventQuery, Progress, Subject
from holdfast.records.settings import Settings
from holdfast.sqlite.connection import Durability, create_file, fetch_rows, require_sqlite
from holdfast.sqlite.pool import SqlitePool
from holdfast.system import ForkLock

_MAX_SEQ = 2**63 - 1
MERGED_BY_APPENDS = 4_096
"""The most texts that an append merges in the index; larger merges are left to searches."""
_JSON = msgspec.json.Encoder()
_LAST_CHARACTER = "\U0010ffff"


class SqliteJournal:
    """A journal in one file, for any number of threads and processes of one machine."""

    capabilities: frozenset[str] = frozenset({"shared", *(group.name for group in GROUPS)})

    def __init__(
        self, path: Path, *, settings: Settings | None = None, durability: Durability = "full", vfs: str | None = None
    ) -> None:
        require_sqlite()
        self.settings = settings or Settings()
        # Resolved once: connections are reopened later, whatever the current folder is by then, and SQLite keeps its
        # log beside the file that a link leads to.
        self.path = path = path.resolve()
        create_file(path)
        self.connections = SqlitePool(path, JOURNAL_FILE, durability=durability, busy_ms=self.settings.busy_ms, vfs=vfs)
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
        self.following = ForkLock()
        """Held by the search that indexes pending texts: others of this process wait for it and have nothing to do."""
        self._start()
        self.connections.after_fork.append(self._start)

    def _start(self) -> None:
        """Create the lock and the queue, which a forked child must not inherit."""
        settings = self.settings
        self._group = GroupCommit(self.writer.commit, members=settings.group_members, size=settings.group_bytes)
        self._polling = threading.Lock()
        self._followers: dict[str, object] = {}

    @property
    def secret(self) -> bytes:
        # Not cached before the first event: an import into the empty journal, by any process, replaces it.
        if self._secret is None:
            with self.connections.reader() as connection:
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
        result = self._group.submit(batch)
        if self.writer.behind:
            self._follow_events()
        return result

    def _follow_events(self) -> None:
        """Index the texts of a tenant that has many pending. The append is acknowledged whatever comes of it."""
        own = object()
        if self._followers.setdefault("only one", own) is not own:
            return  # Another thread does it, and whoever appends next does the rest.
        try:
            tenant = self.writer.behind.pop()
            sqlite_search.follow_events(self, tenant, MERGED_BY_APPENDS)
        except Exception:  # noqa: BLE001, S110
            pass  # The caller's append is committed. A search finds what is pending, or raises the error itself.
        finally:
            self._followers.clear()

    def announce(self) -> None:
        """Notify the watchers of this process of a commit."""
        for callback in list(self._watchers):
            callback()

    # reading

    def head(self, tenant: str, stream: str) -> Head | None:
        known = self.connections.pinned.heads  # Within a snapshot a head is asked for often and does not change.
        if known is not None and (tenant, stream) in known:
            return known[tenant, stream]
        rows = self.connections.fetch(queries()["head"], (tenant, stream))
        head = head_from_row(stream, rows[0]) if rows else None
        if known is not None:
            known[tenant, stream] = head
        return head

    def heads(self, tenant: str, query: HeadQuery) -> list[Head]:
        values: tuple[Any, ...]
        name, values = "heads", (tenant, query.after, query.limit)
        if query.streams is not None:
            name, values = "heads_by_name", (tenant, _JSON.encode(query.streams).decode())
        elif query.live:
            name, values = "live_heads", (tenant, query.after_id, query.limit)
        return [head_from_row(row[1], (row[0], *row[2:])) for row in self._fetch(name, *values)]

    def tenants(self, *, live: bool = False) -> list[str]:
        names = [row[0] for row in self._fetch("live_tenants" if live else "tenant_ids")]
        if not all(isinstance(name, str) for name in names):
            raise Corrupt("A tenant has lost its name. Run `holdfast verify` and restore from a backup.")
        return sorted(names)

    def load(self, tenant: str, stream: str) -> StreamState:
        with self.connections.reader() as connection:
            row = connection.execute(queries()["head"], (tenant, stream)).fetchone()
            if row is None:
                return StreamState()
            number = self._tenant_id(connection, tenant)
            rows = sqlite_rows.load_frame_rows(connection, number, row[0])
            rows.update(sqlite_rows.load_state_rows(connection, number, row[0], stream))
        return build_state(head_from_row(stream, row), rows)

    def event(self, tenant: str, id: bytes) -> StoredEvent | None:
        with self.connections.reader() as connection:
            number = self._tenant_id(connection, tenant)
            place = connection.execute(queries()["event_by_id"], (number, id)).fetchone()
            if place is None:
                return None
            (row,) = fetch_rows(connection, queries()["events_between"], (number, place[0], place[1], place[1]))
            ((stream,),) = fetch_rows(connection, "SELECT name FROM streams WHERE id = ?", (place[0],))
        return event_from_row(row, tenant, stream)

    def select(self, tenant: str, query: RowQuery) -> list[RowWithStream]:
        with self.connections.reader(once=True) as connection:
            return sqlite_rows.select_rows(connection, tenant, query)

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionRow]:
        with self.connections.reader() as connection:
            name = "sessions_by_activity" if query.user is None else "sessions_of_user"
            values = (tenant, *query.before, query.limit, query.user, query.status)
            rows = fetch_rows(connection, queries()[name], values)
            return [sqlite_rows.load_session(connection, tenant, row) for row in rows]

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        return [name for (name,) in self._fetch("idle_sessions", tenant, after, now, limit)]

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        rows = self._fetch("entry", tenant, stream, key)
        return event_from_row(rows[0], tenant, stream) if rows else None

    def entries(self, tenant: str, stream: str, page: EntryPageQuery) -> list[EntryEvent]:
        # A range instead of LIKE, which has wildcards and folds case: a key with a prefix lies before prefix + LAST.
        # A page begins behind the last key of the previous one, or at the prefix if that comes later.
        first, behind = (page.prefix, False) if page.after is None else max((page.prefix, False), (page.after, True))
        values = (tenant, stream, first, page.prefix + _LAST_CHARACTER, page.now, page.lifetime, page.limit, behind)
        return [EntryEvent(tenant, stream, *row) for row in self._fetch("entries", *values)]

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        rows = self._fetch("revisions", tenant, stream, key, before, limit)
        return [event_from_row(row, tenant, stream) for row in rows]

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        kinds = _JSON.encode(query.kinds).decode() if query.kinds else None
        keys, name = _JSON.encode(query.keys).decode(), "edges_out" if query.direction == "out" else "edges_in"
        rows = self._fetch(name, tenant, query.scope, keys, kinds, query.limit)
        return [event_from_row(row, tenant, row[-1]) for row in rows]

    def has_edge(self, tenant: str, edge: Edge) -> bool:
        name = (tenant, edge.scope, edge.source, edge.kind, edge.target_scope, edge.target)
        return bool(self._fetch("linked", *name))

    def find_expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        return self._fetch("expired", tenant, now, limit)

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        return [name for (name,) in self._fetch("scopes", tenant, now, after, limit)]

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        return sqlite_search.search_texts(self, tenant, search)

    def hits(self, tenant: str, seqs: Sequence[int]) -> list[Hit]:
        with self.connections.reader(once=True) as connection:
            return sqlite_search.load_hits(
                connection, tenant, self._tenant_id(connection, tenant), [(seq, 0.0) for seq in seqs]
            )

    def find_unembedded(self, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
        with self.connections.reader() as connection:
            after = 0
            if sqlite_search.has_vectors(connection):
                ((after,),) = fetch_rows(connection, queries()["newest_vector"], (tenant, stream, embedder))
            rows = fetch_rows(connection, queries()["texts_after"], (tenant, stream, after or 0, limit))
        return [event_from_row(row, tenant, stream) for row in rows]

    def vectors_by_digest(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        wanted = _JSON.encode([digest.hex() for digest in digests]).decode()
        with self.connections.reader() as connection:
            if not sqlite_search.has_vectors(connection):
                return {}
            return dict(fetch_rows(connection, queries()["known_vectors"], (tenant, embedder, wanted)))

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        values = [(tenant, stream, embedder, seq, digest, vector) for seq, digest, vector in rows]

        def keep(connection: apsw.Connection) -> None:
            sqlite_search.create_vector_table(connection)
            # Events that were erased meanwhile are left out.
            connection.executemany(queries()["keep_vector"], values)

        self.connections.transact(keep)

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        with self.connections.reader() as connection:
            if not sqlite_search.has_vectors(connection):
                return []
            return fetch_rows(connection, queries()["vectors_after"], (tenant, stream, embedder, after))

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        self.connections.transact(lambda connection: sqlite_search.erase_vectors(connection, tenant, seqs))

    def lanes(self, tenant: str, sink: str | None = None) -> list[RowWithStream]:
        # Without a sink: from the first name to a blob, which SQLite sorts behind every text.
        first, last = ("", b"") if sink is None else (sink, sink)
        rows = self._fetch("lanes", tenant, first, last)
        return [(stream, dict(zip(TABLES["effects"].column_names, row, strict=True))) for stream, *row in rows]

    def renew_lease(self, tenant: str, stream: str, epoch: int) -> bool:
        def renew(connection: apsw.Connection) -> bool:
            connection.execute(queries()["renew_lease"], (tenant, stream, epoch))
            return bool(connection.changes())

        return self.connections.transact(renew)

    def renewals(self, tenant: str, stream: str) -> int:
        rows = self._fetch("renewals", tenant, stream)
        return int(rows[0][0]) if rows else 0

    def is_writable(self, within_ms: int) -> bool:
        return self.connections.is_writable(within_ms)

    def read(self, query: EventQuery) -> list[StoredEvent]:
        until = _MAX_SEQ if query.until is None else query.until
        types = _JSON.encode(query.types).decode() if query.types else None
        way = "_backwards" if query.backwards else ""
        if query.stream is not None:
            values = (query.tenant, query.stream, query.after, until, types, query.limit)
            rows = self.connections.fetch(queries()[f"events_of_stream{way}"], values)
            return [event_from_row(row, query.tenant, query.stream) for row in rows]
        name = "events_of_tenant"
        if len(query.types) == 1:  # A single type has its own index; several are filtered while walking the cursor.
            name, types = "events_of_type", query.types[0]
        with self.connections.reader() as connection:
            number = self._tenant_id(connection, query.tenant)
            rows = fetch_rows(connection, queries()[name + way], (number, 0, query.after, until, types, query.limit))
        return [event_from_row(row, query.tenant, row[-1]) for row in rows]

    def events_by_key(self, tenant: str, stream: str, key: str) -> list[StoredEvent]:
        found = [event_from_row(row, tenant, stream) for row in self._fetch("event_by_key", tenant, stream, key)]
        if not found or not found[0].rest:
            return found
        first, many = found[0].version, found[0].rest + 1
        return self.read(EventQuery(tenant=tenant, stream=stream, after=first - 1, until=first + many - 1, limit=many))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        # It keeps the log from being reset: be brief.
        pinned = self.connections.pinned
        if pinned.connection is not None:
            yield  # A nested snapshot shares the outer one's moment.
            return
        with self.connections.reader() as connection:
            # A snapshot begins with its first read; the position is needed anyway.
            ((pinned.position,),) = fetch_rows(connection, queries()["position"])
            pinned.connection, pinned.heads = connection, {}
            try:
                yield
            finally:
                pinned.connection = pinned.heads = None

    def position(self) -> int:
        if self.connections.pinned.connection is not None:
            return self.connections.pinned.position
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

    def _fetch(self, name: str, *values: Any) -> list[Any]:
        """Return every row of a named query: a single statement, and so a snapshot by itself."""
        return self.connections.fetch(queries()[name], values)

    def _tenant_id(self, connection: apsw.Connection, name: str) -> int:
        row = connection.execute("SELECT id FROM tenants WHERE name = ?", (name,)).fetchone()
        return -1 if row is None else int(row[0])

    # artifacts and subjects

    def artifact(self, tenant: str, name: bytes) -> bytes | None:
        with self.connections.reader() as connection:
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

    def subjects(self, tenant: str, id: int | None = None) -> list[Subject]:
        first, last = (0, 2**62) if id is None else (id, id)
        return [Subject(id=id, name=name) for id, name in self._fetch("subjects", tenant, first, last)]

    # the whole: functions of other modules that take the journal first are its methods

    withdraw_artifact = maintenance.withdraw_artifact
    collect = maintenance.collect_artifacts
    artifacts = maintenance.iterate_artifacts
    rows = maintenance.iterate_rows
    backup = maintenance.back_up
    erase = sqlite_erase.erase_subject
    check = sqlite_check.check_database

    def count(self) -> int:
        with self.connections.reader(once=True) as connection:
            ((events,),) = fetch_rows(connection, "SELECT count(*) FROM events")
        return int(events)

    def rebuild(self, progress: Progress | None = None, since: int = 0) -> int:
        return sqlite_rebuild.rebuild_projections(self, progress, since)

    def restore(self, secret: bytes, items: Iterable[tuple[str, StoredEvent | Subject | Artifact]]) -> int:
        return maintenance.restore_items(self, secret, items)

    def close(self) -> None:
        self.connections.close()
