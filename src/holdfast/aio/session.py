"""AsyncSession: a conversation for asyncio. Each operation crosses into a thread once, as a whole.

Properties of the sync session are awaited here: `await chat.title()`, `await chat.length()` for `len(chat)`. Cancelling
an await does not cancel a write that has begun; repeat it with its key to learn the outcome. Only `compact` crosses
more often: its summarizer may be async and is awaited on the loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from holdfast.aio.callbacks import AnySummarizer, AsyncCompaction, run_offer, run_search, run_with_rules
from holdfast.aio.executor import AsyncTwin, ThreadPools, iterate_pages, make_async, run_pack
from holdfast.aio.session_views import AsyncSessionCompaction, AsyncSessionDetails, AsyncSessionPacks
from holdfast.aio.turn import AsyncTurn
from holdfast.client.options import AppendOptions, TurnOptions
from holdfast.client.session import Session
from holdfast.client.state import StoreChoice
from holdfast.flow.sessions.sessions import streams_of
from holdfast.ports import Env
from holdfast.records.compaction import DEFAULT_KEEP_ROUNDS, DEFAULT_SUMMARY_TOKENS, CompactionConfig
from holdfast.records.ids import SessionId
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.sessions import Summary
from holdfast.records.usage import Usage

T = TypeVar("T")


class AsyncSession(AsyncTwin[Session]):
    """A Session for asyncio, created by `await hf.session(…)`; `async for message in chat` reads all of it."""

    __slots__ = ("_env",)

    def __init__(self, session: Session, env: Env, threads: ThreadPools) -> None:
        super().__init__(session, threads)
        self._env = env

    # properties

    @property
    def id(self) -> SessionId:
        """The session's id."""
        return self._sync.id

    @property
    def thread(self) -> str:
        """The name of this thread of the session."""
        return self._sync.thread

    async def model(self) -> str:
        """See Session.model."""
        return await self._threads.run(lambda: self._sync.model)

    async def title(self) -> str | None:
        """See Session.title."""
        return await self._threads.run(lambda: self._sync.title)

    async def usage(self) -> Usage:
        """See Session.usage."""
        return await self._threads.run(lambda: self._sync.usage)

    @property
    def details(self) -> AsyncSessionDetails:
        """See Session.details. Its properties are awaited."""
        return AsyncSessionDetails(self._sync.details, self._threads)

    @property
    def packs(self) -> AsyncSessionPacks:
        """See Session.packs. Its methods are awaited."""
        return AsyncSessionPacks(self._sync.packs, self._threads)

    @property
    def compaction(self) -> AsyncSessionCompaction:
        """See Session.compaction. Its members are awaited."""
        streams = streams_of(self._sync.id, self._sync.thread)
        return AsyncSessionCompaction(self._sync.compaction, self._env, *streams, self._threads)

    async def length(self) -> int:
        """Return the number of messages, as `len` does for a Session."""
        return await self._threads.run(len, self._sync)

    # writing

    @overload
    async def append(self, message: list[Any], **options: Unpack[AppendOptions]) -> list[Message]: ...

    @overload
    async def append(self, message: Any, **options: Unpack[AppendOptions]) -> Message: ...

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
            lambda: self._sync.append(message, files=files, partial=partial, policy=policy, key=key)
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
            lambda: self._sync.append_result(call, result, is_error=is_error, policy=policy, key=key)
        )

    async def _run_with_rules(self, work: Callable[[], T]) -> T:
        """Run work that may trigger rules, whose summarizers may have to be awaited on this loop."""
        if self._sync.compaction.rules:
            return await run_with_rules(self._threads, work)
        return await self._threads.run(work)

    # reading

    messages = make_async(Session.messages)

    def __aiter__(self) -> AsyncIterator[Message]:
        return iterate_pages(self._threads, iter(self._sync))

    search = make_async(Session.search, run_search)
    why = make_async(Session.why, run_search)
    pack_at = make_async(Session.pack_at, run_pack)
    pack = make_async(Session.pack, run_pack)

    # packs

    async def compact(
        self,
        keep: int = DEFAULT_KEEP_ROUNDS,
        *,
        strategy: str = "summarise_oldest",
        summarizer: AnySummarizer | None = None,
        max_tokens: int = DEFAULT_SUMMARY_TOKENS,
        whole: bool = False,
        store: StoreChoice = False,
    ) -> Summary | None:
        """See Session.compact. An async summarizer is awaited here, any other runs in a thread."""
        config = CompactionConfig(strategy=strategy, keep=keep, summary_tokens=max_tokens, store=store)
        if strategy != "summarise_oldest":
            given: Any = summarizer  # Checked, and not called.
            return await self._threads.run(
                self._sync.compact,
                keep,
                strategy=strategy,
                summarizer=given,
                max_tokens=max_tokens,
                whole=whole,
                store=store,
            )
        _, thread_stream = streams_of(self._sync.id, self._sync.thread)
        return await AsyncCompaction(self._env, thread_stream, self._threads, summarizer, config).run(whole=whole)

    # turns

    def turn(self, message: Any = None, *, key: str | None = None, **options: Unpack[TurnOptions]) -> AsyncTurn:
        """See Session.turn: `async with chat.turn("…") as turn: async for step in turn: …`"""
        return AsyncTurn(self._sync.turn(message, key=key, **options).engine, self._threads)

    stop = make_async(Session.stop)

    # editing

    rewind = make_async(Session.rewind)

    async def fork(self, at: Message | str | None = None, *, thread: str | None = None) -> AsyncSession:
        """See Session.fork. The new thread is an AsyncSession."""
        return AsyncSession(await self._threads.run(self._sync.fork, at, thread=thread), self._env, self._threads)

    pin = make_async(Session.pin)
    unpin = make_async(Session.unpin)

    # ending

    close = make_async(Session.close, run_offer)
    reset = make_async(Session.reset, run_offer)

    # import and export

    import_messages = make_async(Session.import_messages)
    export = make_async(Session.export)
