"""Write entries: check and encode values, run reducers, compare versions.

A write that depends on the current value is retried when another writer came first. Nothing is ever half written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.core import entries as rules
from holdfast.core.compaction.summary import PASSAGE_PREFIX
from holdfast.core.journal.codec import decode, encode
from holdfast.core.search.documents import INDEXED_CHARS
from holdfast.core.search.words import flatten_value
from holdfast.core.values import schema_of, to_plain
from holdfast.errors import Conflict, Corrupt, InvalidValue, TooLarge, Unavailable, VersionConflict
from holdfast.flow.state.store import Storage, check_writable, fetch_pages, live_or_none, require_capability
from holdfast.ports import KeyedStore
from holdfast.records.entries import EntryPageQuery, StoredEntry
from holdfast.records.scope import Address, Scope

WRITE_TRIES = 1_000
"""Attempts to write. Each failure means that another writer succeeded; after the last one, Conflict is raised."""


_KEPT_OPTIONS = ("tier", "lifetime", "content_kind", "salience")


class EntryWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write as requested by a caller."""

    value: Any
    schema: str | None = None
    """The schema of the value's type, filled in when the value becomes plain data."""
    options: rules.EntryOptions = rules.EntryOptions()
    expected: int | None = None
    reducer: str = "overwrite"
    once: str | None = None
    effect: str | None = None
    """The id of the effect that requests the write, if any: applying it a second time changes nothing."""


def write_entry(storage: Storage, scope: Address, key: str, wanted: EntryWrite) -> int:
    """Write a key and return its new version, which the next write can pass as `expected`."""
    where = Scope.of(scope)
    key = rules.check_entry_key(key)
    check_writable(storage, key)
    rules.check_options(wanted.options, where)
    rules.check_expected(wanted.expected)
    reducer = rules.check_choice("reducer", wanted.reducer)
    wanted = replace(wanted, value=to_plain(wanted.value), schema=schema_of(wanted.value))
    if wanted.once is None and _is_plain(wanted):
        return _write(storage, where.text, key, wanted)  # It encodes and checks the value as its first step.
    given = encode(wanted.value, storage.settings.nesting)
    if wanted.once is None:
        return _write(storage, where.text, key, wanted)
    require_capability(storage, "keys", "idempotency keys (key=)")
    earlier = partial(earlier_version, storage, where.text, key, wanted.once, given, reducer)
    return _run_once(earlier, partial(_write, storage, where.text, key, wanted))


def _is_plain(wanted: EntryWrite) -> bool:
    """Return True for a write that depends on nothing that is stored."""
    return wanted.reducer == "overwrite" and wanted.expected is None and wanted.effect is None


def _write(storage: Storage, scope: str, key: str, wanted: EntryWrite) -> int:
    if wanted.options.lifetime == "transient":
        return _write_transient(storage, scope, key, wanted)
    if _is_plain(wanted):
        entry = build_entry(storage, key, wanted.value, wanted.options, wanted.schema)
        version = storage.store.put(scope, key, entry, None, wanted.once)
        assert version is not None, "a write that expects nothing is never refused"
    else:
        version = _compare_and_write(storage, scope, key, wanted)
    # A durable write must not stay hidden behind a transient value.
    storage.transients.drop(storage.place(scope), key)
    return version


