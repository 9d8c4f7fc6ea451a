"""State: scoped key-value data in one store. Thin: each method calls a flow.

`hf.state` is the journaled store, `holdfast.open_store(url)` any other; both are a StateStore, and `store("user/42")`
is the State of one scope. A StateReader has only the reading half and no path to the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, Self, TypeVar, Unpack, overload

from holdfast.client.options import StoreOptions, refuse_unknown
from holdfast.connect import open_storage
from holdfast.core.entries import EntryOptions
from holdfast.errors import HoldfastError
from holdfast.flow.state import search as state_search
from holdfast.flow.state import store
from holdfast.flow.state import write as state_write
from holdfast.flow.state.store import Storage, make_read_only
from holdfast.flow.state.write import EntryWrite
from holdfast.records.entries import (
    Direction,
    Edge,
    Entry,
    Lifetime,
    Reducer,
    Revision,
    SearchResult,
    Tier,
    TraversalResult,
)
from holdfast.records.scope import Address, Scope

T = TypeVar("T")
D = TypeVar("D")


class ReadableState:
    """The reading half of one scope. `name` is the key of an entry."""

    __slots__ = ()

    _run_flow: Callable[..., Any]

    @overload
    def read(self, name: str, /, *, as_: type[T]) -> T | None: ...

    @overload
    def read(self, name: str, /, *, as_: type[T], default: D) -> T | D: ...

    @overload
    def read(self, name: str, /, *, as_: None = None, default: Any = None) -> Any: ...

    def read(self, name: str, /, *, as_: Any = None, default: Any = None) -> Any:
        """Return a key's value, converted to a type if one is given; the default if there is none."""
        return self._run_flow(store.read_value, name, as_, default)

    @overload
    def require(self, name: str, /, *, as_: type[T]) -> T: ...

    @overload
    def require(self, name: str, /, *, as_: None = None) -> Any: ...

    def require(self, name: str, /, *, as_: Any = None) -> Any:
        """Return a key's value; raise EntryNotFound if there is none."""
        return self._run_flow(store.require_value, name, as_)

    def entry(self, name: str, /) -> Entry | None:
        """Return a key's value with its version and options; None if there is none."""
        found: Entry | None = self._run_flow(store.read_entry, name)
        return found

    def list(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, tier: Tier | None = None
    ) -> list[str]:
        """Return keys in order, all or of one tier. The next page begins after the last key of this one."""
        found: list[str] = self._run_flow(store.list_keys, prefix, after, limit, tier)
        return found

    def entries(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, tier: Tier | None = None
    ) -> Sequence[Entry]:
        """Return entries in order of key, all or of one tier, with their values."""
        found: Sequence[Entry] = self._run_flow(store.list_entries, prefix, after, limit, tier)
        return found

    def search(self, query: str, *, limit: int = 5, tier: Tier | None = None) -> Sequence[SearchResult]:
        """Search entries, all or of one tier; return the best first. A store that cannot search finds nothing."""
        found: Sequence[SearchResult] = self._run_flow(state_search.search_scope, query, limit, tier)
        return found

    def history(self, name: str, /, *, limit: int | None = None) -> Sequence[Revision]:
        """Return the past values of a key, newest first. Only stores that declare `history` support this."""
        found: Sequence[Revision] = self._run_flow(store.read_history, name, limit)
        return found

    def neighbours(
        self,
        name: str,
        /,
        *,
        kinds: Sequence[str] | None = None,
        direction: Direction = "out",
        limit: int | None = None,
    ) -> Sequence[Edge]:
        """Return the edges at a key: those that begin there, end there (`in`), or `both`."""
        found: Sequence[Edge] = self._run_flow(state_search.list_edges, name, kinds, direction, limit)
        return found

    def traverse(
        self,
        name: str,
        /,
        *,
        depth: int = 3,
        kinds: Sequence[str] | None = None,
        direction: Direction = "out",
        limit: int | None = None,
    ) -> Sequence[TraversalResult]:
        """Return every key within `depth` edges, nearest first, each once, with a shortest path to it."""
        found: Sequence[TraversalResult] = self._run_flow(
            state_search.traverse_edges, name, depth, kinds, direction, limit
        )
        return found


_READ_FLOWS: Final = (
    store.read_value,
    store.require_value,
    store.read_entry,
    store.list_keys,
    store.list_entries,
    store.read_history,
    state_search.search_scope,
    state_search.list_edges,
    state_search.traverse_edges,
)


class StateReader(ReadableState):
    """A read-only view of state, as operators get it. Call it with a scope to read another one."""

    __slots__ = ("_at", "_run_flow", "scope")

    def __init__(self, storage: Storage, scope: Address = Scope.GLOBAL) -> None:
        self.scope = place = Scope.of(scope).text
        storage = make_read_only(storage)

        def do(flow: Callable[..., Any], *given: Any) -> Any:
            # Compared by identity: an object that merely claims to be equal is handed nothing.
            if not any(flow is reading for reading in _READ_FLOWS):
                raise TypeError("A StateReader only reads. Declare an effect to write.")
            try:
                return flow(storage, place, *given)
            except HoldfastError as error:
                # The traceback is a path to the store, and the message says all that the reader needs.
                error.__context__ = None
                raise error.with_traceback(None) from None

        def at(other: Address) -> StateReader:
            return StateReader(storage, other)

        self._run_flow = do
        self._at = at

    def __call__(self, scope: Address) -> StateReader:
        """Return the same view of another scope."""
        return self._at(scope)

    def __repr__(self) -> str:
        return f"StateReader({self.scope!r})"


