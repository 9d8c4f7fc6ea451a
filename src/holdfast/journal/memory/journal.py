"""The journal in memory: the executable specification, with every rule in its simplest form.

It keeps nothing beyond its process and passes the same contract as the durable backends.

A write that stops halfway is rolled back: all that a batch may change is noted first. A rollback may run twice, and
may itself be interrupted, for example by a full stack: then the next user of the journal completes it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice, product
from typing import Any

from msgspec.structs import replace

from holdfast.core.compaction.summary import find_subject_events
from holdfast.core.journal.chain import (
    advance_head,
    check_numbers,
    find_key_conflict,
    find_refusal,
    key_mismatch_error,
    new_head,
    place_part,
)
from holdfast.core.journal.codec import decode, decode_facts, outer_hash
from holdfast.core.journal.load import build_state
from holdfast.core.journal.project import project_event
from holdfast.core.journal.tables import PROJECTIONS, check_lookup
from holdfast.core.search.documents import (
    MESSAGE_APPENDED,
    STATE_WRITTEN,
    Hit,
    TextSearch,
    artifact_id,
    decode_beginning,
)
from holdfast.core.search.words import content_text
from holdfast.errors import Closed, Corrupt, NotFound, Refused
from holdfast.journal.memory import tables
from holdfast.journal.memory.search import MemoryTextIndex
from holdfast.journal.memory.tables import MemoryTables
from holdfast.journal.text_index import IndexedEvent, IndexLookups
from holdfast.ports.capabilities import BACKUP, GROUPS
from holdfast.records.batches import (
    AppendResult,
    Artifact,
    Batch,
    BatchPart,
    Head,
    HeadQuery,
    PartPlacement,
    Row,
    RowInsert,
    RowQuery,
    RowWithStream,
    SessionQuery,
    SessionRow,
)
from holdfast.records.entries import Edge, EdgeQuery, EntryEvent, EntryPageQuery
from holdfast.records.events.envelope import SealedEvent, Source, StoredEvent
from holdfast.records.events.sessions import MessageContent
from holdfast.records.frames import LIVE_STATUSES, StreamState
from holdfast.records.reports import Erasure, EventQuery, Finding, Progress, Subject
from holdfast.records.settings import Settings
from holdfast.system import ForkLock

BodyReader = Callable[[str, bytes], bytes | None]
"""A function that returns the body of a tenant's artifact, or None."""
Stream = tuple[str, str]
JournalItem = tuple[str, StoredEvent | Subject | Artifact]


