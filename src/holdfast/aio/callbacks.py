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

from holdfast.aio.executor import STEPS, ThreadPools, has_result, settle
from holdfast.client.options import SummarizerChoice
from holdfast.client.session_views import choose_thread_summarizer
from holdfast.core.sessions.rounds import repair_messages
from holdfast.core.values import is_awaitable
from holdfast.errors import Conflict, HoldfastError, InvalidValue, Refused, SummaryFailed, Unavailable
from holdfast.flow.compaction import summaries
from holdfast.flow.compaction import threads as compaction_threads
from holdfast.flow.compaction.rules import is_rule_running
from holdfast.flow.compaction.threads import (
    COMPACT_TRIES,
    SECONDS_ALLOWED,
    check_config,
    summarizer_text,
    timeout_error,
    token_allowance,
)
from holdfast.flow.sessions.append import thread_tokenizer
from holdfast.model.embedder_check import CheckedEmbedder
from holdfast.model.summarizers import CheckedSummarizer
from holdfast.model.summarizers import resolve_summarizer as checked
from holdfast.ports import Embedder, EndedConversation, Env, Memory
from holdfast.records.compaction import CompactionConfig
from holdfast.records.messages import Message
from holdfast.records.sessions import Summary
from holdfast.records.usage import Usage
from holdfast.system import CALL_SITE, find_call_site

POLL_SECONDS = 1.0

T = TypeVar("T")

_caller_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("holdfast_loop_of_caller", default=None)


async def run_with_loop(threads: ThreadPools, pool: str, work: Callable[[], T]) -> T:
    """Run work in a thread that may await on this loop. Once begun, it goes on even if this await is cancelled."""
    before = _caller_loop.set(asyncio.get_running_loop())
    try:
        running = threads.cross(pool, work)
    finally:
        _caller_loop.reset(before)
    return await running


def await_on_loop(made: Any, *, what: str, nowhere: HoldfastError) -> Any:
    """Return a value; an awaitable is awaited on the caller's loop, and raises `nowhere` if there is no such loop."""
    if not is_awaitable(made):
        return made
    waiting: Coroutine[Any, Any, Any] = made if inspect.iscoroutine(made) else _as_coroutine(made)
    loop = _caller_loop.get()
    if loop is None or asyncio._get_running_loop() is loop:
        waiting.close()
        raise nowhere
    try:
        running = asyncio.run_coroutine_threadsafe(waiting, loop)
    except RuntimeError:
        waiting.close()
        raise _loop_stopped(what) from None
    while not futures.wait([running], POLL_SECONDS).done:
        if not loop.is_running():
            running.cancel()
            if inspect.getcoroutinestate(waiting) == inspect.CORO_CREATED:
                waiting.close()  # It will never be started.
            raise _loop_stopped(what)
    return running.result()


def _loop_stopped(what: str) -> Unavailable:
    return Unavailable(
        f"The event loop that {what} was to be awaited on has stopped. It can be tried again on another."
    )


async def _as_coroutine(made: Awaitable[T]) -> T:
    return await made


SEARCH_POOL = "holdfast-search"


class AsyncEmbedder(Protocol):
    """An Embedder whose `embed` is awaited; lists of numbers will do in place of bytes."""

    @property
    def name(self) -> str: ...

    async def embed(self, texts: Sequence[str]) -> Any: ...


AnyEmbedder = str | os.PathLike[str] | Embedder | AsyncEmbedder | Callable[..., Any]


class LoopEmbedder:
    """A user's embedder, sync or async, as a synchronous one."""

    def __init__(self, given: Any) -> None:
        own = getattr(given, "embed", None)
        function = own if callable(own) else given
        self.name = getattr(given, "name", None) or getattr(given, "__name__", None)
        self.dimensions = getattr(given, "dimensions", None)
        # Keeps the signature, from which callers see whether it accepts the query flag.
        self.embed = functools.update_wrapper(_make_sync(function), function, assigned=(), updated=())


def _make_sync(function: Callable[..., Any]) -> Callable[..., Any]:
    def embed(*texts: Any, **told: Any) -> Any:
        nowhere = Refused(
            "An async embedder is awaited by the asyncio client only: search and write with that, "
            "or read in a thread that it started, as operators do."
        )
        return await_on_loop(function(*texts, **told), what="an embedder", nowhere=nowhere)

    return embed


def wrap_embedder(given: AnyEmbedder | None) -> Any:
    """Wrap an embedder for an asyncio client. One that is not the user's own is passed on to be accepted or refused."""
    own: Any = given
    if given is None or isinstance(given, str | os.PathLike | CheckedEmbedder | type):
        return own
    try:
        return LoopEmbedder(own) if callable(own) or callable(own.embed) else own
    except Exception:  # noqa: BLE001  # It cannot even be inspected: the embedder check reports that.
        return own


async def run_search(threads: ThreadPools, work: Callable[[], T]) -> T:
    """Run work that may embed, in a thread. Once begun, it goes on even if the await is cancelled."""
    return await run_with_loop(threads, SEARCH_POOL, work)


MEMORY_POOL = "holdfast-memory"


class AsyncMemory(Protocol):
    """A Memory whose `take` is awaited. Reading the offer blocks on the disk: `await asyncio.to_thread(list, …)`."""

    async def take(self, ended: EndedConversation) -> None: ...


