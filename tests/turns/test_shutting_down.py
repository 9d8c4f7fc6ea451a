"""The block that ends well: what it refuses, what it lets end, what it leaves, and what it never hides."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.aio.executor import CallbackPool
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import Closed, Draining, InvalidValue, Refused
from holdfast.flow.turns.open import TurnOpener, TurnQueue
from holdfast.model.scripted import Scripted
from holdfast.runtime import tasks as crews
from holdfast.runtime.shutdown import AsyncShutdown
from holdfast.runtime.tasks import AgentTasks
from tests.turns.agent_world import Gated
from tests.turns.loops import place

SHORT = 0.2


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[AsyncHoldfast, Gated, Any]]:
    """A client with an agent whose model waits for a word."""
    async with holdfast.open_async("memory:") as hf:
        model = Gated(["Done."])
        yield hf, model, hf.agent("a", model=model)


async def state(hf: AsyncHoldfast, session: str = "s") -> tuple[int, str | None]:
    """How many frames of a session are live, and who holds it."""
    found = await hf.index.resume_actor(place(session))
    return len(found.frames), found.holder


async def begun(agent: Any, model: Gated, session: str = "s") -> asyncio.Task[Any]:
    sending = asyncio.ensure_future(agent.send(session, "Hello", key="k"))
    sending.add_done_callback(lambda task: task.cancelled() or task.exception())  # Else it is reported when it is gone.
    await model.begun.wait()
    return sending


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_work_that_ends_within_the_grace_ends() -> None:
    async def test() -> None:
        async with opened() as (hf, model, agent):
            async with hf.graceful_shutdown(grace=20) as stop:
                sending = await begun(agent, model)
                stop.request()
                await stop.wait()
                asyncio.get_running_loop().call_later(0.05, model.go_on.set)
            assert (await sending).text == "Done."
            assert await state(hf) == (0, None)

    run(test)


def test_work_that_does_not_end_within_the_grace_stays_live_and_unowned() -> None:
    async def test() -> None:
        async with opened() as (hf, model, agent):
            async with hf.graceful_shutdown(grace=SHORT) as stop:
                sending = await begun(agent, model)
                stop.request()
            with pytest.raises(Draining, match="live"):
                await sending
            assert await state(hf) == (1, None)

    run(test)


async def queued_work() -> list[str]:
    """What those hear who wait behind a turn when the client is told to end; gives their words."""
    async with opened() as (hf, model, agent):
        async with hf.graceful_shutdown(grace=20) as stop:
            first = await begun(agent, model)
            waiting = [asyncio.ensure_future(agent.send("s", text)) for text in ("second", "third")]
            for one in waiting:
                one.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.sleep(0.05)
            stop.request()
            done, _ = await asyncio.wait(waiting, timeout=2)
            model.go_on.set()
            assert len(done) == 2, "nobody waits for what will not come"
        ended = await asyncio.gather(first, *waiting, return_exceptions=True)
        said = [one.text for one in await (await hf.session("s")).messages()]
        assert said == ["Hello", "Done."], "who is refused has said nothing"
        return [type(one).__name__ for one in ended]


def test_who_waits_in_a_queue_is_refused_at_once() -> None:
    assert asyncio.run(queued_work()) == ["Reply", "Draining", "Draining"]


def test_threads_that_wait_in_a_queue_are_refused_at_once() -> None:
    heard: list[str] = []
    with holdfast.open("memory:") as hf, hf.session("s").turn("Hello"):

        def wait() -> None:
            try:
                with hf.session("s").turn("And this?"):
                    heard.append("entered")
            except Draining:
                heard.append("refused")

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        hf.drain(0)
        for thread in threads:
            thread.join(5)
        assert heard == ["refused"] * 3


def test_a_block_that_goes_on_is_ended_and_what_follows_it_runs() -> None:
    async def test() -> None:
        async with opened() as (hf, _, _):
            async with hf.graceful_shutdown(grace=SHORT) as stop:
                stop.request()
                await asyncio.sleep(60)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0)

    run(test)


def test_a_loop_of_ones_own_leaves_its_turn_live() -> None:
    async def test() -> None:
        async with opened() as (hf, _, _), hf.graceful_shutdown(grace=SHORT) as stop:
            chat = await hf.session("s")
            async with chat.turn("Hello") as turn:
                async for _step in turn:
                    stop.request()
                    await asyncio.sleep(60)
        # The client is closed by now.

    run(test)


def test_work_that_was_left_out_of_a_task_group_is_the_way_out() -> None:
    async def test() -> None:
        async with opened() as (hf, model, agent):
            async with hf.graceful_shutdown(grace=SHORT) as stop, asyncio.TaskGroup() as group:
                group.create_task(agent.send("s", "Hello"))
                await model.begun.wait()
                stop.request()
            assert await state(hf) == (1, None)

    run(test)


def test_an_error_of_the_block_comes_out_at_once_and_work_stays_live() -> None:
    async def test() -> None:
        async with opened() as (hf, model, agent):
            began = time.monotonic()

            async def failing() -> None:
                async with hf.graceful_shutdown(grace=60):
                    await begun(agent, model)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await failing()
            assert time.monotonic() - began < 10
            assert await state(hf) == (1, None)

    run(test)


def test_a_cancellation_from_outside_is_not_hidden() -> None:
    async def test() -> None:
        async with opened() as (hf, _, _):

            async def block() -> None:
                async with hf.graceful_shutdown(grace=60) as stop:
                    stop.request()
                    await asyncio.sleep(60)

            task = asyncio.ensure_future(block())
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait({task}, timeout=10)
            assert task.cancelled()

    run(test)


def test_draining_that_nobody_asked_for_is_not_hidden() -> None:
    async def test() -> None:
        async with opened() as (hf, _, agent):

            async def drained() -> None:
                async with hf.graceful_shutdown(grace=1):
                    await hf.drain(0)
                    await agent.send("s", "Hello")

            with pytest.raises(Draining):
                await drained()

    run(test)


def test_leaving_the_block_ends_what_runs_and_begins_nothing_new() -> None:
    async def test() -> None:
        async with opened() as (hf, model, agent):
            async with hf.graceful_shutdown(grace=20, signals=()):
                sending = await begun(agent, model)
                asyncio.get_running_loop().call_later(0.05, model.go_on.set)
            assert sending.done()
            with pytest.raises(Draining):
                await agent.send("s", "Hello")

    run(test)


def test_signals_do_again_what_they_did_before() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:

        async def test() -> None:
            async with opened() as (hf, _, _):
                async with hf.graceful_shutdown(grace=1) as stop:
                    signal.raise_signal(signal.SIGTERM)
                    await stop.wait()
                    assert stop.requested
                assert came == []
                signal.raise_signal(signal.SIGTERM)
                assert came == [signal.SIGTERM]

        run(test)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_third_signal_is_not_held_back() -> None:
    async def test() -> None:
        async with opened() as (hf, _, _), hf.graceful_shutdown(grace=60, signals=[signal.SIGINT]):
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(test)
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_are_for_the_main_thread() -> None:
    async def refused() -> None:
        async with opened() as (hf, _, _):
            with pytest.raises(Refused, match="main thread"):
                async with hf.graceful_shutdown():
                    pass
            async with hf.graceful_shutdown(signals=()) as stop:
                stop.request()

    ended: list[BaseException | None] = []

    def work() -> None:
        try:
            run(refused)
            with holdfast.open("memory:") as hf, pytest.raises(Refused, match="main thread"), hf.graceful_shutdown():
                pass
            ended.append(None)
        except BaseException as error:  # the test below shows it
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert ended == [None]


@pytest.mark.parametrize("grace", [-1, "5", True, float("nan"), None])
def test_a_grace_is_a_number_of_seconds(grace: Any) -> None:
    with holdfast.open("memory:") as hf, pytest.raises(InvalidValue, match="seconds"):
        hf.graceful_shutdown(grace=grace)


def test_a_tenants_view_does_not_end_everybodys_work() -> None:
    with holdfast.open("memory:") as hf, pytest.raises(Refused, match="every tenant"):
        hf.tenant("acme").graceful_shutdown()


def test_a_program_without_asyncio_goes_on_when_its_work_is_done() -> None:
    model = Scripted(["Done."])
    with holdfast.open("memory:") as hf:
        agent = hf.agent("a", model=model)
        with hf.graceful_shutdown(grace=20) as stop:
            assert agent.send("s", "Hello").text == "Done."
            assert (stop.requested, stop.wait(0)) == (False, False)
            signal.raise_signal(signal.SIGTERM)
            assert stop.wait(5)
            agent.send("s", "Once more")
            raise AssertionError("a client that ends takes nothing new")
        assert stop.requested


def test_a_block_without_asyncio_is_interrupted_when_the_grace_is_over(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        began = time.monotonic()
        with hf.graceful_shutdown(grace=SHORT) as stop, hf.session("s").turn("Hello"):
            stop.request()
            time.sleep(60)
        assert time.monotonic() - began < 20
        found = hf.index.resume_actor(place("s"))
        assert (len(found.frames), found.holder) == (1, None)


def test_models_that_a_client_made_are_closed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Closing(Scripted):
        async def close(self) -> None:
            closed.append(self.name)

    monkeypatch.setattr(crews, "make_model", lambda name: Closing(["Done."], name=name))

    async def test() -> None:
        given = Closing(["Done."], name="given")
        async with holdfast.open_async("memory:") as hf, hf.graceful_shutdown(grace=5):
            await hf.agent("a", model="openai:named").send("s", "Hello")
            await hf.agent("b", model=given).send("t", "Hello")
        assert closed == ["openai:named"], "whoever made a model closes it"

    run(test)
    with holdfast.open("memory:") as hf:
        hf.agent("b", model=Closing(["Done."], name="on its loop")).send("t", "Hello")
    assert closed == ["openai:named", "on its loop"]


def test_who_waits_for_work_of_a_closed_client_hears_why() -> None:
    async def test() -> None:
        async with opened() as (_, model, agent):
            sending = await begun(agent, model)
        with pytest.raises(Closed, match="live"):
            await sending

    run(test)


# threads that nobody waits for


def test_a_pool_that_can_be_left_does_what_pools_do() -> None:
    pool, hold = CallbackPool(2, "test"), threading.Event()
    held = [pool.submit(hold.wait, 10) for _ in range(2)]
    lined_up = pool.submit(lambda: 1)
    never = pool.submit(lambda: 2)
    assert never.cancel()
    assert not lined_up.done()
    hold.set()
    assert [one.result(10) for one in held] == [True, True]
    assert lined_up.result(10) == 1
    failed = pool.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(10)
    named = [thread for thread in threading.enumerate() if thread.name.startswith("test_")]
    assert 1 <= len(named) <= 2
    assert all(thread.daemon for thread in named)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(lambda: 3)
    for thread in named:
        thread.join(10)
        assert not thread.is_alive()


# tests that can fail


def nobody_is_dismissed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnQueue, "dismiss", lambda self: None)


def the_queue_lets_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnOpener, "_check_not_draining", lambda self: None)
    nobody_is_dismissed(patch)


@pytest.mark.parametrize("plant", [nobody_is_dismissed, the_queue_lets_in])
def test_a_planted_bug_of_the_queue_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    original = asyncio.wait

    async def quick(*given: Any, timeout: float | None = None, **how: Any) -> Any:
        return await original(*given, timeout=None if timeout is None else min(timeout, 0.2), **how)

    monkeypatch.setattr(asyncio, "wait", quick)
    with pytest.raises(AssertionError):
        asyncio.run(queued_work())


def nothing_is_left(patch: pytest.MonkeyPatch) -> None:
    async def leave(self: AgentTasks, patience: float = 0) -> None:
        return

    patch.setattr(AgentTasks, "cancel_all", leave)


def everything_is_hidden(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AsyncShutdown, "_is_expected", lambda self, error: True)


def test_planted_bugs_of_the_block_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        nothing_is_left(patch)

        async def impatient() -> None:
            async with opened() as (hf, model, agent):
                async with hf.graceful_shutdown(grace=SHORT) as stop:
                    await begun(agent, model)
                    stop.request()
                assert await state(hf) == (1, None)

        with pytest.raises(AssertionError):
            run(impatient)
    with monkeypatch.context() as patch:
        everything_is_hidden(patch)
        with pytest.raises(AssertionError):
            test_a_cancellation_from_outside_is_not_hidden()
