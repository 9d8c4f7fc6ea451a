"""Transient entries: they lie over what is stored, are seen by this process alone, and go when their turn ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from holdfast.errors import TooLarge
from holdfast.records.entries import Stored
from holdfast.system import renew_in_child

Place = tuple[str, str]


class Transients:
    """(tenant, scope) → key → entry, for every view of one client.

    Bounded: beyond `most` of a tenant its writing is refused, and nobody else's.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Place, dict[str, Stored]] = {}
        self._counts: Counter[str] = Counter()
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    def at(self, place: Place, key: str) -> Stored | None:
        """The entry that was laid over a key, also if its time is over."""
        kept = self._kept.get(place)
        return None if kept is None else kept.get(key)

    def get(self, place: Place, key: str, now: int) -> Stored | None:
        """The entry that lies over a key, if its time is not over."""
        entry = self.at(place, key)
        return entry if entry is not None and entry.live(now) else None

    def put(self, place: Place, key: str, entry: Stored, before: Stored | None) -> bool:
        """Lay an entry over a key, in place of what was there before; False if that has changed."""
        with self._lock:
            if self.at(place, key) is not before:
                return False
            if before is None:
                self._make_room(place[0], entry.written_at)
                self._counts[place[0]] += 1
            self._kept.setdefault(place, {})[key] = entry
            return True

    def _make_room(self, tenant: str, now: int) -> None:
        if self._counts[tenant] >= self._most:
            theirs = [(place, kept) for place, kept in self._kept.items() if place[0] == tenant]
            over = [(place, key) for place, kept in theirs for key in kept if not kept[key].live(now)]
            for place, key in over:
                self._take(place, key)
        if self._counts[tenant] >= self._most:
            raise TooLarge(
                f"There are {self._most:,} transient entries. Clear those of turns that have ended, "
                "or raise HOLDFAST_TRANSIENT_ENTRIES."
            )

    def drop(self, place: Place, key: str) -> bool:
        """Take one away."""
        with self._lock:
            return self.at(place, key) is not None and self._take(place, key)

    def _take(self, place: Place, key: str) -> bool:
        kept = self._kept[place]
        del kept[key]
        if not kept:
            del self._kept[place]
        self._less(place[0], 1)
        return True

    def _less(self, tenant: str, count: int) -> None:
        self._counts[tenant] -= count
        if not self._counts[tenant]:
            del self._counts[tenant]

    def clear(self, place: Place) -> int:
        """Take all of a scope away; gives how many there were."""
        with self._lock:
            gone = len(self._kept.pop(place, {}))
            self._less(place[0], gone)
            return gone

    def clear_below(self, place: Place) -> None:
        """Take all of a scope away, and of every scope that lies in it."""
        tenant, scope = place
        with self._lock:
            for kept in [one for one in self._kept if one[0] == tenant and f"{one[1]}/".startswith(f"{scope}/")]:
                self._less(tenant, len(self._kept.pop(kept)))

    def over(self, place: Place, now: int) -> Iterator[tuple[str, Stored]]:
        """What lies over the entries of a scope."""
        with self._lock:
            kept = list(self._kept.get(place, {}).items())
        return ((key, entry) for key, entry in kept if entry.live(now))
