"""The chunks of a stream for asyncio: a stop is heard also while the provider says nothing.

The twin of `client/turn_stream.py`. Chunks are read in the task of whoever wants the words, so that nothing changes
for the provider's SDK; a stop ends that wait like a timeout.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, Final

from holdfast.aio.threads import Threads
from holdfast.client.turn import Turn
from holdfast.client.turn_stream import LOOK_EVERY
from holdfast.errors import HoldfastError

CLOSING = 2.0
"""Seconds that a stream has to let itself be closed."""
_END: Final = object()


async def heard(turn: Turn, threads: Threads, chunks: Any) -> AsyncGenerator[Any, None]:
    """The chunks, until they end, or the turn does."""
    given, at_end = aiter(chunks), False
    looked = _now()
    try:
        while True:
            try:
                chunk = await _next(turn, threads, given)
            except Exception:
                with suppress(HoldfastError):  # What happened is what the stream raised.
                    await threads.run(turn._heed_stop)
                if turn._ended is None:
                    raise
                return
            if chunk is _END:
                at_end = True
                return
            yield chunk
            if turn._ended is None and _now() - looked > LOOK_EVERY:
                looked = _now()
                await threads.run(turn._heed_stop)
            if turn._ended is not None:
                return
    finally:
        if not at_end:
            await _close(given)
            if chunks is not given:
                await _close(chunks)


async def _next(turn: Turn, threads: Threads, given: AsyncIterator[Any]) -> Any:
    """The next chunk; TimeoutError if somebody asked for the turn to stop before it came."""
    loop, watching = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    async with asyncio.timeout(None) as timer:
        # Most chunks come sooner, and nobody has to watch.
        silent = loop.call_later(LOOK_EVERY, lambda: watching.add(loop.create_task(_watch(turn, threads, timer))))
        try:
            return await anext(given, _END)
        finally:
            silent.cancel()
            for task in watching:
                task.cancel()


async def _watch(turn: Turn, threads: Threads, timer: asyncio.Timeout) -> None:
    while True:
        with suppress(HoldfastError):  # The journal cannot be read now. The next look may find it again.
            if await threads.run(turn._stop_asked) is not None:
                timer.reschedule(_now())
                return
        await asyncio.sleep(LOOK_EVERY)


async def _close(stream: object) -> None:
    """Let go of a stream, if it can be; what it says to that is of no use to anybody."""
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if not callable(close):
        return
    with suppress(Exception):
        async with asyncio.timeout(CLOSING):
            made = close()
            if inspect.isawaitable(made):
                await made


def _now() -> float:
    return asyncio.get_running_loop().time()
