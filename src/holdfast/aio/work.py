"""`hf.index` for asyncio, the part inside frames. See `client/work.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from holdfast.aio.summing import AnySummarizer, SummarizerOnALoop, summarising
from holdfast.aio.threads import Threads
from holdfast.client.index import IndexView
from holdfast.client.pack import ContextPack
from holdfast.model.summarizers import summarizer as checked
from holdfast.records.compaction import KEEP, SUMMARY_TOKENS, CompactionResult
from holdfast.records.resume import HandleInfo
from holdfast.records.usage import Usage

PAGE = 64

T = TypeVar("T")


class AsyncWorkView:
    """Budgets, evidence, results and calls of one tenant's frames."""

    def __init__(self, view: IndexView, threads: Threads) -> None:
        self._view = view
        self._threads = threads

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
        keep: int = KEEP,
        summarizer: AnySummarizer | None = None,
        max_tokens: int = SUMMARY_TOKENS,
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
                summarizer=SummarizerOnALoop(checked(self._view._summarizer(summarizer))),
                max_tokens=max_tokens,
                timeout=timeout,
                store=store,
                strict=strict,
                key=key,
            )

        return await summarising(self._threads, work)

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
        """See IndexView.begin_model_call."""

        def begin() -> str:
            return self._view.begin_model_call(
                frame, pack, model=model, request=request, if_interrupted=if_interrupted, key=key
            )

        return await summarising(self._threads, begin)

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
            self._view.end_tool_call,
            frame,
            call,
            value=value,
            error=error,
            interrupted=interrupted,
            tokens=tokens,
        )
