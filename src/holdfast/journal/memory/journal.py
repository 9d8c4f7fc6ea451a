"""The journal in memory: the executable specification, with every rule in its simplest form.

It keeps nothing beyond its process and passes the same contract as the durable backends.

A write that stops halfway is rolled back: all that a batch may change is noted first. A rollback may run twice, and
may itself be interrupted, for example by a full stack: then the next user of the journal completes it.

"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.admit import half_written, head_after, new_head, place, refusal, repeats
from holdfast.core.journal.chain import content_mac
from holdfast.core.journal.codec import decode_facts
from holdfast.core.journal.project import project
from holdfast.core.search.documents import SAID
from holdfast.errors import Closed, NotFound, Refused, Unsupported
from holdfast.journal.memory.read import Bodies, MemoryReading
from holdfast.journal.memory.search import MemoryTexts, MemoryVectors
from holdfast.journal.memory.tables import MemoryTables
from holdfast.records.batches import Appended, Artifact, Batch, Head, Part, Placed, Row
from holdfast.records.events.envelope import Sealed, Source, StoredEvent
from holdfast.records.reports import Erasure, Finding, Progress, Subject
from holdfast.records.settings import Settings
from holdfast.system import renew_in_child

Item = tuple[str, StoredEvent | Subject | Artifact]


class MemoryCopying(MemoryReading):
    """The part of a journal in memory that takes in events of another journal, exactly as they are."""

    secret: bytes

    def _forget(self) -> None:
        raise NotImplementedError

    def _head(self, tenant: str, stream: str, fresh: int = 0) -> Head:
        raise NotImplementedError

    def _keep(self, events: Iterable[StoredEvent]) -> None:
        raise NotImplementedError

    def _project(self, event: StoredEvent) -> None:
        raise NotImplementedError

    def restore(self, secret: bytes, items: Iterable[Item]) -> int:
        with self._open():
            if self._events or self._subjects or self._artifacts:
                raise Refused("Only an empty journal can be restored into. Give the path of a new file.")
            try:
                for tenant, item in _without_gaps(items):
                    if self._copy(tenant, item):
                        self._index([item])
            except BaseException:
                self._forget()
                raise
            self.secret = secret
            return self._position

    def hold(self, secret: bytes, position: int, items: Iterable[Item], bodies: Bodies) -> None:
        """Load copies of some events of another journal, with gaps: for reading, not for further appends.

        `bodies` reads the artifacts of that journal, of which only the names are held here.
        """
        with self._open():
            for tenant, item in items:
                self._copy(tenant, item)
            # Indexed on the first search: most readers of the past never search it.
            self._unindexed = list(self._events.values())
            self._tables.mark()
            self._elsewhere = bodies
            self.secret, self._position = secret, position

    def _copy(self, tenant: str, item: Any) -> bool:
        """Copy one item in as it is; return True if it is an event."""
        if isinstance(item, Subject):
            self._subjects.setdefault(tenant, []).append(item)
        elif isinstance(item, Artifact):
            self._artifacts[tenant, item.name] = item
            self._tables.known_artifacts.add((tenant, item.name))
        else:
            self._keep([item])
            self._project(item)
            self._heads[tenant, item.stream] = head_after(self._head(tenant, item.stream), item)
            return True
        return False


def _without_gaps(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the same items; raise Refused if an event is missing among them."""
    last = 0
    for tenant, item in items:
        if isinstance(item, StoredEvent):
            if item.seq != last + 1:
                raise Refused(f"Event {item.seq} does not follow event {last}: this copy has a gap.")
            last = item.seq
        yield tenant, item


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """The state before a batch, of everything it may change; None means absent."""

    batch: Batch
    position: int
    heads: dict[str, Any]
    lengths: dict[str, int | None]
    subjects: int | None
    artifacts: dict[bytes, Any]


