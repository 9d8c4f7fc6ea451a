"""A memory for asyncio: `take` may be a coroutine function, awaited on the loop of whoever ended the session.

The hand-over waits for it in a thread of a pool of its own, so a memory that uses this same client never
waits for itself. It waits for no loop that has stopped: then the offer failed, and is made again later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from holdfast.aio.loops import awaited, crossing
from holdfast.aio.threads import Threads
from holdfast.errors import Refused
from holdfast.ports import EndedConversation, Memory

MEMORY = "holdfast-memory"

T = TypeVar("T")


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
            nowhere = Refused(
                "An async memory is offered something by the asyncio client only: close and sweep with that."
            )
            awaited(made, what="memory", nowhere=nowhere)


def on_a_loop(memory: Memory | AsyncMemory | None) -> Memory | None:
    """A memory for an asyncio client; what cannot take anything is left for others to refuse."""
    given: Any = memory
    return MemoryOnALoop(given) if callable(getattr(given, "take", None)) else given


async def offering(threads: Threads, work: Callable[[], T]) -> T:
    """Run what may offer something to memory, in a thread. Once begun, it goes on even if the await is cancelled."""
    return await crossing(threads, MEMORY, work)
