"""Callbacks come on the loop; a silent owner is watched once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import FrameSuspended, InvalidValue
from holdfast.testing.clock import FrozenClock
from tests.frames_async.conftest import Test, free


def test_callbacks_come_on_the_loop_and_may_be_async(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        told: list[tuple[str, threading.Thread]] = []
        later = asyncio.Event()

        async def note(event: Any) -> None:
            await asyncio.sleep(0)
            later.set()

        hf.on("frame.pushed", lambda event: told.append((event.type, threading.current_thread())))
        hf.on("frame.pushed", note)
        with pytest.raises(InvalidValue):
            hf.on("frame.pushed", None)  # type: ignore[arg-type]
        async with hf.frame("goal") as frame:
            assert told == [("frame.pushed", threading.main_thread())]
            await later.wait()
            await frame.suspend("why?")
            with pytest.raises(FrameSuspended):
                await frame.run(lambda: 1, key="late")

    play(test)


def test_a_silent_owner_is_watched_for_one_lease_and_not_for_two(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FrozenClock()
        async with holdfast.open_async(tmp_path / "a.db") as first:
            frame = first.frame("goal", key="k")
            await frame.open()
            async with holdfast.open_async(tmp_path / "a.db", clock=clock) as second:
                before = clock.monotonic()
                async with second.frame("goal", key="k") as taken:
                    assert taken.id == frame.id
                    lease = holdfast.Settings().lease_ms / 1000
                    assert lease <= clock.monotonic() - before < 1.5 * lease
            await frame.leave(KeyboardInterrupt())
            await free(first)

    asyncio.run(main())
