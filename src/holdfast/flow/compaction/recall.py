"""Compacted passages: written to the state in the commit of their summary, copied to other stores, and recalled.

If they cannot be written, nothing is compacted. A recalled passage has the trust of its source.

The journal stays the source. A mirror makes another store agree with it: all passages of a scope are compared when a
process first uses the store, after a retraction and after an erasure; in between, the events of the scope say what to
copy. The store keeps whose passages it has in which scopes, and no position: nothing that a crash or a restored journal
could make wrong. Recalled text is read from the journal, so a store that lags shows nothing that was retracted.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core.compaction.summary import PASSAGE_PREFIX, CompactedPassage, passage_key, read_passage
from holdfast.core.entries import EntryOptions, check_options
from holdfast.core.journal.codec import decode, decode_event, decode_facts, encode
from holdfast.core.numbers import is_number
from holdfast.errors import Busy, Closed, HoldfastError, InvalidValue, Unavailable
from holdfast.flow.sessions.read import iter_places, load_messages
from holdfast.flow.state import search
from holdfast.flow.state.journal_store import journal_storage, write_draft
from holdfast.flow.state.search import MAX_RESULTS
from holdfast.flow.state.store import Storage, fetch_pages, list_stored, read_value
from holdfast.flow.state.write import EntryWrite, build_entry, delete_entry, write_entry
from holdfast.ports import Env
from holdfast.ports.capabilities import STATE, require
from holdfast.records.compaction import RecalledEntry
from holdfast.records.entries import EntryPageQuery, SearchResult, StoredEntry
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.ids import RESERVED_PREFIX
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Address, Scope
from holdfast.system import ForkLock, warn_caller

CANDIDATE_FACTOR = 4
"""Entries searched per entry wanted: other entries of the scope may match as well."""
MAX_QUERY_SEARCH = 64
"""The number of messages from the end that are searched for the user's last message."""
MAX_QUERY_CHARS = 2_000
"""The most characters of that message used as a query."""
PASSAGE_OPTIONS: Final = EntryOptions(content_kind="episodic")
OWNER_SCOPE: Final = Scope.custom("holdfast", "passages").text
"""The scope of a store that names the owners of its passages, by the scope that these are in."""
ALL_SCOPES: Final = ""
PAGE: Final = 256


def flush_passages(env: Env, scope: str, id: str, told: Sequence[CompactedPassage]) -> list[Draft]:
    """Return the events that write the passages of compaction `id` to the state of a scope."""
    store = journal_storage(env)
    options = check_options(PASSAGE_OPTIONS, Scope.of(scope))
    drafts = []
    for number, passage in enumerate(told):
        key, value = passage_key(id, number), {"text": passage.text, "trust": passage.trust, "of": id}
        drafts.append(write_draft(scope, key, build_entry(store, key, value, options, None)))
    return drafts


def search_memories(env: Env, scopes: Sequence[Address], query: str, limit: int = 5) -> list[RecalledEntry]:
    """Search compacted passages in some scopes by a query; best first, each once."""
    if not is_number(limit, least=0):
        raise InvalidValue(f"limit must be a number of entries, 0 or more, not {limit!r}.")
    found: dict[str, RecalledEntry] = {}
    for scope in dict.fromkeys(Scope.of(one).text for one in scopes) if limit and query.strip() else ():
        for result in _search_passages(env, scope, query, min(limit * CANDIDATE_FACTOR, MAX_RESULTS)):
            one = _load_memory(env, scope, result.key, result.score) if result.key.startswith(PASSAGE_PREFIX) else None
            if one is not None and one.text not in {known.text for known in found.values()}:
                found.setdefault(one.id, one)  # A passage compacted twice, in two threads, is returned once.
    return sorted(found.values(), key=lambda one: (-one.score, one.scope, one.key))[:limit]


def _search_passages(env: Env, scope: str, query: str, limit: int) -> list[SearchResult]:
    """Search a scope in the newest store that mirrors it; in the journal if there is none, or it cannot be searched."""
    mirrors = [one for (tenant, _), one in tuple(env.mirrors.items()) if tenant == env.tenant]
    found = [one.storage for one in mirrors if one.can_search(scope)]
    try:
        return search.search_scope([journal_storage(env), *found][-1], scope, query, limit)
    except HoldfastError:
        return search.search_scope(journal_storage(env), scope, query, limit)


