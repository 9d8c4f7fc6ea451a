"""Frames for asyncio: the same methods and answers, and blocks that are left by the table however they end."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

import holdfast
from holdfast.async_client import AsyncHoldfast
from holdfast.async_frame import AsyncFrame
from holdfast.async_index import AsyncIndexView
from holdfast.async_threads import THREADS, WAITING
from holdfast.client_frame import Frame
from holdfast.client_index import IndexView
from holdfast.errors import ActorBusy, FrameSuspended, InvalidValue, Refused, Waiting
from holdfast.records.resume import ActorResumeState, Asked
from holdfast.testing.clock import FrozenClock, SeededIds

ACTOR = "actor/main"
Test = Callable[[AsyncHoldfast], Awaitable[None]]


@pytest.fixture(params=["memory:", "a.db"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Test], None]:
    """Runs a test over each backend, and sees that nothing is held when it ends."""
    url = request.param if request.param == "memory:" else tmp_path / request.param

    async def main(test: Test) -> None:
        async with holdfast.open_async(url) as hf:
            await test(hf)
            await _free(hf)

    def run(test: Test) -> None:
        asyncio.run(asyncio.wait_for(main(test), 20))
        gc.collect()  # What was forgotten would complain here.

    return run


async def _free(hf: AsyncHoldfast, scope: str = ACTOR) -> None:
    assert hf._client._ports.leases.users() == 0
    assert (await hf.index.resume_actor(scope)).holder is None


# the same as the sync side


def _public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers_static(kind) if not name.startswith("_")}


def _parameters(member: Any) -> list[tuple[Any, ...]]:
    found = inspect.signature(member).parameters.values()
    # A step's function may be async here, which is the one difference.
    return [(p.name, p.kind, p.default, None if p.name == "fn" else p.annotation) for p in found]


@pytest.mark.parametrize(("sync", "colour"), [(IndexView, AsyncIndexView), (Frame, AsyncFrame)])
def test_both_sides_have_the_same_members_with_the_same_parameters(sync: type, colour: type) -> None:
    one, other = _public(sync), _public(colour)
    assert one.keys() == other.keys()
    for name, member in one.items():
        assert inspect.getdoc(other[name]), name
        if not isinstance(member, property):
            assert _parameters(member) == _parameters(other[name]), name
    stay = {name for name, member in other.items() if isinstance(member, property)}
    assert stay == ({"id", "scope"} if sync is Frame else set())
    iterators = {name for name, member in other.items() if inspect.isasyncgenfunction(member)}
    assert iterators == ({"questions", "stacks"} if sync is IndexView else set())
    plain = {name for name, member in other.items() if name not in stay | iterators}
    assert {name for name in plain if not inspect.iscoroutinefunction(other[name])} <= {"frame"}


Said = tuple[str, tuple[Any, ...], dict[str, Any]]


def _story() -> Generator[Said, Any, None]:
    """Every operation of the index at least once, each with what the ones before gave."""

    def op(name: str, *args: Any, **kwargs: Any) -> Said:
        return name, args, kwargs

    root = yield op("push_frame", "goal", scope=ACTOR, tokens=1000, key="root")
    child = yield op("push_frame", "below", parent=root, tokens=100)
    yield op("update_frame", child, goal="further below", metadata={"n": 1})
    for name in ("get_frame", "ancestry"):
        yield op(name, child)
    for name in ("stack", "top_of_stack", "leaves"):
        yield op(name, ACTOR)
    yield op("stacks")
    yield op("reserve", child, "search", 50)
    yield op("spend_reserved", child, "search", 20)
    yield op("release_reservation", child, "search")
    yield op("record_usage", child, 5)
    handle = yield op("add_handle", child, "document", target="a.txt", body="text")
    removal = yield op("remove_handle", child, handle, reason="old")
    yield op("restore_handles", child, removal)
    yield op("handles", child)
    yield op("add_result", child, "file", "a.txt", summary="done")
    call = yield op("begin_model_call", child, model="m", request={"a": 1})
    yield op("end_model_call", child, call, usage=7, finish="stop", response="hi")
    call = yield op("begin_tool_call", child, "search", arguments={"q": 1})
    yield op("end_tool_call", child, call, value=[1, 2])
    asked = yield op("suspend_frame", child, "may I?", token=True)
    yield op("questions")
    yield op("question", asked.question)
    yield op("reissue_token", asked.question)
    yield op("answer", asked.question, approve=True, note="go on")
    yield op("resume_frame", asked.question)
    yield op("answer_to", ACTOR, asked.question)
    yield op("sweep")
    yield op("pop_frame", child, summary="ok", value=1)
    yield op("resume_actor", ACTOR, incarnation="one")
    yield op("release_actor", ACTOR)
    yield op("pop_frame", root, "cancelled")


def _comparable(value: Any) -> Any:
    """Without what is secret or names a process."""
    if isinstance(value, Asked):
        return replace(value, token=None)
    return replace(value, holder=None) if isinstance(value, ActorResumeState) else value


async def _tell(index: Any, name: str, args: Any, kwargs: Any) -> Any:
    made = getattr(index, name)(*args, **kwargs)
    if inspect.isasyncgen(made):
        return [item async for item in made]
    return await made if inspect.isawaitable(made) else list(made) if inspect.isgenerator(made) else made


async def _told(client: Any, crossings: Callable[[], int]) -> list[Any]:
    story, told, sent = _story(), [], None
    while True:
        try:
            name, args, kwargs = story.send(sent)
        except StopIteration:
            return told
        before = crossings()
        sent = await _tell(client.index, name, args, kwargs)
        told.append((name, crossings() - before, None if name == "reissue_token" else _comparable(sent)))


@pytest.mark.parametrize("url", ["memory:", "a.db"])
@pytest.mark.filterwarnings("ignore:Holdfast waits for the disk")
def test_every_operation_gives_the_same_and_crosses_once(url: str, tmp_path: Path) -> None:
    def ambient() -> dict[str, Any]:
        clock = FrozenClock()
        return {"clock": clock, "ids": SeededIds(clock)}

    def place(name: str) -> Any:
        (tmp_path / name).mkdir()
        return url if url == "memory:" else tmp_path / name / url

    async def main() -> None:
        with holdfast.open(place("sync"), **ambient()) as hf:
            expected = await _told(hf, lambda: 1)
        count = 0
        async with holdfast.open_async(place("async"), **ambient()) as other:
            cross = other._threads._cross

            async def counted(*args: Any) -> Any:
                nonlocal count
                count += 1
                return await cross(*args)

            other._threads._cross = counted  # type: ignore[method-assign]
            told = await _told(other, lambda: count)
        assert [(name, value) for name, _, value in told] == [(name, value) for name, _, value in expected]
        assert {crossed for _, crossed, _ in told} == {1}
        assert {name for name, _, _ in told} == _public(IndexView).keys()

    asyncio.run(main())


def test_iterators_go_on_past_a_page(play: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.async_questions.PAGE", 2)

    async def test(hf: AsyncHoldfast) -> None:
        for n in range(5):
            frame = await hf.index.push_frame("goal", scope=f"actor/a{n}")
            await hf.index.suspend_frame(frame, "why?")
        assert len([asked async for asked in hf.questions()]) == 5
        assert [scope async for scope, _ in hf.index.stacks()] == [f"actor/a{n}" for n in range(5)]

    play(test)


def test_a_block_has_everything_that_a_sync_one_has(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        async with hf.frame("goal", key="k", tokens=100, inputs={"a": 1}) as frame:
            assert (frame.scope, await frame.status(), await frame.left()) == (ACTOR, "active", 100)
            await frame.spend(10)
            await frame.reserve("later", 30)
            assert (await frame.tokens()).used == 10
            assert await frame.left() == 60
            await frame.release("later")
            handle = await frame.attach("document", target="a.txt")
            assert await frame.detach(handle) is not None
            assert (await frame.limits()).tool_calls == 50
            assert await frame.result({"n": 1}, summary="ok") == {"n": 1}
        assert (await frame.info()).summary == "ok"
        assert await frame.value(dict[str, int]) == {"n": 1}
        async with hf.frame("goal", key="k", tokens=100, inputs={"a": 1}) as again:
            assert (again.id, await again.status()) == (frame.id, "completed")
            with pytest.raises(Refused):
                await again.open()
        assert repr(again).startswith("AsyncFrame('goal'")

    play(test)


# leaving by the table


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
        await _free(hf)
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
        await _free(hf)

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
        await _free(hf)
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
        await _free(hf)
        assert await frame.status() == "active"

    play(test)


def _held_up(frame: AsyncFrame, name: str) -> tuple[asyncio.Event, threading.Event]:
    """Make a method of the sync frame wait after its work, in its thread."""
    reached, gate, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    work = getattr(frame._frame, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        done = work(*args, **kwargs)
        loop.call_soon_threadsafe(reached.set)
        assert gate.wait(10)
        return done

    setattr(frame._frame, name, slow)
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
                leave = frame._frame.leave

                def fail(error: Any, leave: Any = leave) -> None:
                    leave(error)
                    raise OSError("the disk")

                frame._frame.leave = fail  # type: ignore[method-assign]
                reached, gate = _held_up(frame, "_let_go")
                task = asyncio.create_task(frame.leave(error))
                await reached.wait()
                task.cancel()
                await asyncio.sleep(0)
                gate.set()
                with pytest.raises(asyncio.CancelledError) as cancelled:
                    await task
                assert "the disk" in cancelled.value.__notes__[0]
            await _free(hf)

    asyncio.run(main())


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
        await _free(hf)
        await frame.open()
        await within(leave)
        await _free(hf)
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
        await _free(hf)
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
        await _free(hf)
        assert await frame.status() == "active"

        numbers = _numbers(hf.frame("goal", key="k"))
        assert await anext(numbers) == 0
        closing = asyncio.create_task(numbers.aclose())  # type: ignore[attr-defined]
        _again_and_again(closing)
        with pytest.raises(asyncio.CancelledError):
            await closing
        # Cancelled before it began, it closed nothing; whoever drops the generator has the loop close it.
        await numbers.aclose()  # type: ignore[attr-defined]
        await _free(hf)

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
        await _free(hf)
        assert await frame.status() == "active"
        task.cancel()
        with pytest.raises(RuntimeError):
            await task

    play(test)


def test_closing_a_coroutine_that_is_leaving_waits_until_it_has_left(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        frame = hf.frame("goal")
        await frame.open()
        reached, gate, leave = asyncio.Event(), threading.Event(), frame._frame.leave
        loop = asyncio.get_running_loop()

        def slow(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(reached.set)
            assert gate.wait(10)
            leave(error)

        frame._frame.leave = slow  # type: ignore[method-assign]
        coroutine = frame.leave()
        task = asyncio.create_task(coroutine)
        await reached.wait()
        threading.Timer(0.02, gate.set).start()
        coroutine.close()
        assert hf._client._ports.leases.users() == 0
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


# entering


def test_cancelled_while_it_is_pushed_a_frame_stays_live_and_free(play: Callable[[Test], None]) -> None:
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
            await _free(hf)
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

        monkeypatch.setattr(hf._client._ports.leases, "await_free", watch)
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


# steps


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
        await _free(hf)
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
        from holdfast.flow import steps

        reached, gate, loop, begin = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), steps.begin
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

        monkeypatch.setattr(steps, "begin", slow)
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
        await _free(hf)
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


# callbacks


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
            await _free(first)

    asyncio.run(main())