def _run_once(earlier: Callable[[], int | None], do: Callable[[], int]) -> int:
    """Return the result of an earlier call with the same key, else run this one.

    If the earlier call is still under way, this one conflicts with it and returns its result.
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


def earlier_version(storage: Storage, scope: str, key: str, once: str, given: bytes | None, reducer: str) -> int | None:
    """Return the version written by an earlier call with this key, if any; KeyReused if that call was different."""
    return cast(KeyedStore, storage.store).version_by_key(scope, key, once, given, reducer)


def _write_transient(storage: Storage, scope: str, key: str, wanted: EntryWrite) -> int:
    if wanted.once is not None:
        raise InvalidValue("A transient entry is not journaled, so it takes no key=.")
    for _ in range(WRITE_TRIES):
        over, now = storage.transients.at(storage.place(scope), key), storage.clock.now_ms()
        known = live_or_none(over, now)
        if known is None or wanted.expected is not None:
            stored = live_or_none(storage.store.get(scope, key), now)
            _check_version(scope, key, stored, wanted.expected)
            known = known or stored
        # It carries the version of the entry it overlays, so a durable write can expect the value that was seen.
        version = 0 if known is None else known.version
        entry = replace(_reduce_entry(storage, key, known, wanted), version=version)
        if storage.transients.put(storage.place(scope), key, entry, over):
            return version
    raise _contention_error(scope, key)


def _compare_and_write(storage: Storage, scope: str, key: str, wanted: EntryWrite) -> int:
    """Read, decide, and write if nothing changed meanwhile; retry if it did."""
    for _ in range(WRITE_TRIES):
        stored = storage.store.get(scope, key)
        known = live_or_none(stored, storage.clock.now_ms())
        if wanted.effect is not None and known is not None and wanted.effect in known.applied:
            return known.version
        _check_version(scope, key, known, wanted.expected)
        entry = _reduce_entry(storage, key, known, wanted)
        if wanted.once is not None and wanted.reducer != "overwrite":
            entry = replace(entry, reducer=wanted.reducer, given=encode(wanted.value))
        if wanted.effect is not None:
            before = () if known is None else known.applied
            entry = replace(entry, applied=(*before, wanted.effect)[-rules.MAX_APPLIED_EFFECTS :])
        version = storage.store.put(scope, key, entry, 0 if stored is None else stored.version, wanted.once)
        if version is not None:
            return version
    raise _contention_error(scope, key)


def _reduce_entry(storage: Storage, key: str, known: StoredEntry | None, wanted: EntryWrite) -> StoredEntry:
    """Combine the known entry and a value. A reducer keeps the known options wherever the caller gives none."""
    stored = rules.MISSING if known is None else decode(known.value)
    value = rules.apply_reducer(wanted.reducer, key, stored, wanted.value)
    entry = build_entry(storage, key, value, wanted.options, wanted.schema)
    if wanted.reducer == "overwrite":
        return entry
    before = StoredEntry(value=b"") if known is None else known
    # The type of an appended item is not the type of the list.
    schema = None if wanted.reducer == "append" else entry.schema
    return replace(
        entry,
        schema=schema or before.schema,
        expires_at=before.expires_at if wanted.options.ttl is None else entry.expires_at,
        **{name: getattr(before, name) for name in _KEPT_OPTIONS if getattr(entry, name) is None},
    )


def _contention_error(scope: str, key: str) -> Conflict:
    return Conflict(f"{key!r} of {scope} is written by others all the time. Nothing was written; try again.")


def _check_version(scope: str, key: str, known: StoredEntry | None, expected: int | None) -> None:
    actual = 0 if known is None else known.version
    if expected is not None and expected != actual:
        raise VersionConflict(f"{key!r} of {scope}", expected, actual)


def build_entry(storage: Storage, key: str, value: Any, options: rules.EntryOptions, schema: str | None) -> StoredEntry:
    """Build an entry from a value: encoded, size-checked, with the text that search will index."""
    data = encode(value, storage.settings.nesting)
    if len(data) > storage.settings.event_bytes:
        raise TooLarge(
            f"The value of {key!r} has {len(data):,} bytes; {storage.settings.event_bytes:,} are allowed. "
            "Split it, keep it elsewhere and store where, or raise HOLDFAST_EVENT_BYTES."
        )
    now = storage.clock.now_ms()
    entry = StoredEntry(
        value=data,
        written_at=now,
        expires_at=rules.expiry(options, now),
        tier=options.tier,
        lifetime=options.lifetime,
        content_kind=options.content_kind,
        salience=options.salience,
        schema=schema,
    )
    offered = storage.store.capabilities
    if "history" in offered or not offered & {"text", "vectors"}:
        return entry  # The journal indexes its events itself.
    text = f"{key}\n{flatten_value(value, INDEXED_CHARS)}"
    if "vectors" not in offered or storage.embedder is None:
        return replace(entry, words=text)
    try:
        (vector,) = storage.embedder.embed([text])
    except (Unavailable, InvalidValue):
        return replace(entry, words=text)  # A failing embedder refuses no write: the entry is found by its words.
    return replace(entry, words=text, vector=vector, embedder=storage.embedder.name)


def delete_entry(
    storage: Storage, scope: Address, key: str, expected: int | None = None, once: str | None = None
) -> bool:
    """Delete a key with its transient value; return True if there was a value."""
    place, key = Scope.of(scope).text, rules.check_entry_key(key)
    # A passage is written by holdfast alone, and its owner may delete it from the journal, which its copies follow.
    if not (key.startswith(PASSAGE_PREFIX) and "history" in storage.store.capabilities):
        check_writable(storage, key)
    rules.check_expected(expected)
    if once is None:
        return _delete(storage, place, key, expected, None)
    require_capability(storage, "keys", "idempotency keys (key=)")
    earlier = partial(earlier_version, storage, place, key, once, None, "delete")
    return bool(_run_once(earlier, partial(_delete, storage, place, key, expected, once)))


def _delete(storage: Storage, place: str, key: str, expected: int | None, once: str | None) -> bool:
    now = storage.clock.now_ms()
    for _ in range(WRITE_TRIES):
        try:
            stored, damaged = storage.store.get(place, key), False
        except Corrupt:  # A damaged entry can still be deleted if no version is expected.
            if expected is not None:
                raise
            stored, damaged = None, True
        known = live_or_none(stored, now)
        _check_version(place, key, known, expected)
        at = None if expected is None else 0 if stored is None else stored.version
        gone = storage.store.drop(place, key, at, once)
        if not gone and once is not None and earlier_version(storage, place, key, once, None, "delete"):
            return True  # Deleted by the earlier call, which was still under way.
        if gone is not None:
            over = storage.transients.get(storage.place(place), key, now)
            hidden = storage.transients.drop(storage.place(place), key) and over is not None
            return hidden or (gone and (damaged or known is not None))
    raise _contention_error(place, key)


def purge_expired(storage: Storage) -> int:
    """Delete expired entries for good and return their number."""
    return storage.store.purge(storage.clock.now_ms())


def delete_session_entries(storage: Storage, session: Address) -> int:
    """Delete the entries with a session's lifetime in its scope, or in that of a thread, and return their number."""
    place = Scope.of(session)
    if not rules.is_session_scope(place):
        raise InvalidValue(f"{place} is neither a session nor a thread of one. Give an id, or Scope.thread(…).")
    scope = place.text
    page = EntryPageQuery(now=storage.clock.now_ms(), lifetime="session", limit=rules.MAX_PAGE)
    # Entries rewritten meanwhile are at another version, and stay.
    found = fetch_pages(storage, scope, page, None)
    ended = [bool(storage.store.drop(scope, key, entry.version)) for key, entry in found]
    storage.transients.clear(storage.place(scope))
    return sum(ended)


def clear_scope_transients(storage: Storage, scope: Address) -> int:
    """Remove the transient entries of a scope and return their number."""
    return storage.transients.clear(storage.place(Scope.of(scope).text))
