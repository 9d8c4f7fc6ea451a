"""State for asyncio: the methods of State, awaited. Each crosses into a thread once, as a whole.

Cancelling an await does not cancel a write that has begun; where the store takes keys, repeat it with its key to learn
the outcome. `reader()` returns the plain StateReader: operators that are plain functions run in threads and read there.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any, Self, TypeVar, Unpack, overload

from holdfast.aio.callbacks import AnyEmbedder, run_search, wrap_embedder
from holdfast.aio.executor import AsyncOpener, AsyncTwin, ThreadPools, close_with_pools, make_async
from holdfast.client.options import SharedStoreOptions, refuse_unknown
from holdfast.client.state import ReadableState, State, StateReader, StateStore, open_store
from holdfast.flow.state.store import Storage
from holdfast.records.entries import Lifetime, Reducer, Tier
from holdfast.records.scope import Address

T = TypeVar("T")
D = TypeVar("D")
ReadableT = TypeVar("ReadableT", bound=ReadableState)


class AsyncReadableState(AsyncTwin[ReadableT]):
    """The reading half of one scope, awaited. `name` is the key of an entry."""

    __slots__ = ()

    @overload
    async def read(self, name: str, /, *, as_: type[T]) -> T | None: ...

    @overload
    async def read(self, name: str, /, *, as_: type[T], default: D) -> T | D: ...

    @overload
    async def read(self, name: str, /, *, as_: None = None, default: Any = None) -> Any: ...

    async def read(self, name: str, /, *, as_: Any = None, default: Any = None) -> Any:
        """See ReadableState.read."""
        return await self._threads.run(lambda: self._sync.read(name, as_=as_, default=default))

    @overload
    async def require(self, name: str, /, *, as_: type[T]) -> T: ...

    @overload
    async def require(self, name: str, /, *, as_: None = None) -> Any: ...

    async def require(self, name: str, /, *, as_: Any = None) -> Any:
        """See ReadableState.require."""
        return await self._threads.run(lambda: self._sync.require(name, as_=as_))

    entry = make_async(ReadableState.entry)
    list = make_async(ReadableState.list)
    entries = make_async(ReadableState.entries)
    search = make_async(ReadableState.search, run_search)
    history = make_async(ReadableState.history)
    neighbours = make_async(ReadableState.neighbours)
    traverse = make_async(ReadableState.traverse)


class AsyncStateReader(AsyncReadableState[StateReader]):
    """A read-only view of state, as async operators get it. Call it with a scope to read another one."""

    __slots__ = ()

    @property
    def scope(self) -> str:
        """The scope of the view."""
        return self._sync.scope

    def __call__(self, scope: Address) -> AsyncStateReader:
        """Return the same view of another scope."""
        return AsyncStateReader(self._sync(scope), self._threads)


class AsyncState(AsyncReadableState[State]):
    """The entries and edges of one scope; `async for key in state` yields its keys."""

    __slots__ = ("_embeds",)

    def __init__(self, state: State, threads: ThreadPools, *, embeds: bool) -> None:
        super().__init__(state, threads)
        self._embeds = embeds

    @property
    def scope(self) -> str:
        """The scope of the entries."""
        return self._sync.scope

    @property
    def storage(self) -> Storage:
        """See State.storage. Reads nothing, and is a property here too."""
        return self._sync.storage

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
            return self._sync.write(
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

    delete = make_async(State.delete)
    clear_transient = make_async(State.clear_transient)
    link = make_async(State.link)
    unlink = make_async(State.unlink)

    def reader(self) -> StateReader:
        """See State.reader. It blocks on the store where it is called: use it in threads."""
        return self._sync.reader()

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self.list():
            yield name


class AsyncStateStore(AsyncTwin[StateStore]):
    """The entries of every scope of one store: `hf.state`, or `await holdfast.open_store_async(…)`."""

    def __init__(self, store: StateStore, threads: ThreadPools) -> None:
        super().__init__(store, threads)
        self.store, self.storage = store, store.storage
        # The journal embeds a query when it is searched; other stores embed what is written.
        self._embeds = store.owner and store.storage.embedder is not None

    def __call__(self, scope: Address) -> AsyncState:
        """See StateStore. Reads nothing yet."""
        return AsyncState(self._sync(scope), self._threads, embeds=self._embeds)

    @property
    def capabilities(self) -> frozenset[str]:
        """See StateStore.capabilities. Reads nothing, and is a property here too."""
        return self._sync.capabilities

    scopes = make_async(StateStore.scopes)
    purge = make_async(StateStore.purge)
    end_session = make_async(StateStore.end_session)
    datalog = make_async(StateStore.datalog)

    async def close(self) -> None:
        """Release the store, even if the task is cancelled meanwhile. Closing `hf.state` closes nothing."""
        if self._sync.owner:
            await close_with_pools(self._threads, self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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
