"""A store with the rules that apply over every backend, and reads from it.

A backend keeps bytes and compares versions. Key checks, expiry, transient entries and read-only views are handled here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.core import entries as rules
from holdfast.core.journal.codec import decode
from holdfast.core.numbers import check_number
from holdfast.core.values import to_plain, upcast_value
from holdfast.errors import EntryNotFound, InvalidValue, TooLarge, Unsupported
from holdfast.ports import Clock, DatalogStore, Embedder, HistoryStore, Store
from holdfast.records.entries import Entry, EntryPageQuery, Revision, StoredEntry
from holdfast.records.scope import Address, Scope
from holdfast.records.settings import Settings
from holdfast.system import ForkLock


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """A store with everything its rules need."""

    store: Store
    clock: Clock
    settings: Settings
    transients: TransientEntries
    tenant: str
    embedder: Embedder | None = None
    reserving: bool = False
    """True if holdfast's own keys are reserved, so that callers cannot write them."""

    def place(self, scope: str) -> tuple[str, str]:
        """Return the key under which transient entries of a scope are kept."""
        return (self.tenant, scope)


def check_writable(storage: Storage, *keys: str) -> None:
    """Refuse reserved keys."""
    if storage.reserving:
        rules.check_not_reserved(*keys)


def require_capability(storage: Storage, capability: str, what: str) -> None:
    """Refuse an operation whose capability the store does not declare."""
    if capability not in storage.store.capabilities:
        offered = ", ".join(sorted(storage.store.capabilities)) or "nothing beyond reading and writing"
        raise Unsupported(f"This store does not offer {what}. It declares: {offered}.")


def find_entry(storage: Storage, scope: str, key: str) -> StoredEntry | None:
    """Find the entry that readers see: a transient one first, never an expired one."""
    now = storage.clock.now_ms()
    over = storage.transients.get(storage.place(scope), key, now)
    return over if over is not None else live_or_none(storage.store.get(scope, key), now)


def live_or_none(entry: StoredEntry | None, now: int) -> StoredEntry | None:
    """Return the entry, or None if it has expired."""
    return entry if entry is not None and entry.is_live(now) else None


def read_value(storage: Storage, scope: Address, key: str, as_: Any = None, default: Any = None) -> Any:
    """Return a key's value, converted to a type if requested; the default if there is none."""
    place, key = Scope.of(scope).text, rules.check_entry_key(key)
    entry = find_entry(storage, place, key)
    if entry is None:
        return default
    return upcast_value(decode(entry.value), as_, entry.schema, f"{key!r} of {place}")


def require_value(storage: Storage, scope: Address, key: str, as_: Any = None) -> Any:
    """Return a key's value; raise EntryNotFound if there is none."""
    found = read_value(storage, scope, key, as_, rules.MISSING)
    if found is rules.MISSING:
        place = Scope.of(scope).text
        why = f"{key!r} of {place} has no value. Check the key and the scope, or use read."
        raise EntryNotFound(why, scope=place, key=key)
    return found


def read_entry(storage: Storage, scope: Address, key: str) -> Entry | None:
    """Return a key's entry: its value, version and options; None if there is none."""
    place, key = Scope.of(scope).text, rules.check_entry_key(key)
    entry = find_entry(storage, place, key)
    return None if entry is None else to_entry(place, key, entry)


def to_entry(scope: str, key: str, entry: StoredEntry) -> Entry:
    """Convert a stored entry to the record that readers get."""
    return Entry(
        scope=scope,
        key=key,
        value=decode(entry.value),
        version=entry.version,
        written_at=entry.written_at,
        expires_at=entry.expires_at,
        tier=entry.tier,
        lifetime=entry.lifetime,
        content_kind=entry.content_kind,
        salience=entry.salience,
    )


def list_keys(
    storage: Storage, scope: Address, prefix: str, after: str | None, limit: int | None, tier: str | None = None
) -> list[str]:
    """List keys in order, after one of them: the next page begins after the last key of this one."""
    return [key for key, _ in list_stored(storage, scope, prefix, after, limit, tier)]


