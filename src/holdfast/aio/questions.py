"""`hf.index` for asyncio, the part about questions. See `client/questions.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from holdfast.aio.threads import Threads
from holdfast.client.index import IndexView
from holdfast.records.resume import Answer, Asked, QuestionInfo
from holdfast.records.scope import Address

PAGE = 64

T = TypeVar("T")


class AsyncQuestionsView:
    """The open questions of one tenant."""

    def __init__(self, view: IndexView, threads: Threads) -> None:
        self._view = view
        self._threads = threads

    async def _paged(self, found: Iterator[T]) -> AsyncIterator[T]:
        more = True
        while more:
            page = await self._threads.run(lambda: list(islice(found, PAGE)))
            for item in page:
                yield item
            more = len(page) == PAGE

    # questions

    async def suspend_frame(
        self,
        frame: str,
        reason: str | None = None,
        *,
        kind: str = "approval",
        options: Sequence[str] | None = None,
        recommended: str | None = None,
        arguments: Any = None,
        payload: Any = None,
        token: bool = False,
        expires_ms: int | None = None,
        on_expiry: str | None = None,
        until: int | None = None,
        call: str | None = None,
        subtree: bool = False,
        release_budget: bool = True,
        key: str | None = None,
    ) -> Asked:
        """See IndexView.suspend_frame."""
        return await self._threads.run(
            self._view.suspend_frame,
            frame,
            reason,
            kind=kind,
            options=options,
            recommended=recommended,
            arguments=arguments,
            payload=payload,
            token=token,
            expires_ms=expires_ms,
            on_expiry=on_expiry,
            until=until,
            call=call,
            subtree=subtree,
            release_budget=release_budget,
            key=key,
        )

    async def answer(
        self,
        question: str | None = None,
        *,
        token: str | None = None,
        approve: bool | None = None,
        payload: Any = None,
        args: Any = None,
        note: str | None = None,
    ) -> str:
        """See IndexView.answer."""
        return await self._threads.run(
            self._view.answer,
            question,
            token=token,
            approve=approve,
            payload=payload,
            args=args,
            note=note,
        )

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
            self._view.resume_frame,
            question,
            token=token,
            approve=approve,
            payload=payload,
            args=args,
            note=note,
        )

    async def questions(self) -> AsyncIterator[QuestionInfo]:
        """See IndexView.questions. One crossing per page."""
        async for found in self._paged(self._view.questions()):
            yield found

    async def question(self, question: str) -> QuestionInfo:
        """See IndexView.question."""
        return await self._threads.run(self._view.question, question)

    async def answer_to(self, scope: Address, question: str) -> Answer | None:
        """See IndexView.answer_to."""
        return await self._threads.run(self._view.answer_to, scope, question)
