"""Reading and writing entries: the same rules over every store.

What a caller gives is checked and made into bytes here, reducers run here, and time is compared
here: a backend keeps bytes and compares versions. A write that depends on what is there is
tried again when another writer was first; nothing is ever half written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import entries as rules
from holdfast.core.codec import decode, encode
from holdfast.core.value_types import as_type, schema_of
from holdfast.core.values import plain
from holdfast.core.words import text_of
from holdfast.errors import Conflict, EntryNotFound, InvalidValue, TooLarge, Unsupported, VersionConflict
from holdfast.ports import Clock, Embedder, Store, Transients
from holdfast.records.entries import Entry, EntryPage, Revision, Stored
from holdfast.records.scope import Address, Scope
from holdfast.records.settings import Settings

TRIES = 1_000
"""Each time another writer was first, so somebody gets on; whoever was this unlucky is told."""
INDEXED_CHARS = 20_000


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """A store with what its rules need."""

    store: Store
    clock: Clock
    settings: Settings
    transients: Transients
    tenant: str
    embedder: Embedder | None = None

    def place(self, scope: str) -> tuple[str, str]:
        """Where transient entries of a scope lie."""
        return (self.tenant, scope)


def needs(storage: Storage, capability: str, what: str) -> None:
    """Refuse what the store does not declare."""
    if capability not in storage.store.capabilities:
        raise Unsupported(f"This store does not offer {what}. It declares: {_declared(storage.store)}.")


def _declared(store: Store) -> str:
    return ", ".join(sorted(store.capabilities)) or "nothing beyond reading and writing"


def find(storage: Storage, scope: str, key: str) -> Stored | None:
    """The entry that readers see: a transient one first, never one whose time is over."""
    now = storage.clock.now_ms()
    over = storage.transients.get(storage.place(scope), key, now)
    return over if over is not None else _live(storage.store.get(scope, key), now)


def _live(entry: Stored | None, now: int) -> Stored | None:
    return entry if entry is not None and entry.live(now) else None


def value_of(entry: Stored) -> Any:
    """What an entry holds, as plain data."""
    return decode(entry.value)


def read(storage: Storage, scope: Address, key: str, as_: Any = None, default: Any = None) -> Any:
    """A key's value, as a type if one is asked for; the default if there is none."""
    place, key = Scope.of(scope).text, rules.check_entry_key(key)
    entry = find(storage, place, key)
    if entry is None:
        return default
    return as_type(value_of(entry), as_, entry.schema, f"{key!r} of {place}")


def require(storage: Storage, scope: Address, key: str, as_: Any = None) -> Any:
    """A key's value; without one, an error."""
    place, key = Scope.of(scope).text, rules.check_entry_key(key)
    entry = find(storage, place, key)
    if entry is None:
        raise EntryNotFound(f"{key!r} of {place} has no value. Check the key and the scope, or use read.")
    return as_type(value_of(entry), as_, entry.schema, f"{key!r} of {place}")


def entry_of(storage: Storage, scope: Address, key: str) -> Entry | None:
    """A key's value with its version and how it is kept."""
    place, key = Scope.of(scope).text, rules.check_entry_key(key)
    entry = find(storage, place, key)
    return None if entry is None else shown(place, key, entry)


