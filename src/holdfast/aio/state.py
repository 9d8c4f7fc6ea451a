"""State for asyncio: the methods of State, awaited. Each crosses into a thread once, as a whole.

Cancelling an await does not cancel a write that has begun; where the store takes keys, repeat it with its key to learn
the outcome. `reader()` returns the plain StateReader: operators that are plain functions run in threads and read there.

Methods that only say `See …` are written by tools/generate_aio.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from holdfast.aio.callbacks import AnyEmbedder, run_search, wrap_embedder
from holdfast.aio.executor import AsyncOpener, ThreadPools, close_with_pools
from holdfast.client.options import SharedStoreOptions, refuse_unknown
from holdfast.client.state import ReadableState, State, StateReader, StateStore, open_store
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
from holdfast.records.scope import Address

T = TypeVar("T")
D = TypeVar("D")


class AsyncReadableState:
    """The reading half of one scope, awaited. `name` is the key of an entry."""

    __slots__ = ()

    _of: ReadableState
    _threads: ThreadPools

    @overload
    async def read(self, name: str, /, *, as_: type[T]) -> T | None: ...

    @overload
    async def read(self, name: str, /, *, as_: type[T], default: D) -> T | D: ...

    @overload
    async def read(self, name: str, /, *, as_: None = None, default: Any = None) -> Any: ...

    async def read(self, name: str, /, *, as_: Any = None, default: Any = None) -> Any:
        """See State.read."""
        return await self._threads.run(lambda: self._of.read(name, as_=as_, default=default))

    @overload
    async def require(self, name: str, /, *, as_: type[T]) -> T: ...

    @overload
    async def require(self, name: str, /, *, as_: None = None) -> Any: ...

    async def require(self, name: str, /, *, as_: Any = None) -> Any:
        """See State.require."""
        return await self._threads.run(lambda: self._of.require(name, as_=as_))

    async def entry(self, name: str, /) -> Entry | None:
        """See State.entry."""
        return await self._threads.run(self._of.entry, name)

    async def list(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> list[str]:
        """See State.list."""
        return await self._threads.run(self._of.list, prefix, after=after, limit=limit)

    async def entries(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> Sequence[Entry]:
        """See State.entries."""
        return await self._threads.run(self._of.entries, prefix, after=after, limit=limit)

    async def search(self, query: str, *, limit: int = 5) -> Sequence[SearchResult]:
        """See State.search. An async embedder is awaited here."""
        return await run_search(self._threads, lambda: self._of.search(query, limit=limit))

    async def history(self, name: str, /, *, limit: int | None = None) -> Sequence[Revision]:
        """See State.history."""
        return await self._threads.run(self._of.history, name, limit=limit)

    async def neighbours(
        self,
        name: str,
        /,
        *,
        kinds: Sequence[str] | None = None,
        direction: Direction = "out",
        limit: int | None = None,
    ) -> Sequence[Edge]:
        """See State.neighbours."""
        return await self._threads.run(self._of.neighbours, name, kinds=kinds, direction=direction, limit=limit)

    async def traverse(
        self,
        name: str,
        /,
        *,
        depth: int = 3,
        kinds: Sequence[str] | None = None,
        direction: Direction = "out",
        limit: int | None = None,
    ) -> Sequence[TraversalResult]:
        """See State.traverse."""
        return await self._threads.run(
            self._of.traverse, name, depth=depth, kinds=kinds, direction=direction, limit=limit
        )


class AsyncStateReader(AsyncReadableState):
    """A read-only view of state, as async operators get it. Call it with a scope to read another one."""

    __slots__ = ("_of", "_threads")

    _of: StateReader

    def __init__(self, reader: StateReader, threads: ThreadPools) -> None:
        self._of = reader
        self._threads = threads

    @property
    def scope(self) -> str:
        """The scope of the view."""
        return self._of.scope

    def __call__(self, scope: Address) -> AsyncStateReader:
        """Return the same view of another scope."""
        return AsyncStateReader(self._of(scope), self._threads)

    def __repr__(self) -> str:
        return f"Async{self._of!r}"


class AsyncState(AsyncReadableState):
    """The entries and edges of one scope; `async for key in state` yields its keys."""

    __slots__ = ("_embeds", "_of", "_threads")

    _of: State

    def __init__(self, state: State, threads: ThreadPools, *, embeds: bool) -> None:
        self._of = state
        self._threads = threads
        self._embeds = embeds

    @property
    def scope(self) -> str:
        """The scope of the entries."""
        return self._of.scope

    async def write(
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
        """See State.write. An async embedder is awaited here."""

        def write() -> int:
            return self._of.write(
                name,
                value,
                expected_version=expected_version,
                reducer=reducer,
                tier=tier,
                lifetime=lifetime,
                content_kind=content_kind,
                salience=salience,
                ttl=ttl,
                key=key,
            )

        return await (run_search(self._threads, write) if self._embeds else self._threads.run(write))

    async def delete(self, name: str, /, *, expected_version: int | None = None, key: str | None = None) -> bool:
        """See State.delete."""
        return await self._threads.run(self._of.delete, name, expected_version=expected_version, key=key)

    async def clear_transient(self) -> int:
        """See State.clear_transient."""
        return await self._threads.run(self._of.clear_transient)

    async def link(
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
        """See State.link."""
        await self._threads.run(
            self._of.link, source, kind, target, target_scope=target_scope, weight=weight, data=data
        )

    async def unlink(self, source: str, kind: str, target: str, /, *, target_scope: Address | None = None) -> bool:
        """See State.unlink."""
        return await self._threads.run(self._of.unlink, source, kind, target, target_scope=target_scope)

    def reader(self) -> StateReader:
        """See State.reader. It blocks on the store where it is called: use it in threads."""
        return self._of.reader()

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self.list():
            yield name

    def __repr__(self) -> str:
        return f"Async{self._of!r}"


class AsyncStateStore:
    """The entries of every scope of one store: `hf.state`, or `await holdfast.open_store_async(…)`."""

    def __init__(self, store: StateStore, threads: ThreadPools) -> None:
        self.store = store
        self._threads = threads
        # The journal embeds a query when it is searched; other stores embed what is written.
        self._embeds = store.owner and store.storage.embedder is not None

    def __call__(self, scope: Address) -> AsyncState:
        """See StateStore. Reads nothing yet."""
        return AsyncState(self.store(scope), self._threads, embeds=self._embeds)

    @property
    def capabilities(self) -> frozenset[str]:
        """See StateStore.capabilities. Reads nothing, and is a property here too."""
        return self.store.capabilities

    async def scopes(self, *, after: str | None = None, limit: int | None = None) -> Sequence[str]:
        """See StateStore.scopes."""
        return await self._threads.run(self.store.scopes, after=after, limit=limit)

    async def purge(self) -> int:
        """See StateStore.purge."""
        return await self._threads.run(self.store.purge)

    async def end_session(self, session: str) -> int:
        """See StateStore.end_session."""
        return await self._threads.run(self.store.end_session, session)

    async def datalog(self, script: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """See StateStore.datalog."""
        return await self._threads.run(self.store.datalog, script, params)

    async def close(self) -> None:
        """Release the store, even if the task is cancelled meanwhile. Closing `hf.state` closes nothing."""
        if self.store.owner:
            await close_with_pools(self._threads, self.store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self.store!r}"


class AsyncStoreOptions(SharedStoreOptions, total=False):
    """Options of `holdfast.open_store_async`."""

    embedder: AnyEmbedder | None
    """The source of vectors of what is written, where the store declares vectors. It may be async."""


def open_store_async(url: str | os.PathLike[str], **options: Unpack[AsyncStoreOptions]) -> AsyncOpener[AsyncStateStore]:
    """Open a store for asyncio, with `await` or `async with`; takes the options of `holdfast.open_store`.

    An embedder may be async here; a plain one runs in a thread.
    """
    refuse_unknown(options, AsyncStoreOptions, "open_store_async")
    given: Any = dict(options)

    def make() -> StateStore:
        return open_store(url, **{**given, "embedder": wrap_embedder(given.get("embedder"))})

    return AsyncOpener(make, AsyncStateStore)
