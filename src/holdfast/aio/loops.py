"""Async functions of the caller's, called from threads: awaited on the loop of whoever began the operation.

A thread that waits for one comes from a pool that nothing else uses, so a function that uses the same
client never waits for itself. No thread waits for a loop that has stopped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent import futures
from contextvars import ContextVar
from typing import Any, TypeVar

from holdfast.aio.threads import Threads
from holdfast.errors import HoldfastError, Unavailable

POLL_SECONDS = 1.0

T = TypeVar("T")

_loop_of_caller: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("holdfast_loop_of_caller", default=None)


async def crossing(threads: Threads, pool: str, work: Callable[[], T]) -> T:
    """Run in a thread what may have to await something here. Once begun, it goes on even if this await is cancelled."""
    before = _loop_of_caller.set(asyncio.get_running_loop())
    try:
        running = threads.submit(pool, work)
    finally:
        _loop_of_caller.reset(before)
    return await asyncio.wrap_future(running)


def awaited(made: Awaitable[T], *, what: str, nowhere: HoldfastError) -> T:
    """What an awaitable gives, for a thread that waits; `nowhere` is raised where no loop could await it."""
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
                waiting.close()  # Nobody will start it any more.
            raise _stopped(what)
    return running.result()


def _stopped(what: str) -> Unavailable:
    return Unavailable(
        f"The event loop that {what} was to be awaited on has stopped. It can be tried again on another."
    )


async def _waiting(made: Awaitable[T]) -> T:
    return await made
