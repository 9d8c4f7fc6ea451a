"""What a session's model is shown, for asyncio: its brief, packs and why they are so, the conversation made shorter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.aio.embedding import searching
from holdfast.aio.packing import packing
from holdfast.aio.summing import AnySummarizer, Compacting, SummarizerOnALoop, action_awaited, summarising
from holdfast.aio.threads import Threads
from holdfast.aio.tools import AsyncHistoryTools
from holdfast.client.pack import ContextPack
from holdfast.client.session import Session
from holdfast.client.tools import MAX_TOKENS
from holdfast.flow.compaction import ruling
from holdfast.model.summarizers import summarizer as checked
from holdfast.ports import Summarizer
from holdfast.records.compaction import (
    KEEP,
    SUMMARY_TOKENS,
    BudgetGuard,
    CompactionConfig,
    Rule,
    TelemetryRecorder,
)
from holdfast.records.lines import Summary
from holdfast.records.messages import Message
from holdfast.records.packs import MAIN_ROLE, BriefContext, PackInfo, Trace

T = TypeVar("T")


class AsyncSessionShown:
    """SessionShown for asyncio."""

    __slots__ = ()

    _session: Session
    _threads: Threads

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
        """See Session.pack. Images and files are read with it, so that nothing waits for the disk afterwards."""
        return await packing(
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
        return await packing(self._threads, self._session.pack_at, call)

    async def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> AsyncHistoryTools:
        """See Session.history_tools."""
        tools = await self._threads.run(self._session.history_tools, max_tokens=max_tokens)
        return AsyncHistoryTools(tools, self._threads)

    async def packs(self, limit: int | None = None) -> list[PackInfo]:
        """See Session.packs."""
        return await self._threads.run(self._session.packs, limit)

    async def why(self, text: str) -> Trace:
        """See Session.why. An async embedder is awaited here."""
        return await searching(self._threads, lambda: self._session.why(text))

    async def begin_model_call(self, pack: ContextPack, *, key: str | None = None) -> str:
        """See Session.begin_model_call."""
        return await summarising(self._threads, lambda: self._session.begin_model_call(pack, key=key))

    # making shorter

    async def compact(
        self,
        keep: int = KEEP,
        *,
        strategy: str = "summarise_oldest",
        summarizer: AnySummarizer | None = None,
        max_tokens: int = SUMMARY_TOKENS,
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
        return await Compacting(self._session, self._threads, summarizer, config).run(whole=whole)

    async def add_rule(
        self, rule: Rule | CompactionConfig | BudgetGuard | TelemetryRecorder | str
    ) -> Callable[[], None]:
        """See Session.add_rule. An async summarizer or function is awaited on the loop of whoever appends."""
        of = self._session

        def choose(given: Any) -> Summarizer:
            return SummarizerOnALoop(checked(of._summarizer(given)))

        return await self._threads.run(ruling.add, of._ports, of._acting, of._own, rule, choose, action_awaited)

    async def rules(self) -> tuple[Rule, ...]:
        """See Session.rules."""
        return await self._threads.run(lambda: self._session.rules)

    async def summaries(self) -> list[Summary]:
        """See Session.summaries."""
        return await self._threads.run(self._session.summaries)

    async def expand(self, summary: Summary | str) -> list[Message]:
        """See Session.expand."""
        return await self._threads.run(self._session.expand, summary)
