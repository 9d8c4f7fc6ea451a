"""AsyncSession: a conversation for asyncio. Each operation crosses into a thread once, as a whole.

Properties of the sync session are awaited here: `await chat.title()`, `await chat.length()` for `len(chat)`. Cancelling
an await does not cancel a write that has begun; repeat it with its key to learn the outcome. Only `compact` crosses
more often: its summarizer may be async and is awaited on the loop.

A session's context for asyncio: its brief, its packs and their explanations, and compaction.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

from holdfast.aio.callbacks import (
    AnySummarizer,
    AsyncCompaction,
    LoopSummarizer,
    await_action,
    run_offer,
    run_search,
    run_with_rules,
)
from holdfast.aio.executor import ThreadPools, make_loaded_pack
from holdfast.aio.frame import AsyncHistoryTools
from holdfast.aio.turn import AsyncTurn
from holdfast.client.history_tools import MAX_TOKENS
from holdfast.client.pack import ContextPack
from holdfast.client.session import Session
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.flow.sessions.import_export import ImportReport
from holdfast.flow.turns.model_calls import LOOPS
from holdfast.model.summarizers import resolve_summarizer as checked
from holdfast.ports import Summarizer
from holdfast.records.compaction import (
    DEFAULT_KEEP_ROUNDS,
    DEFAULT_SUMMARY_TOKENS,
    BudgetGuard,
    CompactionConfig,
    Rule,
    TelemetryRecorder,
)
from holdfast.records.entries import SearchResult
from holdfast.records.frames import Limits
from holdfast.records.messages import Message, ToolCallRequest, ToolDef
from holdfast.records.packs import MAIN_ROLE, BriefContext, PackInfo, Trace
from holdfast.records.reports import Progress
from holdfast.records.sessions import Summary
from holdfast.records.usage import Usage

T = TypeVar("T")


class AsyncSessionContext:
    """The context of a conversation, for asyncio."""

    __slots__ = ()

    _session: Session
    _threads: ThreadPools

    # the brief

    async def brief(self, role: str = MAIN_ROLE) -> BriefContext:
        """See Session.brief."""
        return await self._threads.run(self._session.brief, role)

    async def set_brief(
        self,
        role: str = MAIN_ROLE,
        *,
        system_prompt: str | None = None,
        invariants: Sequence[str] | None = None,
        working_context: Any = None,
        tools: Sequence[Any] | None = None,
        key: str | None = None,
    ) -> None:
        """See Session.set_brief."""
        await self._threads.run(
            self._session.set_brief,
            role,
            system_prompt=system_prompt,
            invariants=invariants,
            working_context=working_context,
            tools=tools,
            key=key,
        )

    # packs

    async def pack(
        self,
        budget: int | None = None,
        *,
        role: str = MAIN_ROLE,
        query: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        force_exclude: bool = False,
        min_compaction: str = "none",
        tokenizer: str | None = None,
        layout: str = "stable",
        stickiness: float | None = None,
        max_messages: int | None = None,
        recall: int | None = None,
        as_of: int | None = None,
    ) -> ContextPack:
        """See Session.pack. Images and files are loaded with it, so that rendering does not block on the disk."""
        return await make_loaded_pack(
            self._threads,
            self._session.pack,
            budget,
            role=role,
            query=query,
            include=include,
            exclude=exclude,
            force_exclude=force_exclude,
            min_compaction=min_compaction,
            tokenizer=tokenizer,
            layout=layout,
            stickiness=stickiness,
            max_messages=max_messages,
            recall=recall,
            as_of=as_of,
        )

    async def pack_at(self, call: str) -> ContextPack:
        """See Session.pack_at."""
        return await make_loaded_pack(self._threads, self._session.pack_at, call)

    async def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> AsyncHistoryTools:
        """See Session.history_tools."""
        tools = await self._threads.run(self._session.history_tools, max_tokens=max_tokens)
        return AsyncHistoryTools(tools, self._threads)

    async def packs(self, limit: int | None = None) -> list[PackInfo]:
        """See Session.packs."""
        return await self._threads.run(self._session.packs, limit)

    async def why(self, text: str) -> Trace:
        """See Session.why. An async embedder is awaited here."""
        return await run_search(self._threads, lambda: self._session.why(text))

    async def begin_model_call(self, pack: ContextPack, *, key: str | None = None) -> str:
        """See Session.begin_model_call."""
        return await run_with_rules(self._threads, lambda: self._session.begin_model_call(pack, key=key))

    # compaction

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
        return await AsyncCompaction(self._session, self._threads, summarizer, config).run(whole=whole)

    async def add_rule(
        self, rule: Rule | CompactionConfig | BudgetGuard | TelemetryRecorder | str
    ) -> Callable[[], None]:
        """See Session.add_rule. Async summarizers and functions are awaited on the loop of the append."""
        of = self._session

        def choose(given: Any) -> Summarizer:
            return LoopSummarizer(checked(of._choose_summarizer(given)))

        return await self._threads.run(
            compaction_rules.add_rule, of._env, of._session_stream, rule, choose, await_action
        )

    async def rules(self) -> tuple[Rule, ...]:
        """See Session.rules."""
        return await self._threads.run(lambda: self._session.rules)

    async def summaries(self) -> list[Summary]:
        """See Session.summaries."""
        return await self._threads.run(self._session.summaries)

    async def expand(self, summary: Summary | str) -> list[Message]:
        """See Session.expand."""
        return await self._threads.run(self._session.expand, summary)


PAGE = 64


class AsyncSession(AsyncSessionContext):
    """A Session for asyncio, created by `await hf.session(…)`; `async for message in chat` reads all of it."""

    __slots__ = ("_session", "_threads")

    def __init__(self, session: Session, threads: ThreadPools) -> None:
        self._session = session
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
        return await self._run_with_rules(work)

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
        return await self._run_with_rules(work)

    async def _run_with_rules(self, work: Callable[[], T]) -> T:
        """Run work that may trigger rules, whose summarizers may have to be awaited on this loop."""
        if self._session.rules:
            return await run_with_rules(self._threads, work)
        return await self._threads.run(work)

    # reading

    async def open_calls(self) -> list[ToolCallRequest]:
        """See Session.open_calls."""
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
        return iterate_pages(self._threads, iter(self._session))

    async def search(self, query: str, *, limit: int = 5) -> Sequence[SearchResult]:
        """See Session.search. An async embedder is awaited here."""
        return await run_search(self._threads, lambda: self._session.search(query, limit=limit))

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
        return AsyncTurn(turn.engine, self._threads)

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
        await run_offer(self._threads, self._session.close)

    async def reset(self) -> None:
        """See Session.reset."""
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


async def iterate_pages(threads: ThreadPools, found: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator over the journal, one crossing per page."""
    more = True
    while more:
        page = await threads.run(lambda: list(islice(found, PAGE)))
        for item in page:
            yield item
        more = len(page) == PAGE
