"""Async user callbacks called from threads: embedders, memories, summarizers and rules.

A callback is awaited on the event loop of the operation's caller. The thread that waits for it comes from a pool of its
own, so a callback that uses the same client never waits for itself. No thread waits for a loop that has stopped.

`await session.compact(…)` holds nothing while the summarizer runs: the plan is fixed in a thread, an async summarizer
is awaited on the loop and any other runs in a thread, and the summary is written in a thread. If cancelled before the
write begins, nothing is written.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from holdfast.aio.executor import STEPS, Threads, gave, settle
from holdfast.client.session import Session
from holdfast.errors import Conflict, HoldfastError, InvalidValue, Refused, SummaryFailed, Unavailable
from holdfast.flow.compaction import sessions, summaries
from holdfast.flow.compaction.rules import is_at_work
from holdfast.flow.compaction.sessions import ALLOWED, TRIES, allowed, check, summarised, too_long
from holdfast.flow.journal.observers import CALLER, caller
from holdfast.flow.sessions.append import counting
from holdfast.model.embedder_check import CheckedEmbedder
from holdfast.model.summarizers import CheckedSummarizer
from holdfast.model.summarizers import summarizer as checked
from holdfast.ports import Embedder, EndedConversation, Memory, Summarizer
from holdfast.records.compaction import CompactionConfig
from holdfast.records.messages import Message
from holdfast.records.sessions import Summary

POLL_SECONDS = 1.0

T = TypeVar("T")

_loop_of_caller: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("holdfast_loop_of_caller", default=None)


async def crossing(threads: Threads, pool: str, work: Callable[[], T]) -> T:
    """Run work in a thread that may await on this loop. Once begun, it goes on even if this await is cancelled."""
    before = _loop_of_caller.set(asyncio.get_running_loop())
    try:
        running = threads.submit(pool, work)
    finally:
        _loop_of_caller.reset(before)
    return await asyncio.wrap_future(running)


def awaited(made: Awaitable[T], *, what: str, nowhere: HoldfastError) -> T:
    """Await an awaitable on the caller's loop and return its result; raise `nowhere` if there is no such loop."""
    waiting: Coroutine[Any, Any, T] = made if inspect.iscoroutine(made) else _waiting(made)
    loop = _loop_of_caller.get()
    if loop is None or asyncio._get_running_loop() is loop:
        waiting.close()
        raise nowhere
    try:
        running = asyncio.run_coroutine_threadsafe(waiting, loop)
    except RuntimeError:
        waiting.close()
        raise _stopped(what) from None
    while not futures.wait([running], POLL_SECONDS).done:
        if not loop.is_running():
            running.cancel()
            if inspect.getcoroutinestate(waiting) == inspect.CORO_CREATED:
                waiting.close()  # It will never be started.
            raise _stopped(what)
    return running.result()


def _stopped(what: str) -> Unavailable:
    return Unavailable(
        f"The event loop that {what} was to be awaited on has stopped. It can be tried again on another."
    )


async def _waiting(made: Awaitable[T]) -> T:
    return await made


SEARCH = "holdfast-search"


class AsyncEmbedder(Protocol):
    """An Embedder whose `embed` is awaited; lists of numbers will do in place of bytes."""

    @property
    def name(self) -> str: ...

    async def embed(self, texts: Sequence[str]) -> Any: ...


AnyEmbedder = str | os.PathLike[str] | Embedder | AsyncEmbedder | Callable[..., Any]


class EmbedderOnALoop:
    """A user's embedder, sync or async, as a synchronous one."""

    def __init__(self, given: Any) -> None:
        own = getattr(given, "embed", None)
        function = own if callable(own) else given
        self.name = getattr(given, "name", None) or getattr(given, "__name__", None)
        self.dimensions = getattr(given, "dimensions", None)
        # Keeps the signature, from which callers see whether it accepts the query flag.
        self.embed = functools.update_wrapper(_returning(function), function, assigned=(), updated=())


def _returning(function: Callable[..., Any]) -> Callable[..., Any]:
    def embed(*texts: Any, **told: Any) -> Any:
        made = function(*texts, **told)
        if not inspect.isawaitable(made):
            return made
        nowhere = Refused(
            "An async embedder is awaited by the asyncio client only: search and write with that, "
            "or read in a thread that it started, as operators do."
        )
        return awaited(made, what="an embedder", nowhere=nowhere)

    return embed


def embedder_on_a_loop(given: AnyEmbedder | None) -> Any:
    """Wrap an embedder for an asyncio client. One that is not the user's own is passed on to be accepted or refused."""
    own: Any = given
    if given is None or isinstance(given, str | os.PathLike | CheckedEmbedder | type):
        return own
    try:
        return EmbedderOnALoop(own) if callable(own) or callable(own.embed) else own
    except Exception:  # noqa: BLE001  # It cannot even be inspected: the embedder check reports that.
        return own


async def searching(threads: Threads, work: Callable[[], T]) -> T:
    """Run work that may embed, in a thread. Once begun, it goes on even if the await is cancelled."""
    return await crossing(threads, SEARCH, work)


MEMORY = "holdfast-memory"


class AsyncMemory(Protocol):
    """A Memory whose `take` is awaited. Reading the offer blocks on the disk: `await asyncio.to_thread(list, …)`."""

    async def take(self, ended: EndedConversation) -> None: ...


