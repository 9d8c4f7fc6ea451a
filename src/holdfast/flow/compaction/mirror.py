"""Copies of compacted passages in another store, which recall then searches in place of the journal.

The journal stays the source: a passage is written to its scope of the state in the commit of its summary. A mirror
copies what the journal has: it reads the events of the scope since its mark, writes the passages that stand and deletes
the others. So rewinds, resets, erasures and deletions reach the store: at once in a process that uses it, else as soon
as one does. Recalled text is read from the journal, so a store that lags shows nothing that was retracted.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from holdfast.core.compaction.summary import PASSAGE_PREFIX
from holdfast.core.entries import EntryOptions
from holdfast.core.journal.codec import decode, decode_event, decode_facts, encode
from holdfast.core.lazy import convert
from holdfast.errors import Closed, InvalidValue
from holdfast.flow.state.journal_store import journal_storage
from holdfast.flow.state.store import Storage, list_keys, read_value
from holdfast.flow.state.write import EntryWrite, delete_entry, write_entry
from holdfast.ports import Env
from holdfast.ports.capabilities import STATE, require
from holdfast.records.entries import StoredEntry
from holdfast.records.events.envelope import Event
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Scope
from holdfast.system import ForkLock

MARK_SCOPE: Final = Scope.custom("holdfast", "passages").text
"""The scope of a store that says how far its copies are, by the scope that they are of."""
PAGE: Final = 256
PASSAGE_OPTIONS: Final = EntryOptions(content_kind="episodic")


class MirrorMark(msgspec.Struct, frozen=True):
    """A point in a journal: the version of the scope's stream, and of the one that records erasures."""

    owner: str
    version: int
    erasures: int


class PassageMirror:
    """The copies of one scope's passages in one store."""

    def __init__(self, env: Env, scope: str, storage: Storage) -> None:
        self._env, self._scope, self.storage = env, scope, storage
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
        self._env.mirrors.pop(mirror_name(self._env, self._scope, self.storage), None)

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


def mirror_name(env: Env, scope: str, storage: Storage) -> tuple[str, str, int]:
    """Return the name of a mirror among those of a client."""
    return (env.tenant, scope, id(storage.store))


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
    name = mirror_name(env, scope, storage)
    if name not in env.mirrors:
        made = PassageMirror(env, scope, storage)
        made.begin()
        env.mirrors[name] = made


def searched_storage(env: Env, scope: str) -> Storage:
    """Return the storage in which a scope's passages are searched: its newest mirror that can, or the journal's."""
    for (tenant, of, _), mirror in reversed(tuple(env.mirrors.items())):
        if (tenant, of) == (env.tenant, scope) and mirror.storage.store.capabilities & {"text", "vectors"}:
            found: Storage = mirror.storage
            return found
    return journal_storage(env)
