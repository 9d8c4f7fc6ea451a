"""`await session.compact(…)`: summaries for asyncio, by the rules of `flow.summing`.

What is covered is fixed in a thread, the summarizer is awaited with nothing held, and the summary is noted
in a thread. An async summarizer runs on the loop, any other in a thread. Cancelled before the summary is
being noted, nothing is written. Where a summary is made inside another operation, by a rule or for a frame,
that operation waits in a thread for what is awaited on its caller's loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from holdfast.aio.loops import awaited, crossing
from holdfast.aio.threads import STEPS, Threads, gave, settle
from holdfast.client.session import Session
from holdfast.errors import Conflict, InvalidValue, SummaryFailed
from holdfast.flow.compaction import folding, summing
from holdfast.flow.compaction.at_work import is_at_work
from holdfast.flow.compaction.configuring import check
from holdfast.flow.compaction.folding import TRIES
from holdfast.flow.compaction.wording import ALLOWED, allowed, summarised, too_long
from holdfast.flow.conversation.conversing import counting
from holdfast.flow.warned import CALLER, caller
from holdfast.model.summarizers import CheckedSummarizer
from holdfast.model.summarizers import summarizer as checked
from holdfast.ports import Summarizer
from holdfast.records.compaction import CompactionConfig
from holdfast.records.lines import Summary
from holdfast.records.messages import Message


class AsyncSummarizer(Protocol):
    """As Summarizer, awaited."""

    @property
    def name(self) -> str: ...

    async def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


T = TypeVar("T")

AnySummarizer = Summarizer | AsyncSummarizer | Callable[..., str] | Callable[..., Awaitable[str]]


class Compacting:
    """One line of a session, and what it is to be made shorter with."""

    def __init__(
        self, session: Session, threads: Threads, given: AnySummarizer | None, config: CompactionConfig
    ) -> None:
        self._session = session
        self._threads = threads
        self._given = given
        self._config = config

    async def run(self, *, whole: bool) -> Summary | None:
        """A summary of all but the newest rounds; once more if what it covers was changed meanwhile."""
        for attempt in range(1, TRIES + 1):
            planned = await self._threads.run(self._plan, self._config.keep, whole)
            if planned is None:
                return None
            chosen, plan, most = planned
            originals = summing.source(plan)
            text = await self._off_the_loop(chosen).summarise_async(originals, max_tokens=most)
            try:
                return await self._threads.run(self._note, plan, text, chosen.name)
            except Conflict:
                if attempt == TRIES:
                    raise
        return None

    def _plan(self, keep: int, whole: bool) -> tuple[CheckedSummarizer, summing.Plan, int] | None:
        of, config = self._session, replace(self._config, keep=keep)
        check(of._ports, config)
        chosen = checked(of._summarizer(self._given))
        plan = folding.planned(of._ports, of._acting, of._line, config, whole=whole)
        return None if plan is None else (chosen, plan, allowed(of._ports, of._acting, plan, config, chosen.name))

    def _note(self, plan: summing.Plan, text: str, method: str) -> Summary:
        ports, acting = self._session._ports, self._session._acting
        words = summarised(self._config, text, method, counting(ports, acting, plan.stream)[0].count)
        return folding.noted(ports, acting, plan, words, self._config)

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


SUMMARY = "holdfast-summary"


class SummarizerOnALoop:
    """A summarizer of either kind as one that is done when it returns: an async one is awaited on its caller's loop."""

    def __init__(self, chosen: CheckedSummarizer) -> None:
        self._chosen = chosen
        self.name = chosen.name

    def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        """The summary."""
        nowhere = SummaryFailed(f"The summarizer {self.name} is async, and is awaited by the asyncio client only.")

        def call(messages: Sequence[Message], *, max_tokens: int) -> Any:
            made = self._chosen.call(messages, max_tokens=max_tokens)
            if not inspect.isawaitable(made):
                return made
            return awaited(_in_time(made, ALLOWED.get()), what="a summarizer", nowhere=nowhere)

        return CheckedSummarizer(self.name, call).summarise(messages, max_tokens=max_tokens)


async def _in_time(made: Awaitable[T], seconds: float | None) -> T:
    """What is awaited, stopped when nobody waits for it any more."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await made
    except TimeoutError:
        if seconds is None or not limit.expired():
            raise
        raise too_long(seconds) from None


def action_awaited(made: Awaitable[T]) -> T:
    """What an async function of a rule gives, awaited on the loop of whoever gave the occasion."""
    nowhere = InvalidValue("What this rule does is async, and is awaited by the asyncio client only.")
    return awaited(made, what="what a rule does", nowhere=nowhere)


async def summarising(threads: Threads, work: Callable[[], T]) -> T:
    """Run what rules may follow, in a thread. Once begun, it goes on even if the await is cancelled."""
    if is_at_work():
        return await threads.run(work)  # No rule follows, and all threads that wait may be waiting for this.
    place = caller()

    def following() -> T:
        CALLER.set(place)  # In a context of its own, as the thread has.
        return work()

    return await crossing(threads, SUMMARY, following)
