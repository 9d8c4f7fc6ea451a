"""Reads and lookups in the journal in memory, under the journal's own lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.core.journal.codec import decode_facts
from holdfast.core.journal.load import assemble
from holdfast.core.journal.tables import PROJECTIONS, check_lookup
from holdfast.core.search.documents import KEPT, SAID, Hit, TextSearch, artifact_id, beginning_of
from holdfast.errors import Corrupt, NotFound
from holdfast.journal.memory import tables
from holdfast.journal.memory.search import MemoryTexts, MemoryVectors
from holdfast.journal.memory.tables import MemoryTables
from holdfast.records.batches import Artifact, Found, Head, Row, SessionQuery, SessionRow, Span, Value
from holdfast.records.entries import Edge, EdgeQuery, EntryPage
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.frames import LIVE, StreamState
from holdfast.records.reports import Query, Subject

Bodies = Callable[[str, bytes], bytes | None]
"""A function that returns the body of a tenant's artifact, or None."""


def _stood(retracted: Value, at: int) -> bool:
    """Return True if a message was part of its thread at a version."""
    return retracted is None or int(retracted) > at


class MemoryFinding:
    """The part of a journal in memory that looks up state, texts and vectors."""

    _artifacts: dict[tuple[str, bytes], Artifact]
    _elsewhere: Bodies
    _events: dict[int, StoredEvent]
    _unindexed: list[StoredEvent]
    _streams: dict[tuple[str, str], list[int]]
    _tables: MemoryTables
    _texts: MemoryTexts | None
    _vectors: MemoryVectors

    def _open(self) -> threading.RLock:
        raise NotImplementedError

    def _index(self, events: Iterable[StoredEvent]) -> None:
        if self._texts is not None:
            self._texts.index(events, self._said_before, self._kept_before, self._beginning)

    def _catch_up(self) -> None:
        """Index events that were only copied in, before the first search."""
        for event in self._unindexed:
            self._index([event])
        self._unindexed = []

    def _said_before(self, event: StoredEvent) -> bytes | None:
        """Return the message before this one as of its append, ignoring later retractions: the same at any time."""
        for version in range(event.version - 1, 0, -1):
            row = self._tables.row(event.tenant, event.stream, "messages", (version,))
            if row is not None and _stood(row["retracted"], event.version):
                return self._at(event.tenant, event.stream, version).content
        return None

    def _beginning(self, tenant: str, name: str) -> str:
        """Return the beginning of a text in an artifact, here or in the journal that this one is an excerpt of."""
        kept = self._artifacts.get((tenant, artifact_id(name)))
        if kept is None or kept.erased:
            return ""
        try:
            return beginning_of(kept.body or self._elsewhere(tenant, kept.name))
        except (NotFound, Corrupt):
            return ""  # Its file is lost there; the rest can still be searched.

    def _kept_before(self, event: StoredEvent, key: str) -> int | None:
        versions = tables.revisions(self._tables, event.tenant, event.stream, key, event.version)
        return self._at(event.tenant, event.stream, versions[0]).seq if versions else None

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        with self._open():
            row = self._tables.row(tenant, stream, "state", (key,))
            return None if row is None else self._holding(tenant, stream, row["version"])

    def _holding(self, tenant: str, stream: str, version: Any) -> StoredEvent | None:
        event = self._at(tenant, stream, version)
        return None if event.content is None else event

    def _at(self, tenant: str, stream: str, version: Any) -> StoredEvent:
        seq: int = self._streams[tenant, stream][version - 1]
        return self._events[seq]

    def entries(self, tenant: str, stream: str, page: EntryPage) -> list[StoredEvent]:
        with self._open():
            rows = tables.entries(self._tables, tenant, stream, page)
            found = (self._holding(tenant, stream, row["version"]) for row in rows)
            return [event for event in found if event is not None][: page.limit]

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        with self._open():
            versions = tables.revisions(self._tables, tenant, stream, key, before)[:limit]
            return [self._at(tenant, stream, version) for version in versions]

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        with self._open():
            found = tables.edges(self._tables, tenant, query)
            return [self._at(tenant, stream, row["version"]) for stream, row in found]

    def linked(self, tenant: str, edge: Edge) -> bool:
        with self._open():
            name = (edge.source, edge.kind, edge.target_scope, edge.target)
            return self._tables.row(tenant, edge.scope, "edges", name) is not None

    def expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        with self._open():
            return tables.expired(self._tables, tenant, now, limit)

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        with self._open():
            rows = tables.live(self._tables, tenant, now, after)
            held = (stream for stream, version in rows if self._holding(tenant, stream, version))
            return sorted(set(held))[:limit]

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        with self._open():
            self._catch_up()
            return [] if self._texts is None else self._texts.search(tenant, search, self._hit)

    def _hit(self, seq: int, score: float) -> Hit:
        event = self._events[seq]
        message: Any = self._tables.row(event.tenant, event.stream, "messages", (event.version,)) or {}
        line: Any = self._tables.row(event.tenant, event.stream, "threads", ()) or {}
        facts = decode_facts(event.type, event.schema, event.facts)
        key = getattr(facts, "key", None)
        entry: Any = self._tables.row(event.tenant, event.stream, "state", (key,)) or {}
        return Hit(
            event=event,
            score=score,
            retracted=message.get("retracted"),
            floor=line.get("floor", 0),
            current=entry.get("version") == event.version,
            expires_at=entry.get("expires_at"),
        )

    def hits(self, tenant: str, seqs: Sequence[int]) -> list[Hit]:
        with self._open():
            return [self._hit(seq, 0.0) for seq in seqs if self._events[seq].tenant == tenant]

    def unembedded(self, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
        with self._open():
            newest = self._vectors.newest((tenant, stream, embedder))
            seqs = [seq for seq in self._streams.get((tenant, stream), ()) if seq > newest]
            events = [event for event in (self._events[seq] for seq in seqs) if event.type in (SAID, KEPT)]
            standing = (self._hit(event.seq, 0.0) for event in events)
            found = [hit.event for hit in standing if hit.event.content and (hit.event.type == SAID or hit.current)]
            return found[:limit]

    def known_vectors(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._open():
            return self._vectors.known(tenant, embedder, digests)

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        with self._open():
            self._vectors.keep((tenant, stream, embedder), [row for row in rows if self._events[row[0]].content])

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        with self._open():
            return self._vectors.after((tenant, stream, embedder), after)

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        with self._open():
            self._vectors.drop(tenant, seqs)

    def lanes(self, tenant: str, sink: str | None = None) -> list[Found]:
        with self._open():
            return tables.lanes(self._tables, tenant, sink)

    def lane(self, tenant: str, sink: str, stream: str, limit: int) -> list[Row]:
        with self._open():
            return tables.lane(self._tables, tenant, sink, stream)[:limit]


Stream = tuple[str, str]


class MemoryReading(MemoryFinding):
    """The part of a journal in memory that reads events and rows."""

    _heads: dict[Stream, Head]
    _keys: dict[tuple[str, str, str], int]
    _ids: dict[tuple[str, bytes], int]
    _subjects: dict[str, list[Subject]]
    _renewals: dict[Stream, int]
    _position: int
    _watchers: list[Callable[[], None]]

    def head(self, tenant: str, stream: str) -> Head | None:
        with self._open():
            return self._heads.get((tenant, stream))

    def heads(self, tenant: str, after: str, limit: int) -> list[Head]:
        with self._open():
            names = sorted(stream for owner, stream in self._heads if owner == tenant and stream > after)
            return [self._heads[tenant, name] for name in names[:limit]]

    def tenants(self) -> list[str]:
        with self._open():
            return sorted({tenant for tenant, _ in self._heads} | set(self._subjects))

    def load(self, tenant: str, stream: str) -> StreamState:
        with self._open():
            head = self._heads.get((tenant, stream))
            if head is None:
                return StreamState()
            live = {row["frame_id"] for row in self._tables.of(tenant, stream, "frames") if row["status"] in LIVE}
            rows = {
                table.name: [row for row in self._tables.of(tenant, stream, table.name) if row.get("frame_id") in live]
                for table in PROJECTIONS
                if "frame_id" in table.names
            }
            rows.update(tables.state_rows(self._tables, tenant, stream))
            return assemble(head, rows)

    def find(self, tenant: str, table: str, column: str | None, value: Value, after: bytes, limit: int) -> list[Found]:
        check_lookup(table, column)
        with self._open():
            return self._tables.found(tenant, table, column, value, after)[:limit]

    def event(self, tenant: str, id: bytes) -> StoredEvent | None:
        with self._open():
            seq = self._ids.get((tenant, id))
            return None if seq is None else self._events[seq]

    def span(self, tenant: str, stream: str, span: Span) -> list[Row]:
        with self._open():
            return tables.span(self._tables, tenant, stream, span)

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionRow]:
        with self._open():
            known = next((one.id for one in self._subjects.get(tenant, ()) if one.name == query.user), -1)
            every = tables.sessions(self._tables, tenant, self._opener, self._number)
            return tables.listed(every, query, known)

    def _opener(self, tenant: str, stream: str, version: int) -> int | None:
        return self._at(tenant, stream, version).user

    def _number(self, tenant: str, stream: str) -> int:
        return self._heads[tenant, stream].id

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        with self._open():
            return tables.idle(self._tables, tenant, now, after)[:limit]

    def streams_with_work(self, tenant: str, after: int, limit: int) -> list[Head]:
        with self._open():
            heads = [self._heads[place] for place in self._at_work() if place[0] == tenant]
        return sorted((head for head in heads if head.id > after), key=lambda head: head.id)[:limit]

    def tenants_with_work(self) -> list[str]:
        with self._open():
            return sorted({tenant for tenant, _ in self._at_work()})

    def _at_work(self) -> set[Stream]:
        return {(tenant, stream) for tenant, stream, row in self._tables.all("frames") if row["status"] in LIVE}

    def versions(self, tenant: str, streams: Sequence[str]) -> dict[str, int]:
        with self._open():
            heads = {stream: self._heads.get((tenant, stream)) for stream in streams}
            return {stream: head.version for stream, head in heads.items() if head is not None}

    def renew(self, tenant: str, stream: str, epoch: int) -> bool:
        with self._open():
            head = self._heads.get((tenant, stream))
            if head is None or head.epoch != epoch or head.holder is None:
                return False
            self._renewals[tenant, stream] = self._renewals.get((tenant, stream), 0) + 1
            return True

    def renewals(self, tenant: str, stream: str) -> int:
        with self._open():
            return self._renewals.get((tenant, stream), 0)

    def read(self, query: Query) -> list[StoredEvent]:
        with self._open():
            if query.stream is None:
                events = self._events.values()
                found = [event for event in events if event.tenant == query.tenant and _within(query, event.seq)]
            else:
                seqs = self._streams.get((query.tenant, query.stream), [])
                found = [self._events[seq] for seq in seqs if _within(query, self._events[seq].version)]
            if query.types:
                found = [event for event in found if event.type in query.types]
            if query.backwards:
                found.reverse()
            return found[: query.limit]

    def by_key(self, tenant: str, stream: str, key: str) -> list[StoredEvent]:
        with self._open():
            seq = self._keys.get((tenant, stream, key))
            if seq is None:
                return []
            return self._from(seq, self._events[seq].rest + 1)

    def _from(self, seq: int, count: int) -> list[StoredEvent]:
        """Return the events of one append to one stream, as far as they are held."""
        return [self._events[at] for at in range(seq, seq + count) if at in self._events]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._open():
            yield

    def position(self) -> int:
        with self._open():
            return self._position

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)


def _within(query: Query, place: int) -> bool:
    return place > query.after and (query.until is None or place <= query.until)
