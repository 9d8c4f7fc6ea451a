"""Reading state for asyncio: the reading half of State, awaited. Each method crosses into a thread once, as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from holdfast.aio.embedding import searching
from holdfast.aio.threads import Threads
from holdfast.client.state import Reads, StateReader
from holdfast.records.entries import Direction, Edge, Entry, Reached, Revision, SearchResult
from holdfast.records.scope import Address

T = TypeVar("T")
D = TypeVar("D")


class AsyncReads:
    """What can be read of one scope, awaited. `name` is the key of an entry."""

    __slots__ = ()

    _of: Reads
    _threads: Threads

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
        return await searching(self._threads, lambda: self._of.search(query, limit=limit))

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
    ) -> Sequence[Reached]:
        """See State.traverse."""
        return await self._threads.run(
            self._of.traverse, name, depth=depth, kinds=kinds, direction=direction, limit=limit
        )


class AsyncStateReader(AsyncReads):
    """Reads state and cannot write it: what operators get that are awaited. Call it with a scope to read another."""

    __slots__ = ("_of", "_threads")

    _of: StateReader

    def __init__(self, reader: StateReader, threads: Threads) -> None:
        self._of = reader
        self._threads = threads

    @property
    def scope(self) -> str:
        """The scope that it reads."""
        return self._of.scope

    def __call__(self, scope: Address) -> AsyncStateReader:
        """The same for another scope."""
        return AsyncStateReader(self._of(scope), self._threads)

    def __repr__(self) -> str:
        return f"Async{self._of!r}"
