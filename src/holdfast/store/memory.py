"""The store in memory: the rules in their simplest form. Nothing outlives the process.

With `most`, the least recently used entries beyond that number are dropped. Each write also deletes a few
expired entries, so that these do not pile up.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager

from msgspec.structs import replace

from holdfast.core.entries import EdgeName, edge_name
from holdfast.core.search.rank import match_entries, spaced_words
from holdfast.errors import Closed
from holdfast.records.entries import Edge, EdgeQuery, EntryMatch, EntryPageQuery, EntrySearchQuery, StoredEntry
from holdfast.system import ForkLock

PURGE_PER_WRITE = 2
"""Expired entries that each write deletes: more than it can have added."""
SPARE_DATES = 64
"""Stale expiry dates tolerated in addition to one for each entry."""

EntryPlace = tuple[str, str]


class MemoryStore:
    """Entries and edges in dicts under one lock, and for each scope its keys in order."""

    def __init__(self, *, most: int | None = None, search: bool = False) -> None:
        self._most = most
        self._search = search
        self._versions = itertools.count(1)
        self._entries: OrderedDict[EntryPlace, StoredEntry] = OrderedDict()
        self._keys: dict[str, list[str]] = {}
        self._dates: list[tuple[int, str, str, int]] = []
        self._words: dict[EntryPlace, str] = {}
        self._out: dict[EntryPlace, dict[EdgeName, Edge]] = {}
        self._in: dict[EntryPlace, dict[EdgeName, Edge]] = {}
        self._closed = False
        self._lock = ForkLock(reentrant=True)

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset({"graph", "text"} if self._search else {"graph"})

    def get(self, scope: str, key: str) -> StoredEntry | None:
        with self._open():
            entry = self._entries.get((scope, key))
            if entry is not None and self._most is not None:
                self._entries.move_to_end((scope, key))
            return entry

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> int | None:
        with self._open():
            if expected is not None and expected != self._version(scope, key):
                return None
            version = next(self._versions)
            if (scope, key) not in self._entries:
                insort(self._keys.setdefault(scope, []), key)
            self._entries[scope, key] = replace(entry, version=version)
            self._entries.move_to_end((scope, key))
            if self._search:
                self._words[scope, key] = spaced_words(entry)
            while self._most is not None and len(self._entries) > self._most:
                self._remove(*next(iter(self._entries)))
            self._note_expiry(scope, key, entry.expires_at, version)
            self._purge(entry.written_at, PURGE_PER_WRITE)
            return version

    def _note_expiry(self, scope: str, key: str, expires_at: int | None, version: int) -> None:
        if expires_at is not None:
            heapq.heappush(self._dates, (expires_at, scope, key, version))
        if len(self._dates) > 2 * len(self._entries) + SPARE_DATES:
            known = ((entry.expires_at, *place, entry.version) for place, entry in self._entries.items())
            self._dates = [(at, where, name, number) for at, where, name, number in known if at is not None]
            heapq.heapify(self._dates)

    def purge(self, now: int) -> int:
        with self._open():
            return self._purge(now, len(self._dates))

    def _purge(self, now: int, most: int) -> int:
        gone = 0
        for _ in range(most):
            if not self._dates or self._dates[0][0] > now:
                break
            _, scope, key, version = heapq.heappop(self._dates)
            if self._version(scope, key) == version:  # Otherwise it was rewritten or deleted.
                self._remove(scope, key)
                gone += 1
        return gone

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        with self._open():
            if expected is not None and expected != self._version(scope, key):
                return None
            if (scope, key) not in self._entries:
                return False
            self._remove(scope, key)
            return True

    def _version(self, scope: str, key: str) -> int:
        entry = self._entries.get((scope, key))
        return 0 if entry is None else entry.version

    def _remove(self, scope: str, key: str) -> None:
        del self._entries[scope, key]
        self._words.pop((scope, key), None)
        keys = self._keys[scope]
        del keys[bisect_left(keys, key)]
        if not keys:
            del self._keys[scope]

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        with self._open():
            return list(itertools.islice(self._iterate_page(scope, page), page.limit))

    def _iterate_page(self, scope: str, page: EntryPageQuery) -> Iterator[tuple[str, StoredEntry]]:
        keys = self._keys.get(scope, [])
        start = bisect_left(keys, page.prefix)
        if page.after is not None:
            start = max(start, bisect_right(keys, page.after))
        for place in range(start, len(keys)):
            key = keys[place]
            if not key.startswith(page.prefix):
                return
            entry = self._entries[scope, key]
            if entry.is_live(page.now) and (page.lifetime is None or entry.lifetime == page.lifetime):
                yield key, entry

    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        """Return live entries scored by the number of terms found, also as prefixes of words; no other ranking."""
        with self._open():
            keys = self._keys.get(scope, ()) if self._search else ()
            found = ((key, self._entries[scope, key], self._words[scope, key]) for key in keys)
            return match_entries(found, wanted)

    def link(self, edge: Edge) -> None:
        with self._open():
            for side, place in self._edge_ends(edge):
                side.setdefault(place, {})[edge_name(edge)] = edge

    def unlink(self, edge: Edge) -> bool:
        with self._open():
            gone = False
            for side, place in self._edge_ends(edge):
                kept = side.get(place, {})
                gone = kept.pop(edge_name(edge), None) is not None
                if gone and not kept:
                    del side[place]
            return gone

    def _edge_ends(self, edge: Edge) -> tuple[tuple[dict[EntryPlace, dict[EdgeName, Edge]], EntryPlace], ...]:
        return (self._out, (edge.scope, edge.source)), (self._in, (edge.target_scope, edge.target))

    def edges(self, query: EdgeQuery) -> list[Edge]:
        with self._open():
            side = self._out if query.direction == "out" else self._in
            found = {
                name: edge
                for key in query.keys
                for name, edge in side.get((query.scope, key), {}).items()
                if not query.kinds or edge.kind in query.kinds
            }
            return [found[name] for name in sorted(found)[: query.limit]]

    def close(self) -> None:
        self._closed = True

    def _open(self) -> AbstractContextManager[object]:
        if self._closed:
            raise Closed
        return self._lock.lock
