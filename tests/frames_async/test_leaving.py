"""Blocks are left by the table, however their task ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.aio.frame import AsyncFrame
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import Waiting
from tests.frames_async.conftest import Test, free


class Stop(BaseException):
    """Something else that is no Exception."""


LEAVES_LIVE = [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, Stop]


async def _left_by(frame: AsyncFrame, error: BaseException | None) -> BaseException | None:
    try:
        async with frame:
            if error is not None:
                raise error
    except BaseException as caught:
        return caught
    return None


@pytest.mark.parametrize("kind", LEAVES_LIVE)
def test_what_is_no_exception_leaves_the_frame_live(play: Callable[[Test], None], kind: type[BaseException]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        frame, error = hf.frame("goal", key="k"), kind("x")
        assert await _left_by(frame, error) is error
        assert await frame.status() == "active"
        await free(hf)
        again = hf.frame("goal", key="k")
        assert await _left_by(again, None) is None
        assert (again.id, await again.status()) == (frame.id, "completed")

    play(test)


def test_a_block_is_left_normally_suspended_or_by_an_exception(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        frame = hf.frame("normally")
        assert await _left_by(frame, None) is None
        assert await frame.status() == "completed"

        async with hf.frame("suspended") as frame:
            await frame.suspend("why?")
        assert await frame.status() == "suspended"
        await free(hf)

        frame, error = hf.frame("by an exception"), ValueError("no")
        assert await _left_by(frame, error) is error
        assert "failed" in error.__notes__[0]
        info = await frame.info()
        assert (info.status, info.error) == ("failed", "ValueError: no")

        frame = hf.frame("left as it is", on_error="leave")
        assert await _left_by(frame, error) is error
        assert await frame.status() == "active"

    play(test)


def test_a_question_leaves_the_block_and_its_answer_goes_on(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        told: list[str] = []
        undo = hf.on("frame.suspended", lambda event: told.append(event.type))

        async def work(group: bool) -> Any:
            async with hf.frame("goal", key="k") as frame:
                if group:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(frame.ask("may I?", key="q", options=["yes", "no"]))
                return (await frame.ask("may I?", key="q", options=["yes", "no"])).payload

        with pytest.raises(Waiting) as waiting:
            await work(False)
        assert told == ["frame.suspended"]
        with pytest.raises(ExceptionGroup):
            await work(True)
        await free(hf)
        (asked,) = [asked async for asked in hf.questions()]
        assert asked.id == waiting.value.question
        assert await hf.answer(asked.id, payload="yes", by="alice") == asked.id
        assert await work(True) == "yes"
        undo()

    play(test)


async def _entered(hf: AsyncHoldfast, **how: Any) -> tuple[asyncio.Task[None], AsyncFrame, asyncio.Event]:
    """A task that waits inside a block, and what lets it go on."""
    frame, inside, go = hf.frame("goal", key="k", **how), asyncio.Event(), asyncio.Event()

    async def body() -> None:
        async with frame:
            inside.set()
            await go.wait()

    task = asyncio.create_task(body())
    await inside.wait()
    return task, frame, go


def _again_and_again(task: asyncio.Task[Any]) -> None:
    """Cancel a task at each of its awaits, as level-triggered scopes do."""
    if not task.done():
        task.cancel()
        asyncio.get_running_loop().call_soon(_again_and_again, task)


@pytest.mark.parametrize("how", [asyncio.Task.cancel, _again_and_again])
@pytest.mark.parametrize("on_error", ["fail", "leave"])
def test_a_cancelled_task_leaves_its_frame_live(play: Callable[[Test], None], how: Any, on_error: str) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        task, frame, _ = await _entered(hf, on_error=on_error)
        how(task)
        with pytest.raises(asyncio.CancelledError):
            await task
        await free(hf)
        assert await frame.status() == "active"

    play(test)


def _held_up(frame: AsyncFrame, name: str) -> tuple[asyncio.Event, threading.Event]:
    """Make a method of the sync frame wait after its work, in its thread."""
    reached, gate, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    work = getattr(frame._sync, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        done = work(*args, **kwargs)
        loop.call_soon_threadsafe(reached.set)
        assert gate.wait(10)
        return done

    setattr(frame._sync, name, slow)
    return reached, gate


@pytest.mark.parametrize("how", [asyncio.Task.cancel, _again_and_again])
def test_a_task_cancelled_while_it_leaves_finishes_that_first(play: Callable[[Test], None], how: Any) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        task, frame, go = await _entered(hf)
        reached, gate = _held_up(frame, "leave")
        go.set()
        await reached.wait()
        how(task)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await frame.status() == "completed"

    play(test)


def test_a_cancellation_wins_over_an_exception_and_over_a_failure_to_leave() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            for error in (None, ValueError("no")):
                frame = hf.frame("goal")
                await frame.open()
                leave = frame._sync.leave

                def fail(error: Any, leave: Any = leave) -> None:
                    leave(error)
                    raise OSError("the disk")

                frame._sync.leave = fail  # type: ignore[method-assign]
                reached, gate = _held_up(frame, "_release_block")
                task = asyncio.create_task(frame.leave(error))
                await reached.wait()
                task.cancel()
                await asyncio.sleep(0)
                gate.set()
                with pytest.raises(asyncio.CancelledError) as cancelled:
                    await task
                assert "the disk" in cancelled.value.__notes__[0]
            await free(hf)

    asyncio.run(main())