def shown(scope: str, key: str, entry: Stored) -> Entry:
    """An entry as readers get it."""
    return Entry(
        scope=scope,
        key=key,
        value=value_of(entry),
        version=entry.version,
        written_at=entry.written_at,
        expires_at=entry.expires_at,
        tier=entry.tier,
        lifetime=entry.lifetime,
        content_kind=entry.content_kind,
        salience=entry.salience,
    )


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants written."""

    value: Any
    options: rules.Options = rules.Options()
    expected: int | None = None
    reducer: str = "overwrite"
    once: str | None = None
    effect: str | None = None
    """The id of the effect that asks for it, if one does: the second time it changes nothing."""


def write(storage: Storage, scope: Address, key: str, wanted: Write) -> int:
    """Write a key and give its new version, by which the next write can say what it expects."""
    where = Scope.of(scope)
    key = rules.check_entry_key(key)
    rules.check_options(wanted.options, where)
    rules.check_expected(wanted.expected)
    reducer = rules.check_reducer(wanted.reducer)
    value = plain(wanted.value)
    given = encode(value, storage.settings.nesting)
    if wanted.once is None:
        return _write(storage, where.text, key, value, wanted)
    needs(storage, "keys", "idempotency keys (key=)")
    earlier = partial(answered, storage, where.text, key, wanted.once, given, reducer)
    return _once(earlier, partial(_write, storage, where.text, key, value, wanted))


def _write(storage: Storage, scope: str, key: str, value: Any, wanted: Write) -> int:
    schema = schema_of(wanted.value)
    if wanted.options.lifetime == "transient":
        return _lay_over(storage, scope, key, value, wanted, schema)
    if wanted.reducer == "overwrite" and wanted.expected is None and wanted.effect is None:
        entry = made(storage, key, value, wanted.options, schema)
        version = storage.store.put(scope, key, entry, None, wanted.once)
        assert version is not None, "a write that expects nothing is never refused"
    else:
        version = _compared(storage, scope, key, value, wanted, schema)
    # What was said for good is not hidden by what was said for a moment.
    storage.transients.drop(storage.place(scope), key)
    return version


def _once(earlier: Callable[[], int | None], do: Callable[[], int]) -> int:
    """What an earlier call under the same key made, else what this one makes.

    The earlier one may still be under way: then it is this one that comes too late, and is given its answer.
    """
    known = earlier()
    if known is not None:
        return known
    try:
        return do()
    except Conflict:
        known = earlier()
        if known is None:
            raise
        return known


def answered(storage: Storage, scope: str, key: str, once: str, given: bytes | None, reducer: str) -> int | None:
    """The version that an earlier call with this idempotency key made, if one was; KeyReused if it was another call."""
    ask: Callable[..., int | None] = storage.store.answered  # type: ignore[attr-defined]
    return ask(scope, key, once, given, reducer)


def _lay_over(storage: Storage, scope: str, key: str, value: Any, wanted: Write, schema: str | None) -> int:
    if wanted.once is not None:
        raise InvalidValue("A transient entry is not journaled, so it takes no key=.")
    for _ in range(TRIES):
        over, now = storage.transients.at(storage.place(scope), key), storage.clock.now_ms()
        known = _live(over, now)
        if known is None or wanted.expected is not None:
            stored = _live(storage.store.get(scope, key), now)
            _check_version(scope, key, stored, wanted.expected)
            known = known or stored
        after = rules.reduced(wanted.reducer, key, _current(known), value)
        # Its version is that of what it lies over: whoever writes for good by it, changes what was seen.
        version = 0 if known is None else known.version
        entry = replace(made(storage, key, after, wanted.options, schema), version=version)
        if storage.transients.put(storage.place(scope), key, entry, over):
            return version
    raise _crowded(scope, key)


def _compared(storage: Storage, scope: str, key: str, value: Any, wanted: Write, schema: str | None) -> int:
    """Read, decide, write if nothing changed meanwhile; again if something did."""
    for _ in range(TRIES):
        stored = storage.store.get(scope, key)
        known = _live(stored, storage.clock.now_ms())
        if wanted.effect is not None and known is not None and wanted.effect in known.applied:
            return known.version
        _check_version(scope, key, known, wanted.expected)
        after = rules.reduced(wanted.reducer, key, _current(known), value)
        entry = made(storage, key, after, wanted.options, schema)
        if wanted.once is not None and wanted.reducer != "overwrite":
            entry = replace(entry, reducer=wanted.reducer, given=encode(value))
        if wanted.effect is not None:
            before = () if known is None else known.applied
            entry = replace(entry, applied=(*before, wanted.effect)[-rules.APPLIED :])
        version = storage.store.put(scope, key, entry, 0 if stored is None else stored.version, wanted.once)
        if version is not None:
            return version
    raise _crowded(scope, key)


def _crowded(scope: str, key: str) -> Conflict:
    return Conflict(f"{key!r} of {scope} is written by others all the time. Nothing was written; try again.")


def _current(entry: Stored | None) -> Any:
    return rules.MISSING if entry is None else value_of(entry)


def _check_version(scope: str, key: str, known: Stored | None, expected: int | None) -> None:
    actual = 0 if known is None else known.version
    if expected is not None and expected != actual:
        raise VersionConflict(f"{key!r} of {scope}", expected, actual)


def made(storage: Storage, key: str, value: Any, options: rules.Options, schema: str | None) -> Stored:
    """An entry in the bytes that are kept, with the words that search will look in."""
    data = encode(value, storage.settings.nesting)
    if len(data) > storage.settings.event_bytes:
        raise TooLarge(
            f"The value of {key!r} has {len(data):,} bytes; {storage.settings.event_bytes:,} are allowed. "
            "Split it, keep it elsewhere and store where, or raise HOLDFAST_EVENT_BYTES."
        )
    now = storage.clock.now_ms()
    entry = Stored(
        value=data,
        written_at=now,
        expires_at=rules.expiry(options, now),
        tier=options.tier,
        lifetime=options.lifetime,
        content_kind=options.content_kind,
        salience=options.salience,
        schema=schema,
    )
    return _findable(storage, key, value, entry)


def _findable(storage: Storage, key: str, value: Any, entry: Stored) -> Stored:
    offered = storage.store.capabilities
    if "history" in offered or not offered & {"text", "vectors"}:
        return entry  # The journal indexes what is appended to it by itself.
    text = f"{key}\n{text_of(value, INDEXED_CHARS)}"
    if "vectors" not in offered or storage.embedder is None:
        return replace(entry, words=text)
    (vector,) = storage.embedder.embed([text])
    return replace(entry, words=text, vector=vector, embedder=storage.embedder.name)


def delete(storage: Storage, scope: Address, key: str, expected: int | None = None, once: str | None = None) -> bool:
    """Remove a key and what lies over it; gives whether there was a value."""
    place, key = Scope.of(scope).text, rules.check_entry_key(key)
    rules.check_expected(expected)
    if once is None:
        return _delete(storage, place, key, expected, None)
    needs(storage, "keys", "idempotency keys (key=)")
    earlier = partial(answered, storage, place, key, once, None, "delete")
    return bool(_once(earlier, partial(_delete, storage, place, key, expected, once)))


def _delete(storage: Storage, place: str, key: str, expected: int | None, once: str | None) -> bool:
    now = storage.clock.now_ms()
    for _ in range(TRIES):
        stored = storage.store.get(place, key)
        known = _live(stored, now)
        _check_version(place, key, known, expected)
        at = None if expected is None else 0 if stored is None else stored.version
        gone = storage.store.drop(place, key, at, once)
        if not gone and once is not None and answered(storage, place, key, once, None, "delete"):
            return True  # By the earlier call, which was still under way.
        if gone is not None:
            over = storage.transients.get(storage.place(place), key, now)
            hidden = storage.transients.drop(storage.place(place), key) and over is not None
            return hidden or (gone and known is not None)
    raise _crowded(place, key)


def listed(storage: Storage, scope: Address, prefix: str, after: str | None, limit: int | None) -> list[str]:
    """Keys in order, after one of them: the next page begins after the last key of this one."""
    return [key for key, _ in paged(storage, scope, prefix, after, limit)]


def paged(
    storage: Storage, scope: Address, prefix: str = "", after: str | None = None, limit: int | None = None
) -> list[tuple[str, Stored]]:
    """Entries in order of key, transient ones in place of what they lie over."""
    place, prefix = Scope.of(scope).text, rules.check_prefix(prefix)
    after = None if after is None else rules.check_entry_key(after)
    most = None if limit is None else rules.check_limit("limit", limit)
    now = storage.clock.now_ms()
    over = {
        key: entry
        for key, entry in storage.transients.over(storage.place(place), now)
        if key.startswith(prefix) and (after is None or key > after)
    }
    found = dict(_stored(storage, place, EntryPage(now=now, prefix=prefix, after=after), most))
    # A page that is full may end before a transient key: that one belongs to a later page, in order.
    found.update(over)
    return sorted(found.items())[:most]


def entries(
    storage: Storage, scope: Address, prefix: str = "", after: str | None = None, limit: int | None = None
) -> list[Entry]:
    """Entries in order of key, as readers get them."""
    place = Scope.of(scope).text
    return [shown(place, key, entry) for key, entry in paged(storage, place, prefix, after, limit)]


def _stored(storage: Storage, scope: str, page: EntryPage, most: int | None) -> list[tuple[str, Stored]]:
    found: list[tuple[str, Stored]] = []
    while most is None or len(found) < most:
        wanted = page.limit if most is None else min(page.limit, most - len(found))
        more = storage.store.page(scope, replace(page, limit=wanted))
        found += more
        if len(more) < wanted:
            break
        page = replace(page, after=more[-1][0])
    return found


def end_session(storage: Storage, session: str) -> int:
    """Delete what was to live as long as a session; gives how many entries that were."""
    scope = Scope.session(session).text
    page = EntryPage(now=storage.clock.now_ms(), lifetime="session", limit=rules.MAX_PAGE)
    # What was written anew meanwhile is no longer what was to end.
    found = _stored(storage, scope, page, None)
    ended = [bool(storage.store.drop(scope, key, entry.version)) for key, entry in found]
    storage.transients.clear(storage.place(scope))
    return sum(ended)


def clear_transient(storage: Storage, scope: Address) -> int:
    """Take away what lies over the entries of a scope."""
    return storage.transients.clear(storage.place(Scope.of(scope).text))


def history(storage: Storage, scope: Address, key: str, limit: int | None = None) -> list[Revision]:
    """What a key held, newest first."""
    needs(storage, "history", "history")
    most = None if limit is None else rules.check_limit("limit", limit)
    told: Callable[[str, str, int | None], list[Revision]] = storage.store.history  # type: ignore[attr-defined]
    return told(Scope.of(scope).text, rules.check_entry_key(key), most)


def datalog(storage: Storage, script: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a store makes of a question in Datalog."""
    needs(storage, "datalog", "Datalog")
    if not isinstance(script, str):
        raise InvalidValue(f"script must be text, not {type(script).__name__}.")
    ask: Callable[[str, dict[str, Any]], dict[str, Any]] = storage.store.datalog  # type: ignore[attr-defined]
    return ask(script, plain(params or {}))
