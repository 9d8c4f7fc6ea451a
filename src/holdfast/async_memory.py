"""A memory for asyncio: `take` may be a coroutine function, awaited on the loop of whoever ended the session.

The hand-over waits for it in a thread of a pool of its own, so a memory that uses this same client never
waits for itself. It waits for no loop that has stopped: then the offer failed, and is made again later.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent import futures
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from holdfast.async_threads import Threads
from holdfast.errors import Refused, Unavailable
from holdfast.ports import EndedConversation, Memory

MEMORY = "holdfast-memory"
POLL_SECONDS = 1.0

T = TypeVar("T")

_loop_of_offer: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("holdfast_loop_of_offer", default=None)


class AsyncMemory(Protocol):
    """As Memory, awaited. Reading what is offered waits for the disk: `await asyncio.to_thread(list, …)`."""

    async def take(self, ended: EndedConversation) -> None: ...


class MemoryOnALoop:
    """A memory of either kind, as the flows know it."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def take(self, ended: EndedConversation) -> None:
        """Returns once the memory has taken it, whichever way it does."""
        made = self._memory.take(ended)
        if inspect.isawaitable(made):
            _wait_for(made if inspect.iscoroutine(made) else _awaited(made))


def on_a_loop(memory: Memory | AsyncMemory | None) -> Memory | None:
    """A memory for an asyncio client; what cannot take anything is left for others to refuse."""
    given: Any = memory
    return MemoryOnALoop(given) if callable(getattr(given, "take", None)) else given


async def offering(threads: Threads, work: Callable[[], T]) -> T:
    """Run what may offer something to memory, in a thread. Once begun, it goes on even if the await is cancelled."""
    before = _loop_of_offer.set(asyncio.get_running_loop())
    try:
        running = threads.submit(MEMORY, work)
    finally:
        _loop_of_offer.reset(before)
    return await asyncio.wrap_future(running)


def _wait_for(made: Coroutine[Any, Any, object]) -> None:
    loop = _loop_of_offer.get()
    if loop is None or asyncio._get_running_loop() is loop:
        made.close()
        raise Refused("An async memory is offered something by the asyncio client only: close and sweep with that.")
    try:
        taking = asyncio.run_coroutine_threadsafe(made, loop)
    except RuntimeError:
        made.close()
        raise _stopped() from None
    while not futures.wait([taking], POLL_SECONDS).done:
        if not loop.is_running():
            taking.cancel()
            if inspect.getcoroutinestate(made) == inspect.CORO_CREATED:
                made.close()  # Nobody will start it any more.
            raise _stopped()
    taking.result()


def _stopped() -> Unavailable:
    return Unavailable("The event loop that memory was to be awaited on has stopped. The next sweep offers it again.")


async def _awaited(made: Awaitable[object]) -> object:
    return await made
