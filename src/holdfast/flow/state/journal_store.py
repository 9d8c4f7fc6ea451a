"""The journal as a store: entries and edges are events of their scope's stream.

They are rebuilt, explained, erased, exported and restored with everything else. An entry's version is the version of
its event, so it only grows and is never reused.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from holdfast.core.journal.codec import decode, decode_event, encode
from holdfast.errors import KeyReused
from holdfast.flow.journal import redact
from holdfast.flow.journal.append import Decided, States, append, change
from holdfast.flow.state.entry_events import deleted_draft, linked_draft, stored_entry, unlinked_draft, written_draft
from holdfast.flow.state.search import search_entries
from holdfast.flow.state.store import Storage
from holdfast.ports import Acting, Ports
from holdfast.records.entries import Edge, EdgeQuery, EntryPage, Match, Revision, Stored, Wanted
from holdfast.records.events.envelope import ERASED, Draft, Event
from holdfast.records.events.state import StateDeleted, StateLinked, ValueContent
from holdfast.records.ids import check_key

TRIES: Final = 64
PAGE: Final = 256
PURGED: Final = 1_000
"""The number of expired entries fetched at once."""
_NEWEST: Final = 2**62
_NOTHING: Final[frozenset[str]] = frozenset()
_ON_DISK: Final = frozenset({"durable", "shared"})
_BY_WORDS: Final = frozenset({"text"})
_BY_MEANING: Final = frozenset({"vectors"})


def storage(ports: Ports, acting: Acting) -> Storage:
    """Return the journal store of one tenant, with its rules. To write holdfast's own keys, use `internal_storage`."""
    assert ports.transients is not None
    return Storage(
        store=JournaledStore(ports, acting),
        clock=ports.clock,
        settings=ports.settings,
        transients=ports.transients,
        tenant=acting.tenant,
        embedder=ports.embedder,
        reserving=True,
    )


def unreserved(ports: Ports, acting: Acting) -> Storage:
    """Return the same storage for holdfast's own writes, which may use reserved keys."""
    return replace(storage(ports, acting), reserving=False)


