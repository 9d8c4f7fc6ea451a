"""Steps of a block that was left count no more, and a stop that was acknowledged is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, CallTool, Done
from holdfast.errors import TurnLeft
from holdfast.flow.turns import calls, turns
from holdfast.flow.turns.engine import TurnEngine
from tests.backends import IN_MEMORY
from tests.turns.agent_world import Gated
from tests.turns.loops import SESSION, asks, leave_at, replies, spoken, take

Holdfast = holdfast.Holdfast
LOOK = asks(("look", {}))
Late = Callable[[Any], object]


def _streamed(step: Any) -> object:
    return list(step.stream([{"choices": [{"delta": {"content": "Late."}, "finish_reason": "stop"}]}]))


MODEL: list[Late] = [lambda step: step.done("Late."), lambda step: step.fail("Late.", retryable=True), _streamed]
TOOL: list[Late] = [lambda step: step.done("Late."), lambda step: step.fail("Late."), lambda step: step.ask("Late?")]


@pytest.mark.parametrize("late", MODEL)
@pytest.mark.parametrize("taken", [False, True])
def test_a_reply_to_a_block_that_was_left_is_refused(hf: Holdfast, late: Late, taken: bool) -> None:
    old = leave_at(hf, "Hello", CallModel, replies(), key="k")
    if not taken:
        with pytest.raises(TurnLeft, match="Open the turn again with its key"):
            late(old)
        assert spoken(hf) == [("user", "Hello")]
        return
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        (new,) = turn.steps()
        assert isinstance(new, CallModel)
        with pytest.raises(TurnLeft):
            late(old)
        assert new.done("Hi.").id
    assert spoken(hf) == [("user", "Hello"), ("assistant", "Hi.")]


@pytest.mark.parametrize("late", TOOL)
def test_a_result_of_a_block_that_was_left_is_refused(hf: Holdfast, late: Late) -> None:
    how: Any = {"key": "k", "if_interrupted": "retry"}
    old = leave_at(hf, "Look.", CallTool, replies(LOOK), **how)
    with hf.session(SESSION).turn("Look.", **how) as turn:
        (new,) = turn.steps()
        assert isinstance(new, CallTool)
        with pytest.raises(TurnLeft):
            late(old)
        assert new.done("Seen.").id
    assert spoken(hf)[-1] == ("tool", ["Seen."])


def test_a_block_that_was_left_gives_no_more_steps(hf: Holdfast) -> None:
    """It would give the same call a second time, beside the block that has it now."""
    how: Any = {"key": "k", "if_interrupted": "retry"}
    old = leave_at(hf, "Look.", CallTool, replies(LOOK), **how)
    old._call.answered = True
    with pytest.raises(TurnLeft):
        old._engine.next_steps()


def test_a_turn_that_has_ended_says_so_after_its_block(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        first: Any = turn.steps()[0]
        first.done("Hi.")
    done: Any = turn.steps()[0]
    assert (isinstance(done, Done), turn.text) == (True, "Hi.")


@IN_MEMORY
def test_without_the_check_two_blocks_would_answer(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TurnEngine, "check_claimed", lambda self: None)
    old = leave_at(hf, "Hello", CallModel, replies(), key="k")
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        turn.steps()
        old.done("Late.")
        turn.engine._open.clear()
    assert ("assistant", "Late.") in spoken(hf)


# stopping


def test_a_stop_that_was_acknowledged_before_the_reply_is_kept_wins(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        step: Any = turn.steps()[0]
        assert hf.session(SESSION).stop("Enough.") is True
        step.done("All of it.")
        done: Any = turn.steps()[0]
    assert (done.status, done.reason, done.text) == ("stopped", "Enough.", "All of it.")
    (_, reply) = hf.session(SESSION).messages()
    assert (reply.text, reply.partial) == ("All of it.", False), "what was said whole is kept whole"
    again = take(hf, "Hello", replies(), key="k")
    assert (again.status, again.reason) == ("stopped", "Enough.")


def test_a_stop_that_was_acknowledged_wins_over_a_reply_that_calls_tools(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Look.", key="k") as turn:
        step: Any = turn.steps()[0]
        assert hf.session(SESSION).stop() is True
        step.done(LOOK)
        done: Any = turn.steps()[0]
    assert done.status == "stopped"
    assert hf.session(SESSION).details.open_calls() == []


def test_a_stop_after_the_reply_changes_nothing(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        step: Any = turn.steps()[0]
        step.done("All of it.")
        assert hf.session(SESSION).stop() is False
        done: Any = turn.steps()[0]
    assert done.status == "done"


@IN_MEMORY
def test_without_a_look_the_stop_would_be_lost(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "find_stop_request", lambda *args: None)
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        step: Any = turn.steps()[0]
        hf.session(SESSION).stop()
        step.done("All of it.")
        done: Any = turn.steps()[0]
    assert done.status == "done"


def test_an_agents_stop_wins_as_well() -> None:
    async def stopped() -> Any:
        async with holdfast.open_async("memory:") as hf:
            model = Gated(["All of it."], words="")
            agent: Any = hf.agent("a", model=model, history=False)
            sending = asyncio.ensure_future(agent.send(SESSION, "Hello", key="k"))
            await model.begun.wait()
            chat = await hf.session(SESSION)
            model.go_on.set()
            assert await chat.stop("Enough.") is True
            return await sending

    reply = asyncio.run(stopped())
    assert (reply.status, reply.reason) == ("stopped", "Enough.")


def test_a_block_that_was_left_says_and_ends_nothing_more(hf: Holdfast) -> None:
    chat = hf.session("a")
    stale = chat.turn("x", key="k")
    stale.__enter__()
    (step,) = stale.steps()
    stale.__exit__(RuntimeError, RuntimeError(), None)
    with chat.turn("x", key="k") as turn:
        (mine,) = turn.steps()
        for late in (
            lambda: stale.stop("late"),
            lambda: stale.frame.append("late"),
            lambda: stale.frame.frame("late"),
            lambda: step.done("late"),
        ):
            with pytest.raises(TurnLeft):
                late()
        mine.done("mine")
        assert turn.steps()[0].text == "mine"
    assert [message.text for message in chat.messages()] == ["x", "mine"]


def test_a_stream_of_a_block_that_was_left_does_not_heed_a_stop(hf: Holdfast) -> None:
    chat = hf.session("a")
    stale = chat.turn("x", key="k")
    stale.__enter__()
    (step,) = stale.steps()
    stale.__exit__(RuntimeError, RuntimeError(), None)
    with chat.turn("x", key="k") as turn:
        turn.steps()
        assert chat.stop("please")
        chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "late"}}]}
        with pytest.raises(TurnLeft):
            list(step.stream(iter([chunk])))
        assert turn.stop().reason == "stopped"
    assert [message.text for message in chat.messages()] == ["x"]


def test_who_looks_whether_to_stop_sees_every_end(hf: Holdfast) -> None:
    chat = hf.session("a")
    with chat.turn("x") as turn:
        turn.steps()
        assert not turn.is_stopping()
        chat.reset()
        assert turn.is_stopping(), "what it answers is gone"
        assert turn.wait_for_stop(0) is not None
        turn.stop()
    with chat.turn("y", key="k") as turn:
        (step,) = turn.steps()
        other = hf.session("a")
        assert other.stop("enough")
        assert turn.wait_for_stop(0) == "enough"
        step.done("late")
        assert turn.steps()[0].status == "stopped"
    assert not other.stop("again"), "there is nothing to stop"


def test_a_stop_that_comes_too_late_says_so(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = hf.session("a")
    with chat.turn("x") as turn:
        (step,) = turn.steps()
        live = turns.find_live_turn(hf.env, turns.turns_place(chat._thread_stream))
        step.done("bye")
        assert turn.steps()[0].status == "done"
    monkeypatch.setattr(turns, "find_live_turn", lambda *given: live)
    assert chat.stop() is False
