"""Agents and those who wait for them: who stops them, who gives up waiting, and a server of tools that is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.core.journal.codec import decode_event
from holdfast.errors import EffectFailed
from holdfast.model.scripted import Scripted, call
from holdfast.records.reports import EventQuery
from holdfast.runtime import tasks as crews
from holdfast.runtime.send import AgentSend
from holdfast.runtime.tasks import AgentTasks, get_agent_tasks
from holdfast.runtime.tools.tool import AnyTool, tool
from tests.turns.agent_world import SESSION, Gated, kinds, on_loop, spoken_async, until_async

FEW = 2
"""Events on a page of the journal, in tests of paging."""


# stops of other processes


async def stopped_elsewhere(path: Path) -> int:
    """How many of some turns end that another client stops, all of them between two looks."""
    async with holdfast.open_async(path, durability="fast") as hf:
        models = [Gated(["Late."]) for _ in range(2 * FEW + 1)]
        work = [
            asyncio.ensure_future(hf.agent("a", model=model).send(f"s{at}", "Go")) for at, model in enumerate(models)
        ]
        for model in models:
            await model.begun.wait()
        await get_agent_tasks(hf)._poll_stops()

        def stop() -> None:
            with holdfast.open(path, durability="fast") as other:
                assert all(other.session(f"s{at}").stop("Enough.") for at in range(len(models)))

        await asyncio.to_thread(stop)
        await get_agent_tasks(hf)._poll_stops()
        ended, _ = await asyncio.wait(work, timeout=0.5)
        assert {one.result().reason for one in ended} == {"Enough."}
        await get_agent_tasks(hf).cancel_all()
        await asyncio.gather(*work, return_exceptions=True)
        return len(ended)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few stops fit on a page, and nobody looks but the test."""
    monkeypatch.setattr(crews, "STOP_POLL_SECONDS", 60.0)
    monkeypatch.setattr(crews, "EventQuery", partial(EventQuery, limit=FEW))


def asked_on_one_page(self: AgentTasks, tenants: set[str]) -> list[tuple[str, Any]]:
    """What does not fit on the first page is never looked at."""
    newest, found = self._env.journal.position(), []
    for tenant in tenants:
        query = EventQuery(
            tenant=tenant, after=self._seen.get(tenant, newest), until=newest, types=crews.STOP_EVENTS, limit=FEW
        )
        found += [(tenant, decode_event(event).facts) for event in self._env.journal.read(query)]
        self._seen[tenant] = newest
    return found


@pytest.mark.usefixtures("small_pages")
def test_every_stop_of_another_process_is_heard_however_many_come_at_once(tmp_path: Path) -> None:
    assert asyncio.run(stopped_elsewhere(tmp_path / "a.db")) == 2 * FEW + 1


@pytest.mark.usefixtures("small_pages")
def test_stops_that_are_on_no_page_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentTasks, "_read_stops", asked_on_one_page)
    assert asyncio.run(stopped_elsewhere(tmp_path / "a.db")) == FEW


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


# a server of tools that is away


class Server:
    """Tools that are asked for over a wire."""

    def __init__(self) -> None:
        self.away = False

    async def tools(self) -> Sequence[AnyTool]:
        if self.away:
            raise EffectFailed("The server is away.")

        @tool
        async def look() -> str:
            """Look."""
            return "seen"

        return [look]


async def without_a_server(hf: AsyncHoldfast) -> None:
    server = Server()
    agent = hf.agent("a", model=Scripted([call("look"), "Seen."]), tools=[server])
    assert (await agent.send(SESSION, "One", key="1")).text == "Seen."
    server.away = True
    assert (await agent.send(SESSION, "One", key="1")).text == "Seen.", "what was answered needs no server"
    with pytest.raises(EffectFailed):
        await agent.send(SESSION, "Two", key="2")
    assert (await spoken_async(hf))[-1] == ("user", "Two"), "it is in the journal"
    stream = agent.stream("new", "Three", key="3")
    assert (await anext(stream)).kind == "message"
    with pytest.raises(EffectFailed):
        await anext(stream)
    async with agent.recovering(every=0.01, on_error=lambda failure: None) as recovering:
        await until_async(lambda: recovering.failures)
        server.away = False
        await until_async(lambda: recovering.taken_up == 2)
    assert (await agent.send(SESSION, "Two", key="2")).text == "Seen."
    assert (await agent.send("new", "Three", key="3")).text == "Seen."
    assert (agent._crew.hub._reached, agent._crew.hub._said) == ({}, {})


def test_a_message_is_not_lost_with_a_server_of_tools() -> None:
    on_loop(without_a_server)


def test_a_message_that_waits_for_a_server_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = AgentSend.run

    async def lists_first(self: AgentSend[Any]) -> Any:
        await self._load_tools()
        return await run(self)

    monkeypatch.setattr(AgentSend, "run", lists_first)
    with pytest.raises(EffectFailed):
        on_loop(without_a_server)
