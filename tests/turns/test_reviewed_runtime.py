"""Agents under strain: tools that hang, clients that close, replies that were taken back, turns that others ended."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Scripted, tool
from holdfast.aio import executor as async_pool
from holdfast.aio.executor import THREADS, CallbackPool
from holdfast.errors import Closed, InvalidValue, ModelFailed, ToolFailed
from holdfast.models import ModelReply
from holdfast.records.models import Delta, ModelCall
from holdfast.runtime import loop_thread, tasks
from holdfast.runtime.driver import TurnDriver
from holdfast.runtime.recovery import Recovery
from holdfast.runtime.tools.run import run_function
from tests.turns.agent_world import Gated, until, until_async
from tests.turns.test_recovering import two_clients

CALLS_PAY = {"name": "pay", "arguments": {}}


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


# tools that hang


def test_tools_that_hang_take_no_thread_from_others() -> None:
    let_go, begun = threading.Event(), threading.Semaphore(0)

    @tool(timeout=0.05)
    def hang() -> str:
        """Hang."""
        begun.release()
        let_go.wait(20)
        return "late"

    @tool
    def quick() -> str:
        """Be quick."""
        return "quick"

    calls = [{"name": "hang", "arguments": {}}] * (THREADS + 4)
    try:
        with holdfast.open("memory:") as hf:
            model = Scripted([calls, {"name": "quick", "arguments": {}}, "Done."])
            assert hf.agent("a", model=model, tools=[hang, quick]).send("s", "Go").status == "done"
            told = [one.result for message in hf.session("s").messages() for one in message.tool_results]
    finally:
        let_go.set()
    assert told[-1] == "quick"
    assert all(begun.acquire(timeout=5) for _ in calls), "each of them has begun, also those that had to wait"


def test_a_thread_that_was_left_ends_with_what_it_did() -> None:
    pool, let_go = CallbackPool(1, "left"), threading.Event()
    try:
        hung = pool.submit(let_go.wait, 20)
        until(hung.running)
        behind = pool.submit(threading.current_thread)
        pool.abandon(hung)
        pool.abandon(hung)
        stand_in = behind.result(5)
    finally:
        let_go.set()
    assert hung.result(5)
    until(lambda: sum(one.name.startswith("left_") for one in threading.enumerate()) == 1)
    assert pool.submit(threading.current_thread).result(5) is stand_in
    pool.abandon(behind)  # It has ended: there is nothing to leave.
    assert pool.submit(threading.current_thread).result(5) is stand_in
    pool.shutdown()


def test_too_many_tools_that_hang_are_said_and_begin_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_pool, "MAX_ABANDONED", 2)
    pool, let_go = CallbackPool(1, "many"), threading.Event()
    try:
        for _ in range(2):
            hung = pool.submit(let_go.wait, 20)
            until(hung.running)
            pool.abandon(hung)
        with pytest.raises(ToolFailed, match="Too many tools hang"):
            pool.submit(lambda: 1)
    finally:
        let_go.set()
    until(lambda: not pool._lined._left)
    assert pool.submit(lambda: 1).result(5) == 1
    pool.shutdown()


def test_the_time_of_a_tool_runs_from_when_it_begins() -> None:
    async def lined_up(work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0.1)
        return await asyncio.to_thread(work)

    async def test() -> Any:
        return await run_function("t", lambda: "ran", {}, lined_up, is_async=False, timeout=0.05)

    assert asyncio.run(test()) == "ran"


# closing


@pytest.mark.parametrize("blocks", [False, True])
def test_whoever_waits_for_a_tool_that_heeds_nothing_hears_that_the_client_was_closed(
    monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    for module in (tasks, loop_thread):
        monkeypatch.setattr(module, "CLOSE_TIMEOUT", 0.2)
    monkeypatch.setattr(loop_thread, "JOIN_TIMEOUT", 0.1)
    begun, let_go = threading.Event(), threading.Event()
    came: list[Any] = []

    @tool
    async def stubborn() -> str:
        """Heed nothing."""
        begun.set()
        while not let_go.is_set():
            try:
                if blocks:
                    let_go.wait(20)
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        return "ok"

    hf = holdfast.open("memory:")
    agent = hf.agent("a", model=Scripted([{"name": "stubborn", "arguments": {}}, "Done."]), tools=[stubborn])

    def send() -> None:
        try:
            came.append(agent.send("s", "Go"))
        except Closed as error:
            came.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert begun.wait(5)
    before = time.monotonic()
    hf.close()
    took = time.monotonic() - before
    sender.join(5)
    let_go.set()
    until(lambda: not any(one.name == "holdfast-agents" for one in threading.enumerate()))
    assert not sender.is_alive()
    assert isinstance(came[0], Closed)
    assert took < 1.0


def test_a_closed_client_leaves_nothing_of_its_agents_behind() -> None:
    gone = []
    for _ in range(2):
        hf = holdfast.open("memory:")
        assert hf.agent("a", model=Scripted(["Hi."])).send("s", "Hello").text == "Hi."
        gone.append(weakref.ref(hf.env.leases))
        hf.close()
    del hf
    until(lambda: gc.collect() >= 0 and not any(one() for one in gone))

    async def test() -> weakref.ref[Any]:
        async with holdfast.open_async("memory:") as hf:
            await hf.agent("a", model=Scripted(["Hi."])).send("s", "Hello")
            return weakref.ref(tasks.get_agent_tasks(hf))

    kept = asyncio.run(test())
    until(lambda: gc.collect() >= 0 and kept() is None)


# words that were taken back


class Retracting(Gated):
    """Says something and takes it back, then goes on as it is told."""

    fails = False

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        assert say is not None
        say(Delta(text="Wrong."))
        if self.fails:
            raise ModelFailed("Gone.", kind="unavailable", retryable=True)
        say(Delta(kind="reset"))
        return await super().reply(asked, say)


@pytest.mark.parametrize("words", ["", "Right."])
def test_words_that_were_taken_back_are_not_kept_by_a_stop(words: str) -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Retracting(["Done."], words=words)
            agent = hf.agent("a", model=model)
            sending = asyncio.ensure_future(agent.send("s", "Hello"))
            await model.begun.wait()
            assert await agent.stop("s")
            assert (await sending).status == "stopped"
            said = [one.text for one in await (await hf.session("s")).messages() if one.partial]
            assert said == ([words] if words else [])

    asyncio.run(test())


def test_words_of_a_call_that_failed_are_no_part_of_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers: list[TurnDriver] = []
    run = TurnDriver.run
    monkeypatch.setattr(TurnDriver, "run", lambda self: drivers.append(self) or run(self))
    monkeypatch.setattr(Retracting, "fails", True)
    with holdfast.open("memory:") as hf, pytest.raises(ModelFailed):
        hf.agent("a", model=Retracting(["Done."])).send("s", "Hello")
    assert drivers[0]._engine.streamed() == ""


# taking up


@pytest.mark.parametrize(
    "how",
    [{"every": value} for value in (0, -1, True, "1", None, float("nan"), float("inf"))]
    + [{"at_once": value} for value in (0, -1, True, 1.5, "1", None)],
    ids=str,
)
def test_recovering_refuses_numbers_that_make_no_sense(how: dict[str, Any]) -> None:
    with holdfast.open("memory:") as hf:
        recovering = hf.agent("a", model=Scripted([])).recovering(**how)
        with pytest.raises(InvalidValue, match=next(iter(how))):
            recovering.__enter__()


def test_a_look_that_fails_is_warned_of_once_and_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    async def look(self: Recovery) -> int:
        looked.append(1)
        raise ZeroDivisionError

    async def test() -> None:
        async with holdfast.open_async("memory:") as hf, hf.agent("a", model=Scripted([])).recovering(every=0.001):
            await until_async(lambda: len(looked) > 2)

    monkeypatch.setattr(Recovery, "poll", look)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(test())
    assert ["ZeroDivisionError" in str(one.message) for one in warned if one.category is RuntimeWarning] == [True]


def test_who_was_overtaken_gets_the_reply_that_another_process_ended_the_turn_with(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_clients(tmp_path / "a.db") as (one, other):
            model = Gated(["Late."])
            sending = asyncio.ensure_future(one.agent("a", model=model).send("s", "Hello", key="k"))
            await model.begun.wait()
            one._client.env.leases.close()  # No more signs of life, as if its machine had gone.
            async with other.agent("a", model=Scripted(["Taken over."])).recovering(every=0.02) as recovering:
                await until_async(lambda: recovering.taken_up == 1)
            model.go_on.set()
            reply = await sending
            again = await other.agent("a", model=Scripted([])).send("s", "Hello", key="k")
            assert (reply.status, reply.text) == ("done", "Taken over.")
            assert reply == again

    asyncio.run(test())


# replies that are read again


class Point(msgspec.Struct):
    """A place."""

    x: int


def test_a_stored_reply_that_does_not_fit_another_output_is_given_without_data() -> None:
    with holdfast.open("memory:") as hf:
        hf.agent("a", model=Scripted(["Hello."])).send("s", "Hi", key="k")
        reply = hf.agent("a", model=Scripted([]), output=Point).send("s", "Hi", key="k")
    assert (reply.status, reply.text, reply.data) == ("done", "Hello.", None)
    assert "does not fit" in str(reply.reason)


def test_a_stream_of_a_turn_that_waits_gives_its_open_question() -> None:
    with holdfast.open("memory:") as hf:
        agent = hf.agent("a", model=Scripted([CALLS_PAY, "Done."]), tools=[pay])
        assert agent.send("s", "Pay").status == "waiting"
        heard = list(agent.stream("s"))
        assert heard == list(agent.tail("s"))
        assert [event.data["question"] for event in heard if event.kind == "question"] == [
            question.id for question in agent.send("s").questions
        ]


def test_recovering_is_for_one_tenant() -> None:
    with holdfast.open("memory:") as hf:
        agent = hf.agent("a", model=Scripted([CALLS_PAY, "Done."]), tools=[pay])
        mine = agent.tenant("t")
        question = mine.send("s", "Pay").questions[0].id
        hf.tenant("t").answer(question, approve=True)
        with agent.recovering(every=0.01) as others, mine.recovering(every=0.01) as recovering:
            until(lambda: recovering.taken_up == 1)
        assert others.taken_up == 0
