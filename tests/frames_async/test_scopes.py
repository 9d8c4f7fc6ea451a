"""Scopes that cancel, generators and coroutines that are closed: the block is left whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

import holdfast
from holdfast.aio.executor import THREADS
from holdfast.aio.frame import AsyncFrame
from holdfast.aio.holdfast import AsyncHoldfast
from tests.frames_async.conftest import Test, free
from tests.frames_async.test_leaving import _again_and_again


async def _in_a_timeout(body: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await body()


async def _in_a_task_group(body: Callable[[], Awaitable[None]]) -> None:
    async def fail() -> None:
        raise ValueError

    with pytest.raises(ExceptionGroup):  # noqa: PT012
        async with asyncio.TaskGroup() as tasks:
            for work in (body, fail):
                tasks.create_task(work())  # type: ignore[arg-type]


async def _in_a_cancelled_scope(body: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await body()
    assert scope.cancelled_caught


@pytest.mark.parametrize("within", [_in_a_timeout, _in_a_task_group, _in_a_cancelled_scope])
def test_scopes_that_cancel_leave_the_frame_live(play: Callable[[Test], None], within: Any) -> None:
    """Cancelled from the start, and cancelled inside the block."""

    async def test(hf: AsyncHoldfast) -> None:
        frame = hf.frame("goal", key="k")

        async def enter() -> None:
            async with hf.frame("never"):
                await asyncio.Event().wait()

        async def leave() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await frame.leave(asyncio.CancelledError())

        await within(enter)
        await free(hf)
        await frame.open()
        await within(leave)
        await free(hf)
        assert await frame.status() == "active"
        async with hf.frame("goal", key="k") as again:
            assert again.id == frame.id

    play(test)


def test_a_level_triggered_scope_is_left_whole(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        with anyio.CancelScope() as scope:
            async with hf.frame("goal") as parent, parent.frame("below") as frame:
                scope.cancel()
                await anyio.sleep(10)
        assert scope.cancelled_caught
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        await free(hf)
        assert [await parent.status(), await frame.status()] == ["waiting", "active"]

    play(test)


async def _numbers(frame: AsyncFrame) -> AsyncIterator[int]:
    async with frame:
        for number in range(9):
            yield number


def test_closing_a_generator_leaves_its_block(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        frame = hf.frame("goal", key="k")
        numbers = _numbers(frame)
        assert await anext(numbers) == 0
        await numbers.aclose()  # type: ignore[attr-defined]
        await free(hf)
        assert await frame.status() == "active"

        numbers = _numbers(hf.frame("goal", key="k"))
        assert await anext(numbers) == 0
        closing = asyncio.create_task(numbers.aclose())  # type: ignore[attr-defined]
        _again_and_again(closing)
        with pytest.raises(asyncio.CancelledError):
            await closing
        # Cancelled before it began, it closed nothing; whoever drops the generator has the loop close it.
        await numbers.aclose()  # type: ignore[attr-defined]
        await free(hf)

    play(test)


def test_closing_a_coroutine_leaves_its_block_without_an_await(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        frame, inside = hf.frame("goal"), asyncio.Event()

        async def body() -> None:
            async with frame:
                inside.set()
                await asyncio.Event().wait()

        coroutine = body()
        task = asyncio.create_task(coroutine)
        await inside.wait()
        coroutine.close()
        await free(hf)
        assert await frame.status() == "active"
        task.cancel()
        with pytest.raises(RuntimeError):
            await task

    play(test)


def test_closing_a_coroutine_that_is_leaving_waits_until_it_has_left(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        frame = hf.frame("goal")
        await frame.open()
        reached, gate, leave = asyncio.Event(), threading.Event(), frame._sync.leave
        loop = asyncio.get_running_loop()

        def slow(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(reached.set)
            assert gate.wait(10)
            leave(error)

        frame._sync.leave = slow  # type: ignore[method-assign]
        coroutine = frame.leave()
        task = asyncio.create_task(coroutine)
        await reached.wait()
        threading.Timer(0.02, gate.set).start()
        coroutine.close()
        assert hf._sync.env.leases.count_users() == 0
        task.cancel()
        with pytest.raises(RuntimeError):
            await task
        assert await frame.status() == "completed"

    play(test)


def test_an_error_is_not_masked_by_a_client_that_was_closed_too_early() -> None:
    async def main() -> None:
        error = ValueError("no")
        hf = await holdfast.open_async("memory:")
        frame = hf.frame("goal")
        await frame.open()
        await hf.close()
        await frame.leave(error)
        assert any("could not be" in note for note in error.__notes__)

    asyncio.run(main())


def test_leaving_does_not_queue_behind_what_takes_long(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        gate, started = threading.Event(), threading.Barrier(THREADS + 1)

        def work() -> None:
            started.wait(10)
            assert gate.wait(10)

        async with hf.frame("goal", key="k") as frame:
            running = [asyncio.create_task(frame.run(work, key=str(n))) for n in range(THREADS)]
            await asyncio.to_thread(started.wait, 10)
            async with hf.frame("another", actor="other"):
                pass
            gate.set()
            await asyncio.gather(*running)

    play(test)
