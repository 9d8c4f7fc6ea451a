"""AsyncSession: the same conversation for asyncio. Each operation crosses into a thread once, as a whole.

What the sync side reads as a property is awaited here: `await chat.title()`, `await chat.length()` for
`len(chat)`. Cancelling an await does not cancel a write that has begun; its key answers what happened.
Only `compact` crosses more often: what it summarises with may be async and is awaited on the loop.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

from holdfast.aio.embedding import searching
from holdfast.aio.memory import offering
from holdfast.aio.shown import AsyncSessionShown
from holdfast.aio.summing import summarising
from holdfast.aio.threads import Threads
from holdfast.aio.turn import AsyncTurn
from holdfast.client.session import Session
from holdfast.client.turn_model import LOOPS
from holdfast.flow.conversation.porting import Imported
from holdfast.records.entries import SearchResult
from holdfast.records.frames import Limits
from holdfast.records.messages import Message, ToolCallRequest, ToolDef
from holdfast.records.reports import Progress
from holdfast.records.usage import Usage

PAGE = 64

T = TypeVar("T")


class AsyncSession(AsyncSessionShown):
    """Session for asyncio. Made by `await hf.session(…)`; `async for message in chat` reads all of it."""

    __slots__ = ("_session", "_threads")

    def __init__(self, session: Session, threads: Threads) -> None:
        self._session = session
        self._threads = threads

    # what it is

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    @property
    def thread(self) -> str:
        """Which line of it this is."""
        return self._session.thread

    async def status(self) -> str:
        """See Session.status."""
        return await self._threads.run(lambda: self._session.status)

    async def model(self) -> str:
        """See Session.model."""
        return await self._threads.run(lambda: self._session.model)

    async def system(self) -> str | None:
        """See Session.system."""
        return await self._threads.run(lambda: self._session.system)

    async def title(self) -> str | None:
        """See Session.title."""
        return await self._threads.run(lambda: self._session.title)

    async def metadata(self) -> dict[str, Any]:
        """See Session.metadata."""
        return await self._threads.run(lambda: self._session.metadata)

    async def tools(self) -> tuple[ToolDef, ...]:
        """See Session.tools."""
        return await self._threads.run(lambda: self._session.tools)

    async def threads(self) -> tuple[str, ...]:
        """See Session.threads."""
        return await self._threads.run(lambda: self._session.threads)

    async def usage(self) -> Usage:
        """See Session.usage."""
        return await self._threads.run(lambda: self._session.usage)

    async def length(self) -> int:
        """How many messages it has: what `len` says of a Session."""
        return await self._threads.run(len, self._session)

    # saying

    @overload
    async def append(
        self,
        message: list[Any],
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> list[Message]: ...

    @overload
    async def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message: ...

    async def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message | list[Message]:
        """See Session.append."""
        work = functools.partial(
            self._session.append, message, files=files, partial=partial, pinned=pinned, policy=policy, key=key
        )
        return await self._following_rules(work)

    async def append_result(
        self,
        call: ToolCallRequest | str,
        result: Any,
        *,
        is_error: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message:
        """See Session.append_result."""
        work = functools.partial(self._session.append_result, call, result, is_error=is_error, policy=policy, key=key)
        return await self._following_rules(work)

    async def _following_rules(self, work: Callable[[], T]) -> T:
        """Run what rules may follow: a session that has some may have to await a summarizer of theirs."""
        if self._session.rules:
            return await summarising(self._threads, work)
        return await self._threads.run(work)

    # reading

    async def open_calls(self) -> list[ToolCallRequest]:
        """Tool calls that wait for a result, oldest first. Until they have one, nothing after them is summarised."""
        return await self._threads.run(self._session.open_calls)

    async def messages(
        self,
        limit: int | None = None,
        *,
        before: Message | str | None = None,
        after: Message | str | None = None,
    ) -> list[Message]:
        """See Session.messages."""
        return await self._threads.run(self._session.messages, limit, before=before, after=after)

    def __aiter__(self) -> AsyncIterator[Message]:
        return paged(self._threads, iter(self._session))

    async def search(self, query: str, *, limit: int = 5) -> Sequence[SearchResult]:
        """See Session.search. An async embedder is awaited here."""
        return await searching(self._threads, lambda: self._session.search(query, limit=limit))

    # turns

    def turn(
        self,
        message: Any = None,
        *,
        key: str | None = None,
        if_busy: str = "queue",
        wait: float | None = None,
        tokens: int | None = None,
        limits: Limits | None = None,
        budget: int | None = None,
        budget_usd: float | None = None,
        loops: int = LOOPS,
        if_interrupted: str | Mapping[str, str] = "ask",
        needs_approval: Collection[str] | Callable[[str, Any], bool] = (),
        on_error: str = "leave",
    ) -> AsyncTurn:
        """See Session.turn: `async with chat.turn("…") as turn: async for step in turn: …`"""
        turn = self._session.turn(
            message,
            key=key,
            if_busy=if_busy,
            wait=wait,
            tokens=tokens,
            limits=limits,
            budget=budget,
            budget_usd=budget_usd,
            loops=loops,
            if_interrupted=if_interrupted,
            needs_approval=needs_approval,
            on_error=on_error,
        )
        return AsyncTurn(turn, self._threads)

    async def stop(self, reason: str = "stopped") -> bool:
        """See Session.stop."""
        return await self._threads.run(self._session.stop, reason)

    # editing

    async def rewind(
        self, *, to: Message | str | None = None, before: Message | str | None = None, reason: str | None = None
    ) -> int:
        """See Session.rewind."""
        return await self._threads.run(self._session.rewind, to=to, before=before, reason=reason)

    async def fork(self, at: Message | str | None = None, *, thread: str | None = None) -> AsyncSession:
        """See Session.fork."""
        return AsyncSession(await self._threads.run(self._session.fork, at, thread=thread), self._threads)

    async def pin(self, message: Message | str) -> Message:
        """See Session.pin."""
        return await self._threads.run(self._session.pin, message)

    async def unpin(self, message: Message | str) -> Message:
        """See Session.unpin."""
        return await self._threads.run(self._session.unpin, message)

    # ending

    async def close(self) -> None:
        """See Session.close."""
        await offering(self._threads, self._session.close)

    async def reset(self) -> None:
        """See Session.reset."""
        await offering(self._threads, self._session.reset)

    # in and out

    async def import_messages(
        self,
        given: Any,
        format: str = "openai",
        *,
        strict: bool = False,
        key: str | None = None,
        progress: Progress | None = None,
    ) -> Imported:
        """See Session.import_messages."""
        return await self._threads.run(
            self._session.import_messages, given, format, strict=strict, key=key, progress=progress
        )

    async def export(self, format: str = "openai") -> Any:
        """See Session.export."""
        return await self._threads.run(self._session.export, format)

    def __repr__(self) -> str:
        return f"Async{self._session!r}"


async def paged(threads: Threads, found: Iterator[T]) -> AsyncIterator[T]:
    """What an iterator over the journal gives, one crossing per page."""
    more = True
    while more:
        page = await threads.run(lambda: list(islice(found, PAGE)))
        for item in page:
            yield item
        more = len(page) == PAGE