class MemoryJournal:
    """Events, heads and rows in lists and dicts under one lock."""

    capabilities: frozenset[str] = frozenset(group.name for group in GROUPS if group is not BACKUP)

    def __init__(self, settings: Settings | None = None) -> None:
        self.secret = secrets.token_bytes(32)
        self._indexed = bool((settings or Settings()).index_text)
        self._lock = ForkLock(reentrant=True)
        self._watchers: list[Callable[[], None]] = []
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._events: dict[int, StoredEvent] = {}
        self._position = 0
        self._versions: dict[tuple[str, str, int], int] = {}
        self._heads: dict[Stream, Head] = {}
        self._keys: dict[tuple[str, str, str], int] = {}
        self._ids: dict[tuple[str, bytes], int] = {}
        self._subjects: dict[str, tuple[Subject, ...]] = {}
        self._artifacts: dict[tuple[str, bytes], Artifact] = {}
        self._source_bodies: BodyReader = lambda tenant, name: None
        self._renewals: dict[Stream, int] = {}
        self._tables = MemoryTables(self._artifacts)
        self._texts = MemoryTextIndex() if self._indexed else None
        self._vectors: dict[tuple[str, str, str], dict[int, tuple[bytes, bytes]]] = {}
        """Digest and vector of a text, by tenant, stream and embedder, then by the event."""
        self._changes: list[tuple[dict[Any, Any], Any, Any]] = []
        """What the last write changed: a mapping, the key, and the value before; None means absent."""
        self._undo_to: int | None = None
        """The position to which a failed write is still to be rolled back."""

    # writing

    def append(self, batch: Batch) -> AppendResult:
        """Check every part, then write all of them."""
        with self._open():
            self._finish_rollback()  # A write may have failed halfway while this thread waited.
            earlier = self._find_earlier(batch)
            if earlier is not None:
                return earlier
            heads: dict[str, Head] = {}
            for part in batch.parts:
                fresh = sum((batch.tenant, name) not in self._heads for name in heads)
                head = heads.get(part.stream) or self._head(batch.tenant, part.stream, fresh)
                problem = find_refusal(part, head)
                if problem is not None:
                    raise problem
                heads[part.stream] = head
            appended = self._write(batch, heads)
        for callback in list(self._watchers):
            callback()
        return appended

    def _head(self, tenant: str, stream: str, fresh: int = 0) -> Head:
        """Return a stream's end; number a new one after all others and after those that begin in the same commit."""
        known = self._heads.get((tenant, stream))
        return known if known is not None else new_head(tenant, stream, len(self._heads) + fresh + 1)

    def _find_earlier(self, batch: Batch) -> AppendResult | None:
        """Return the earlier answer if every part was already written under its key or event id."""
        found = [self._find_stored(batch.tenant, part) for part in batch.parts]
        if not any(found):
            return None
        for part, stored in zip(batch.parts, found, strict=True):
            problem = find_key_conflict(part, stored) if stored else key_mismatch_error(part)
            if problem is not None:
                raise problem
        return AppendResult(parts=tuple(map(_place_events, found)), repeated=True)

    def _find_stored(self, tenant: str, part: BatchPart) -> list[StoredEvent]:
        if part.key is not None:
            return self.events_by_key(tenant, part.stream, part.key)
        seq = self._ids.get((tenant, part.events[0].id))
        return [] if seq is None else self._events_from(seq, len(part.events))

    def _write(self, batch: Batch, heads: dict[str, Head]) -> AppendResult:
        """Write a batch, all of it or nothing, even if interrupted halfway."""
        position = self._position
        self._changes.clear()
        self._tables.mark()
        try:
            return self._apply_batch(batch, heads)
        except BaseException:
            self._undo_to = position
            self._roll_back(position)
            raise

    def _apply_batch(self, batch: Batch, heads: dict[str, Head]) -> AppendResult:
        written: list[StoredEvent] = []
        placed: list[PartPlacement] = []
        for artifact in batch.artifacts:
            self._set(self._artifacts, (batch.tenant, artifact.name), artifact)
        for part in batch.parts:
            head = heads[part.stream]
            seq = self._position + len(written) + 1
            events, after = place_part(batch, part, head, seq, lambda name: self._pseudonym(batch.tenant, name))
            for event, sealed in zip(events, part.events, strict=True):
                self._project(event, sealed.facts_record)
            heads[part.stream] = replace(after, id=head.id)
            written.extend(events)
            placed.append(_place_events(events))
        self._add_events(written)
        for stream, head in heads.items():
            self._set(self._heads, (batch.tenant, stream), head)
        return AppendResult(parts=tuple(placed))

    def _project(self, event: StoredEvent, facts: Any) -> None:
        for change in project_event(event.type, facts, event.version, event.at):
            self._tables.apply(event.tenant, event.stream, change)

    def _add_events(self, events: Iterable[StoredEvent]) -> None:
        for event in events:
            self._set(self._events, event.seq, event)
            self._position = event.seq
            self._set(self._versions, (event.tenant, event.stream, event.version), event.seq)
            self._set(self._ids, (event.tenant, event.id), event.seq)
            if event.key is not None:
                self._set(self._keys, (event.tenant, event.stream, event.key), event.seq)

    def _pseudonym(self, tenant: str, name: str) -> int:
        subjects = self._subjects.get(tenant, ())
        for subject in subjects:
            if subject.name == name:
                return subject.id
        self._set(self._subjects, tenant, (*subjects, Subject(id=len(subjects) + 1, name=name)))
        return len(subjects) + 1

    def _set(self, kept: dict[Any, Any], key: Any, value: Any) -> None:
        self._changes.append((kept, key, kept.get(key)))
        kept[key] = value

    # all or nothing

    def _open(self) -> AbstractContextManager[object]:
        if self._closed:
            raise Closed
        if self._undo_to is not None:
            self._finish_rollback()
        return self._lock.lock

    def _finish_rollback(self) -> None:
        """Roll back a failed write whose own rollback was interrupted."""
        with self._lock.lock:
            if self._undo_to is not None:
                self._roll_back(self._undo_to)

    def _roll_back(self, position: int) -> None:
        """Take back what the last write changed, newest first. Every step may be repeated."""
        self._tables.undo()
        while self._changes:
            kept, key, before = self._changes[-1]
            if before is None:
                kept.pop(key, None)
            else:
                kept[key] = before
            self._changes.pop()
        self._position = position
        self._undo_to = None

    # reading

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
            user = next((one.id for one in self._subjects.get(tenant, ()) if one.name == query.user), -1)
            found = [
                row
                for row in tables.iterate_sessions(self._tables, tenant, self._event_at, self._heads)
                if row.place < query.before
                and (query.user is None or row.user == user)
                and query.status in (None, row.status)
            ]
            return sorted(found, key=lambda row: row.place, reverse=True)[: query.limit]

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

    def is_writable(self, within_ms: int) -> bool:
        return True  # There is no other process.

    def read(self, query: EventQuery) -> list[StoredEvent]:
        with self._open():
            until = sys.maxsize if query.until is None else query.until
            if query.stream is None:
                own = (event for event in self._events.values() if event.tenant == query.tenant)
                found = [event for event in own if query.after < event.seq <= until]
            else:
                found = self._stream_events(query.tenant, query.stream, query.after, until)
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

    def _stream_events(self, tenant: str, stream: str, after: int = 0, until: int = sys.maxsize) -> list[StoredEvent]:
        """Return the events of a stream between two versions, as far as they are held."""
        head = self._heads.get((tenant, stream))
        versions = range(after + 1, min(until, 0 if head is None else head.version) + 1)
        found = (self._versions.get((tenant, stream, version)) for version in versions)
        return [self._events[seq] for seq in found if seq is not None]

    def snapshot(self) -> AbstractContextManager[object]:
        return self._open()

    def position(self) -> int:
        with self._open():
            return self._position

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    # state, texts and vectors

    def _previous_text(self, placed: IndexedEvent) -> str:
        """Return the message before this one as of its append, ignoring later retractions: the same at any time."""
        event = placed.event
        for version in range(event.version - 1, 0, -1):
            row: Any = self._tables.row(event.tenant, event.stream, "messages", (version,))
            if row is not None and _was_in_thread(row["retracted"], event.version):
                content = self._event_at(event.tenant, event.stream, version).content
                beginning = partial(self._artifact_beginning, placed)
                return "" if content is None else content_text(decode(content, MessageContent), beginning)
        return ""

    def _artifact_beginning(self, placed: IndexedEvent, name: str) -> str:
        """Return the beginning of a text in an artifact, here or in the journal that this one is an excerpt of."""
        tenant = placed.event.tenant
        kept = self._artifacts.get((tenant, artifact_id(name)))
        if kept is None or kept.erased:
            return ""
        try:
            return decode_beginning(kept.body or self._source_bodies(tenant, kept.name))
        except (NotFound, Corrupt):
            return ""  # Its file is lost there; the rest can still be searched.

    def _previous_entry(self, placed: IndexedEvent, key: str) -> int | None:
        event = placed.event
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
        return self._events[self._versions[tenant, stream, version]]

    def entries(self, tenant: str, stream: str, page: EntryPageQuery) -> list[EntryEvent]:
        with self._open():
            rows = tables.list_entries(self._tables, tenant, stream, page)
            found = (self._event_with_content(tenant, stream, row["version"]) for row in rows)
            return [_entry_event(event) for event in found if event is not None][: page.limit]

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
            held = {
                stream
                for stream, row in self._tables.tenant_rows(tenant, "state")
                if stream > after
                and (row["expires_at"] is None or row["expires_at"] > now)
                and self._event_with_content(tenant, stream, row["version"])
            }
            return sorted(held)[:limit]

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        with self._open():
            if self._texts is None:
                return []
            pending = list(islice(self._events.values(), self._texts.indexed, None))
            lookups = IndexLookups(self._previous_text, self._previous_entry, self._artifact_beginning)
            self._texts.index(pending, lookups)
            return self._texts.search(tenant, search, self._make_hit)

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
            newest = max(self._vectors.get((tenant, stream, embedder), ()), default=0)
            later = (event.seq for event in self._stream_events(tenant, stream) if event.seq > newest)
            hits = (self._make_hit(seq, 0.0) for seq in later)
            found = [
                hit.event
                for hit in hits
                if hit.event.content
                and (hit.event.type == MESSAGE_APPENDED or (hit.event.type == STATE_WRITTEN and hit.current))
            ]
            return found[:limit]

    def vectors_by_digest(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._open():
            kept = (rows for place, rows in self._vectors.items() if (place[0], place[2]) == (tenant, embedder))
            return {digest: vector for rows in kept for digest, vector in rows.values() if digest in digests}

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        with self._open():
            kept = self._vectors.setdefault((tenant, stream, embedder), {})
            kept.update({seq: (digest, vector) for seq, digest, vector in rows if self._events[seq].content})

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        with self._open():
            kept = self._vectors.get((tenant, stream, embedder), {})
            return sorted((seq, vector) for seq, (_, vector) in kept.items() if seq > after)

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        with self._open():
            for kept in (rows for place, rows in self._vectors.items() if place[0] == tenant):
                for seq in seqs:
                    kept.pop(seq, None)

    def lanes(self, tenant: str, sink: str | None = None) -> list[RowWithStream]:
        with self._open():
            return tables.list_lanes(self._tables, tenant, sink)

    # copies of another journal, exactly as they are

    def restore(self, secret: bytes, items: Iterable[JournalItem]) -> int:
        with self._open():
            if self._events or self._subjects or self._artifacts:
                raise Refused("Only an empty journal can be restored into. Give the path of a new file.")
            try:
                for tenant, item in check_numbers(items):
                    self._copy_item(tenant, item)
            except BaseException:
                self._reset()
                raise
            self.secret = secret
            return self._position

    def hold(self, secret: bytes, position: int, items: Iterable[JournalItem], bodies: BodyReader) -> None:
        """Load copies of some events of another journal, with gaps: for reading, not for further appends.

        `bodies` reads the artifacts of that journal, of which only the names are held here.
        """
        with self._open():
            for tenant, item in items:
                self._copy_item(tenant, item)
            self._tables.mark()
            self._source_bodies = bodies
            self.secret, self._position = secret, position

    def _copy_item(self, tenant: str, item: Any) -> None:
        """Copy one item in as it is."""
        if isinstance(item, Subject):
            self._subjects[tenant] = (*self._subjects.get(tenant, ()), item)
        elif isinstance(item, Artifact):
            self._artifacts[tenant, item.name] = item
        else:
            self._add_events([item])
            self._changes.clear()
            self._project(item, decode_facts(item.type, item.schema, item.facts))
            self._heads[tenant, item.stream] = advance_head(self._head(tenant, item.stream), item)

    # artifacts, erasure and checks

    def artifact(self, tenant: str, name: bytes) -> bytes | None:
        with self._open():
            kept = self._artifacts.get((tenant, name))
            if kept is None:
                raise NotFound(f"There is no artifact {name.hex()} in this journal.")
            return kept.body

    def place_artifact(self, tenant: str, name: bytes, body: bytes, at: int) -> Artifact:
        return Artifact(name=name, size=len(body), at=at, body=body)

    def withdraw_artifact(self, tenant: str, name: bytes) -> None:
        # Nothing is placed before the append itself.
        return

    def collect(self, before_ms: int) -> int:
        # An artifact enters with the event that refers to it, so none is ever unreferenced here.
        return 0

    def subjects(self, tenant: str, id: int | None = None) -> list[Subject]:
        with self._open():
            return [one for one in self._subjects.get(tenant, ()) if id is None or one.id == id]

    def erase(
        self, tenant: str, subject: str, marker: Callable[[int, int, int], SealedEvent], source: Source
    ) -> Erasure:
        with self._open():
            known = next((s for s in self._subjects.get(tenant, ()) if s.name == subject), None)
            if known is None:
                raise NotFound(f"There is no subject {subject!r} in this journal, so there is nothing to erase.")
            theirs = find_subject_events([event for event in self._events.values() if event.tenant == tenant], known.id)
            places = {(event.stream, event.version) for event in theirs}
            doomed = self._artifacts_only_in(tenant, places)
            count = sum(event.content is not None for event in theirs)
            event = marker(known.id, count, len(doomed))
            appended = self._write(
                Batch(tenant=tenant, parts=(BatchPart(stream="global", events=(event,)),), source=source),
                {"global": self._head(tenant, "global")},
            )
            assert appended.version
            for stored in theirs:
                if stored.salt is not None and stored.digest is not None:
                    mac = outer_hash(stored.salt, stored.digest)
                    self._events[stored.seq] = replace(stored, content=None, salt=None, digest=None, mac=mac)
            seqs = [stored.seq for stored in theirs]
            self.drop_vectors(tenant, seqs)
            if self._texts is not None:
                self._texts = MemoryTextIndex()  # The next search makes it again, without their words.
            for name in doomed:
                self._artifacts[tenant, name] = replace(self._artifacts[tenant, name], body=None, erased=True)
            forgotten = Subject(id=known.id, name=None)
            self._subjects[tenant] = tuple(forgotten if one is known else one for one in self._subjects[tenant])
        for callback in list(self._watchers):
            callback()
        return Erasure(subject=known.id, events=count, artifacts=len(doomed))

    def _artifacts_only_in(self, tenant: str, places: set[tuple[str, int]]) -> list[bytes]:
        inside: set[bytes] = set()
        outside: set[bytes] = set()
        for stream, row in self._tables.tenant_rows(tenant, "artifact_refs"):
            (inside if (stream, row["stream_version"]) in places else outside).add(row["artifact"])
        return [name for name in inside - outside if not self._artifacts[tenant, name].erased]

    def count(self) -> int:
        with self._open():
            return len(self._events)

    def rows(self, table: str) -> Iterator[tuple[str, str, Row]]:
        with self._open():
            found = list(self._tables.all_rows(table))
        return iter(found)

    def rebuild(self, progress: Progress | None = None, since: int = 0) -> int:
        with self._open():
            changed = {(event.tenant, event.stream) for seq, event in self._events.items() if seq > since}
            events = [event for event in self._events.values() if (event.tenant, event.stream) in changed]
            fresh = MemoryTables(self._artifacts)
            self._tables, old = fresh, self._tables
            try:
                for table, tenant in product(PROJECTIONS, {tenant for tenant, _ in self._heads}):
                    for stream, row in old.tenant_rows(tenant, table.name):
                        if (tenant, stream) not in changed:
                            fresh.apply(tenant, stream, RowInsert(table.name, row))
                for done, event in enumerate(events, 1):
                    self._project(event, decode_facts(event.type, event.schema, event.facts))
                    if progress is not None and done % 1000 == 0:
                        progress(done, len(events))
            except BaseException:
                self._tables = old
                raise
            return len(events)

    def check(self) -> Iterator[Finding]:
        return iter(())

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        with self._open():
            found = [(tenant, artifact) for (tenant, _), artifact in sorted(self._artifacts.items())]
        return iter(found)

    def close(self) -> None:
        self._closed = True


def _was_in_thread(retracted: int | None, at: int) -> bool:
    """Return True if a message was part of its thread at a version."""
    return retracted is None or retracted > at


def _place_events(events: Sequence[StoredEvent]) -> PartPlacement:
    first, last = events[0], events[-1]
    return PartPlacement(stream=first.stream, first=first.version, last=last.version, seq=last.seq)


def _entry_event(event: StoredEvent) -> EntryEvent:
    return EntryEvent(**{name: getattr(event, name) for name in EntryEvent.__struct_fields__})
