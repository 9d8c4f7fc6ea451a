"""Hearing an agent at work: in order, from any place, from any process, and without a say in whether it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import ActorBusy, InvalidValue, ModelFailed, Refused
from holdfast.model.scripted import Scripted, call
from holdfast.models import ModelReply
from holdfast.records.messages import Delta, Message, ModelCall, ToolCallRequest
from holdfast.runtime import driver, listeners
from holdfast.runtime.driver import TurnDriver
from holdfast.runtime.reply import DELTA_EVENTS, AgentEvent
from holdfast.runtime.tools.call import ToolCall
from holdfast.runtime.tools.tool import tool
from tests.backends import IN_MEMORY
from tests.turns.agent_world import SESSION, Gated, journaled, kinds, spoken_async
from tests.turns.loops import spoken

Holdfast = holdfast.Holdfast


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "TAIL_POLL_SECONDS", 0.01)


@tool(if_interrupted="retry")
def look(at: int, call: ToolCall) -> dict[str, int]:
    """Look at something."""
    call.progress("looking", share=at)
    return {"seen": at}


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


SCRIPT = [["Let me look.", call("look", at=1), call("look", at=2)], call("pay", amount=5), "I have seen and paid."]


async def heard(events: Any) -> list[AgentEvent]:
    return [event async for event in events]


# order


def test_everything_comes_in_order(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted(SCRIPT), tools=[look, pay])
    events = list(agent.stream(SESSION, "Look and pay."))
    assert kinds(one for one in events if one.kind != "progress") == [
        *("message", "delta", "tool_call", "reply", "tool", "tool", "result", "result"),
        *("tool_call", "reply", "question"),
    ]
    assert [(one.text, one.name) for one in events if one.kind == "tool_call"] == [("", "look")] * 2 + [("", "pay")]
    assert [one.name for one in events if one.kind == "result"] == ["look", "look"]
    assert events[0].text == "Look and pay."
    first = [one for one in events if one.kind == "delta"]
    assert "".join(one.text for one in first) == "Let me look."
    reply = next(one for one in events if one.kind == "reply")
    assert (reply.text, [one["name"] for one in reply.data["calls"]]) == ("Let me look.", ["look", "look"])
    assert sorted(one.data["results"][0]["result"]["seen"] for one in events if one.kind == "result") == [1, 2]
    assert [(one.text, one.name) for one in events if one.kind == "progress"] == [("looking", "look")] * 2
    assert events[-1].text == "pay(5): may it run?"

    hf.answer(events[-1].data["question"], approve=True)
    again = list(agent.stream(SESSION))
    known = journaled(events)
    assert again[: len(known)] == known, "who goes on hears the turn from its beginning"
    assert kinds(again[len(known) :]) == ["answered", "tool", "result", "delta", "reply", "done"]
    assert again[len(known) + 1].name == "pay"


class Thinking:
    """A model that thinks, writes a call and speaks, in pieces."""

    name, price = "thinking", None

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None]) -> ModelReply:
        """Think and call a tool; with its result, think and speak."""
        for piece in ("I ", "wonder."):
            say(Delta(kind="reasoning", text=piece))
        if any(message.tool_results for message in asked.pack.messages):
            for piece in ("It ", "is 1."):
                say(Delta(text=piece))
            return ModelReply(message=Message(role="assistant", content="It is 1."))
        say(Delta(kind="tool", text="look"))
        request = ToolCallRequest(name="look", arguments='{"at": 1}')
        return ModelReply(message=Message(role="assistant", tool_calls=(request,)))

    async def close(self) -> None:
        """There is nothing to close."""


def hear_pieces(hf: Holdfast) -> None:
    """Only the reply's own words are deltas; what led to them has kinds of its own, and results name their tools."""
    agent = hf.agent("a", model=Thinking(), tools=[look], history=False)
    events = list(agent.stream(SESSION, "Look."))
    assert "".join(one.text for one in events if one.kind == "delta") == "It is 1."
    assert "".join(one.text for one in events if one.kind == "thinking") == "I wonder." * 2
    assert [(one.name, one.text) for one in events if one.kind == "tool_call"] == [("look", "")]
    (result,) = [one for one in events if one.kind == "result"]
    assert (result.name, result.data["results"][0]["name"]) == ("look", "look")
    before = next(one.id for one in events if one.kind == "tool")
    again = [one for one in agent.tail(SESSION, after=before) if one.kind == "result"]
    assert [one.name for one in again] == ["look"], "whoever comes after the call hears its name as well"