def list_stored(
    storage: Storage,
    scope: Address,
    prefix: str = "",
    after: str | None = None,
    limit: int | None = None,
    tier: str | None = None,
) -> list[tuple[str, StoredEntry]]:
    """List stored entries in key order, all or of one tier, with transient ones in place of those they overlay."""
    place, prefix = Scope.of(scope).text, rules.check_prefix(prefix)
    if tier is not None:
        rules.check_choice("tier", tier)
    after = None if after is None else rules.check_entry_key(after)
    most = None if limit is None else check_number("limit", limit, least=1, most=rules.MAX_PAGE)
    now = storage.clock.now_ms()
    over = {
        key: entry
        for key, entry in storage.transients.live_entries(storage.place(place), now)
        if key.startswith(prefix) and (after is None or key > after)
    }
    of_tier = None if tier is None else lambda key, one: key not in over and one.tier == tier
    found = fetch_pages(storage, place, EntryPageQuery(now=now, prefix=prefix, after=after), most, of_tier)
    if over:
        # A full page may end before a transient key: sorting and cutting leaves that key to a later page.
        shown = {key: entry for key, entry in over.items() if tier is None or entry.tier == tier}
        found = sorted({**dict(found), **shown}.items())
    return found[:most]


def list_entries(
    storage: Storage, scope: Address, prefix: str, after: str | None, limit: int | None, tier: str | None
) -> list[Entry]:
    """List entries in key order, as readers get them."""
    place = Scope.of(scope).text
    return [to_entry(place, key, entry) for key, entry in list_stored(storage, place, prefix, after, limit, tier)]


def fetch_pages(
    storage: Storage,
    scope: str,
    page: EntryPageQuery,
    most: int | None,
    counts: Callable[[str, StoredEntry], bool] | None = None,
) -> list[tuple[str, StoredEntry]]:
    """Fetch pages until there are `most` entries that count, or a few more, or no more pages."""
    found: list[tuple[str, StoredEntry]] = []
    while most is None or len(found) < most:
        wanted = page.limit if most is None or counts is not None else min(page.limit, most - len(found))
        more = storage.store.page(scope, replace(page, limit=wanted))
        found += more if counts is None else [one for one in more if counts(*one)]
        if len(more) < wanted:
            break
        page = replace(page, after=more[-1][0])
    return found


def read_history(storage: Storage, scope: Address, key: str, limit: int | None = None) -> list[Revision]:
    """Return the revisions of a key, newest first."""
    require_capability(storage, "history", "history")
    most = None if limit is None else check_number("limit", limit, least=1, most=rules.MAX_PAGE)
    return cast(HistoryStore, storage.store).history(Scope.of(scope).text, rules.check_entry_key(key), most)


def list_scopes(storage: Storage, after: Address | None, limit: int | None) -> list[str]:
    """List scopes that have entries, in order, after one of them."""
    require_capability(storage, "history", "a list of its scopes; hf.state does")
    told = cast(HistoryStore, storage.store).scopes
    most = rules.MAX_PAGE if limit is None else check_number("limit", limit, least=1, most=rules.MAX_PAGE)
    now, found = storage.clock.now_ms(), list[str]()
    last = "" if after is None else Scope.of(after).text
    while more := told(now, last, most):
        found += more
        if limit is not None or len(more) < most:
            break
        last = more[-1]
    return found