class State(ReadableState):
    """The entries and edges of one scope."""

    __slots__ = ("_storage", "scope")

    def __init__(self, storage: Storage, scope: Address) -> None:
        self._storage = storage
        self.scope = Scope.of(scope).text

    @property
    def storage(self) -> Storage:
        """The store that the entries are in, with its rules: for `store=` of a compaction."""
        return self._storage

    def _run_flow(self, flow: Callable[..., Any], *given: Any) -> Any:
        return flow(self._storage, self.scope, *given)

    def write(
        self,
        name: str,
        value: Any,
        /,
        *,
        expected_version: int | None = None,
        reducer: Reducer = "overwrite",
        tier: Tier | None = None,
        lifetime: Lifetime | None = None,
        content_kind: str | None = None,
        salience: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
    ) -> int:
        """Write a key and return its new version.

        `expected_version` refuses if the key is at another version (0: if it has a value). A `reducer` combines the old
        value with this one: append, merge or sum. `ttl` is in seconds. `key` makes a retry safe.
        """
        options = EntryOptions(tier=tier, lifetime=lifetime, content_kind=content_kind, salience=salience, ttl=ttl)
        wanted = EntryWrite(value=value, options=options, expected=expected_version, reducer=reducer, once=key)
        return state_write.write_entry(self._storage, self.scope, name, wanted)

    def delete(self, name: str, /, *, expected_version: int | None = None, key: str | None = None) -> bool:
        """Remove a key; return True if it had a value. Its edges stay until they are unlinked."""
        return state_write.delete_entry(self._storage, self.scope, name, expected_version, key)

    def clear_transient(self) -> int:
        """Remove entries written with lifetime='transient'; the values they covered are visible again."""
        return state_write.clear_scope_transients(self._storage, self.scope)

    def link(
        self,
        source: str,
        kind: str,
        target: str,
        /,
        *,
        target_scope: Address | None = None,
        weight: float | None = None,
        data: Any = None,
    ) -> None:
        """Connect two keys by an edge of a kind. The same edge again takes the new weight and data."""
        edge = state_search.make_edge(
            self.scope, source, kind, target, target_scope=target_scope, weight=weight, data=data
        )
        state_search.link_keys(self._storage, edge)

    def unlink(self, source: str, kind: str, target: str, /, *, target_scope: Address | None = None) -> bool:
        """Remove an edge; return True if it existed."""
        return state_search.unlink_keys(
            self._storage, state_search.make_edge(self.scope, source, kind, target, target_scope=target_scope)
        )

    def reader(self) -> StateReader:
        """Return a read-only view of this scope."""
        return StateReader(self._storage, self.scope)

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __contains__(self, name: str) -> bool:
        return self.entry(name) is not None

    def __repr__(self) -> str:
        return f"State({self.scope!r})"


def open_store(url: str | os.PathLike[str], **options: Unpack[StoreOptions]) -> StateStore:
    """Open a store of another technology: memory:, fs:///folder, sqlite:///file, redis://host or cozo:///file.

    Options are those of `StoreOptions`. `embedder` makes vectors of what is written, where the store declares them.
    Some belong to some stores: `format` ("json" or "markdown") and `search` to fs, `most` entries and `search` to
    memory, `prefix` of all keys to redis, `durability` ("full" or "fast") to sqlite.
    """
    refuse_unknown(options, StoreOptions, "open_store")
    given: dict[str, Any] = dict(options)
    shared = {name: given.pop(name) for name in ("embedder", "settings", "clock") if name in given}
    return StateStore(open_storage(url, **shared, options=given))


class StateStore:
    """The entries of every scope of one store. Safe to share between threads."""

    def __init__(self, storage: Storage, *, owner: bool = True) -> None:
        self.storage = storage
        self.owner = owner

    def __call__(self, scope: Address) -> State:
        """Return the state of one scope: a Scope, its text such as `user/42`, or a bare id, which means a session."""
        return State(self.storage, scope)

    @property
    def capabilities(self) -> frozenset[str]:
        """The store's features beyond reading and writing, such as text, vectors, graph, keys or history."""
        return self.storage.store.capabilities

    def scopes(self, *, after: str | None = None, limit: int | None = None) -> Sequence[str]:
        """Return scopes that have entries, in order. The next page begins after the last of this one.

        Only the journaled store supports this.
        """
        return store.list_scopes(self.storage, after, limit)

    def purge(self) -> int:
        """Remove expired entries for good and return how many there were. Call it periodically.

        Expired entries are invisible before that too. Their history in the journal stays.
        """
        return state_write.purge_expired(self.storage)

    def end_session(self, session: Address) -> int:
        """Delete entries with the lifetime of a session, in its own scope or in that of a thread, and return how many.

        A bare id means the session's own scope, `Scope.thread(id, name)` a thread's. The journaled store does both by
        itself when a session ends.
        """
        return state_write.delete_session_entries(self.storage, session)

    def datalog(self, script: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run a read-only Datalog query, where the store declares it."""
        return store.run_datalog(self.storage, script, params)

    def close(self) -> None:
        """Release the store. Closing twice is fine; closing `hf.state` closes nothing."""
        if self.owner:
            self.storage.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StateStore({type(self.storage.store).__name__})"


class StoreView(Protocol):
    """A store or one scope of it, of either client."""

    @property
    def storage(self) -> Storage: ...


StoreChoice = bool | str | StoreView
"""A place for compacted passages: a scope of `hf.state`, where True is the session's, or another store as well."""
