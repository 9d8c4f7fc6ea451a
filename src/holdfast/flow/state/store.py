"""A store with the rules that apply over every backend, and reads from it.

A backend keeps bytes and compares versions. Key checks, expiry and transient entries are handled here.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.core import entries as rules
from holdfast.core.checks import check_number
from holdfast.core.journal.codec import decode
from holdfast.core.values import to_plain, upcast_value
from holdfast.errors import EntryNotFound, InvalidValue, Unsupported
from holdfast.flow.state.transients import TransientEntries
from holdfast.ports import Clock, DatalogStore, Embedder, HistoryStore, Store
from holdfast.records.entries import Entry, EntryPageQuery, Revision, StoredEntry
from holdfast.records.scope import Address, Scope
from holdfast.records.settings import Settings


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
        raise EntryNotFound(f"{key!r} of {place} has no value. Check the key and the scope, or use read.")
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


def list_keys(storage: Storage, scope: Address, prefix: str, after: str | None, limit: int | None) -> list[str]:
    """List keys in order, after one of them: the next page begins after the last key of this one."""
    return [key for key, _ in list_stored(storage, scope, prefix, after, limit)]


def list_stored(
    storage: Storage, scope: Address, prefix: str = "", after: str | None = None, limit: int | None = None
) -> list[tuple[str, StoredEntry]]:
    """List stored entries in key order, with transient ones in place of those they overlay."""
    place, prefix = Scope.of(scope).text, rules.check_prefix(prefix)
    after = None if after is None else rules.check_entry_key(after)
    most = None if limit is None else check_number("limit", limit, least=1, most=rules.MAX_PAGE)
    now = storage.clock.now_ms()
    over = {
        key: entry
        for key, entry in storage.transients.live_entries(storage.place(place), now)
        if key.startswith(prefix) and (after is None or key > after)
    }
    found = dict(fetch_pages(storage, place, EntryPageQuery(now=now, prefix=prefix, after=after), most))
    # A full page may end before a transient key: sorting and cutting leaves that key to a later page.
    found.update(over)
    return sorted(found.items())[:most]


def list_entries(
    storage: Storage, scope: Address, prefix: str = "", after: str | None = None, limit: int | None = None
) -> list[Entry]:
    """List entries in key order, as readers get them."""
    place = Scope.of(scope).text
    return [to_entry(place, key, entry) for key, entry in list_stored(storage, place, prefix, after, limit)]


def fetch_pages(storage: Storage, scope: str, page: EntryPageQuery, most: int | None) -> list[tuple[str, StoredEntry]]:
    found: list[tuple[str, StoredEntry]] = []
    while most is None or len(found) < most:
        wanted = page.limit if most is None else min(page.limit, most - len(found))
        more = storage.store.page(scope, replace(page, limit=wanted))
        found += more
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
