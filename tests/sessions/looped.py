"""A test in an event loop of its own, with a client that counts tokens by letters."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.aio.executor import ThreadPools
from holdfast.aio.holdfast import AsyncHoldfast

Test = Callable[[AsyncHoldfast], Awaitable[None]]


def count(text: str) -> int:
    return len(text) // 4 + 1


def play(test: Test, url: Any = "memory:", **beside: Any) -> None:
    """Run a test; what it left unfinished or never awaited is an error."""

    async def main() -> None:
        async with holdfast.open_async(url, **{"tokenizer": count, **beside}) as hf:
            await test(hf)

    asyncio.run(asyncio.wait_for(main(), 20))
    gc.collect()  # What was forgotten would complain here.


def counted(threads: ThreadPools, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a client went into a thread."""
    times: list[int] = []
    for name in ("submit",):
        known = getattr(threads, name)
        monkeypatch.setattr(threads, name, lambda *args, known=known: times.append(1) or known(*args))
    return lambda: len(times)