class JournaledStore:
    """The Store port over the journal of one tenant."""

    def __init__(self, ports: Ports, acting: Acting) -> None:
        self._ports = ports
        self._acting = acting

    @property
    def capabilities(self) -> frozenset[str]:
        return (
            frozenset({"graph", "history", "keys"})
            | (_ON_DISK if "shared" in self._ports.journal.capabilities else _NOTHING)
            | (_BY_WORDS if self._ports.settings.index_text else _NOTHING)
            | (_BY_MEANING if self._ports.embedder is not None else _NOTHING)
        )

    def get(self, scope: str, key: str) -> Stored | None:
        event = self._ports.journal.entry(self._acting.tenant, scope, key)
        return None if event is None else stored_entry(event)[1]

    def put(
        self, scope: str, key: str, entry: Stored, expected: int | None = None, once: str | None = None
    ) -> int | None:
        draft = written_draft(scope, key, entry)
        if expected is None:
            # Nothing is compared, so nothing is read: writes to one scope do not wait for each other.
            appended = append(self._ports, self._acting, [Decided(stream=scope, events=(draft,), key=once)])
            return appended.parts[0].first
        return self._compared(scope, key, draft, expected, once)

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        if once is None and self._ports.journal.entry(self._acting.tenant, scope, key) is None:
            return None if expected else False

        def decide(states: States) -> dict[str, list[Draft]]:
            known = self._ports.journal.entry(self._acting.tenant, scope, key)
            at = 0 if known is None else known.version
            late = expected is not None and at != expected
            # With an idempotency key, journal that nothing was there: a retry must not delete a later write.
            nothing = late or (known is None and once is None)
            return {} if nothing else {scope: [deleted_draft(key, missing=known is None)]}

        changed = change(self._ports, self._acting, (scope,), decide, key=once, tries=TRIES)
        if changed.appended is None:
            return False if expected is None else None
        deleted: StateDeleted = changed.facts[0][1]
        return not deleted.missing

    def purge(self, now: int) -> int:
        """Delete expired entries scope by scope; entries rewritten meanwhile stay."""
        count = 0
        while found := self._ports.journal.expired(self._acting.tenant, now, PURGED):
            by_scope: dict[str, list[tuple[str, int]]] = {}
            for scope, key, version in found:
                by_scope.setdefault(scope, []).append((key, version))
            gone = sum(self._purged(scope, over) for scope, over in by_scope.items())
            count += gone
            if len(found) < PURGED or not gone:
                break
        return count

    def _purged(self, scope: str, over: list[tuple[str, int]]) -> int:
        def decide(states: States) -> dict[str, list[Draft]]:
            drafts = []
            for key, version in over:
                known = self._ports.journal.entry(self._acting.tenant, scope, key)
                if known is None or known.version == version:  # None also means that its value was erased.
                    drafts.append(deleted_draft(key, cause="expiry"))
            return {scope: drafts}

        return len(change(self._ports, self._acting, (scope,), decide, tries=TRIES).facts)

    def _compared(self, scope: str, key: str, draft: Draft, expected: int, once: str | None) -> int | None:
        """Write if the entry is at the expected version; else return None."""

        def decide(states: States) -> dict[str, list[Draft]]:
            known = self._ports.journal.entry(self._acting.tenant, scope, key)
            at = 0 if known is None else known.version
            return {scope: [draft]} if at == expected else {}

        changed = change(self._ports, self._acting, (scope,), decide, key=once, tries=TRIES)
        return None if changed.appended is None else changed.appended.parts[0].first

    def answered(self, scope: str, key: str, once: str, given: bytes | None, reducer: str) -> int | None:
        """Return the version of the event written by an earlier call with this idempotency key."""
        stored = self._ports.journal.by_key(self._acting.tenant, scope, check_key(once))
        if not stored:
            return None
        event = decode_event(stored[0])
        if not self._same(event, key, given, reducer):
            raise KeyReused(
                f"Key {once!r} of {scope} already stands for {event.type} at version {event.version}, asked for in "
                "another way. Use a new key for a new operation."
            )
        return 0 if event.type == "state.deleted" and event.facts.missing else event.version

    def _same(self, event: Event, key: str, given: bytes | None, reducer: str) -> bool:
        if getattr(event.facts, "key", None) != key:
            return False
        if given is None:
            return event.type == "state.deleted"
        if event.type != "state.written" or (event.facts.reducer or "overwrite") != reducer:
            return False
        if event.content is ERASED:
            return True  # The erased value can no longer be compared.
        before = event.content.value if reducer == "overwrite" else event.content.given
        wanted = redact.clean(self._ports, ValueContent(value=decode(given)))
        return encode(before) == encode(wanted.value)

    def page(self, scope: str, page: EntryPage) -> list[tuple[str, Stored]]:
        return [stored_entry(event) for event in self._ports.journal.entries(self._acting.tenant, scope, page)]

    def search(self, scope: str, wanted: Wanted) -> list[Match]:
        return search_entries(self._ports, self._acting, scope, wanted)

    def link(self, edge: Edge) -> None:
        append(self._ports, self._acting, [Decided(stream=edge.scope, events=(linked_draft(edge),))])

    def unlink(self, edge: Edge) -> bool:
        if not self.linked(edge):
            return False
        append(self._ports, self._acting, [Decided(stream=edge.scope, events=(unlinked_draft(edge),))])
        return True

    def linked(self, edge: Edge) -> bool:
        """Return True if this edge exists, whatever its data."""
        return self._ports.journal.linked(self._acting.tenant, edge)

    def edges(self, query: EdgeQuery) -> list[Edge]:
        return [_edge(decode_event(event)) for event in self._ports.journal.edges(self._acting.tenant, query)]

    def history(self, scope: str, key: str, limit: int | None) -> list[Revision]:
        """Return every change of a key, newest first, up to `limit`."""
        found: list[Revision] = []
        before = _NEWEST
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            events = self._ports.journal.revisions(self._acting.tenant, scope, key, before, wanted)
            found += [_revision(decode_event(event)) for event in events]
            if len(events) < wanted:
                break
            before = events[-1].version
        return found

    def scopes(self, now: int, after: str, limit: int) -> list[str]:
        """Return scopes that have entries, in order, after one of them."""
        return self._ports.journal.scopes(self._acting.tenant, now, after, limit)

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
