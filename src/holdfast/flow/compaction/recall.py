"""Compacted passages: written to the state in the commit of their summary, copied to other stores, and recalled.

If they cannot be written, nothing is compacted. A recalled passage has the trust of its source.

The journal stays the source. A mirror copies what it has to another store: it reads the events of the scope since its
mark, writes the passages that stand and deletes the others. So rewinds, resets, erasures and deletions reach the store:
at once in a process that uses it, else as soon as one does. Recalled text is read from the journal, so a store that
lags shows nothing that was retracted.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from holdfast.core.compaction.summary import PASSAGE_PREFIX, CompactedPassage, passage_key, read_passage
from holdfast.core.entries import EntryOptions, check_options
from holdfast.core.journal.codec import decode, decode_event, decode_facts, encode
from holdfast.core.lazy import convert
from holdfast.core.numbers import is_number
from holdfast.errors import Closed, InvalidValue, Refused, Unavailable
from holdfast.flow.sessions.read import iter_places, load_messages
from holdfast.flow.state import search
from holdfast.flow.state.journal_store import journal_storage, write_draft
from holdfast.flow.state.search import MAX_RESULTS
from holdfast.flow.state.store import Storage, list_keys, read_value
from holdfast.flow.state.write import EntryWrite, build_entry, delete_entry, write_entry
from holdfast.ports import Env
from holdfast.ports.capabilities import STATE, require
from holdfast.records.compaction import RecalledEntry
from holdfast.records.entries import SearchResult, StoredEntry
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Address, Scope
from holdfast.system import ForkLock

CANDIDATE_FACTOR = 4
"""Entries searched per entry wanted: other entries of the scope may match as well."""
MAX_QUERY_SEARCH = 64
"""The number of messages from the end that are searched for the user's last message."""
MAX_QUERY_CHARS = 2_000
"""The most characters of that message used as a query."""
PASSAGE_OPTIONS: Final = EntryOptions(content_kind="episodic")
MARK_SCOPE: Final = Scope.custom("holdfast", "passages").text
"""The scope of a store that says how far its copies are, by the scope that they are of."""
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
    stores = [one.storage for place, one in tuple(env.mirrors.items()) if place[:2] == (env.tenant, scope)]
    found = [storage for storage in stores if storage.store.capabilities & {"text", "vectors"}]
    try:
        return search.search_scope([journal_storage(env), *found][-1], scope, query, limit)
    except (Refused, Unavailable):
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


class MirrorMark(msgspec.Struct, frozen=True):
    """A point in a journal: the version of the scope's stream, and of the one that records erasures."""

    owner: str
    version: int
    erasures: int


class PassageMirror:
    """The copies of one scope's passages in one store."""

    def __init__(self, env: Env, scope: str, storage: Storage, place: tuple[str, str, int]) -> None:
        self._env, self._scope, self.storage, self._place = env, scope, storage, place
        self._guard = ForkLock()
        self._seen = 0
        name = f"passages of {env.tenant}".encode()
        self._owner = hmac.digest(env.journal.secret, name, "sha256").hex()[:32]
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Bring the store up to date and follow the events of this process."""
        self._undo = [self._env.observers.add(self._env.tenant, one, self.follow) for one in ("state.*", "subject.*")]
        try:
            self.catch_up()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Follow no more events."""
        while self._undo:
            self._undo.pop()()
        self._env.mirrors.pop(self._place, None)

    def follow(self, event: Event) -> None:
        """Copy what an event of this process has changed."""
        if event.type != "subject.erased" and (event.stream != self._scope or event.version <= self._seen):
            return
        try:
            self.catch_up()
        except Closed:
            self.end()

    def catch_up(self) -> None:
        """Copy everything that has changed since the store's mark."""
        with self._guard.lock:
            mark = self._read_mark()
            # The journal is compared again after the copies: another process may have copied something newer meanwhile.
            while mark != (now := self._journal_mark()):
                for key in dict.fromkeys(self._changed_keys(mark, now)):
                    self._copy(key)
                entry = StoredEntry(value=encode(now), written_at=self._env.clock.now_ms())
                self.storage.store.put(MARK_SCOPE, self._scope, entry)
                mark = now
            self._seen = now.version

    def _journal_mark(self) -> MirrorMark:
        heads = (self._env.journal.head(self._env.tenant, stream) for stream in (self._scope, Scope.GLOBAL.text))
        return MirrorMark(self._owner, *(0 if head is None else head.version for head in heads))

    def _read_mark(self) -> MirrorMark | None:
        stored = self.storage.store.get(MARK_SCOPE, self._scope)
        if stored is None:
            return None
        mark: MirrorMark = convert(decode(stored.value), MirrorMark)
        if mark.owner != self._owner:
            raise InvalidValue(
                f"This store has compacted passages of another journal or tenant in {self._scope}. Give each its own."
            )
        return mark

    def _changed_keys(self, mark: MirrorMark | None, now: MirrorMark) -> Iterator[str]:
        """Iterate over the passages that may differ: after an erasure, or without a usable mark, all of them."""
        if mark is None or mark.erasures != now.erasures or mark.version > now.version:
            for storage in (journal_storage(self._env), self.storage):
                yield from list_keys(storage, self._scope, PASSAGE_PREFIX, None, None, None)
            return
        query = EventQuery(
            tenant=self._env.tenant,
            stream=self._scope,
            after=mark.version,
            until=now.version,
            types=("state.written", "state.deleted"),
            limit=PAGE,
        )
        while events := self._env.journal.read(query):
            keys = [decode_facts(event.type, event.schema, event.facts).key for event in events]
            yield from (key for key in keys if key.startswith(PASSAGE_PREFIX))
            query = msgspec.structs.replace(query, after=events[-1].version)

    def _copy(self, key: str) -> None:
        """Give the store the passage as the journal has it now."""
        stored = require(self._env.journal, STATE).entry(self._env.tenant, self._scope, key)
        if stored is None or stored.content is None:
            delete_entry(self.storage, self._scope, key)
            return
        value = decode_event(stored).content.value
        if read_value(self.storage, self._scope, key) != value:
            write_entry(self.storage, self._scope, key, EntryWrite(value=value, options=PASSAGE_OPTIONS))


def storage_of(store: Any) -> Storage | None:
    """Return the storage of a store or of its view of one scope; None for anything else."""
    found = getattr(store, "storage", None)
    return found if isinstance(found, Storage) else None


def mirror_passages(env: Env, scope: str, storage: Storage) -> None:
    """Keep copies of a scope's passages in a store from now on. The journal's own state needs none."""
    if storage.transients is env.transients and storage.tenant == env.tenant:
        return
    if storage.reserving:
        raise InvalidValue("Compacted passages go to this client's own state or to a store of open_store.")
    place = (env.tenant, scope, id(storage.store))
    if place not in env.mirrors:
        made = PassageMirror(env, scope, storage, place)
        made.begin()
        env.mirrors[place] = made