def run_datalog(storage: Storage, script: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a Datalog script in the store."""
    require_capability(storage, "datalog", "Datalog")
    if not isinstance(script, str):
        raise InvalidValue(f"script must be text, not {type(script).__name__}.")
    return cast(DatalogStore, storage.store).datalog(script, to_plain(params or {}))


TransientScope = tuple[str, str]


class TransientEntries:
    """A map (tenant, scope) → key → entry, shared by every view of one client.

    Bounded: a tenant with `most` entries is refused further ones; other tenants are not affected.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.kept: dict[TransientScope, dict[str, StoredEntry]] = {}
        self._counts: Counter[str] = Counter()
        self._lock = ForkLock()

    def at(self, place: TransientScope, key: str) -> StoredEntry | None:
        """Return the entry that overlays a key, expired or not."""
        kept = self.kept.get(place)
        return None if kept is None else kept.get(key)

    def get(self, place: TransientScope, key: str, now: int) -> StoredEntry | None:
        """Return the entry that overlays a key, if it has not expired."""
        return live_or_none(self.at(place, key), now)

    def put(self, place: TransientScope, key: str, entry: StoredEntry, before: StoredEntry | None) -> bool:
        """Overlay a key with an entry in place of `before`; return False if another entry is there now."""
        with self._lock.lock:
            if self.at(place, key) is not before:
                return False
            if before is None:
                self._make_room(place[0], entry.written_at)
                self._counts[place[0]] += 1
            self.kept.setdefault(place, {})[key] = entry
            return True

    def _make_room(self, tenant: str, now: int) -> None:
        if self._counts[tenant] >= self._most:
            theirs = [(place, kept) for place, kept in self.kept.items() if place[0] == tenant]
            over = [(place, key) for place, kept in theirs for key in kept if not kept[key].is_live(now)]
            for place, key in over:
                self._remove(place, key)
        if self._counts[tenant] >= self._most:
            raise TooLarge(
                f"There are {self._most:,} transient entries. Remove those that are no longer needed with "
                "clear_transient, or raise HOLDFAST_TRANSIENT_ENTRIES."
            )

    def drop(self, place: TransientScope, key: str) -> bool:
        """Remove one entry; return True if there was one."""
        with self._lock.lock:
            return self.at(place, key) is not None and self._remove(place, key)

    def _remove(self, place: TransientScope, key: str) -> bool:
        kept = self.kept[place]
        del kept[key]
        if not kept:
            del self.kept[place]
        self._reduce_count(place[0], 1)
        return True

    def _reduce_count(self, tenant: str, count: int) -> None:
        self._counts[tenant] -= count
        if not self._counts[tenant]:
            del self._counts[tenant]

    def clear(self, place: TransientScope) -> int:
        """Remove all entries of a scope and return their number."""
        with self._lock.lock:
            gone = len(self.kept.pop(place, {}))
            self._reduce_count(place[0], gone)
            return gone

    def clear_below(self, place: TransientScope) -> None:
        """Remove all entries of a scope and of the scopes below it."""
        tenant, scope = place
        with self._lock.lock:
            for kept in [one for one in self.kept if one[0] == tenant and f"{one[1]}/".startswith(f"{scope}/")]:
                self._reduce_count(tenant, len(self.kept.pop(kept)))

    def live_entries(self, place: TransientScope, now: int) -> Iterator[tuple[str, StoredEntry]]:
        """Iterate over the live entries that overlay a scope."""
        with self._lock.lock:
            kept = list(self.kept.get(place, {}).items())
        return ((key, entry) for key, entry in kept if entry.is_live(now))


READ_METHODS = ("at", "edges", "get", "history", "live_entries", "page", "search")


class ReadOnlyView:
    """The read methods of a store or of transient entries, wrapped so that no attribute exposes the object itself."""

    __slots__ = ("_capabilities", *READ_METHODS)

    def __init__(self, target: Any) -> None:
        self._capabilities = _wrap_method(lambda: target.capabilities)
        for name in READ_METHODS:
            if hasattr(target, name):
                setattr(self, name, _wrap_method(getattr(target, name)))

    @property
    def capabilities(self) -> frozenset[str]:
        offered: frozenset[str] = self._capabilities()
        return offered


def make_read_only(storage: Storage) -> Storage:
    """Return the storage with read-only views of its store and its transient entries."""
    if isinstance(storage.store, ReadOnlyView):
        return storage
    store, transients = ReadOnlyView(storage.store), ReadOnlyView(storage.transients)
    return replace(storage, store=cast(Store, store), transients=cast(TransientEntries, transients))


def _wrap_method(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method in a function: a bound method would expose its object."""

    def asking(*given: Any) -> Any:
        return ask(*given)

    return asking