def _load_memory(env: Env, scope: str, key: str, score: float) -> RecalledEntry | None:
    """Load one passage as it is now; None if it is gone, erased or cannot be shown."""
    stored = require(env.journal, STATE).entry(env.tenant, scope, key)
    if stored is None or stored.content is None:
        return None
    event = decode_event(stored)
    passage = read_passage(event.content.value, event.trust)
    if passage is None:
        return None
    return RecalledEntry(
        id=event.id, scope=scope, key=key, version=event.version, text=passage.text, trust=passage.trust, score=score
    )


def default_query(env: Env, stream: str) -> str:
    """Return the default query: the last user message of a thread."""
    for place in islice(iter_places(env, stream), MAX_QUERY_SEARCH):
        if place.row["role"] == "user":
            return load_messages(env, [place])[0].text[:MAX_QUERY_CHARS]
    return ""


# copies in other stores


class PassageMirror:
    """The copies of a tenant's passages in one store."""

    def __init__(self, env: Env, storage: Storage) -> None:
        self._env, self.storage = env, replace(storage, reserving=False)
        name = f"passages of {env.tenant}".encode()
        self._owner = hmac.digest(env.journal.secret, name, "sha256").hex()[:32]
        self._guard = ForkLock()
        self._undo: list[Callable[[], None]] = []
        self._named: set[str] = set()
        """Scopes that this process compacts into the store."""
        self._scopes: set[str] = set()
        """Scopes whose passages the store has, whichever process put them there."""
        self._pending = {ALL_SCOPES}
        """Scopes in which the store may differ from the journal."""
        self._seen: dict[str, int] = {}
        """The version of each scope up to which they agree; none if all its passages must be compared."""
        self._log_is_dirty = False

    def add_scope(self, scope: str) -> None:
        """Copy a scope's passages from now on. Raises if the store cannot be used, or has those of another journal."""
        owner = self._find_owner(scope)
        if owner is None:
            entry = StoredEntry(value=encode(self._owner), written_at=self._env.clock.now_ms())
            self.storage.store.put(OWNER_SCOPE, RESERVED_PREFIX + scope, entry, 0)
            owner = self._find_owner(scope)  # Another process may have been faster.
            self._seen.pop(scope, None)
        if owner != self._owner:
            raise InvalidValue(
                f"This store has compacted passages of another journal or tenant in {scope}. Give each its own."
            )
        if not self._undo:
            types = ("state.written", "state.deleted", "subject.erased")
            self._undo = [self._env.observers.add(self._env.tenant, one, self.follow) for one in types]
        self._pending.add(scope)
        self.catch_up()
        self._named.add(scope)

    def end(self) -> None:
        """Follow no more events."""
        while self._undo:
            self._undo.pop()()
        self._env.mirrors.pop(mirror_name(self._env, self.storage), None)

    def can_search(self, scope: str) -> bool:
        """Return True if the store has the passages of a scope and can search them."""
        ready = scope in self._named and not self._pending & {scope, ALL_SCOPES}
        return ready and bool(self.storage.store.capabilities & {"text", "vectors"})

    def follow(self, event: Event) -> None:
        """Copy what an event of this process has changed; warn if the store cannot be reached."""
        scope = ALL_SCOPES if event.type == "subject.erased" else event.stream
        if scope != ALL_SCOPES:
            if not event.facts.key.startswith(PASSAGE_PREFIX) or event.version <= self._seen.get(scope, 0):
                return
            if event.type == "state.written" and scope not in self._scopes:
                return
        self._pending.add(scope)
        try:
            self.catch_up()
        except HoldfastError as error:
            closed = isinstance(error, Closed)
            if closed:
                self.end()
            if not closed or scope == ALL_SCOPES or scope in self._scopes:
                why = "It is closed." if closed else error
                warn_caller(f"Copies of compacted passages in a store are out of date until it is used again. {why}")

    def catch_up(self) -> None:
        """Make the store agree with the journal wherever it may differ. What fails stays pending."""
        failed: dict[str, HoldfastError] = {}
        with self._guard.lock:
            try:
                while self._pending:
                    scope = self._pending.pop()
                    failed[scope] = Unavailable()  # Until it is done, whatever interrupts it.
                    try:
                        self._update(scope) if scope else self._list_scopes()
                        del failed[scope]
                    except Unavailable:
                        raise  # The other scopes would wait for the store in vain.
                    except HoldfastError as error:
                        failed[scope] = error
            finally:
                self._pending.update(failed)
            if self._log_is_dirty:
                with suppress(Busy):  # A reader needs the log; the next call tries again.
                    getattr(self.storage.store, "truncate_log", lambda: None)()
                    self._log_is_dirty = False
        if failed:
            raise next(iter(failed.values()))

    def _find_owner(self, scope: str) -> str | None:
        stored = self.storage.store.get(OWNER_SCOPE, RESERVED_PREFIX + scope)
        return None if stored is None else str(decode(stored.value))

    def _list_scopes(self) -> None:
        """Let every scope that the store has passages of be compared."""
        page = EntryPageQuery(now=self._env.clock.now_ms(), prefix=RESERVED_PREFIX)
        for key, stored in fetch_pages(self.storage, OWNER_SCOPE, page, None):
            if decode(stored.value) == self._owner:
                scope = key.removeprefix(RESERVED_PREFIX)
                self._scopes.add(scope)
                self._seen.pop(scope, None)
                self._pending.add(scope)

    def _update(self, scope: str) -> None:
        """Copy what the new events of a scope name; after a retraction, or the first time, compare all its passages."""
        if scope not in self._scopes and self._find_owner(scope) != self._owner:
            return
        self._scopes.add(scope)
        head = self._env.journal.head(self._env.tenant, scope)
        now, seen = 0 if head is None else head.version, self._seen.get(scope)
        types, tenant = ("state.written", "state.deleted"), self._env.tenant
        query = EventQuery(tenant=tenant, stream=scope, after=seen or 0, until=now, types=types, limit=PAGE)
        while seen is not None and (events := self._env.journal.read(query)):
            for event in events:
                facts = decode_facts(event.type, event.schema, event.facts)
                if facts.key.startswith(PASSAGE_PREFIX):
                    self._copy(scope, facts.key)
                    seen = None if getattr(facts, "cause", None) == "retraction" else seen
            query = replace(query, after=events[-1].version)
        if seen is None:
            self._compare(scope)
        self._seen[scope] = now

    def _compare(self, scope: str) -> None:
        """Copy the passages of a scope that differ. This finds late copies of a process that was killed, too."""
        ours, theirs = (
            {key: entry.value for key, entry in list_stored(storage, scope, PASSAGE_PREFIX)}
            for storage in (journal_storage(self._env), self.storage)
        )
        for key in sorted(ours.keys() | theirs.keys(), key=lambda key: (key in ours, key)):  # Deletions come first.
            if ours.get(key) != theirs.get(key):
                self._copy(scope, key)
        self._log_is_dirty |= not theirs.keys() <= ours.keys()

    def _copy(self, scope: str, key: str) -> None:
        """Give the store a passage as the journal has it.

        The journal is read again after a write: another process may have retracted the passage meanwhile, and a key
        that was deleted is never used again.
        """
        while (value := self._read_source(scope, key)) is not None:
            if read_value(self.storage, scope, key) == value:
                return
            write_entry(self.storage, scope, key, EntryWrite(value=value, options=PASSAGE_OPTIONS))
        delete_entry(self.storage, scope, key)

    def _read_source(self, scope: str, key: str) -> Any:
        stored = require(self._env.journal, STATE).entry(self._env.tenant, scope, key)
        return None if stored is None or stored.content is None else decode_event(stored).content.value


def mirror_name(env: Env, storage: Storage) -> tuple[str, int]:
    """Return the name of a mirror among those of a client."""
    return (env.tenant, id(storage.store))


def storage_of(store: Any) -> Storage | None:
    """Return the storage of a store or of its view of one scope; None for anything else."""
    found = getattr(store, "storage", None)
    return found if isinstance(found, Storage) else None


def mirror_passages(env: Env, scope: str, storage: Storage) -> None:
    """Keep copies of a scope's passages in a store from now on. The journal's own state needs none."""
    if storage.transients is env.transients and storage.tenant == env.tenant:
        return
    if "history" in storage.store.capabilities:
        raise InvalidValue("Compacted passages go to this client's own state or to a store of open_store.")
    name = mirror_name(env, storage)
    mirror = env.mirrors.get(name) or env.mirrors.setdefault(name, PassageMirror(env, storage))
    try:
        mirror.add_scope(scope)
    except Closed:
        mirror.end()
        raise Unavailable("The store for compacted passages is closed. Nothing was compacted; open it again.") from None
