"""Listeners of an agent: one that reconnects hears a reply from its beginning, and none waits for ever."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.model.scripted import Scripted, call
from holdfast.runtime import listeners
from holdfast.runtime.listeners import Tail
from holdfast.runtime.reply import AgentEvent
from holdfast.runtime.send import AgentSend
from holdfast.runtime.tasks import ListenerHub
from holdfast.runtime.tools.tool import tool
from tests.turns.agent_world import SESSION, Gated, kinds, on_loop, until_async

PLACE = ("default", f"session/{SESSION}/thread/main")


def words(heard: list[AgentEvent]) -> str:
    """The text of the reply that is under way, as a client puts it together."""
    text = ""
    for event in heard:
        if event.kind == "reset":
            text = ""
        elif event.kind == "delta":
            text += event.text
    return text


# listening again


async def heard_again(hf: AsyncHoldfast) -> None:
    model = Gated(["So far so good."], words="So far")
    agent = hf.agent("a", model=model)
    stream, heard = agent.stream(SESSION, "Go", key="k"), list[AgentEvent]()
    async for event in stream:
        heard.append(event)
        if event.kind == "delta":
            break
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
    last = [event.id for event in heard if event.id][-1]
    again = asyncio.ensure_future(listened(agent.tail(SESSION, last)))
    await until_async(lambda: agent._crew.hub._ears)
    model.go_on.set()
    heard += await again
    assert kinds(heard) == ["message", "delta", "reset", "delta", "reply", "done"]
    assert words(heard) == "So far"


async def listened(events: Any) -> list[AgentEvent]:
    return [event async for event in events]


def test_who_reconnects_is_told_that_the_reply_begins_anew() -> None:
    on_loop(heard_again)


def test_a_part_that_is_told_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = ListenerHub.listen
    monkeypatch.setattr(ListenerHub, "listen", lambda self, place, again=False: listen(self, place))
    with pytest.raises(AssertionError):
        on_loop(heard_again)


def test_who_listens_for_the_first_time_has_nothing_to_forget() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        model = Gated(["So far so good."], words="So far")
        agent = hf.agent("a", model=model)
        sending = asyncio.ensure_future(agent.send(SESSION, "Go", key="k"))
        await model.begun.wait()
        for events in (agent.tail(SESSION), agent.stream(SESSION, "Go", key="k")):
            heard = [await anext(events), await anext(events)]
            assert kinds(heard) == ["message", "delta"]
            assert words(heard) == "So far"
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator
        again = agent.tail(SESSION, heard[0].id)
        assert kinds([await anext(again), await anext(again)]) == ["reset", "delta"]
        model.go_on.set()
        await sending

    on_loop(work)


def test_nobody_is_told_to_forget_where_nothing_was_said() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        model = Gated(["Done."], words="")
        agent = hf.agent("a", model=model)
        sending = asyncio.ensure_future(agent.send(SESSION, "Go"))
        await model.begun.wait()
        again = asyncio.ensure_future(listened(agent.tail(SESSION, "0.0")))
        await until_async(lambda: agent._crew.hub._ears)
        model.go_on.set()
        assert kinds(await again) == ["message", "reply", "done"]
        await sending

    on_loop(work)


# silence


async def silent(hf: AsyncHoldfast, patience: float = 5.0) -> None:
    """Somebody was heard to work on a conversation, and nobody ever says that this is over."""

    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = hf.agent("a", model=Scripted([call("pay"), "Paid."]), tools=[pay])
    listening = asyncio.ensure_future(listened(agent.tail(SESSION, "0.0")))
    agent._crew.hub.publish_versions(PLACE, (1, 1))
    await agent.send(SESSION, "Go")
    agent._crew.hub.publish_versions(PLACE, (2, 2))
    heard = await asyncio.wait_for(asyncio.gather(listening, listened(agent.tail(SESSION, "0.0"))), patience)
    assert kinds(heard[1]) == ["message", "reply", "question"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come soon after each other."""
    monkeypatch.setattr(listeners, "TAIL_POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
def test_nobody_listens_for_ever_to_a_conversation_that_rests() -> None:
    on_loop(silent)


@pytest.mark.usefixtures("quick")
def test_a_listener_that_waits_for_who_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "IDLE_POLL_LIMIT", 10**9)
    with pytest.raises(TimeoutError):
        on_loop(partial(silent, patience=0.5))


