"""Steps of async and sync functions, run once; torn ones stay open and ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast.aio.frame import AsyncFrame
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import ActorBusy, InvalidValue, Waiting
from tests.frames_async.conftest import ACTOR, Test, free
from tests.frames_async.test_leaving import _again_and_again


class Adder:
    """Something async that is no function."""

    async def __call__(self, a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b


def test_a_step_runs_once_sync_or_async(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        ran: list[tuple[str, bool]] = []

        async def add(a: int, b: int) -> int:
            await asyncio.sleep(0)
            ran.append(("async", threading.current_thread() is threading.main_thread()))
            return a + b

        def times(a: int, b: int) -> int:
            ran.append(("sync", threading.current_thread() is threading.main_thread()))
            return a * b

        async def work() -> list[Any]:
            async with hf.frame("goal", key="k", on_error="leave") as frame:
                return [
                    await frame.run(add, 2, 3, key="add"),
                    await frame.run(times, 2, 3, key="times"),
                    await frame.run(lambda: add(4, 5), key="lambda"),
                    await frame.run(partial(add, 6), 7, key="partial"),
                    await frame.run(Adder(), 8, 9, key="object"),
                    await frame.run(times, 2, 3, key="text", as_=float),
                ]

        assert await work() == [5, 6, 9, 13, 17, 6.0]
        assert ran == [("async", True), ("sync", False), ("async", True), ("async", True), ("sync", False)]
        assert await work() == [5, 6, 9, 13, 17, 6.0]
        assert len(ran) == 5

    play(test)


def test_a_failed_step_is_journaled_and_runs_again(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        async def fail() -> None:
            raise ValueError("no")

        def fail_in_a_thread() -> None:
            raise StopIteration

        async with hf.frame("goal") as frame:
            for _ in range(2):
                with pytest.raises(ValueError, match="no"):
                    await frame.run(fail, key="s")
                with pytest.raises(ValueError, match="no"):
                    await frame.run(lambda: fail(), key="s")
                with pytest.raises(RuntimeError, match="StopIteration"):
                    await frame.run(fail_in_a_thread, key="t")
                with pytest.raises(InvalidValue):
                    await frame.run(object, key="u")
            assert (await frame.info()).calls == ()
            assert await frame.run(lambda: 1, key="s") == 1
        kinds = [event.facts.failed async for event in hf.journal.events(types=["run.returned"])]
        assert kinds == [True] * 8 + [False]

    play(test)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_torn_by_cancellation_stays_open_and_asks(play: Callable[[Test], None], wrapped: bool) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        inside, go, ran = asyncio.Event(), asyncio.Event(), []

        async def pay() -> str:
            ran.append(1)
            inside.set()
            await go.wait()
            return "paid"

        async def work() -> str:
            async with hf.frame("goal", key="k") as frame:
                return await frame.run((lambda: pay()) if wrapped else pay, key="pay")

        task = asyncio.create_task(work())
        await inside.wait()
        _again_and_again(task)
        with pytest.raises(asyncio.CancelledError):
            await task
        await free(hf)
        for _ in range(2):
            with pytest.raises(Waiting) as waiting:
                await work()
        assert [asked.id async for asked in hf.questions()] == [waiting.value.question]
        await hf.answer(waiting.value.question, approve=True)
        go.set()
        assert await work() == "paid"
        assert len(ran) == 2

    play(test)


def test_cancelled_before_it_was_called_a_step_is_not_asked_about(
    play: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        from holdfast.flow.frames import steps

        reached, gate, loop, begin = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), steps.begin_step
        ran: list[int] = []

        def slow(*args: Any) -> Any:
            begun = begin(*args)
            loop.call_soon_threadsafe(reached.set)
            assert gate.wait(10)
            return begun

        async def pay() -> str:
            ran.append(1)
            return "paid"

        async def work() -> str:
            async with hf.frame("goal", key="k") as frame:
                return await frame.run(pay, key="pay")

        monkeypatch.setattr(steps, "begin_step", slow)
        task = asyncio.create_task(work())
        await reached.wait()
        _again_and_again(task)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ran == []
        monkeypatch.undo()
        assert await work() == "paid"

    play(test)


def test_what_a_thread_gives_is_remembered_though_nobody_waits(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        inside, gate, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
        returned = asyncio.Event()
        hf.on("run.returned", lambda event: returned.set())

        def pay() -> str:
            loop.call_soon_threadsafe(inside.set)
            assert gate.wait(10)
            return "paid"

        async def work() -> str:
            async with hf.frame("goal", key="k", on_error="leave") as frame:
                return await frame.run(pay, key="pay")

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await free(hf)
        with pytest.raises(ActorBusy, match="is running"):
            await work()
        gate.set()
        await returned.wait()
        assert await work() == "paid"

    play(test)


def test_a_coroutine_made_in_a_thread_for_nobody_is_closed(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        inside, gate, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

        async def pay() -> None:
            pytest.fail("nobody awaits this")

        def make() -> Any:
            loop.call_soon_threadsafe(inside.set)
            assert gate.wait(10)
            return pay()

        async def work(make: Any) -> Any:
            async with hf.frame("goal", key="k", on_error="leave") as frame:
                return await frame.run(make, key="pay", if_interrupted="retry")

        task = asyncio.create_task(work(make))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await asyncio.to_thread(hf._threads._pools.pop("holdfast-step").shutdown)
        assert await work(lambda: "paid") == "paid"

    play(test)


def test_children_work_side_by_side(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        async def double(n: int) -> int:
            await asyncio.sleep(0)
            return 2 * n

        async def child(parent: AsyncFrame, n: int) -> int:
            async with parent.frame(f"part {n}", key=str(n), tokens=50) as frame:
                await frame.spend(n)
                result: int = await frame.result(await frame.run(double, n, key="double"))
                return result

        async with hf.frame("goal", key="k", tokens=1000) as parent:
            assert await asyncio.gather(*(child(parent, n) for n in range(8))) == [2 * n for n in range(8)]
            assert await parent.left() == 1000 - sum(range(8))
        assert await parent.status() == "completed"
        assert (await hf.journal.verify()).ok

    play(test)


def test_one_child_that_asks_does_not_stop_the_others(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        async def child(parent: AsyncFrame, n: int) -> Any:
            async with parent.frame(f"part {n}", key=str(n)) as frame:
                return (await frame.ask("may I?", key="q")).approved if n == 1 else n

        async def work() -> list[Any]:
            async with hf.frame("goal", key="k") as parent:
                return await asyncio.gather(*(child(parent, n) for n in range(3)), return_exceptions=True)

        first = await work()
        assert (first[0], first[2]) == (0, 2)
        assert isinstance(first[1], Waiting)
        (frame,) = [found for found in await hf.index.stack(ACTOR) if found.depth == 0]
        assert frame.status == "waiting"
        await hf.answer(first[1].question, approve=True)
        assert await work() == [0, True, 2]
        assert (await hf.index.get_frame(frame.id)).status == "completed"

    play(test)
