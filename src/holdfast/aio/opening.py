"""Opening and closing for asyncio: in a thread, and nothing stays open that nobody holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from holdfast.aio.threads import Threads


class _Closes(Protocol):
    def close(self) -> None: ...


class _AsyncCloses(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=_AsyncCloses)


class Opening(Generic[T]):
    """Something on its way: `hf = await opening`, or `async with opening as hf`, which also closes it."""

    def __init__(self, make: Callable[[], _Closes], edge: Callable[[Any, Threads], T]) -> None:
        self._make = make
        self._edge = edge
        self._opened: T | None = None

    async def _open(self) -> T:
        threads = Threads()
        opening = asyncio.ensure_future(threads.run(self._make))
        try:
            made = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unclaimed)
            raise
        self._opened = self._edge(made, threads)
        return self._opened

    def __getattr__(self, name: str) -> Any:
        """Only what is missing here: whoever asks for it wants what is being opened."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"It is not open yet, so it has no {name}. "
            "Open it with `async with holdfast.open_async(…) as hf`, or `hf = await holdfast.open_async(…)`."
        )

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


def _close_unclaimed(opening: asyncio.Future[_Closes]) -> None:
    """Nobody waits for it any more: it must not keep its files open."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def close_with(threads: Threads, close: Callable[[], None]) -> None:
    """Close something and its threads, also when the awaiting task is cancelled meanwhile. Twice is fine."""
    if threads.closed:
        return
    while threads.endings:
        await threads.endings.pop()()
    closing = asyncio.ensure_future(threads.run(close))
    try:
        await asyncio.shield(closing)
    finally:
        threads.close()
