"""Copies in the journal in memory: a whole journal as it was, or some of its events to be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.core.place import head_after
from holdfast.errors import Refused
from holdfast.journal.memory_finding import Bodies
from holdfast.journal.memory_reading import MemoryReading
from holdfast.records.batches import Artifact, Head
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.reports import Subject

Item = tuple[str, StoredEvent | Subject | Artifact]


class MemoryCopying(MemoryReading):
    """The part of a journal in memory that takes in what was written elsewhere, exactly as it is."""

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
        """Copies of some events of another journal, gaps and all: to be looked at, not to go on from.

        `bodies` reads artifacts there, of which only the names are held.
        """
        with self._open():
            for tenant, item in items:
                self._copy(tenant, item)
            # Most who look at the past search for nothing in it.
            self._unindexed = list(self._events.values())
            self._tables.mark()
            self._elsewhere = bodies
            self.secret, self._position = secret, position

    def _copy(self, tenant: str, item: Any) -> bool:
        """Take one thing in as it is; whether it is an event."""
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
    """The same items, as long as no event is missing among them."""
    last = 0
    for tenant, item in items:
        if isinstance(item, StoredEvent):
            if item.seq != last + 1:
                raise Refused(f"Event {item.seq} does not follow event {last}: this copy has a gap.")
            last = item.seq
        yield tenant, item