class MemoryOnALoop:
    """A memory, sync or async, as a synchronous one."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def take(self, ended: EndedConversation) -> None:
        """Offer a conversation to the memory; return once it is taken."""
        made = self._memory.take(ended)
        if inspect.isawaitable(made):
            nowhere = Refused(
                "An async memory is offered something by the asyncio client only: close and sweep with that."
            )
            awaited(made, what="memory", nowhere=nowhere)


def on_a_loop(memory: Memory | AsyncMemory | None) -> Memory | None:
    """Wrap a memory for an asyncio client. An object without `take` is passed on to be refused."""
    given: Any = memory
    return MemoryOnALoop(given) if callable(getattr(given, "take", None)) else given


async def offering(threads: Threads, work: Callable[[], T]) -> T:
    """Run work that may offer a conversation to memory, in a thread. Once begun, it goes on even if cancelled."""
    return await crossing(threads, MEMORY, work)


class AsyncSummarizer(Protocol):
    """A Summarizer whose `summarise` is awaited."""

    @property
    def name(self) -> str: ...

    async def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


AnySummarizer = Summarizer | AsyncSummarizer | Callable[..., str] | Callable[..., Awaitable[str]]


class Compacting:
    """The compaction of one thread of a session."""

    def __init__(
        self, session: Session, threads: Threads, given: AnySummarizer | None, config: CompactionConfig
    ) -> None:
        self._session = session
        self._threads = threads
        self._given = given
        self._config = config

    async def run(self, *, whole: bool) -> Summary | None:
        """Summarise all but the newest rounds; retry if the covered messages were changed meanwhile."""
        for attempt in range(1, TRIES + 1):
            planned = await self._threads.run(self._plan, self._config.keep, whole)
            if planned is None:
                return None
            chosen, plan, most = planned
            originals = summaries.source(plan)
            text = await self._off_the_loop(chosen).summarise_async(originals, max_tokens=most)
            try:
                return await self._threads.run(self._note, plan, text, chosen.name)
            except Conflict:
                if attempt == TRIES:
                    raise
        return None

    def _plan(self, keep: int, whole: bool) -> tuple[CheckedSummarizer, summaries.Plan, int] | None:
        of, config = self._session, replace(self._config, keep=keep)
        check(of._ports, config)
        chosen = checked(of._summarizer(self._given))
        plan = sessions.planned(of._ports, of._acting, of._line, config, whole=whole)
        return None if plan is None else (chosen, plan, allowed(of._ports, of._acting, plan, config, chosen.name))

    def _note(self, plan: summaries.Plan, text: str, method: str) -> Summary:
        ports, acting = self._session._ports, self._session._acting
        words = summarised(self._config, text, method, counting(ports, acting, plan.stream)[0].count)
        return sessions.noted(ports, acting, plan, words, self._config)

    def _off_the_loop(self, chosen: CheckedSummarizer) -> CheckedSummarizer:
        """Wrap a synchronous summarizer so that it runs in a thread and can be awaited."""
        if chosen.awaits:
            return chosen

        async def in_a_thread(messages: Sequence[Message], *, max_tokens: int) -> Any:
            calling = self._threads.submit(STEPS, partial(chosen.call, messages, max_tokens=max_tokens))
            stop = await settle(calling, lambda: calling.cancel() or True)
            if stop is not None:
                calling.add_done_callback(_drop)
                raise stop
            answer = calling.result()
            # A lambda around an async function, for example.
            return await answer if inspect.isawaitable(answer) else answer

        return CheckedSummarizer(chosen.name, in_a_thread, awaits=True)


def _drop(calling: Future[Any]) -> None:
    """Close a coroutine that the summarizer returned and that no caller awaits any more."""
    if gave(calling) and inspect.iscoroutine(calling.result()):
        calling.result().close()


SUMMARY = "holdfast-summary"


class SummarizerOnALoop:
    """A summarizer, sync or async, as a synchronous one: an async one is awaited on its caller's loop."""

    def __init__(self, chosen: CheckedSummarizer) -> None:
        self._chosen = chosen
        self.name = chosen.name

    def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        """Return the summary."""
        nowhere = SummaryFailed(f"The summarizer {self.name} is async, and is awaited by the asyncio client only.")

        def call(messages: Sequence[Message], *, max_tokens: int) -> Any:
            made = self._chosen.call(messages, max_tokens=max_tokens)
            if not inspect.isawaitable(made):
                return made
            return awaited(_in_time(made, ALLOWED.get()), what="a summarizer", nowhere=nowhere)

        return CheckedSummarizer(self.name, call).summarise(messages, max_tokens=max_tokens)


async def _in_time(made: Awaitable[T], seconds: float | None) -> T:
    """Await with a timeout, so that a summary that came too late is cancelled."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await made
    except TimeoutError:
        if seconds is None or not limit.expired():
            raise
        raise too_long(seconds) from None


def action_awaited(made: Awaitable[T]) -> T:
    """Await an async function of a rule, on the loop of the operation that triggered the rule."""
    nowhere = InvalidValue("What this rule does is async, and is awaited by the asyncio client only.")
    return awaited(made, what="what a rule does", nowhere=nowhere)


async def summarising(threads: Threads, work: Callable[[], T]) -> T:
    """Run work that may trigger rules, in a thread. Once begun, it goes on even if the await is cancelled."""
    if is_at_work():
        return await threads.run(work)  # It triggers no rule, and all waiting threads may be waiting for it.
    place = caller()

    def following() -> T:
        CALLER.set(place)  # Set in the thread's own copy of the context.
        return work()

    return await crossing(threads, SUMMARY, following)