class LoopMemory:
    """A memory, sync or async, as a synchronous one."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def take(self, ended: EndedConversation) -> None:
        """Offer a conversation to the memory; return once it is taken."""
        nowhere = Refused("An async memory is offered something by the asyncio client only: close and sweep with that.")
        await_on_loop(self._memory.take(ended), what="memory", nowhere=nowhere)


def wrap_memory(memory: Memory | AsyncMemory | None) -> Memory | None:
    """Wrap a memory for an asyncio client. An object without `take` is passed on to be refused."""
    given: Any = memory
    return LoopMemory(given) if callable(getattr(given, "take", None)) else given


async def run_offer(threads: ThreadPools, work: Callable[[], T]) -> T:
    """Run work that may offer a conversation to memory, in a thread. Once begun, it goes on even if cancelled."""
    return await run_with_loop(threads, MEMORY_POOL, work)


class AsyncSummarizer(Protocol):
    """A Summarizer whose `summarise` is awaited."""

    @property
    def name(self) -> str: ...

    async def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


AnySummarizer = SummarizerChoice | AsyncSummarizer | Callable[..., Awaitable[str]]


class AsyncCompaction:
    """The compaction of one thread of a session."""

    def __init__(
        self, env: Env, thread_stream: str, threads: ThreadPools, given: AnySummarizer | None, config: CompactionConfig
    ) -> None:
        self._env, self._thread_stream, self._threads = env, thread_stream, threads
        self._given, self._config = given, config

    async def run(self, *, whole: bool) -> Summary | None:
        """Summarise all but the newest rounds; retry if the covered messages were changed meanwhile."""
        calls: summaries.ModelCalls = []
        with summaries.collect_calls(self._env, calls):
            for attempt in range(1, COMPACT_TRIES + 1):
                # An async embedder may belong to the store that passages are copied to, here and below.
                planned = await run_search(self._threads, partial(self._make_plan, whole))
                if planned is None:
                    return None
                chosen, plan, most = planned
                originals = repair_messages(plan.messages).messages
                text = await self._make_async(chosen).summarise_async(originals, max_tokens=most)
                used = summaries.sum_calls(self._env, calls)
                try:
                    write = partial(self._write_summary, plan, text, chosen.name, used)
                    return await run_search(self._threads, write)
                except Conflict:
                    if attempt == COMPACT_TRIES:
                        raise
        return None

    def _make_plan(self, whole: bool) -> tuple[CheckedSummarizer, summaries.SummaryPlan, int] | None:
        env, config = self._env, self._config
        check_config(env, config)
        chosen = checked(choose_thread_summarizer(env, self._thread_stream, self._given))
        plan = compaction_threads.plan_compaction(env, self._thread_stream, config, whole=whole)
        return None if plan is None else (chosen, plan, token_allowance(env, plan, config, chosen.name))

    def _write_summary(self, plan: summaries.SummaryPlan, text: str, method: str, used: Usage | None) -> Summary:
        words = summarizer_text(self._config, text, method, thread_tokenizer(self._env, plan.stream)[0].count)
        return compaction_threads.write_compaction(self._env, plan, replace(words, usage=used), self._config)

    def _make_async(self, chosen: CheckedSummarizer) -> CheckedSummarizer:
        """Wrap a synchronous summarizer so that it runs in a thread and can be awaited."""
        if chosen.awaits:
            return chosen

        async def in_a_thread(messages: Sequence[Message], *, max_tokens: int) -> Any:
            calling = self._threads.submit(STEPS, partial(chosen.call, messages, max_tokens=max_tokens))
            stop = await settle(calling, lambda: calling.cancel() or True)
            if stop is not None:
                calling.add_done_callback(_close_unawaited)
                raise stop
            answer = calling.result()
            # A lambda around an async function, for example.
            return await answer if inspect.isawaitable(answer) else answer

        return CheckedSummarizer(chosen.name, in_a_thread, awaits=True)


def _close_unawaited(calling: Future[Any]) -> None:
    """Close a coroutine that the summarizer returned and that no caller awaits any more."""
    if has_result(calling) and inspect.iscoroutine(calling.result()):
        calling.result().close()


SUMMARY_POOL = "holdfast-summary"


class LoopSummarizer:
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
            return await_on_loop(_await_within(made, SECONDS_ALLOWED.get()), what="a summarizer", nowhere=nowhere)

        return CheckedSummarizer(self.name, call).summarise(messages, max_tokens=max_tokens)


async def _await_within(made: Awaitable[T], seconds: float | None) -> T:
    """Await with a timeout, so that a summary that came too late is cancelled."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await made
    except TimeoutError:
        if seconds is None or not limit.expired():
            raise
        raise timeout_error(seconds) from None


def await_action(made: Awaitable[Any]) -> Any:
    """Await an async function of a rule, on the loop of the operation that triggered the rule."""
    nowhere = InvalidValue("What this rule does is async, and is awaited by the asyncio client only.")
    return await_on_loop(made, what="what a rule does", nowhere=nowhere)


async def run_with_rules(threads: ThreadPools, work: Callable[[], T]) -> T:
    """Run work that may trigger rules, in a thread. Once begun, it goes on even if the await is cancelled."""
    if is_rule_running():
        return await threads.run(work)  # It triggers no rule, and all waiting threads may be waiting for it.
    place = find_call_site()

    def following() -> T:
        CALL_SITE.set(place)  # Set in the thread's own copy of the context.
        return work()

    return await run_with_loop(threads, SUMMARY_POOL, following)
