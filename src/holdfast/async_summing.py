"""`await session.compact(…)`: summaries for asyncio, by the rules of `flow.summing`.

What is covered is fixed in a thread, the summarizer is awaited with nothing held, and the summary is noted
in a thread. An async summarizer runs on the loop, any other in a thread. Cancelled before the summary is
being noted, nothing is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from holdfast.async_threads import STEPS, Threads, gave, settle
from holdfast.client_session import TRIES, Session
from holdfast.errors import Conflict
from holdfast.flow import summing
from holdfast.model.summarizers import CheckedSummarizer
from holdfast.model.summarizers import summarizer as checked
from holdfast.ports import Summarizer
from holdfast.records.lines import Summary
from holdfast.records.messages import Message


class AsyncSummarizer(Protocol):
    """As Summarizer, awaited."""

    @property
    def name(self) -> str: ...

    async def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


AnySummarizer = Summarizer | AsyncSummarizer | Callable[..., str] | Callable[..., Awaitable[str]]


class Compacting:
    """One line of a session, and what it is to be made shorter with."""

    def __init__(self, session: Session, threads: Threads, given: AnySummarizer | None) -> None:
        self._session = session
        self._threads = threads
        self._given = given

    async def run(self, keep: int, *, max_tokens: int, whole: bool) -> Summary | None:
        """A summary of all but the newest `keep` rounds; once more if what it covers was changed meanwhile."""
        for attempt in range(1, TRIES + 1):
            planned = await self._threads.run(self._plan, keep, whole)
            if planned is None:
                return None
            chosen, plan, originals = planned
            text = await self._off_the_loop(chosen).summarise_async(originals, max_tokens=max_tokens)
            try:
                return await self._threads.run(self._note, plan, text, chosen.name)
            except Conflict:
                if attempt == TRIES:
                    raise
        return None

    def _plan(self, keep: int, whole: bool) -> tuple[CheckedSummarizer, summing.Plan, list[Message]] | None:
        of = self._session
        chosen = checked(of._summarizer(self._given))
        plan = summing.plan(of._ports, of._acting, of._line, keep=keep, whole=whole)
        return None if plan is None else (chosen, plan, summing.source(plan))

    def _note(self, plan: summing.Plan, text: str, method: str) -> Summary:
        return summing.note(self._session._ports, self._session._acting, plan, text, method=method)

    def _off_the_loop(self, chosen: CheckedSummarizer) -> CheckedSummarizer:
        """A plain summarizer as one that is awaited: it runs in a thread, and the loop goes on."""
        if chosen.awaits:
            return chosen

        async def in_a_thread(messages: Sequence[Message], *, max_tokens: int) -> Any:
            calling = self._threads.submit(STEPS, partial(chosen.call, messages, max_tokens=max_tokens))
            stop = await settle(calling, lambda: calling.cancel() or True)
            if stop is not None:
                calling.add_done_callback(_drop)
                raise stop
            answer = calling.result()
            # It was a lambda, say, around an async function.
            return await answer if inspect.isawaitable(answer) else answer

        return CheckedSummarizer(chosen.name, in_a_thread, awaits=True)


def _drop(calling: Future[Any]) -> None:
    """Nobody is there any more to await what the summarizer made."""
    if gave(calling) and inspect.iscoroutine(calling.result()):
        calling.result().close()