def test_a_delta_is_the_replys_text_and_a_result_names_its_tool(hf: Holdfast) -> None:
    hear_pieces(hf)


@pytest.mark.parametrize("kind", ["reasoning", "tool"])
def test_deltas_that_mix_are_noticed(hf: Holdfast, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "DELTA_EVENTS", {**DELTA_EVENTS, kind: "delta"})
    with pytest.raises(AssertionError):
        hear_pieces(hf)


def test_a_stream_tells_of_its_own_turn_only(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted(lambda pack: f"To {len(pack.conversation.messages)}."))
    for number in (1, 3):
        events = list(agent.stream(SESSION, f"Message {number}"))
        assert kinds(events) == ["message", "delta", "reply", "done"]
        assert (events[0].text, events[-2].text) == (f"Message {number}", f"To {number}.")


def test_the_same_key_is_heard_again_from_the_beginning(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted({"one": "First.", "two": "Second."}))
    first = list(agent.stream(SESSION, "One", key="k"))
    agent.send(SESSION, "Two")
    assert list(agent.stream(SESSION, "One", key="k")) == journaled(first), "and not what came after it"
    assert spoken(hf)[0::2] == [("user", "One"), ("user", "Two")]


def test_what_goes_wrong_is_raised_at_the_end(hf: Holdfast) -> None:
    answers: list[Any] = [ModelFailed("Away.", kind="unavailable", retryable=True, partial="As f"), "Hi."]
    agent = hf.agent("a", model=Scripted(lambda pack: answers.pop(0)))
    events: list[AgentEvent] = []
    with pytest.raises(ModelFailed, match="Away"):
        events.extend(agent.stream(SESSION, "Hello"))
    assert kinds(events) == ["message", "delta"]
    with pytest.raises(Refused, match="nothing to continue"):
        list(agent.stream("empty"))
    assert kinds(agent.stream(SESSION)) == ["message", "delta", "reply", "done"]


# reconnecting


def test_from_every_place_exactly_the_rest_is_heard(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted(SCRIPT), tools=[look, pay])
    events = journaled(agent.stream(SESSION, "Look and pay."))
    for number, event in enumerate(events):
        assert list(agent.tail(SESSION, event.id)) == events[number + 1 :]
    hf.answer(events[-1].data["question"], approve=True)
    answered = journaled(agent.stream(SESSION))
    assert answered[: len(events)] == events
    for number, event in enumerate(answered):
        assert list(agent.tail(SESSION, event.id)) == answered[number + 1 :]
    assert list(agent.tail(SESSION)) == [], "nothing is under way"
    assert len({event.id for event in answered}) == len(answered)


@pytest.mark.parametrize("after", ["", "x", "1", "1.2.3", "-1.2", "1.x", 7, "1" * 40 + ".1"])
@IN_MEMORY
def test_a_place_that_is_none_is_refused(hf: Holdfast, after: Any) -> None:
    with pytest.raises(InvalidValue, match="id of an event"):
        list(hf.agent("a", model="scripted").tail(SESSION, after))


