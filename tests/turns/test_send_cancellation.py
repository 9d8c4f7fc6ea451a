"""Senders that give up waiting: work that has begun goes on, and a message still in line is never said."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.model.scripted import Scripted, call
from holdfast.runtime.send import AgentSend
from holdfast.runtime.tools.tool import AnyTool, tool
from tests.turns.agent_world import SESSION, Gated, kinds, on_loop, spoken_async, until_async

# who gives up waiting


class Slow:
    """A tool that takes its time, in a thread or on the loop, and says whether it was done to its end."""

    def __init__(self) -> None:
        self.begun, self.ended = list[str](), list[str]()
        self.go_on = asyncio.Event()

    def tools(self) -> list[AnyTool]:
        @tool
        async def pay() -> str:
            """Pay."""
            self.begun.append("pay")
            await self.go_on.wait()
            self.ended.append("pay")
            return "paid"

        @tool
        def pay_in_thread() -> str:
            """Pay."""
            self.begun.append("pay_in_thread")
            while not self.go_on.is_set():
                time.sleep(0.001)
            self.ended.append("pay_in_thread")
            return "paid"

        return [pay, pay_in_thread]


async def given_up(hf: AsyncHoldfast, name: str) -> None:
    slow = Slow()
    agent = hf.agent("a", model=Scripted([call(name), "Paid."]), tools=slow.tools())
    sending = asyncio.ensure_future(agent.send(SESSION, "Pay", key="k"))
    await until_async(lambda: slow.begun)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    slow.go_on.set()
    await until_async(lambda: not agent._crew.tasks)
    reply = await agent.send(SESSION, "Pay", key="k")
    assert (reply.status, reply.text, slow.begun, slow.ended) == ("done", "Paid.", [name], [name])
    assert (await spoken_async(hf))[2] == ("tool", ["paid"])


@pytest.mark.parametrize("name", ["pay", "pay_in_thread"])
def test_work_that_has_begun_goes_on_when_nobody_waits_for_it_any_more(name: str) -> None:
    on_loop(partial(given_up, name=name))


@pytest.mark.parametrize("name", ["pay", "pay_in_thread"])
def test_a_tool_that_is_torn_with_its_sender_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "shield", lambda task: task)
    with pytest.raises(AssertionError):
        on_loop(partial(given_up, name=name))


def test_a_request_that_timed_out_is_answered_under_its_key() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        model = Gated(["Here you are."])
        agent = hf.agent("a", model=model)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.send(SESSION, "Hello", key="k"), 0.05)
        assert model.begun.is_set()
        model.go_on.set()
        assert (await agent.send(SESSION, "Hello", key="k")).text == "Here you are."
        assert len(model.requests) == 1

    on_loop(work)


def test_who_is_not_waited_for_is_drained_and_left_as_all_others_are() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        model = Gated(["Never."])
        agent = hf.agent("a", model=model)
        sending = asyncio.ensure_future(agent.send(SESSION, "Hello", key="k"))
        await model.begun.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert len(agent._crew.tasks) == 1
        await agent._crew.cancel_all()
        assert not agent._crew.tasks
        again = hf.agent("a", model=Scripted(["Hi."]))
        assert (await again.send(SESSION, "Hello", key="k", if_busy="reject")).text == "Hi."

    on_loop(work)


async def taken_back(hf: AsyncHoldfast, how: str) -> None:
    """A message that waits behind another one's turn, and whose sender gives up."""
    model = Gated(["First."])
    agent = hf.agent("a", model=model)
    first = asyncio.ensure_future(agent.send(SESSION, "One", key="1"))
    await model.begun.wait()

    async def streamed() -> None:
        async for _ in agent.stream(SESSION, "Two", key="2"):
            pass

    second = asyncio.ensure_future(agent.send(SESSION, "Two", key="2") if how == "send" else streamed())
    await until_async(lambda: len(agent._crew.tasks) == 2)
    await asyncio.sleep(0.02)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await until_async(lambda: len(agent._crew.tasks) == 1, 0.5)
    model.go_on.set()
    assert (await first).text == "First."
    await until_async(lambda: not agent._crew.tasks)
    assert await spoken_async(hf) == [("user", "One"), ("assistant", "First.")]


@pytest.mark.parametrize("how", ["send", "stream"])
def test_what_still_waits_in_line_is_never_said_once_its_sender_has_given_up(how: str) -> None:
    on_loop(partial(taken_back, how=how))


@pytest.mark.parametrize("how", ["send", "stream"])
def test_a_message_that_is_said_by_surprise_is_noticed(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentSend, "withdraw", lambda self: None)
    with pytest.raises(AssertionError):
        on_loop(partial(taken_back, how=how))


async def given_up_somewhere(hf: AsyncHoldfast, rounds: int) -> str:
    """Cancelled after so many rounds of the loop, a message is either said and answered, or was never there."""
    agent = hf.agent("a", model=Scripted(["Hi."]))
    sending = asyncio.ensure_future(agent.send(SESSION, "Hello", key="k"))
    for _ in range(rounds):
        await asyncio.sleep(0.0002)
    sending.cancel()
    (came,) = await asyncio.gather(sending, return_exceptions=True)
    await until_async(lambda: not agent._crew.tasks)
    said = await spoken_async(hf)
    assert said in ([], [("user", "Hello"), ("assistant", "Hi.")])
    assert (await agent.send(SESSION, "Hello", key="k", if_busy="reject")).text == "Hi."
    return "answered" if not isinstance(came, BaseException) else "went on" if said else "taken back"


def test_given_up_anywhere_it_is_answered_or_was_never_said() -> None:
    found = set()
    for rounds in range(30):

        async def work(hf: AsyncHoldfast, rounds: int = rounds) -> None:
            found.add(await given_up_somewhere(hf, rounds))

        on_loop(work)
    assert "taken back" in found
    assert found - {"taken back"}


def test_a_listener_that_times_out_leaves_the_work_and_tail_goes_on() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        model = Gated(["Done."], words="")
        agent = hf.agent("a", model=model)
        stream = agent.stream(SESSION, "Go", key="k")
        first = await anext(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        assert [event async for event in stream] == [], "its generator has ended"
        listening = agent.tail(SESSION, first.id)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(listening), 0.05)
        model.go_on.set()
        assert kinds([event async for event in agent.tail(SESSION, first.id)]) == ["reply", "done"]

    on_loop(work)
