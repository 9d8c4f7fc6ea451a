"""Reading the journal in memory: heads, states, rows, sessions and events, under the journal's own lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.core.states import assemble
from holdfast.core.tables import PROJECTIONS, check_lookup
from holdfast.journal import conversations_in_memory as in_memory
from holdfast.journal.memory_finding import MemoryFinding
from holdfast.records.batches import Head
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.frames import LIVE, StreamState
from holdfast.records.reports import Query, Subject
from holdfast.records.rows import Found, Row, SessionQuery, SessionRow, Span, Value

Stream = tuple[str, str]


class MemoryReading(MemoryFinding):
    """The part of a journal in memory that gives back what was written."""

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
            rows.update(in_memory.state_rows(self._tables, tenant, stream))
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
            return in_memory.span(self._tables, tenant, stream, span)

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionRow]:
        with self._open():
            known = next((one.id for one in self._subjects.get(tenant, ()) if one.name == query.user), -1)
            every = in_memory.sessions(self._tables, tenant, self._opener, self._number)
            return in_memory.listed(every, query, known)

    def _opener(self, tenant: str, stream: str, version: int) -> int | None:
        return self._at(tenant, stream, version).user

    def _number(self, tenant: str, stream: str) -> int:
        return self._heads[tenant, stream].id

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        with self._open():
            return in_memory.idle(self._tables, tenant, now, after)[:limit]

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
        """The events of one append in one stream, as far as they are held."""
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
