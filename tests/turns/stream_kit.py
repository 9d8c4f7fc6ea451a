"""Streams of a provider for loops of one's own: they say some words, and then what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from tests.turns.test_turn_stops import chunks


class Broken(Exception):
    """What an SDK raises."""


class Source:
    """A provider's stream, for both clients: some words, then what `then` does; knows whether it was closed."""

    def __init__(self, *words: str, then: Callable[[], object] = lambda: None, end: bool = False) -> None:
        self._words, self._then, self._end = words, then, end
        self.closed = 0

    def __iter__(self) -> Iterator[Any]:
        yield from chunks(*self._words, end=False)
        self._then()
        if self._end:
            yield from chunks()

    async def __aiter__(self) -> AsyncIterator[Any]:
        for chunk in chunks(*self._words, end=False):
            yield chunk
        came = self._then()
        if isinstance(came, Awaitable):
            await came
        if self._end:
            for chunk in chunks():
                yield chunk

    def close(self) -> None:
        self.closed += 1


class AsyncSource(Source):
    """The same with a close that is awaited, as OpenAI's has it."""

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.closed += 1


def raising(*before: Callable[[], object]) -> Callable[[], object]:
    def then() -> object:
        for one in before:
            one()
        raise Broken

    return then
