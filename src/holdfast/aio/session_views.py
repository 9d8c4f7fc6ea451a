"""Views of a session for asyncio: its packs, its compaction, and its details."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.aio.callbacks import LoopSummarizer, await_action, run_with_rules
from holdfast.aio.executor import AsyncTwin, ThreadPools, make_async
from holdfast.aio.frame import AsyncHistoryTools
from holdfast.client.history_tools import MAX_TOKENS
from holdfast.client.session_views import SessionCompaction, SessionDetails, SessionPacks, choose_thread_summarizer
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.model.summarizers import resolve_summarizer as checked
from holdfast.ports import Env, Summarizer
from holdfast.records.compaction import BudgetGuard, CompactionConfig, Rule, TelemetryRecorder
from holdfast.records.messages import ToolDef


class AsyncSessionPacks(AsyncTwin[SessionPacks]):
    """The packs of a thread, for asyncio."""

    __slots__ = ()

    list = make_async(SessionPacks.list)
    begin_model_call = make_async(SessionPacks.begin_model_call, run_with_rules)

    async def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> AsyncHistoryTools:
        """See SessionPacks.history_tools. Their executor is awaited."""
        tools = await self._threads.run(self._sync.history_tools, max_tokens=max_tokens)
        return AsyncHistoryTools(tools, self._threads)

    brief = make_async(SessionPacks.brief)
    set_brief = make_async(SessionPacks.set_brief)


class AsyncSessionCompaction(AsyncTwin[SessionCompaction]):
    """The compaction of a thread, for asyncio."""

    __slots__ = ("_env", "_session_stream", "_thread_stream")

    def __init__(
        self, compaction: SessionCompaction, env: Env, session_stream: str, thread_stream: str, threads: ThreadPools
    ) -> None:
        super().__init__(compaction, threads)
        self._env, self._session_stream, self._thread_stream = env, session_stream, thread_stream

    async def rules(self) -> tuple[Rule, ...]:
        """See SessionCompaction.rules."""
        return await self._threads.run(lambda: self._sync.rules)

    async def add_rule(
        self, rule: Rule | CompactionConfig | BudgetGuard | TelemetryRecorder | str
    ) -> Callable[[], None]:
        """See SessionCompaction.add_rule. Async summarizers and functions are awaited on the loop of the append."""
        env = self._env

        def choose(given: Any) -> Summarizer:
            return LoopSummarizer(checked(choose_thread_summarizer(env, self._thread_stream, given)))

        work = partial(compaction_rules.add_rule, env, self._session_stream, rule, choose, await_action)
        return await run_with_rules(self._threads, work)

    summaries = make_async(SessionCompaction.summaries)
    expand = make_async(SessionCompaction.expand)


class AsyncSessionDetails(AsyncTwin[SessionDetails]):
    """The status, settings and threads of a session, for asyncio."""

    __slots__ = ()

    async def status(self) -> str:
        """See SessionDetails.status."""
        return await self._threads.run(lambda: self._sync.status)

    async def system(self) -> str | None:
        """See SessionDetails.system."""
        return await self._threads.run(lambda: self._sync.system)

    async def tools(self) -> tuple[ToolDef, ...]:
        """See SessionDetails.tools."""
        return await self._threads.run(lambda: self._sync.tools)

    async def metadata(self) -> dict[str, Any]:
        """See SessionDetails.metadata."""
        return await self._threads.run(lambda: self._sync.metadata)

    async def threads(self) -> tuple[str, ...]:
        """See SessionDetails.threads."""
        return await self._threads.run(lambda: self._sync.threads)

    open_calls = make_async(SessionDetails.open_calls)
