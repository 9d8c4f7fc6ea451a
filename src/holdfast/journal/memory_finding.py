"""Finding in the journal in memory: entries, edges, effects, words and vectors, under the journal's own lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.core.codec import decode_facts
from holdfast.core.search.searchable import KEPT, SAID, Hit, TextSearch, artifact_id, beginning_of
from holdfast.errors import Corrupt, NotFound
from holdfast.journal import state_in_memory
from holdfast.journal.rows_in_memory import MemoryTables
from holdfast.journal.texts_in_memory import MemoryTexts
from holdfast.journal.vectors_in_memory import MemoryVectors
from holdfast.records.batches import Artifact
from holdfast.records.entries import Edge, EdgeQuery, EntryPage
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.rows import Found, Row, Value

Bodies = Callable[[str, bytes], bytes | None]
"""The body of an artifact of a tenant, if there is one."""


def _stood(retracted: Value, at: int) -> bool:
    """Whether a message was part of its line at a version."""
    return retracted is None or int(retracted) > at


class MemoryFinding:
    """The part of a journal in memory that looks things up."""

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
        """What was only copied in is indexed when it is first searched."""
        for event in self._unindexed:
            self._index([event])
        self._unindexed = []

    def _said_before(self, event: StoredEvent) -> bytes | None:
        """What was said before a message when it was said, whatever was retracted since: found alike at any time."""
        for version in range(event.version - 1, 0, -1):
            row = self._tables.row(event.tenant, event.stream, "messages", (version,))
            if row is not None and _stood(row["retracted"], event.version):
                return self._at(event.tenant, event.stream, version).content
        return None

    def _beginning(self, tenant: str, name: str) -> str:
        """How a text begins that lies in an artifact, here or in the journal that this one is an excerpt of."""
        kept = self._artifacts.get((tenant, artifact_id(name)))
        if kept is None or kept.erased:
            return ""
        try:
            return beginning_of(kept.body or self._elsewhere(tenant, kept.name))
        except (NotFound, Corrupt):
            return ""  # Its file is lost there: the rest can be searched all the same.

    def _kept_before(self, event: StoredEvent, key: str) -> int | None:
        versions = state_in_memory.revisions(self._tables, event.tenant, event.stream, key, event.version)
        return self._at(event.tenant, event.stream, versions[0]).seq if versions else None

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        with self._open():
            row = self._tables.row(tenant, stream, "state", (key,))
            return None if row is None else self._holding(tenant, stream, row["version"])

    def _holding(self, tenant: str, stream: str, version: Any) -> StoredEvent | None:
        """The event at a version, unless what it held was erased."""
        event = self._at(tenant, stream, version)
        return None if event.content is None else event

    def _at(self, tenant: str, stream: str, version: Any) -> StoredEvent:
        seq: int = self._streams[tenant, stream][version - 1]
        return self._events[seq]

    def entries(self, tenant: str, stream: str, page: EntryPage) -> list[StoredEvent]:
        with self._open():
            rows = state_in_memory.entries(self._tables, tenant, stream, page)
            found = (self._holding(tenant, stream, row["version"]) for row in rows)
            return [event for event in found if event is not None][: page.limit]

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        with self._open():
            versions = state_in_memory.revisions(self._tables, tenant, stream, key, before)[:limit]
            return [self._at(tenant, stream, version) for version in versions]

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        with self._open():
            found = state_in_memory.edges(self._tables, tenant, query)
            return [self._at(tenant, stream, row["version"]) for stream, row in found]

    def linked(self, tenant: str, edge: Edge) -> bool:
        with self._open():
            name = (edge.source, edge.kind, edge.target_scope, edge.target)
            return self._tables.row(tenant, edge.scope, "edges", name) is not None

    def expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        with self._open():
            return state_in_memory.expired(self._tables, tenant, now, limit)

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        with self._open():
            rows = state_in_memory.live(self._tables, tenant, now, after)
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
            return state_in_memory.lanes(self._tables, tenant, sink)

    def lane(self, tenant: str, sink: str, stream: str, limit: int) -> list[Row]:
        with self._open():
            return state_in_memory.lane(self._tables, tenant, sink, stream)[:limit]
