"""`hf.index` for asyncio: the methods of IndexView, awaited. Each crosses into a thread once, as a whole.

Cancelling an await does not cancel the write; repeat it with its key to learn the outcome. After a cancelled
`resume_actor`, release the actor with `release_actor`, or repeat the call with the same incarnation.

Methods that only say `See …` are written by tools/generate_aio.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Unpack

from holdfast.aio.callbacks import AnySummarizer, LoopSummarizer, run_with_rules
from holdfast.aio.executor import ThreadPools, iterate_pages, make_loaded_pack
from holdfast.client.index import IndexView, choose_frame_summarizer
from holdfast.client.options import QuestionOptions, SharedPackOptions
from holdfast.client.pack import ContextPack
from holdfast.model.summarizers import resolve_summarizer as checked
from holdfast.records.compaction import DEFAULT_KEEP_ROUNDS, DEFAULT_SUMMARY_TOKENS, CompactionResult
from holdfast.records.frames import Limits
from holdfast.records.packs import MAIN_ROLE, BriefContext
from holdfast.records.recovery import (
    ActorResumeState,
    Answer,
    FrameInfo,
    HandleInfo,
    QuestionInfo,
    QuestionReceipt,
    SweepReport,
)
from holdfast.records.scope import Address
from holdfast.records.usage import Usage


class AsyncIndexView:
    """The methods of IndexView, awaited."""

    def __init__(self, view: IndexView, threads: ThreadPools) -> None:
        self._view = view
        self._threads = threads

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
        async for item in iterate_pages(self._threads, self._view.stacks()):
            yield item

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
        include_handles: Sequence[str] = (),
        exclude_handles: Sequence[str] = (),
        **options: Unpack[SharedPackOptions],
    ) -> ContextPack:
        """See IndexView.assemble_context_pack. Images and files are loaded with it."""
        return await make_loaded_pack(
            self._threads,
            self._view.assemble_context_pack,
            scope,
            frame,
            budget_tokens=budget_tokens,
            include_handles=include_handles,
            exclude_handles=exclude_handles,
            **options,
        )

    async def pack_at(self, call: str) -> ContextPack:
        """See IndexView.pack_at. Images and files are loaded with it."""
        return await make_loaded_pack(self._threads, self._view.pack_at, call)

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
        """See IndexView.resume_actor. It may wait, in a thread for those that do."""
        return await self._threads.run_waiting(self._view.resume_actor, scope, incarnation=incarnation)

    async def release_actor(self, scope: Address) -> None:
        """See IndexView.release_actor."""
        await self._threads.run(self._view.release_actor, scope)

    async def sweep(self, *, fail_orphans: bool = False) -> SweepReport:
        """See IndexView.sweep. It may wait, in a thread for those that do."""
        return await self._threads.run_waiting(self._view.sweep, fail_orphans=fail_orphans)

    # budgets

    async def reserve(self, frame: str, purpose: str, amount: int, *, key: str | None = None) -> None:
        """See IndexView.reserve."""
        await self._threads.run(self._view.reserve, frame, purpose, amount, key=key)

    async def release_reservation(
        self, frame: str, purpose: str, amount: int | None = None, *, key: str | None = None
    ) -> None:
        """See IndexView.release_reservation."""
        await self._threads.run(self._view.release_reservation, frame, purpose, amount, key=key)

    async def spend_reserved(self, frame: str, purpose: str, usage: Usage | int, *, key: str | None = None) -> None:
        """See IndexView.spend_reserved."""
        await self._threads.run(self._view.spend_reserved, frame, purpose, usage, key=key)

    async def record_usage(self, frame: str, usage: Usage | int, *, key: str | None = None) -> None:
        """See IndexView.record_usage."""
        await self._threads.run(self._view.record_usage, frame, usage, key=key)

    # evidence and results

    async def add_handle(
        self,
        frame: str,
        kind: str,
        *,
        handle: str | None = None,
        description: str | None = None,
        target: str | None = None,
        body: str | None = None,
        priority: str | None = None,
        policy: str | None = None,
        tokens: int | None = None,
        trust: str | None = None,
        call: str | None = None,
        metadata: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> str:
        """See IndexView.add_handle."""
        return await self._threads.run(
            self._view.add_handle,
            frame,
            kind,
            handle=handle,
            description=description,
            target=target,
            body=body,
            priority=priority,
            policy=policy,
            tokens=tokens,
            trust=trust,
            call=call,
            metadata=metadata,
            key=key,
        )

    async def remove_handle(
        self, frame: str, handle: str | Sequence[str], *, reason: str | None = None, key: str | None = None
    ) -> str | None:
        """See IndexView.remove_handle."""
        return await self._threads.run(self._view.remove_handle, frame, handle, reason=reason, key=key)

    async def restore_handles(self, frame: str, removal: str, *, key: str | None = None) -> tuple[str, ...]:
        """See IndexView.restore_handles."""
        return await self._threads.run(self._view.restore_handles, frame, removal, key=key)

    async def compact_context(
        self,
        frame: str,
        target_budget: int,
        strategy: str = "priority",
        *,
        keep: int = DEFAULT_KEEP_ROUNDS,
        summarizer: AnySummarizer | None = None,
        max_tokens: int = DEFAULT_SUMMARY_TOKENS,
        timeout: float | None = None,
        store: bool | str = False,
        strict: bool = False,
        key: str | None = None,
    ) -> CompactionResult:
        """See IndexView.compact_context. An async summarizer is awaited here, any other runs in a thread."""

        def work() -> CompactionResult:
            return self._view.compact_context(
                frame,
                target_budget,
                strategy,
                keep=keep,
                summarizer=LoopSummarizer(checked(choose_frame_summarizer(self._view.env, summarizer))),
                max_tokens=max_tokens,
                timeout=timeout,
                store=store,
                strict=strict,
                key=key,
            )

        return await run_with_rules(self._threads, work)

    async def handles(self, frame: str) -> list[HandleInfo]:
        """See IndexView.handles."""
        return await self._threads.run(self._view.handles, frame)

    async def add_result(
        self, frame: str, kind: str, ref: str, *, summary: str | None = None, key: str | None = None
    ) -> int:
        """See IndexView.add_result."""
        return await self._threads.run(self._view.add_result, frame, kind, ref, summary=summary, key=key)

    # calls

    async def begin_model_call(
        self,
        frame: str,
        pack: ContextPack | None = None,
        *,
        model: str | None = None,
        request: Any = None,
        if_interrupted: str = "retry",
        key: str | None = None,
    ) -> str:
        """See IndexView.begin_model_call. Async rules are awaited here."""
        return await run_with_rules(
            self._threads,
            lambda: self._view.begin_model_call(
                frame, pack, model=model, request=request, if_interrupted=if_interrupted, key=key
            ),
        )

    async def end_model_call(
        self,
        frame: str,
        call: str,
        *,
        usage: Usage | int = 0,
        finish: str | None = None,
        response: Any = None,
        provider_id: str | None = None,
        error: str | None = None,
        retryable: bool = False,
        doubtful: Usage | None = None,
    ) -> None:
        """See IndexView.end_model_call."""
        await self._threads.run(
            self._view.end_model_call,
            frame,
            call,
            usage=usage,
            finish=finish,
            response=response,
            provider_id=provider_id,
            error=error,
            retryable=retryable,
            doubtful=doubtful,
        )

    async def begin_tool_call(
        self,
        frame: str,
        name: str,
        *,
        arguments: Any = None,
        if_interrupted: str = "ask",
        provider_id: str | None = None,
        key: str | None = None,
    ) -> str:
        """See IndexView.begin_tool_call."""
        return await self._threads.run(
            self._view.begin_tool_call,
            frame,
            name,
            arguments=arguments,
            if_interrupted=if_interrupted,
            provider_id=provider_id,
            key=key,
        )

    async def end_tool_call(
        self,
        frame: str,
        call: str,
        *,
        value: Any = None,
        error: str | None = None,
        interrupted: bool = False,
        tokens: int | None = None,
    ) -> None:
        """See IndexView.end_tool_call."""
        await self._threads.run(
            self._view.end_tool_call, frame, call, value=value, error=error, interrupted=interrupted, tokens=tokens
        )

    # questions

    async def suspend_frame(
        self,
        frame: str,
        reason: str | None = None,
        *,
        call: str | None = None,
        key: str | None = None,
        **options: Unpack[QuestionOptions],
    ) -> QuestionReceipt:
        """See IndexView.suspend_frame."""
        return await self._threads.run(self._view.suspend_frame, frame, reason, call=call, key=key, **options)

    async def reissue_token(self, question: str, *, expires_ms: int | None = None) -> str:
        """See IndexView.reissue_token."""
        return await self._threads.run(self._view.reissue_token, question, expires_ms=expires_ms)

    async def resume_frame(
        self,
        question: str | None = None,
        *,
        token: str | None = None,
        approve: bool | None = None,
        payload: Any = None,
        args: Any = None,
        note: str | None = None,
    ) -> str:
        """See IndexView.resume_frame."""
        return await self._threads.run(
            self._view.resume_frame, question, token=token, approve=approve, payload=payload, args=args, note=note
        )

    async def question(self, question: str) -> QuestionInfo:
        """See IndexView.question."""
        return await self._threads.run(self._view.question, question)

    async def answer_to(self, scope: Address, question: str) -> Answer | None:
        """See IndexView.answer_to."""
        return await self._threads.run(self._view.answer_to, scope, question)
