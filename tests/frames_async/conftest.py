"""Runs each test on every backend in a loop of its own, and sees that nothing is held when it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.aio.holdfast import AsyncHoldfast

ACTOR = "actor/main"
Test = Callable[[AsyncHoldfast], Awaitable[None]]


@pytest.fixture(params=["memory:", "a.db"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Test], None]:
    """Runs a test over each backend, and sees that nothing is held when it ends."""
    url = request.param if request.param == "memory:" else tmp_path / request.param

    async def main(test: Test) -> None:
        async with holdfast.open_async(url) as hf:
            await test(hf)
            await free(hf)

    def run(test: Test) -> None:
        asyncio.run(asyncio.wait_for(main(test), 20))
        gc.collect()  # What was forgotten would complain here.

    return run


async def free(hf: AsyncHoldfast, scope: str = ACTOR) -> None:
    assert hf._sync.env.leases.count_users() == 0
    assert (await hf.index.resume_actor(scope)).holder is None
