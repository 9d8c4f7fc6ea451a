"""Views of a session for asyncio: its packs, its compaction, and its details.

Methods that only say `See …` are written by tools/generate_aio.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.aio.callbacks import LoopSummarizer, await_action, run_with_rules
from holdfast.aio.executor import ThreadPools
from holdfast.aio.frame import AsyncHistoryTools
from holdfast.client.history_tools import MAX_TOKENS
from holdfast.client.pack import ContextPack
from holdfast.client.session_views import SessionCompaction, SessionDetails, SessionPacks, choose_thread_summarizer
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.model.summarizers import resolve_summarizer as checked
from holdfast.ports import Env, Summarizer
from holdfast.records.compaction import BudgetGuard, CompactionConfig, Rule, TelemetryRecorder
from holdfast.records.messages import Message, ToolCallRequest, ToolDef
from holdfast.records.packs import MAIN_ROLE, BriefContext, PackInfo
from holdfast.records.sessions import Summary


class AsyncSessionPacks:
    """The packs of a thread, for asyncio."""

    __slots__ = ("_packs", "_threads")

    def __init__(self, packs: SessionPacks, threads: ThreadPools) -> None:
        self._packs = packs
        self._threads = threads

    async def list(self, limit: int | None = None) -> list[PackInfo]:
        """See SessionPacks.list."""
        return await self._threads.run(self._packs.list, limit)

    async def begin_model_call(self, pack: ContextPack, *, key: str | None = None) -> str:
        """See SessionPacks.begin_model_call. Async rules are awaited here."""
        return await run_with_rules(self._threads, lambda: self._packs.begin_model_call(pack, key=key))

    async def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> AsyncHistoryTools:
        """See SessionPacks.history_tools. Their executor is awaited."""
        tools = await self._threads.run(self._packs.history_tools, max_tokens=max_tokens)
        return AsyncHistoryTools(tools, self._threads)

    async def brief(self, role: str = MAIN_ROLE) -> BriefContext:
        """See SessionPacks.brief."""
        return await self._threads.run(self._packs.brief, role)

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
        """See SessionPacks.set_brief."""
        await self._threads.run(
            self._packs.set_brief,
            role,
            system_prompt=system_prompt,
            invariants=invariants,
            working_context=working_context,
            tools=tools,
            key=key,
        )

    def __repr__(self) -> str:
        return f"Async{self._packs!r}"


class AsyncSessionCompaction:
    """The compaction of a thread, for asyncio."""

    __slots__ = ("_compaction", "_env", "_session_stream", "_thread_stream", "_threads")

    def __init__(
        self, compaction: SessionCompaction, env: Env, session_stream: str, thread_stream: str, threads: ThreadPools
    ) -> None:
        self._compaction = compaction
        self._env = env
        self._session_stream, self._thread_stream = session_stream, thread_stream
        self._threads = threads

    async def rules(self) -> tuple[Rule, ...]:
        """See SessionCompaction.rules."""
        return await self._threads.run(lambda: self._compaction.rules)

    async def add_rule(
        self, rule: Rule | CompactionConfig | BudgetGuard | TelemetryRecorder | str
    ) -> Callable[[], None]:
        """See SessionCompaction.add_rule. Async summarizers and functions are awaited on the loop of the append."""
        env = self._env

        def choose(given: Any) -> Summarizer:
            return LoopSummarizer(checked(choose_thread_summarizer(env, self._thread_stream, given)))

        return await self._threads.run(compaction_rules.add_rule, env, self._session_stream, rule, choose, await_action)

    async def summaries(self) -> list[Summary]:
        """See SessionCompaction.summaries."""
        return await self._threads.run(self._compaction.summaries)

    async def expand(self, summary: Summary | str) -> list[Message]:
        """See SessionCompaction.expand."""
        return await self._threads.run(self._compaction.expand, summary)

    def __repr__(self) -> str:
        return f"Async{self._compaction!r}"


class AsyncSessionDetails:
    """The status, settings and threads of a session, for asyncio."""

    __slots__ = ("_details", "_threads")

    def __init__(self, details: SessionDetails, threads: ThreadPools) -> None:
        self._details = details
        self._threads = threads

    async def status(self) -> str:
        """See SessionDetails.status."""
        return await self._threads.run(lambda: self._details.status)

    async def system(self) -> str | None:
        """See SessionDetails.system."""
        return await self._threads.run(lambda: self._details.system)

    async def tools(self) -> tuple[ToolDef, ...]:
        """See SessionDetails.tools."""
        return await self._threads.run(lambda: self._details.tools)

    async def metadata(self) -> dict[str, Any]:
        """See SessionDetails.metadata."""
        return await self._threads.run(lambda: self._details.metadata)

    async def threads(self) -> tuple[str, ...]:
        """See SessionDetails.threads."""
        return await self._threads.run(lambda: self._details.threads)

    async def open_calls(self) -> list[ToolCallRequest]:
        """See SessionDetails.open_calls."""
        return await self._threads.run(self._details.open_calls)

    def __repr__(self) -> str:
        return f"Async{self._details!r}"