@pytest.mark.usefixtures("quick")
def test_a_turn_that_takes_its_time_is_listened_to() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        model = Gated(["Done."], words="")
        agent = hf.agent("a", model=model)
        sending = asyncio.ensure_future(agent.send(SESSION, "Go"))
        await model.begun.wait()
        listening = asyncio.ensure_future(listened(agent.tail(SESSION)))
        await asyncio.sleep(0.01 * (listeners.IDLE_POLL_LIMIT + 10))
        assert not listening.done()
        model.go_on.set()
        assert kinds(await listening) == ["message", "reply", "done"]
        await sending

    on_loop(work)


async def answered_meanwhile(hf: AsyncHoldfast) -> None:
    """A key that was answered is sent again while another turn is at work, and somebody begins to listen to that."""
    agent = hf.agent("a", model=Scripted(["One."]))
    await agent.send(SESSION, "One", key="1")
    model = Gated(["Two."], words="Tw")
    other = hf.agent("a", model=model)
    sending = asyncio.ensure_future(other.send(SESSION, "Two", key="2"))
    await model.begun.wait()
    assert (await agent.send(SESSION, "One", key="1")).text == "One."
    assert agent._crew.hub.get_versions(PLACE) is not None, "somebody is at work"
    late = asyncio.ensure_future(listened(agent.tail(SESSION)))
    await until_async(lambda: agent._crew.hub._ears)
    model.go_on.set()
    assert kinds(await late) == ["message", "delta", "reply", "done"]
    await sending
    assert agent._crew.hub._reached == {}


def test_what_was_answered_before_says_nothing_in_the_place_of_who_is_at_work() -> None:
    on_loop(answered_meanwhile)


def test_an_answer_that_silences_others_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = AgentSend._drive_turn

    async def tells(self: Any, turn: Any, model: Any) -> Any:
        try:
            return await worked(self, turn, model)
        finally:
            self._crew.hub.publish_event(self._place, "over", {})

    monkeypatch.setattr(AgentSend, "_drive_turn", tells)
    with pytest.raises(AssertionError):
        on_loop(answered_meanwhile)


def test_a_turn_that_fails_before_its_first_step_is_over_for_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(hf: AsyncHoldfast) -> None:
        agent = hf.agent("a", model=Scripted(["Hi."]))

        def fails(self: Any, model: Any, found: Any) -> Any:
            def configure() -> None:
                raise RuntimeError("no room")

            return configure

        monkeypatch.setattr(AgentSend, "_use_tools", fails)
        with pytest.raises(RuntimeError):
            await agent.send(SESSION, "Go", key="k")
        assert agent._crew.hub.get_versions(PLACE) is None
        listening = asyncio.ensure_future(listened(agent.tail(SESSION)))
        monkeypatch.undo()
        assert (await agent.send(SESSION, "Go", key="k")).text == "Hi."
        assert kinds(await listening)[-1] == "done"

    on_loop(work)


def test_a_tail_that_sees_rest_only_where_nobody_was_heard_reads_no_more_than_before() -> None:
    asked = list[bool]()

    async def work(hf: AsyncHoldfast) -> None:
        agent = hf.agent("a", model=Scripted(["Hi there, how are you?"]))
        rests = Tail.is_idle

        def counted(self: Tail) -> bool:
            asked.append(True)
            return rests(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tail, "is_idle", counted)
            assert kinds(await listened(agent.stream(SESSION, "Go"))) == ["message", "delta", "reply", "done"]

    on_loop(work)
    assert len(asked) <= 2, "it is asked where it is quiet, and not for each piece"


# questions

CALLS_PAY = {"name": "pay", "arguments": {}}


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def test_a_stream_of_a_turn_that_waits_gives_its_open_question() -> None:
    with holdfast.open("memory:") as hf:
        agent = hf.agent("a", model=Scripted([CALLS_PAY, "Done."]), tools=[pay])
        assert agent.send("s", "Pay").status == "waiting"
        heard = list(agent.stream("s"))
        assert heard == list(agent.tail("s"))
        assert [event.data["question"] for event in heard if event.kind == "question"] == [
            question.id for question in agent.send("s").questions
        ]
