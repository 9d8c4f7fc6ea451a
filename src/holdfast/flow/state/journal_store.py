"""The journal as a store: entries and edges are events of their scope's stream.

They are rebuilt, explained, erased, exported and restored with everything else. An entry's version is the version of
its event, so it only grows and is never reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.codec import decode, decode_event, decode_facts, encode, read_content
from holdfast.core.search.documents import Hit, TextSearch
from holdfast.errors import KeyReused
from holdfast.flow.journal.append import States, StreamWrite, append_events, decide_and_append, redact_as_configured
from holdfast.flow.state.store import Storage
from holdfast.flow.state.vectors import find_similar
from holdfast.ports import Env
from holdfast.ports.capabilities import STATE, TEXT, EntryReader, require
from holdfast.records.catalogue import CATALOGUE
from holdfast.records.entries import (
    Edge,
    EdgeQuery,
    EntryEvent,
    EntryMatch,
    EntryPageQuery,
    EntrySearchQuery,
    Revision,
    StoredEntry,
)
from holdfast.records.events.envelope import ERASED, Draft, Event, StoredEvent
from holdfast.records.events.state import StateDeleted, StateLinked, StateUnlinked, StateWritten, ValueContent
from holdfast.records.ids import check_key
from holdfast.records.scope import parse_scope

TRIES: Final = 64
"""Attempts of a write that compares: an outcome must not be lost because others write to the same stream."""
PAGE: Final = 256
PURGE_BATCH: Final = 1_000
"""The number of expired entries fetched at once."""
_NEWEST: Final = 2**62


def journal_storage(env: Env) -> Storage:
    """Return the journal store of one tenant, with its rules. To write holdfast's own keys, use `internal_storage`."""
    return Storage(
        store=JournalStore(env),
        clock=env.clock,
        settings=env.settings,
        transients=env.transients,
        tenant=env.tenant,
        embedder=env.embedder,
        reserving=True,
    )


def internal_storage(env: Env) -> Storage:
    """Return the same storage for holdfast's own writes, which may use reserved keys."""
    return replace(journal_storage(env), reserving=False)


