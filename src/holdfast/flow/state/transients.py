"""Transient entries: they overlay stored ones, are visible in this process only, and are cleared when a turn ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.errors import TooLarge
from holdfast.records.entries import StoredEntry
from holdfast.system import ForkLock

TransientScope = tuple[str, str]


class TransientEntries:
    """A map (tenant, scope) → key → entry, shared by every view of one client.

    Bounded: a tenant with `most` entries is refused further ones; other tenants are not affected.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[TransientScope, dict[str, StoredEntry]] = {}
        self._counts: Counter[str] = Counter()
        self._lock = ForkLock()

    def at(self, place: TransientScope, key: str) -> StoredEntry | None:
        """Return the entry that overlays a key, expired or not."""
        kept = self._kept.get(place)
        return None if kept is None else kept.get(key)

    def get(self, place: TransientScope, key: str, now: int) -> StoredEntry | None:
        """Return the entry that overlays a key, if it has not expired."""
        entry = self.at(place, key)
        return entry if entry is not None and entry.is_live(now) else None

    def put(self, place: TransientScope, key: str, entry: StoredEntry, before: StoredEntry | None) -> bool:
        """Overlay a key with an entry in place of `before`; return False if another entry is there now."""
        with self._lock.lock:
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
            over = [(place, key) for place, kept in theirs for key in kept if not kept[key].is_live(now)]
            for place, key in over:
                self._remove(place, key)
        if self._counts[tenant] >= self._most:
            raise TooLarge(
                f"There are {self._most:,} transient entries. Clear those of turns that have ended, "
                "or raise HOLDFAST_TRANSIENT_ENTRIES."
            )

    def drop(self, place: TransientScope, key: str) -> bool:
        """Remove one entry; return True if there was one."""
        with self._lock.lock:
            return self.at(place, key) is not None and self._remove(place, key)

    def _remove(self, place: TransientScope, key: str) -> bool:
        kept = self._kept[place]
        del kept[key]
        if not kept:
            del self._kept[place]
        self._reduce_count(place[0], 1)
        return True

    def _reduce_count(self, tenant: str, count: int) -> None:
        self._counts[tenant] -= count
        if not self._counts[tenant]:
            del self._counts[tenant]

    def clear(self, place: TransientScope) -> int:
        """Remove all entries of a scope and return their number."""
        with self._lock.lock:
            gone = len(self._kept.pop(place, {}))
            self._reduce_count(place[0], gone)
            return gone

    def clear_below(self, place: TransientScope) -> None:
        """Remove all entries of a scope and of the scopes below it."""
        tenant, scope = place
        with self._lock.lock:
            for kept in [one for one in self._kept if one[0] == tenant and f"{one[1]}/".startswith(f"{scope}/")]:
                self._reduce_count(tenant, len(self._kept.pop(kept)))

    def live_entries(self, place: TransientScope, now: int) -> Iterator[tuple[str, StoredEntry]]:
        """Iterate over the live entries that overlay a scope."""
        with self._lock.lock:
            kept = list(self._kept.get(place, {}).items())
        return ((key, entry) for key, entry in kept if entry.is_live(now))
