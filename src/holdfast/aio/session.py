"""AsyncSession: a conversation for asyncio. Each operation crosses into a thread once, as a whole.

Properties of the sync session are awaited here: `await chat.title()`, `await chat.length()` for `len(chat)`. Cancelling
an await does not cancel a write that has begun; repeat it with its key to learn the outcome. Only `compact` crosses
more often: its summarizer may be async and is awaited on the loop.

Methods that only say `See …` are written by tools/generate_aio.py.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from holdfast.aio.callbacks import AnySummarizer, AsyncCompaction, run_offer, run_search, run_with_rules
from holdfast.aio.executor import ThreadPools, iterate_pages, make_loaded_pack
from holdfast.aio.session_views import AsyncSessionCompaction, AsyncSessionDetails, AsyncSessionPacks
from holdfast.aio.turn import AsyncTurn
from holdfast.client.options import PackOptions, TurnOptions
from holdfast.client.pack import ContextPack
from holdfast.client.session import Session
from holdfast.flow.sessions.import_export import ImportReport
from holdfast.flow.sessions.sessions import streams_of
from holdfast.ports import Env
from holdfast.records.compaction import DEFAULT_KEEP_ROUNDS, DEFAULT_SUMMARY_TOKENS, CompactionConfig
from holdfast.records.entries import SearchResult
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.packs import Trace
from holdfast.records.reports import Progress
from holdfast.records.sessions import Summary
from holdfast.records.usage import Usage

T = TypeVar("T")


class AsyncSession:
    """A Session for asyncio, created by `await hf.session(…)`; `async for message in chat` reads all of it."""

    __slots__ = ("_env", "_session", "_threads")

    def __init__(self, session: Session, env: Env, threads: ThreadPools) -> None:
        self._session = session
        self._env = env
        self._threads = threads

    # properties

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    @property
    def thread(self) -> str:
        """The name of this thread of the session."""
        return self._session.thread

    async def model(self) -> str:
        """See Session.model."""
        return await self._threads.run(lambda: self._session.model)

    async def title(self) -> str | None:
        """See Session.title."""
        return await self._threads.run(lambda: self._session.title)

    async def usage(self) -> Usage:
        """See Session.usage."""
        return await self._threads.run(lambda: self._session.usage)

    @property
    def details(self) -> AsyncSessionDetails:
        """See Session.details. Its properties are awaited."""
        return AsyncSessionDetails(self._session.details, self._threads)

    @property
    def packs(self) -> AsyncSessionPacks:
        """See Session.packs. Its methods are awaited."""
        return AsyncSessionPacks(self._session.packs, self._threads)

    @property
    def compaction(self) -> AsyncSessionCompaction:
        """See Session.compaction. Its members are awaited."""
        streams = streams_of(self._session.id, self._session.thread)
        return AsyncSessionCompaction(self._session.compaction, self._env, *streams, self._threads)

    async def length(self) -> int:
        """Return the number of messages, as `len` does for a Session."""
        return await self._threads.run(len, self._session)

    # writing

    @overload
    async def append(
        self,
        message: list[Any],
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
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
        policy: str | None = None,
        key: str | None = None,
    ) -> Message: ...

    async def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message | list[Message]:
        """See Session.append. Async rules are awaited here."""
        return await self._run_with_rules(
            lambda: self._session.append(message, files=files, partial=partial, policy=policy, key=key)
        )

    async def append_result(
        self,
        call: ToolCallRequest | str,
        result: Any,
        *,
        is_error: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message:
        """See Session.append_result. Async rules are awaited here."""
        return await self._run_with_rules(
            lambda: self._session.append_result(call, result, is_error=is_error, policy=policy, key=key)
        )

    async def _run_with_rules(self, work: Callable[[], T]) -> T:
        """Run work that may trigger rules, whose summarizers may have to be awaited on this loop."""
        if self._session.compaction.rules:
            return await run_with_rules(self._threads, work)
        return await self._threads.run(work)

    # reading

    async def messages(
        self, limit: int | None = None, *, before: Message | str | None = None, after: Message | str | None = None
    ) -> list[Message]:
        """See Session.messages."""
        return await self._threads.run(self._session.messages, limit, before=before, after=after)

    def __aiter__(self) -> AsyncIterator[Message]:
        return iterate_pages(self._threads, iter(self._session))

    async def search(self, query: str, *, limit: int = 5) -> Sequence[SearchResult]:
        """See Session.search. An async embedder is awaited here."""
        return await run_search(self._threads, lambda: self._session.search(query, limit=limit))

    async def why(self, text: str) -> Trace:
        """See Session.why. An async embedder is awaited here."""
        return await run_search(self._threads, lambda: self._session.why(text))

    async def pack_at(self, call: str) -> ContextPack:
        """See Session.pack_at. Images and files are loaded with it."""
        return await make_loaded_pack(self._threads, self._session.pack_at, call)

    async def pack(self, budget: int | None = None, **options: Unpack[PackOptions]) -> ContextPack:
        """See Session.pack. Images and files are loaded with it."""
        return await make_loaded_pack(self._threads, self._session.pack, budget, **options)

    # packs

    async def compact(
        self,
        keep: int = DEFAULT_KEEP_ROUNDS,
        *,
        strategy: str = "summarise_oldest",
        summarizer: AnySummarizer | None = None,
        max_tokens: int = DEFAULT_SUMMARY_TOKENS,
        whole: bool = False,
        store: bool | str = False,
    ) -> Summary | None:
        """See Session.compact. An async summarizer is awaited here, any other runs in a thread."""
        config = CompactionConfig(strategy=strategy, keep=keep, summary_tokens=max_tokens, store=store)
        if strategy != "summarise_oldest":
            work = functools.partial(
                self._session.compact, keep, strategy=strategy, max_tokens=max_tokens, whole=whole, store=store
            )
            return await self._threads.run(work)
        _, thread_stream = streams_of(self._session.id, self._session.thread)
        return await AsyncCompaction(self._env, thread_stream, self._threads, summarizer, config).run(whole=whole)

    # turns

    def turn(self, message: Any = None, *, key: str | None = None, **options: Unpack[TurnOptions]) -> AsyncTurn:
        """See Session.turn: `async with chat.turn("…") as turn: async for step in turn: …`"""
        return AsyncTurn(self._session.turn(message, key=key, **options).engine, self._threads)

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
        """See Session.fork. The new thread is an AsyncSession."""
        return AsyncSession(await self._threads.run(self._session.fork, at, thread=thread), self._env, self._threads)

    async def pin(self, message: Message | str) -> Message:
        """See Session.pin."""
        return await self._threads.run(self._session.pin, message)

    async def unpin(self, message: Message | str) -> Message:
        """See Session.unpin."""
        return await self._threads.run(self._session.unpin, message)

    # ending

    async def close(self) -> None:
        """See Session.close. An async memory is awaited here."""
        await run_offer(self._threads, self._session.close)

    async def reset(self) -> None:
        """See Session.reset. An async memory is awaited here."""
        await run_offer(self._threads, self._session.reset)

    # import and export

    async def import_messages(
        self,
        given: Any,
        format: str = "openai",
        *,
        strict: bool = False,
        key: str | None = None,
        progress: Progress | None = None,
    ) -> ImportReport:
        """See Session.import_messages."""
        return await self._threads.run(
            self._session.import_messages, given, format, strict=strict, key=key, progress=progress
        )

    async def export(self, format: str = "openai") -> Any:
        """See Session.export."""
        return await self._threads.run(self._session.export, format)

    def __repr__(self) -> str:
        return f"Async{self._session!r}"