class JournalStore:
    """The Store port over the journal of one tenant."""

    def __init__(self, env: Env) -> None:
        self._env = env

    @property
    def _entries(self) -> EntryReader:
        return require(self._env.journal, STATE)

    @property
    def capabilities(self) -> frozenset[str]:
        journal, offered = self._env.journal.capabilities, {"graph", "history", "keys"}
        if "shared" in journal:
            offered |= {"durable", "shared"}
        if "text" in journal and self._env.settings.index_text:
            offered.add("text")
        if "vectors" in journal and self._env.embedder is not None:
            offered.add("vectors")
        return frozenset(offered)

    def get(self, scope: str, key: str) -> StoredEntry | None:
        event = self._entries.entry(self._env.tenant, scope, key)
        return None if event is None else decode_entry(event)[1]

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> int | None:
        draft = write_draft(scope, key, entry)
        if expected is None:
            # Nothing is compared, so nothing is read: writes to one scope do not wait for each other.
            appended = append_events(self._env, [StreamWrite(stream=scope, events=(draft,), key=once)])
            return appended.parts[0].first

        def decide(states: States) -> dict[str, list[Draft]]:
            known = self._entries.entry(self._env.tenant, scope, key)
            at = 0 if known is None else known.version
            return {scope: [draft]} if at == expected else {}

        changed = decide_and_append(self._env, (scope,), decide, key=once, tries=TRIES)
        return None if changed.appended is None else changed.appended.parts[0].first

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        if once is None and self._entries.entry(self._env.tenant, scope, key) is None:
            return None if expected else False

        def decide(states: States) -> dict[str, list[Draft]]:
            known = self._entries.entry(self._env.tenant, scope, key)
            at = 0 if known is None else known.version
            late = expected is not None and at != expected
            # With an idempotency key, journal that nothing was there: a retry must not delete a later write.
            nothing = late or (known is None and once is None)
            return {} if nothing else {scope: [delete_draft(key, missing=known is None)]}

        changed = decide_and_append(self._env, (scope,), decide, key=once, tries=TRIES)
        if changed.appended is None:
            return False if expected is None else None
        deleted: StateDeleted = changed.facts[0][1]
        return not deleted.missing

    def purge(self, now: int) -> int:
        """Delete expired entries scope by scope; entries rewritten meanwhile stay."""
        count = 0
        while found := self._entries.find_expired(self._env.tenant, now, PURGE_BATCH):
            by_scope: dict[str, list[tuple[str, int]]] = {}
            for scope, key, version in found:
                by_scope.setdefault(scope, []).append((key, version))
            gone = sum(self._purge_scope(scope, over) for scope, over in by_scope.items())
            count += gone
            if len(found) < PURGE_BATCH or not gone:
                break
        return count

    def _purge_scope(self, scope: str, over: list[tuple[str, int]]) -> int:
        def decide(states: States) -> dict[str, list[Draft]]:
            drafts = []
            for key, version in over:
                known = self._entries.entry(self._env.tenant, scope, key)
                if known is None or known.version == version:  # None also means that its value was erased.
                    drafts.append(delete_draft(key, cause="expiry"))
            return {scope: drafts}

        return len(decide_and_append(self._env, (scope,), decide, tries=TRIES).facts)

    def version_by_key(self, scope: str, key: str, once: str, given: bytes | None, reducer: str) -> int | None:
        """Return the version of the event written by an earlier call with this idempotency key."""
        stored = self._env.journal.events_by_key(self._env.tenant, scope, check_key(once))
        if not stored:
            return None
        event = decode_event(stored[0])
        if not self._is_same_call(event, key, given, reducer):
            raise KeyReused(
                f"Key {once!r} of {scope} already stands for {event.type} at version {event.version}, asked for in "
                "another way. Use a new key for a new operation."
            )
        return 0 if event.type == "state.deleted" and event.facts.missing else event.version

    def _is_same_call(self, event: Event, key: str, given: bytes | None, reducer: str) -> bool:
        if getattr(event.facts, "key", None) != key:
            return False
        if given is None:
            return event.type == "state.deleted"
        if event.type != "state.written" or (event.facts.reducer or "overwrite") != reducer:
            return False
        if event.content is ERASED:
            return True  # The erased value can no longer be compared.
        before = event.content.value if reducer == "overwrite" else event.content.given
        wanted = redact_as_configured(self._env, ValueContent(value=decode(given)))
        return encode(before) == encode(wanted.value)

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        return decode_entries(self._entries.entries(self._env.tenant, scope, page))

    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        """Return the raw scores of matching entries; the caller ranks them."""
        env = self._env
        search = TextSearch(terms=wanted.terms, now=wanted.now, scopes=(scope,), limit=wanted.limit)
        hits = {hit.event.seq: hit for hit in require(env.journal, TEXT).search(env.tenant, search)}
        near: dict[int, tuple[Hit, float]] = {}
        if wanted.vector is not None and env.embedder is not None:
            near = find_similar(env, search, wanted.vector, env.embedder, hits)
        found = []
        for seq, hit in {**{seq: hit for seq, (hit, _) in near.items()}, **hits}.items():
            key, entry = decode_entry(hit.event)
            cosine = near[seq][1] if seq in near else 0.0
            found.append(EntryMatch(key=key, entry=entry, text=hit.score, cosine=cosine))
        return found

    def link(self, edge: Edge) -> None:
        append_events(self._env, [StreamWrite(stream=edge.scope, events=(link_draft(edge),))])

    def unlink(self, edge: Edge) -> bool:
        if not self.has_edge(edge):
            return False
        append_events(self._env, [StreamWrite(stream=edge.scope, events=(unlink_draft(edge),))])
        return True

    def has_edge(self, edge: Edge) -> bool:
        """Return True if this edge exists, whatever its data."""
        return self._entries.has_edge(self._env.tenant, edge)

    def edges(self, query: EdgeQuery) -> list[Edge]:
        return [_edge(decode_event(event)) for event in self._entries.edges(self._env.tenant, query)]

    def history(self, scope: str, key: str, limit: int | None) -> list[Revision]:
        """Return every change of a key, newest first, up to `limit`."""
        found: list[Revision] = []
        before = _NEWEST
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            events = self._entries.revisions(self._env.tenant, scope, key, before, wanted)
            found += [_revision(decode_event(event)) for event in events]
            if len(events) < wanted:
                break
            before = events[-1].version
        return found

    def scopes(self, now: int, after: str, limit: int) -> list[str]:
        """Return scopes that have entries, in order, after one of them."""
        return self._entries.scopes(self._env.tenant, now, after, limit)

    def close(self) -> None:
        """Do nothing: the journal is closed by its owner."""


