"""Stopping: what was shown is kept, calls get results that say so, whoever asks for it and wherever the turn is."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, CallTool
from holdfast.core.journal.codec import decode_event
from holdfast.errors import Refused
from holdfast.records.reports import EventQuery
from holdfast.runtime import tasks as crews
from holdfast.runtime.tasks import AgentTasks, get_agent_tasks
from holdfast.testing.clock import FrozenClock
from tests.turns.agent_world import Gated, Shop
from tests.turns.loops import SESSION, asks, check_valid, leave_at, loop, only_question, place, replies, spoken, take

Holdfast = holdfast.Holdfast


def chunks(*texts: str, end: bool = True) -> Iterator[dict[str, Any]]:
    """A stream of chat completions."""
    for text in texts:
        yield {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    if end:
        yield {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 3},
        }


def partial(hf: Holdfast) -> list[str]:
    return [message.text for message in hf.session(SESSION).messages() if message.partial]


def test_what_was_shown_is_kept_when_the_stop_button_is_pressed(hf: Holdfast) -> None:
    seen, done = [], None
    with hf.session(SESSION).turn("Tell me.", key="k") as turn:
        for step in turn:
            if isinstance(step, CallModel):
                for text in step.stream(chunks("One ", "two ", "three ", "four.")):
                    seen.append(text)
                    if len(seen) == 2:
                        turn.stop("The person pressed stop.")
            else:
                done = step
    assert seen == ["One ", "two "]
    assert (done.status, done.text, done.reason) == ("stopped", "One two ", "The person pressed stop.")
    assert partial(hf) == ["One two "]
    assert hf.index.resume_actor(place()).frames == ()
    again = take(hf, "Tell me.", replies(), key="k")
    assert (again.status, again.reason) == ("stopped", "The person pressed stop.")
    assert take(hf, "Go on.", replies("three.")).text == "three."


def test_another_client_may_ask_for_it(hf: Holdfast, clock: FrozenClock) -> None:
    other = Holdfast(hf.env)
    seen: list[str] = []
    with hf.session(SESSION).turn("Tell me.") as turn:
        (step,) = turn.steps()
        for text in step.stream(chunks("One ", "two ", "three ", "four.")):
            seen.append(text)
            clock.advance(600)
            if len(seen) == 2:
                assert other.session(SESSION).stop("Enough.") is True
        (done,) = turn.steps()
    assert seen == ["One ", "two "]
    assert (done.status, done.reason) == ("stopped", "Enough.")
    assert partial(hf) == ["One two "]


def test_asking_for_it_between_two_steps(hf: Holdfast) -> None:
    def tool(step: CallTool) -> None:
        assert hf.session(SESSION).stop()
        assert hf.session(SESSION).stop("again"), "asking twice is asking once"
        step.done("ok")

    done = take(hf, "Go.", replies(asks(("a", {}), ("b", {}))), tool)
    assert (done.status, done.reason) == ("stopped", "stopped")
    results = [message.tool_results[0] for message in hf.session(SESSION).messages() if message.tool_results]
    assert [(result.result == "ok", result.interrupted) for result in results] == [(True, False), (False, True)]


def test_there_may_be_nothing_to_stop(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    before = hf.journal.position()
    assert chat.stop() is False
    take(hf, "Hello", replies("Hi."))
    position = hf.journal.position()
    assert chat.stop() is False
    assert hf.journal.position() == position > before


def test_a_turn_is_stopped_once_and_that_can_be_asked_again(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        turn.steps()
        first = turn.stop("one")
        assert turn.stop("two") is first
        assert list(turn) == [first]
        assert turn.steps() == []
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        assert turn.stop("three").reason == "one"


def test_steps_of_a_stopped_turn_take_no_more(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Go.") as turn:
        turn.steps()[0].done(asks(("a", {}), ("b", {})))
        first, second = turn.steps()
        first.done("ok")
        turn.stop()
        with pytest.raises(Refused):
            second.done("late")
    assert spoken(hf)[-1][1][0].startswith("This call was interrupted")


def test_a_turn_that_nobody_works_on_is_stopped_by_whoever_comes_next(hf: Holdfast) -> None:
    leave_at(hf, "Refund.", CallTool, replies(asks(("refund", {}))), key="old")
    assert hf.session(SESSION).stop("Leave it.")
    done = take(hf, "Something else.", replies("Yes?"), key="new")
    assert (done.status, done.text) == ("done", "Yes?"), "a new message is not stopped with the old turn"
    old = take(hf, "Refund.", replies(), key="old")
    assert (old.status, old.reason) == ("stopped", "Leave it.")
    assert [role for role, _ in spoken(hf)] == ["user", "assistant", "tool", "user", "assistant"]


def test_going_on_with_a_turn_that_is_to_be_stopped_stops_it(hf: Holdfast) -> None:
    leave_at(hf, "Refund.", CallTool, replies(asks(("refund", {}))), key="old")
    hf.session(SESSION).stop("Leave it.")
    done = take(hf, "Refund.", replies(), key="old")
    assert (done.status, done.reason) == ("stopped", "Leave it.")
    assert list(hf.questions()) == []


def test_a_question_ends_with_the_turn(hf: Holdfast) -> None:
    ask = take(hf, "Refund.", replies(asks(("refund", {}))), needs_approval=["refund"])
    assert only_question(hf).id == ask.id
    hf.session(SESSION).stop()
    assert list(hf.questions()) == []
    with pytest.raises(holdfast.HoldfastError):
        hf.answer(ask.id, approve=True)


def test_work_that_tools_began_elsewhere_ends_with_the_turn(hf: Holdfast) -> None:
    def tool(step: CallTool) -> None:
        hf.index.push_frame("elsewhere", parent=step.key, scope="actor/other")
        if step.name == "b":
            turn.stop()
        else:
            step.done("ok")

    with hf.session(SESSION).turn("Go.") as turn:
        hf.index.push_frame("beside", parent=turn.id, scope="actor/third")
        done: Any = loop(turn, replies(asks(("a", {}), ("b", {}))), tool)[-1]
    assert done.status == "stopped"
    for actor in ("actor/other", "actor/third"):
        assert hf.index.resume_actor(actor).frames == (), actor
    check_valid(hf)


def test_work_of_the_turns_own_that_is_not_done_keeps_it_live_and_no_reply_is_lost(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Go.", key="k") as turn:
        child = hf.index.push_frame("beside", parent=turn.id)
        turn.steps()[0].done("Done.")
        with pytest.raises(holdfast.errors.HasLiveChildren):
            turn.steps()
    hf.index.pop_frame(child)
    assert take(hf, "Go.", replies(), key="k").text == "Done.", "the model is not asked again"


def test_the_words_of_a_stopped_turn_are_its_own(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Hello.", key="k") as turn:
        turn.steps()
        turn.stop("enough")
    chat.append({"role": "assistant", "content": "Somebody else's."})
    with chat.turn("Hello.", key="k") as turn:
        (done,) = turn.steps()
    assert (done.status, done.text) == ("stopped", "")


def test_a_turn_that_nobody_works_on_has_ended_when_it_is_stopped(hf: Holdfast) -> None:
    shop = Shop(hf)
    shop.agent.send(SESSION, "Refund.", key="k")
    assert shop.agent.stop(SESSION, "never mind")
    assert not list(hf.questions())
    assert [event.kind for event in shop.agent.tail(SESSION)] == []
    reply = shop.agent.send(SESSION, "Refund.", key="k")
    assert (reply.status, reply.reason) == ("stopped", "never mind")


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
    monkeypatch.setattr(crews, "EventQuery", functools.partial(EventQuery, limit=FEW))


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
