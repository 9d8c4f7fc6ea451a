"""The text index of the journal in memory: segments as on disk, made when a search finds texts that they lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.journal.codec import decode_facts, read_content
from holdfast.core.search.documents import Hit, TextSearch
from holdfast.core.search.segments import (
    MAX_ROWS,
    TextSegment,
    build_segment,
    choose_merge,
    find_rows,
    merge_segments,
    rank_rows,
    view_segment,
)
from holdfast.journal import text_index
from holdfast.journal.text_index import IndexedEvent, IndexLookups
from holdfast.records.events.envelope import StoredEvent
from holdfast.sqlite.fts import STEMS

Segments = tuple[tuple[TextSegment, frozenset[int]], ...]
"""Segments, each with the numbers of texts that are no longer current."""


class MemoryIndexState(msgspec.Struct, frozen=True):
    """The number of events that are indexed, and the segments of each tenant."""

    indexed: int = 0
    segments: dict[int, Segments] = {}


class MemoryTextIndex:
    """The text index in memory. Used under the journal's lock; an interruption leaves it as it was."""

    def __init__(self) -> None:
        self._tenants: dict[str, int] = {}
        self._streams: dict[tuple[str, str], int] = {}
        self._state = MemoryIndexState()

    @property
    def indexed(self) -> int:
        """The number of events that are indexed."""
        return self._state.indexed

    def index(self, events: Sequence[StoredEvent], lookups: IndexLookups) -> None:
        """Index the events after those that are indexed."""
        for first in range(0, len(events), MAX_ROWS):
            some = events[first : first + MAX_ROWS]
            placed = [self._locate(event) for event in some if event.type in text_index.INDEXED_TYPES]
            segments = dict(self._state.segments)
            for tenant, gone, rows in text_index.index_events(placed, lookups):
                kept = [(one, hidden | find_rows(one.rows, gone)) for one, hidden in segments.get(tenant, ())]
                segments[tenant] = _merge((*kept, (build_segment(rows, STEMS), frozenset())))
            self._state = MemoryIndexState(self._state.indexed + len(some), segments)

    def _locate(self, event: StoredEvent) -> IndexedEvent:
        tenant = self._tenants.setdefault(event.tenant, len(self._tenants) + 1)
        stream = self._streams.setdefault((event.tenant, event.stream), len(self._streams) + 1)
        facts = decode_facts(event.type, event.schema, event.facts)
        return IndexedEvent(tenant, stream, event, facts, read_content(event))

    def _number(self, tenant: str) -> int:
        return self._tenants.get(tenant, 0)

    def search(self, tenant: str, search: TextSearch, hit: Callable[[int, float], Hit]) -> list[Hit]:
        """Return the hits of one tenant."""
        known = (self._streams.get((tenant, stream)) for stream in search.streams)
        places = None if search.everywhere else [place for place in known if place is not None]
        words = [STEMS[term] for term in search.terms]
        segments = self._state.segments.get(self._number(tenant), ())
        ranked = rank_rows([view_segment(one, words, hidden) for one, hidden in segments], words, places)
        return text_index.find_hits(ranked.best, search, lambda rows: [hit(seq, score) for seq, score in rows])


def _merge(segments: Segments) -> Segments:
    while chosen := choose_merge([(one.count, len(hidden)) for one, hidden in segments]):
        merged = merge_segments([segments[number] for number in chosen])
        rest = tuple(one for number, one in enumerate(segments) if number not in chosen)
        segments = (*rest, (merged, frozenset())) if merged.count else rest
    return segments