def _edge(event: Event) -> Edge:
    facts: StateLinked = event.facts
    return Edge(
        scope=event.stream,
        source=facts.source,
        kind=facts.kind,
        target_scope=facts.target_scope,
        target=facts.target,
        weight=facts.weight,
        data=event.content.value if isinstance(event.content, ValueContent) else event.content,
    )


def _revision(event: Event) -> Revision:
    if event.type == "state.deleted":
        return Revision(version=event.version, at=event.at, deleted=True, cause=event.facts.cause, user=event.user)
    value = ERASED if event.content is ERASED else event.content.value
    return Revision(version=event.version, at=event.at, value=value, user=event.user)


_VALUE_ALONE = b'{"value":'
_WRITTEN = "state.written"
_SCHEMA = CATALOGUE[_WRITTEN].schema


class _RawValue(msgspec.Struct, frozen=True):
    """The value of a content as undecoded bytes."""

    value: msgspec.Raw = msgspec.Raw(b"null")


def write_draft(scope: str, key: str, entry: StoredEntry) -> Draft:
    """Return the event of a write. An entry in a user's scope belongs to that user, whoever wrote it."""
    facts = StateWritten(
        key=key,
        tier=entry.tier,
        lifetime=entry.lifetime,
        content_kind=entry.content_kind,
        salience=entry.salience,
        expires_at=entry.expires_at,
        reducer=entry.reducer,
        value_schema=entry.schema,
        effect=entry.applied[-1] if entry.applied else None,
    )
    content = ValueContent(value=decode(entry.value), given=None if entry.given is None else decode(entry.given))
    return Draft(type="state.written", facts=facts, content=content, subject=parse_scope(scope).get("user"))


def delete_draft(key: str, *, cause: str = "call", effect: str | None = None, missing: bool = False) -> Draft:
    """Return the event of a deletion; with `missing`, of one that found nothing to delete."""
    return Draft(type="state.deleted", facts=StateDeleted(key=key, cause=cause, effect=effect, missing=missing))


def link_draft(edge: Edge, *, effect: str | None = None) -> Draft:
    """Return the event of a new edge. Its data belongs to the user whose entry is at either end."""
    facts = StateLinked(**_edge_facts(edge), weight=edge.weight, effect=effect)
    content = None if edge.data is None else ValueContent(value=edge.data)
    about = parse_scope(edge.scope).get("user") or parse_scope(edge.target_scope).get("user")
    subject = None if content is None else about
    return Draft(type="state.linked", facts=facts, content=content, subject=subject)


def unlink_draft(edge: Edge, *, effect: str | None = None) -> Draft:
    """Return the event of a removed edge."""
    return Draft(type="state.unlinked", facts=StateUnlinked(**_edge_facts(edge), effect=effect))


def _edge_facts(edge: Edge) -> dict[str, Any]:
    return {name: getattr(edge, name) for name in ("source", "kind", "target", "target_scope")}


def decode_entry(event: StoredEvent | EntryEvent) -> tuple[str, StoredEntry]:
    """Return the key and the entry that an event holds."""
    return decode_entries((event,))[0]


def decode_entries(events: Sequence[StoredEvent | EntryEvent]) -> list[tuple[str, StoredEntry]]:
    """Return the keys and the entries that events hold."""
    found = []
    for event in events:
        current = event.schema == _SCHEMA  # A page has many entries, and nearly all are of the schema of today.
        facts = decode(event.facts, StateWritten) if current else decode_facts(_WRITTEN, event.schema, event.facts)
        content = read_content(event)
        assert content is not None, "an entry whose value was erased is not read"
        # The canonical form of a value alone is the value between two known pieces.
        alone = content.startswith(_VALUE_ALONE)
        entry = StoredEntry(
            value=content[len(_VALUE_ALONE) : -1] if alone else bytes(decode(content, _RawValue).value),
            version=event.version,
            written_at=event.at,
            expires_at=facts.expires_at,
            tier=facts.tier,
            lifetime=facts.lifetime,
            content_kind=facts.content_kind,
            salience=facts.salience,
            schema=facts.value_schema,
            applied=() if facts.effect is None else (facts.effect,),
        )
        found.append((facts.key, entry))
    return found
