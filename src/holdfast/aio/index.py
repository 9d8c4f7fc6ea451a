"""`hf.index` for asyncio: the methods of IndexView, awaited. Each crosses into a thread once, as a whole.

Cancelling an await does not cancel the write; its key answers what happened. Whoever is
cancelled in `resume_actor` gives the actor back with `release_actor`, or asks again with the
same incarnation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast.aio.packing import packing
from holdfast.aio.questions import AsyncQuestionsView
from holdfast.aio.work import AsyncWorkView
from holdfast.client.pack import ContextPack
from holdfast.records.frames import Limits
from holdfast.records.packs import MAIN_ROLE, BriefContext
from holdfast.records.resume import ActorResumeState, FrameInfo, Swept
from holdfast.records.scope import Address


class AsyncIndexView(AsyncWorkView, AsyncQuestionsView):
    """The call stacks of one tenant."""

    # frames

    async def push_frame(
        self,
        goal: str,
        *,
        scope: Address | None = None,
        parent: str | None = None,
        inputs: Any = None,
        metadata: dict[str, Any] | None = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        inherit: Sequence[str] = (),
        frame_id: str | None = None,
        key: str | None = None,
    ) -> str:
        """See IndexView.push_frame."""
        return await self._threads.run(
            self._view.push_frame,
            goal,
            scope=scope,
            parent=parent,
            inputs=inputs,
            metadata=metadata,
            tokens=tokens,
            limits=limits,
            inherit=inherit,
            frame_id=frame_id,
            key=key,
        )

    async def update_frame(
        self,
        frame: str,
        *,
        goal: str | None = None,
        inputs: Any = None,
        metadata: dict[str, Any] | None = None,
        status: str | None = None,
        limits: Limits | None = None,
        tokens: int | None = None,
        expected_version: int | None = None,
        key: str | None = None,
    ) -> FrameInfo:
        """See IndexView.update_frame."""
        return await self._threads.run(
            self._view.update_frame,
            frame,
            goal=goal,
            inputs=inputs,
            metadata=metadata,
            status=status,
            limits=limits,
            tokens=tokens,
            expected_version=expected_version,
            key=key,
        )

    async def pop_frame(
        self,
        frame: str,
        status: str = "completed",
        *,
        summary: str | None = None,
        error: str | None = None,
        value: Any = None,
        expected_version: int | None = None,
        key: str | None = None,
    ) -> FrameInfo:
        """See IndexView.pop_frame."""
        return await self._threads.run(
            self._view.pop_frame,
            frame,
            status,
            summary=summary,
            error=error,
            value=value,
            expected_version=expected_version,
            key=key,
        )

    async def get_frame(self, frame: str) -> FrameInfo:
        """See IndexView.get_frame."""
        return await self._threads.run(self._view.get_frame, frame)

    async def ancestry(self, frame: str) -> list[FrameInfo]:
        """See IndexView.ancestry."""
        return await self._threads.run(self._view.ancestry, frame)

    async def stack(self, scope: Address) -> list[FrameInfo]:
        """See IndexView.stack."""
        return await self._threads.run(self._view.stack, scope)

    async def stacks(self) -> AsyncIterator[tuple[str, list[FrameInfo]]]:
        """See IndexView.stacks. One crossing per page."""
        async for found in self._paged(self._view.stacks()):
            yield found

    async def top_of_stack(self, scope: Address) -> FrameInfo | None:
        """See IndexView.top_of_stack."""
        return await self._threads.run(self._view.top_of_stack, scope)

    async def leaves(self, scope: Address) -> list[FrameInfo]:
        """See IndexView.leaves."""
        return await self._threads.run(self._view.leaves, scope)

    # packs

    async def assemble_context_pack(
        self,
        scope: Address | None = None,
        frame: str | None = None,
        *,
        budget_tokens: int | None = None,
        role: str = MAIN_ROLE,
        query: str | None = None,
        include_handles: Sequence[str] = (),
        exclude_handles: Sequence[str] = (),
        force_exclude: bool = False,
        min_compaction: str = "none",
        tokenizer: str | None = None,
        layout: str = "stable",
        stickiness: float | None = None,
        max_messages: int | None = None,
        recall: int | None = None,
        as_of: int | None = None,
    ) -> ContextPack:
        """See IndexView.assemble_context_pack."""
        return await packing(
            self._threads,
            self._view.assemble_context_pack,
            scope,
            frame,
            budget_tokens=budget_tokens,
            role=role,
            query=query,
            include_handles=include_handles,
            exclude_handles=exclude_handles,
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
        """See IndexView.pack_at."""
        return await packing(self._threads, self._view.pack_at, call)

    # briefs

    async def set_brief(
        self,
        scope: Address,
        role: str = MAIN_ROLE,
        *,
        system_prompt: str | None = None,
        invariants: Sequence[str] | None = None,
        working_context: Any = None,
        tools: Sequence[Any] | None = None,
        key: str | None = None,
    ) -> None:
        """See IndexView.set_brief."""
        await self._threads.run(
            self._view.set_brief,
            scope,
            role,
            system_prompt=system_prompt,
            invariants=invariants,
            working_context=working_context,
            tools=tools,
            key=key,
        )

    async def brief(self, scope: Address, role: str = MAIN_ROLE) -> BriefContext:
        """See IndexView.brief."""
        return await self._threads.run(self._view.brief, scope, role)

    # actors

    async def resume_actor(self, scope: Address, *, incarnation: str | None = None) -> ActorResumeState:
        """See IndexView.resume_actor."""
        return await self._threads.wait(self._view.resume_actor, scope, incarnation=incarnation)

    async def release_actor(self, scope: Address) -> None:
        """See IndexView.release_actor."""
        await self._threads.run(self._view.release_actor, scope)

    async def sweep(self, *, fail_orphans: bool = False) -> Swept:
        """See IndexView.sweep."""
        return await self._threads.wait(self._view.sweep, fail_orphans=fail_orphans)