def test_another_client_hears_every_event_that_is_in_the_journal_and_no_delta(tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as here, holdfast.open_async(tmp_path / "a.db") as there:
            model = Gated({"go": ["Later."]})
            agent, other = here.agent("a", model=model), there.agent("a", model="scripted")
            mine = asyncio.ensure_future(heard(agent.stream(SESSION, "Go")))
            await model.begun.wait()
            theirs = asyncio.ensure_future(heard(other.tail(SESSION)))
            await asyncio.sleep(0.02)
            model.go_on.set()
            assert await theirs == journaled(await mine)
            assert kinds(await theirs) == ["message", "reply", "done"]

    asyncio.run(main())


def test_who_comes_late_gets_the_words_so_far() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated([["First.", call("look", at=1)], "Second."])
            agent = hf.agent("a", model=model, tools=[look])
            work = asyncio.ensure_future(agent.send(SESSION, "Go"))
            await model.begun.wait()
            late = agent.tail(SESSION)
            events = [await anext(late), await anext(late)]
            assert [(one.kind, one.text) for one in events] == [("message", "Go"), ("delta", "So far")]
            model.begun.clear()
            model.go_on.set()
            await work
            rest = [*events, *await heard(late)]
            told = [one for one in rest if one.kind != "progress"]
            assert kinds(told) == ["message", "delta", "reply", "tool", "result", "delta", "reply", "done"]

    asyncio.run(main())


def test_words_of_a_reply_that_is_written_are_not_told_again() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            waits, go_on = asyncio.Event(), asyncio.Event()

            @tool
            async def wait() -> str:
                """Wait."""
                waits.set()
                await go_on.wait()
                return "ok"

            agent = hf.agent("a", model=Scripted([["Let me wait.", call("wait")], "Done."]), tools=[wait])
            work = asyncio.ensure_future(agent.send(SESSION, "Go"))
            await waits.wait()
            late = asyncio.ensure_future(heard(agent.tail(SESSION)))
            await asyncio.sleep(0.03)
            go_on.set()
            assert kinds(await late) == ["message", "reply", "tool", "result", "delta", "reply", "done"]
            assert (await work).text == "Done."

    asyncio.run(main())


def test_who_stops_listening_does_not_stop_the_work() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated(["Done."])
            agent = hf.agent("a", model=model)
            stream = agent.stream(SESSION, "Go", key="k")
            assert (await anext(stream)).kind == "message"
            await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
            model.go_on.set()
            assert (await agent.send(SESSION, "Go", key="k")).text == "Done."
            assert len(model.requests) == 1
            assert agent._crew.hub._ears == {}

    asyncio.run(main())


def test_who_stops_listening_in_a_thread_does_not_stop_the_work(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted(["It goes on and on."], pause=0.001))
    for event in agent.stream(SESSION, "Go", key="k"):
        if event.kind == "delta":
            break
    assert agent.send(SESSION, "Go", key="k").text == "It goes on and on."


# in line


def test_a_stream_that_waits_in_line_hears_its_own_turn_only() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated({"one": "First.", "two": "Second."})
            agent = hf.agent("a", model=model)
            first = asyncio.ensure_future(heard(agent.stream(SESSION, "One")))
            await model.begun.wait()
            second = asyncio.ensure_future(heard(agent.stream(SESSION, "Two")))
            await asyncio.sleep(0.02)
            model.go_on.set()
            for events, texts in ((await first, ("One", "First.")), (await second, ("Two", "Second."))):
                assert kinds(events) == ["message", "delta", "reply", "done"]
                assert (events[0].text, events[-2].text) == texts

    asyncio.run(main())


def test_a_stream_that_is_rejected_says_so() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated(["Done."])
            agent = hf.agent("a", model=model)
            work = asyncio.ensure_future(agent.send(SESSION, "Go"))
            await model.begun.wait()
            with pytest.raises(ActorBusy):
                await heard(agent.stream(SESSION, "Me too", if_busy="reject"))
            model.go_on.set()
            await work
            assert await spoken_async(hf) == [("user", "Go"), ("assistant", "Done.")]

    asyncio.run(main())


def test_a_stream_that_joins_hears_the_turn_it_joined() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated(lambda pack: "First." if len(pack.conversation.messages) == 1 else "Both.")
            agent = hf.agent("a", model=model)
            first = asyncio.ensure_future(agent.send(SESSION, "One"))
            await model.begun.wait()
            second = asyncio.ensure_future(heard(agent.stream(SESSION, "Two", if_busy="join")))
            while len(await spoken_async(hf)) < 2:
                await asyncio.sleep(0.001)
            model.go_on.set()
            events = await second
            told = [one for one in events if one.kind in ("message", "reply") and not one.data["synthetic"]]
            assert [one.text for one in told] == ["Two", "First.", "Both."]
            assert events[-1].kind == "done"
            assert (await first).text == "Both."

    asyncio.run(main())


# stopping


@pytest.mark.parametrize("who", ["same", "other"])
def test_a_stop_during_a_stream_keeps_what_was_shown(tmp_path: Path, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.tasks.STOP_POLL_SECONDS", 0.01)

    async def main() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as here, holdfast.open_async(tmp_path / "a.db") as there:
            model = Gated(["never"])
            agent = here.agent("a", model=model)
            other = agent if who == "same" else there.agent("a", model="scripted")
            stream = asyncio.ensure_future(heard(agent.stream(SESSION, "Go", key="k")))
            await model.begun.wait()
            assert await other.stop(SESSION, "enough")
            events = await asyncio.wait_for(stream, 5)
            assert kinds(events) == ["message", "delta", "reply", "stopped"]
            assert (events[-2].text, events[-2].data["partial"], events[-1].text) == ("So far", True, "enough")
            reply = await agent.send(SESSION, "Go", key="k")
            assert (reply.status, reply.text, reply.reason) == ("stopped", "So far", "enough")
            assert not await other.stop(SESSION), "there is nothing to stop any more"
            assert (await here.journal.verify()).findings == ()

    asyncio.run(main())


def test_a_stop_that_comes_before_the_first_look_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.tasks.STOP_POLL_SECONDS", 0.03)

    async def main() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as here, holdfast.open_async(tmp_path / "a.db") as there:
            for name in ("one", "two"):  # The second tenant's turn begins while the first one's are looked after.
                model = Gated(["never"])
                agent = here.agent("a", model=model).tenant(name)
                work = asyncio.ensure_future(agent.send(SESSION, "Go"))
                await model.begun.wait()
                assert await there.agent("a", model="scripted").tenant(name).stop(SESSION, "enough")
                assert (await asyncio.wait_for(work, 5)).reason == "enough"

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_stop_does_not_wait_for_tools(kind: str) -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            begun, let_go = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            @tool
            async def hang() -> str:
                """Hang."""
                begun.set()
                await let_go.wait()
                return "never"

            @tool(name="hang")
            def hang_in_thread() -> str:
                """Hang."""
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(let_go.wait(), loop).result()
                return "never"

            agent = hf.agent(
                "a", model=Scripted([call("hang"), "no"]), tools=[hang if kind == "async" else hang_in_thread]
            )
            work = asyncio.ensure_future(agent.send(SESSION, "Go"))
            await begun.wait()
            assert await agent.stop(SESSION, "enough")
            reply = await asyncio.wait_for(work, 5)
            assert (reply.status, reply.reason) == ("stopped", "enough")
            assert "interrupted" in str(await spoken_async(hf)).lower()
            let_go.set()
            assert (await hf.journal.verify()).findings == ()

    asyncio.run(main())


def test_an_interrupting_message_stops_the_turn_and_is_answered() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated({"one": "never", "two": "Second."})
            agent = hf.agent("a", model=model)
            first = asyncio.ensure_future(agent.send(SESSION, "One"))
            await model.begun.wait()
            second = asyncio.ensure_future(heard(agent.stream(SESSION, "Two", if_busy="interrupt")))
            stopped = await first
            assert (stopped.status, stopped.text) == ("stopped", "So far")
            model.go_on.set()
            assert kinds(await second) == ["message", "delta", "reply", "done"]

    asyncio.run(main())


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
    monkeypatch.setattr(TurnDriver, "run", lambda self, load: drivers.append(self) or run(self, load))
    monkeypatch.setattr(Retracting, "fails", True)
    with holdfast.open("memory:") as hf, pytest.raises(ModelFailed):
        hf.agent("a", model=Retracting(["Done."])).send("s", "Hello")
    assert drivers[0]._engine.streamed() == ""
