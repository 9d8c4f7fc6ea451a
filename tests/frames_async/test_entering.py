"""Cancelled while it is entered, a block holds nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.aio.executor import WAITING
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import InvalidValue, Refused
from tests.frames_async.conftest import ACTOR, Test, free
from tests.frames_async.test_leaving import _again_and_again, _entered, _held_up, _left_by


def test_cancelled_while_it_is_pushed_a_frame_stays_live_andfree(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        for key, how in (("a", asyncio.Task.cancel), ("b", _again_and_again)):
            frame = hf.frame("goal", key=key)
            reached, gate = _held_up(frame, "_push")
            task = asyncio.create_task(_left_by(frame, None))
            await reached.wait()
            how(task)
            await asyncio.sleep(0)
            assert not task.done()
            gate.set()
            assert isinstance(await task, asyncio.CancelledError)
            await free(hf)
            assert await frame.status() == "active"
            async with hf.frame("goal", key=key) as again:
                assert again.id == frame.id

    play(test)


def test_a_cancelled_child_stays_live_too(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        async with hf.frame("goal", key="k") as parent:
            child = parent.frame("below", key="c")
            reached, gate = _held_up(child, "_push")
            task = asyncio.create_task(_left_by(child, None))
            await reached.wait()
            task.cancel()
            gate.set()
            assert isinstance(await task, asyncio.CancelledError)
            assert await child.status() == "active"
            async with parent.frame("below", key="c") as again:
                assert again.id == child.id

    play(test)


def test_waiting_for_another_owner_can_be_cancelled_at_once(
    play: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        reached, gate, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

        def watch(*args: Any) -> None:
            loop.call_soon_threadsafe(reached.set)
            assert gate.wait(10)

        monkeypatch.setattr(hf._sync.env.leases, "await_free", watch)
        task = asyncio.create_task(_left_by(hf.frame("goal", key="k"), None))
        await reached.wait()
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert isinstance(task.result(), asyncio.CancelledError)  # The gate is still shut.
        gate.set()
        await asyncio.to_thread(hf._threads._pools.pop(WAITING).shutdown)
        assert await hf.index.stack(ACTOR) == []

    play(test)


def test_who_cannot_enter_is_told_why_and_holds_nothing(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(InvalidValue):
            hf.frame("goal", on_error="explode")
        with pytest.raises(InvalidValue):
            hf.frame("goal", key="")
        with pytest.raises(Refused):
            _ = hf.frame("goal").id
        assert isinstance(await _left_by(hf.frame("goal", tokens=-1), None), InvalidValue)
        assert await hf.drain(0) == 0
        assert isinstance(await _left_by(hf.frame("late"), None), holdfast.Unavailable)

    play(test)


def test_draining_waits_for_blocks_to_end(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        task, _, go = await _entered(hf)
        assert await hf.drain(0) == 1
        draining = asyncio.create_task(hf.drain())
        go.set()
        await task
        assert await draining == 0

    play(test)
