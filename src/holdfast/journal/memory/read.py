"""Reads and lookups in the journal in memory, under the journal's own lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from holdfast.core.journal.codec import decode_facts
from holdfast.core.journal.load import build_state
from holdfast.core.journal.tables import PROJECTIONS, check_lookup
from holdfast.core.search.documents import (
    MESSAGE_APPENDED,
    STATE_WRITTEN,
    Hit,
    TextSearch,
    artifact_id,
    decode_beginning,
)
from holdfast.errors import Corrupt, NotFound
from holdfast.journal.memory import tables
from holdfast.journal.memory.search import MemoryTextIndex, MemoryVectors
from holdfast.journal.memory.tables import MemoryTables
from holdfast.records.batches import (
    Artifact,
    ColumnValue,
    Head,
    HeadQuery,
    RowQuery,
    RowWithStream,
    SessionQuery,
    SessionRow,
)
from holdfast.records.entries import Edge, EdgeQuery, EntryPageQuery
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.frames import LIVE_STATUSES, StreamState
from holdfast.records.reports import EventQuery, Subject

BodyReader = Callable[[str, bytes], bytes | None]
"""A function that returns the body of a tenant's artifact, or None."""


def _was_in_thread(retracted: ColumnValue, at: int) -> bool:
    """Return True if a message was part of its thread at a version."""
    return retracted is None or int(retracted) > at


