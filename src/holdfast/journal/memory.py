"""The journal in memory: the executable specification. Every rule in the plainest words.

It keeps nothing beyond its process and passes the same contract as the durable backends.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from holdfast.ambient import renew_in_child
from holdfast.core.admit import half_written, refusal, repeats
from holdfast.core.chain import content_mac
from holdfast.core.codec import decode_facts
from holdfast.core.place import new_head, place
from holdfast.core.project import project
from holdfast.core.search.searchable import SAID
from holdfast.errors import NotFound, Unsupported
from holdfast.journal.memory_finding import Bodies
from holdfast.journal.memory_undoing import Before, MemoryUndoing
from holdfast.journal.rows_in_memory import MemoryTables
from holdfast.journal.texts_in_memory import MemoryTexts
from holdfast.journal.vectors_in_memory import MemoryVectors
from holdfast.records.batches import Appended, Artifact, Batch, Head, Part, Placed
from holdfast.records.events.envelope import Sealed, Source, StoredEvent
from holdfast.records.reports import Erasure, Finding, Progress, Subject
from holdfast.records.rows import Row
from holdfast.records.settings import Settings

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
        """A lock that another thread of the parent may have held."""
        self._lock = threading.RLock()

    def _forget(self) -> None:
        """An empty journal."""
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
            self._mend()  # It may have been torn while this thread waited.
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
        """A stream's end; a new one is numbered after all others and after those that begin in the same commit."""
        known = self._heads.get((tenant, stream))
        return known if known is not None else new_head(tenant, stream, len(self._heads) + fresh + 1)

    def _earlier(self, batch: Batch) -> Appended | None:
        """The answer given before, if every part was already written under its key or event id."""
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
        """All of a batch, or nothing of it: also where it is stopped in the middle."""
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
        # An artifact enters with the event that refers to it, so nothing is ever left over here.
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
                # Short messages are indexed with the end of what was said before them: all of these lines anew.
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