class MemoryUndoing(MemoryCopying):
    """The part of a journal in memory that makes a write all or nothing."""

    _lock: threading.RLock
    _closed: bool
    _torn: Before | None

    def _open(self) -> threading.RLock:
        if self._closed:
            raise Closed
        if self._torn is not None:
            self._mend()
        return self._lock

    def _mend(self) -> None:
        """Roll back a failed write whose own rollback was interrupted."""
        with self._lock:
            if self._torn is not None:
                self._take_back(self._torn)

    def _before(self, batch: Batch) -> Before:
        """Note the state to return to if a batch cannot be written whole."""
        tenant, streams = batch.tenant, [part.stream for part in batch.parts]
        before = Before(
            batch=batch,
            position=self._position,
            heads={stream: self._heads.get((tenant, stream)) for stream in streams},
            lengths={stream: _length(self._streams.get((tenant, stream))) for stream in streams},
            subjects=_length(self._subjects.get(tenant)),
            artifacts={one.name: self._artifacts.get((tenant, one.name)) for one in batch.artifacts},
        )
        self._tables.mark()
        if self._texts is not None:
            self._texts.begin()
        return before

    def _take_back(self, before: Before) -> None:
        """Return to the noted state. Every step may be repeated."""
        tenant, at = before.batch.tenant, before.position
        self._position = at
        self._tables.undo()
        if self._texts is not None:
            self._texts.take_back()
        events = [event for part in before.batch.parts for event in part.events]
        for seq, event in enumerate(events, at + 1):
            self._events.pop(seq, None)
            if self._ids.get((tenant, event.id), 0) > at:
                del self._ids[tenant, event.id]
        for part in before.batch.parts:
            name = (tenant, part.stream)
            if part.key is not None and self._keys.get((*name, part.key), 0) > at:
                del self._keys[(*name, part.key)]
            _put_back(self._heads, name, before.heads[part.stream])
            _cut_back(self._streams, name, before.lengths[part.stream])
        _cut_back(self._subjects, tenant, before.subjects)
        for artifact, known in before.artifacts.items():
            _put_back(self._artifacts, (tenant, artifact), known)
            if known is None:
                self._tables.known_artifacts.discard((tenant, artifact))
        self._torn = None


def _length(found: list[Any] | None) -> int | None:
    return None if found is None else len(found)


