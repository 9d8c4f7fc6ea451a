"""Writes to the journal in memory that stop in the middle: taken back, whatever stopped them and wherever.

What a batch may change is noted before anything is. Taking it back may be done twice, or be stopped as well, for
want of stack for one: then whoever uses the journal next does it first.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from holdfast.errors import Closed
from holdfast.journal.memory_copying import MemoryCopying
from holdfast.records.batches import Batch


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What was there before a batch, of all that it may change; None stands for what was not there."""

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
        """Take back what a write left behind that could not do so itself."""
        with self._lock:
            if self._torn is not None:
                self._take_back(self._torn)

    def _before(self, batch: Batch) -> Before:
        """What to come back to if a batch cannot be written whole."""
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
        """As it was. Every step may be done again."""
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