class MemoryFinder:
    """The part of a journal in memory that looks up state, texts and vectors."""

    _artifacts: dict[tuple[str, bytes], Artifact]
    _source_bodies: BodyReader
    _events: dict[int, StoredEvent]
    _unindexed: list[StoredEvent]
    _streams: dict[tuple[str, str], list[int]]
    _tables: MemoryTables
    _texts: MemoryTextIndex | None
    _vectors: MemoryVectors

    def _open(self) -> AbstractContextManager[object]:
        raise NotImplementedError

    def _index(self, events: Iterable[StoredEvent]) -> None:
        if self._texts is not None:
            self._texts.index(events, self._previous_message, self._previous_entry, self._artifact_beginning)

    def _index_pending(self) -> None:
        """Index events that were only copied in, before the first search."""
        for event in self._unindexed:
            self._index([event])
        self._unindexed = []

    def _previous_message(self, event: StoredEvent) -> bytes | None:
        """Return the message before this one as of its append, ignoring later retractions: the same at any time."""
        for version in range(event.version - 1, 0, -1):
            row = self._tables.row(event.tenant, event.stream, "messages", (version,))
            if row is not None and _was_in_thread(row["retracted"], event.version):
                return self._event_at(event.tenant, event.stream, version).content
        return None

    def _artifact_beginning(self, tenant: str, name: str) -> str:
        """Return the beginning of a text in an artifact, here or in the journal that this one is an excerpt of."""
        kept = self._artifacts.get((tenant, artifact_id(name)))
        if kept is None or kept.erased:
            return ""
        try:
            return decode_beginning(kept.body or self._source_bodies(tenant, kept.name))
        except (NotFound, Corrupt):
            return ""  # Its file is lost there; the rest can still be searched.

    def _previous_entry(self, event: StoredEvent, key: str) -> int | None:
        versions = tables.list_revisions(self._tables, event.tenant, event.stream, key, event.version)
        return self._event_at(event.tenant, event.stream, versions[0]).seq if versions else None

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        with self._open():
            row = self._tables.row(tenant, stream, "state", (key,))
            return None if row is None else self._event_with_content(tenant, stream, row["version"])

    def _event_with_content(self, tenant: str, stream: str, version: Any) -> StoredEvent | None:
        event = self._event_at(tenant, stream, version)
        return None if event.content is None else event

    def _event_at(self, tenant: str, stream: str, version: Any) -> StoredEvent:
        seq: int = self._streams[tenant, stream][version - 1]
        return self._events[seq]

    def entries(self, tenant: str, stream: str, page: EntryPageQuery) -> list[StoredEvent]:
        with self._open():
            rows = tables.list_entries(self._tables, tenant, stream, page)
            found = (self._event_with_content(tenant, stream, row["version"]) for row in rows)
            return [event for event in found if event is not None][: page.limit]

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        with self._open():
            versions = tables.list_revisions(self._tables, tenant, stream, key, before)[:limit]
            return [self._event_at(tenant, stream, version) for version in versions]

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        with self._open():
            found = tables.list_edges(self._tables, tenant, query)
            return [self._event_at(tenant, stream, row["version"]) for stream, row in found]

    def has_edge(self, tenant: str, edge: Edge) -> bool:
        with self._open():
            name = (edge.source, edge.kind, edge.target_scope, edge.target)
            return self._tables.row(tenant, edge.scope, "edges", name) is not None

    def find_expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        with self._open():
            return tables.list_expired(self._tables, tenant, now, limit)

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        with self._open():
            rows = tables.list_live_entries(self._tables, tenant, now, after)
            held = (stream for stream, version in rows if self._event_with_content(tenant, stream, version))
            return sorted(set(held))[:limit]

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        with self._open():
            self._index_pending()
            return [] if self._texts is None else self._texts.search(tenant, search, self._make_hit)

    def _make_hit(self, seq: int, score: float) -> Hit:
        event = self._events[seq]
        message: Any = self._tables.row(event.tenant, event.stream, "messages", (event.version,)) or {}
        thread: Any = self._tables.row(event.tenant, event.stream, "threads", ()) or {}
        facts = decode_facts(event.type, event.schema, event.facts)
        key = getattr(facts, "key", None)
        entry: Any = self._tables.row(event.tenant, event.stream, "state", (key,)) or {}
        return Hit(
            event=event,
            score=score,
            retracted=message.get("retracted"),
            floor=thread.get("floor", 0),
            current=entry.get("version") == event.version,
            expires_at=entry.get("expires_at"),
        )

    def hits(self, tenant: str, seqs: Sequence[int]) -> list[Hit]:
        with self._open():
            return [self._make_hit(seq, 0.0) for seq in seqs if self._events[seq].tenant == tenant]

    def find_unembedded(self, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
        with self._open():
            newest = self._vectors.newest_seq((tenant, stream, embedder))
            seqs = [seq for seq in self._streams.get((tenant, stream), ()) if seq > newest]
            events = [
                event
                for event in (self._events[seq] for seq in seqs)
                if event.type in (MESSAGE_APPENDED, STATE_WRITTEN)
            ]
            standing = (self._make_hit(event.seq, 0.0) for event in events)
            found = [
                hit.event
                for hit in standing
                if hit.event.content and (hit.event.type == MESSAGE_APPENDED or hit.current)
            ]
            return found[:limit]

    def vectors_by_digest(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._open():
            return self._vectors.vectors_by_digest(tenant, embedder, digests)

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        with self._open():
            self._vectors.keep((tenant, stream, embedder), [row for row in rows if self._events[row[0]].content])

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        with self._open():
            return self._vectors.vectors_after((tenant, stream, embedder), after)

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        with self._open():
            self._vectors.drop(tenant, seqs)

    def lanes(self, tenant: str, sink: str | None = None) -> list[RowWithStream]:
        with self._open():
            return tables.list_lanes(self._tables, tenant, sink)


Stream = tuple[str, str]


class MemoryReader(MemoryFinder):
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

    def heads(self, tenant: str, query: HeadQuery) -> list[Head]:
        with self._open():
            if query.streams is not None:
                known = (self._heads.get((tenant, stream)) for stream in query.streams)
                return [head for head in known if head is not None]
            places = self._live_streams() if query.live else self._heads
            heads = [self._heads[place] for place in places if place[0] == tenant]
        if query.live:
            found = sorted((head for head in heads if head.id > query.after_id), key=lambda head: head.id)
        else:
            found = sorted((head for head in heads if head.stream > query.after), key=lambda head: head.stream)
        return found[: query.limit]

    def tenants(self, *, live: bool = False) -> list[str]:
        with self._open():
            if live:
                return sorted({tenant for tenant, _ in self._live_streams()})
            return sorted({tenant for tenant, _ in self._heads} | set(self._subjects))

    def load(self, tenant: str, stream: str) -> StreamState:
        with self._open():
            head = self._heads.get((tenant, stream))
            if head is None:
                return StreamState()
            live = {
                row["frame_id"]
                for row in self._tables.stream_rows(tenant, stream, "frames")
                if row["status"] in LIVE_STATUSES
            }
            rows = {
                table.name: [
                    row for row in self._tables.stream_rows(tenant, stream, table.name) if row.get("frame_id") in live
                ]
                for table in PROJECTIONS
                if "frame_id" in table.column_names
            }
            rows.update(tables.load_state_rows(self._tables, tenant, stream))
            return build_state(head, rows)

    def event(self, tenant: str, id: bytes) -> StoredEvent | None:
        with self._open():
            seq = self._ids.get((tenant, id))
            return None if seq is None else self._events[seq]

    def select(self, tenant: str, query: RowQuery) -> list[RowWithStream]:
        check_lookup(query)
        with self._open():
            return tables.select_rows(self._tables, tenant, query)

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionRow]:
        with self._open():
            known = next((one.id for one in self._subjects.get(tenant, ()) if one.name == query.user), -1)
            every = tables.iterate_sessions(self._tables, tenant, self._opening_user, self._stream_number)
            return tables.list_sessions(every, query, known)

    def _opening_user(self, tenant: str, stream: str, version: int) -> int | None:
        return self._event_at(tenant, stream, version).user

    def _stream_number(self, tenant: str, stream: str) -> int:
        return self._heads[tenant, stream].id

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        with self._open():
            return tables.list_idle_sessions(self._tables, tenant, now, after)[:limit]

    def _live_streams(self) -> set[Stream]:
        return {
            (tenant, stream)
            for tenant, stream, row in self._tables.all_rows("frames")
            if row["status"] in LIVE_STATUSES
        }

    def renew_lease(self, tenant: str, stream: str, epoch: int) -> bool:
        with self._open():
            head = self._heads.get((tenant, stream))
            if head is None or head.epoch != epoch or head.holder is None:
                return False
            self._renewals[tenant, stream] = self._renewals.get((tenant, stream), 0) + 1
            return True

    def renewals(self, tenant: str, stream: str) -> int:
        with self._open():
            return self._renewals.get((tenant, stream), 0)

    def read(self, query: EventQuery) -> list[StoredEvent]:
        with self._open():
            if query.stream is None:
                events = self._events.values()
                found = [event for event in events if event.tenant == query.tenant and _is_within(query, event.seq)]
            else:
                seqs = self._streams.get((query.tenant, query.stream), [])
                found = [self._events[seq] for seq in seqs if _is_within(query, self._events[seq].version)]
            if query.types:
                found = [event for event in found if event.type in query.types]
            if query.backwards:
                found.reverse()
            return found[: query.limit]

    def events_by_key(self, tenant: str, stream: str, key: str) -> list[StoredEvent]:
        with self._open():
            seq = self._keys.get((tenant, stream, key))
            if seq is None:
                return []
            return self._events_from(seq, self._events[seq].rest + 1)

    def _events_from(self, seq: int, count: int) -> list[StoredEvent]:
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


def _is_within(query: EventQuery, place: int) -> bool:
    return place > query.after and (query.until is None or place <= query.until)