def _put_back(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        kept.pop(key, None)
    else:
        kept[key] = value


def _cut_back(kept: dict[Any, Any], key: Any, length: int | None) -> None:
    if length is None:
        kept.pop(key, None)
    elif key in kept:
        del kept[key][length:]


Stream = tuple[str, str]


class MemoryJournal(MemoryUndoing):
    """Events, heads and rows in lists and dicts under one lock."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, settings: Settings | None = None) -> None:
        self.secret = secrets.token_bytes(32)
        self._indexed = bool((settings or Settings()).index_text)
        self.after_fork()
        renew_in_child(self)
        self._watchers: list[Callable[[], None]] = []
        self._closed = False
        self._forget()

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = threading.RLock()

    def _forget(self) -> None:
        self._events: dict[int, StoredEvent] = {}
        self._position = 0
        self._unindexed: list[StoredEvent] = []
        self._streams: dict[Stream, list[int]] = {}
        self._heads: dict[Stream, Head] = {}
        self._keys: dict[tuple[str, str, str], int] = {}
        self._ids: dict[tuple[str, bytes], int] = {}
        self._subjects: dict[str, list[Subject]] = {}
        self._artifacts: dict[tuple[str, bytes], Artifact] = {}
        self._elsewhere: Bodies = lambda tenant, name: None
        self._renewals: dict[Stream, int] = {}
        self._tables = MemoryTables()
        self._texts = MemoryTexts() if self._indexed else None
        self._vectors = MemoryVectors()
        self._torn: Before | None = None

    # writing

    def append(self, batch: Batch) -> Appended:
        """Check every part, then write all of them."""
        with self._open():
            self._mend()  # A write may have failed halfway while this thread waited.
            earlier = self._earlier(batch)
            if earlier is not None:
                return earlier
            heads: dict[str, Head] = {}
            for part in batch.parts:
                fresh = sum((batch.tenant, name) not in self._heads for name in heads)
                head = heads.get(part.stream) or self._head(batch.tenant, part.stream, fresh)
                problem = refusal(part, head)
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

    def _earlier(self, batch: Batch) -> Appended | None:
        """Return the earlier answer if every part was already written under its key or event id."""
        found = [self._stored(batch.tenant, part) for part in batch.parts]
        if not any(found):
            return None
        for part, stored in zip(batch.parts, found, strict=True):
            problem = repeats(part, stored) if stored else half_written(part)
            if problem is not None:
                raise problem
        placed = (Placed(stream=s[0].stream, first=s[0].version, last=s[-1].version, seq=s[-1].seq) for s in found)
        return Appended(parts=tuple(placed), repeated=True)

    def _stored(self, tenant: str, part: Part) -> list[StoredEvent]:
        if part.key is not None:
            return self.by_key(tenant, part.stream, part.key)
        seq = self._ids.get((tenant, part.events[0].id))
        return [] if seq is None else self._from(seq, len(part.events))

    def _write(self, batch: Batch, heads: dict[str, Head]) -> Appended:
        """Write a batch, all of it or nothing, even if interrupted halfway."""
        before = self._before(batch)
        try:
            return self._put(batch, heads)
        except BaseException:
            self._torn = before
            self._take_back(before)
            raise

    def _put(self, batch: Batch, heads: dict[str, Head]) -> Appended:
        written: list[StoredEvent] = []
        placed: list[Placed] = []
        for artifact in batch.artifacts:
            self._tables.known_artifacts.add((batch.tenant, artifact.name))
            self._artifacts[batch.tenant, artifact.name] = artifact
        for part in batch.parts:
            head = heads[part.stream]
            seq = self._position + len(written) + 1
            events, after = place(batch, part, head, seq, lambda name: self._pseudonym(batch.tenant, name))
            for event in events:
                self._project(event)
            heads[part.stream] = replace(after, id=head.id)
            written.extend(events)
            placed.append(
                Placed(stream=part.stream, first=events[0].version, last=events[-1].version, seq=events[-1].seq)
            )
        self._keep(written)
        self._index(written)
        self._heads.update({(batch.tenant, stream): head for stream, head in heads.items()})
        return Appended(parts=tuple(placed))

    def _project(self, event: StoredEvent) -> None:
        facts = decode_facts(event.type, event.schema, event.facts)
        for change in project(event.type, facts, event.version, event.at):
            self._tables.apply(event.tenant, event.stream, change)

    def _keep(self, events: Iterable[StoredEvent]) -> None:
        for event in events:
            self._events[event.seq] = event
            self._position = event.seq
            self._streams.setdefault((event.tenant, event.stream), []).append(event.seq)
            self._ids[event.tenant, event.id] = event.seq
            if event.key is not None:
                self._keys[event.tenant, event.stream, event.key] = event.seq

    def _pseudonym(self, tenant: str, name: str) -> int:
        subjects = self._subjects.setdefault(tenant, [])
        for subject in subjects:
            if subject.name == name:
                return subject.id
        subjects.append(Subject(id=len(subjects) + 1, name=name))
        return len(subjects)

    # artifacts and subjects

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

    def subjects(self, tenant: str) -> list[Subject]:
        with self._open():
            return list(self._subjects.get(tenant, ()))

    def erase(self, tenant: str, subject: str, marker: Callable[[int, int, int], Sealed], source: Source) -> Erasure:
        with self._open():
            known = next((s for s in self._subjects.get(tenant, ()) if s.name == subject), None)
            if known is None:
                raise NotFound(f"There is no subject {subject!r} in this journal, so there is nothing to erase.")
            theirs = [event for event in self._events.values() if event.tenant == tenant and event.subject == known.id]
            places = {(event.stream, event.version) for event in theirs}
            doomed = self._only_referred_from(tenant, places)
            count = sum(event.content is not None for event in theirs)
            event = marker(known.id, count, len(doomed))
            appended = self._write(
                Batch(tenant=tenant, parts=(Part(stream="global", events=(event,)),), source=source),
                {"global": self._head(tenant, "global")},
            )
            assert appended.version
            for stored in theirs:
                if stored.content is not None and stored.salt is not None:
                    mac = content_mac(stored.salt, stored.content)
                    self._events[stored.seq] = replace(stored, content=None, salt=None, mac=mac)
            seqs = [stored.seq for stored in theirs]
            self.drop_vectors(tenant, seqs)
            if self._texts is not None:
                # Short messages are indexed with the end of the message before them: reindex these threads.
                lines = {stored.stream for stored in theirs if stored.type == SAID}
                said = [self._events[seq] for line in sorted(lines) for seq in self._streams[tenant, line]]
                self._texts.forget(tenant, seqs)
                self._index(event for event in said if event.type == SAID)
            for name in doomed:
                self._artifacts[tenant, name] = replace(self._artifacts[tenant, name], body=None, erased=True)
            self._subjects[tenant][known.id - 1] = Subject(id=known.id, name=None)
        for callback in list(self._watchers):
            callback()
        return Erasure(subject=known.id, events=count, artifacts=len(doomed))

    def _only_referred_from(self, tenant: str, places: set[tuple[str, int]]) -> list[bytes]:
        inside: set[bytes] = set()
        outside: set[bytes] = set()
        for owner, stream, row in self._tables.all("artifact_refs"):
            if owner == tenant:
                (inside if (stream, row["stream_version"]) in places else outside).add(row["artifact"])  # type: ignore[arg-type]
        return [name for name in inside - outside if not self._artifacts[tenant, name].erased]

    # the whole

    def rows(self, table: str) -> Iterator[tuple[str, str, Row]]:
        with self._open():
            found = list(self._tables.all(table))
        return iter(found)

    def rebuild(self, progress: Progress | None = None) -> int:
        with self._open():
            fresh = MemoryTables()
            fresh.known_artifacts = set(self._artifacts)
            self._tables, old = fresh, self._tables
            try:
                for done, event in enumerate(self._events.values(), 1):
                    self._project(event)
                    if progress is not None and done % 1000 == 0:
                        progress(done, len(self._events))
            except BaseException:
                self._tables = old
                raise
            return len(self._events)

    def check(self) -> Iterator[Finding]:
        return iter(())

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        with self._open():
            found = [(tenant, artifact) for (tenant, _), artifact in sorted(self._artifacts.items())]
        return iter(found)

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        raise Unsupported("A journal in memory has no file to back up. Use export, or open a file.")

    def close(self) -> None:
        self._closed = True
