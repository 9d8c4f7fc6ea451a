"""Silence is not idleness: a sweep leaves a session whose turn is at work, and ends the questions of one it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, CallTool, Holdfast, Scripted, ToolCall, tool
from holdfast.errors import QuestionNotFound
from holdfast.flow.turns import open as turn_open
from holdfast.flow.turns import turns
from holdfast.testing.clock import FrozenClock
from tests.turns.agent_world import call

MINUTE = 60_000


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=["memory:", "a.db"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[Holdfast]:
    url = request.param if request.param == "memory:" else tmp_path / request.param
    with holdfast.open(url, clock=clock) as client:
        client.session("s", idle_timeout=60)
        yield client
        assert client.journal.verify().findings == ()


def statuses(hf: Holdfast) -> list[str]:
    return [message.role for message in hf.session("s").messages()]


def test_a_session_whose_tool_runs_is_not_idle(hf: Holdfast, clock: FrozenClock) -> None:
    swept: list[int] = []

    @tool
    def wait() -> str:
        clock.advance(2 * MINUTE)
        swept.append(hf.sweep_sessions().ended)
        return "It is done."

    reply = hf.agent("a", model=Scripted([call("wait"), "Good."]), tools=[wait]).send("s", "Go.")
    assert (swept, reply.text) == ([0], "Good.")
    assert statuses(hf) == ["user", "assistant", "tool", "assistant"]
    clock.advance(2 * MINUTE)
    assert hf.sweep_sessions().ended == 1


@pytest.mark.parametrize("step", [CallModel, CallTool])
def test_a_turn_that_its_process_left_at_work_is_not_idle(hf: Holdfast, clock: FrozenClock, step: type) -> None:
    def drive(stop_at: type | None) -> None:
        with hf.session("s").turn("Go.", key="k", if_interrupted="retry") as turn:
            for one in turn:
                if stop_at is not None and isinstance(one, stop_at):
                    return
                if isinstance(one, CallTool):
                    one.done("It is done.")
                elif isinstance(one, CallModel):
                    said = [message.role for message in hf.session("s").messages()]
                    calls = [] if "tool" in said else [{"id": "c", "type": "function", "function": WAIT}]
                    one.done({"role": "assistant", "content": None if calls else "Good.", "tool_calls": calls})

    drive(step)
    clock.advance(2 * MINUTE)
    assert hf.sweep_sessions().ended == 0
    drive(None)
    assert statuses(hf) == ["user", "assistant", "tool", "assistant"]


WAIT = {"name": "wait", "arguments": "{}"}


def test_a_turn_that_sleeps_until_a_timer_is_not_idle(hf: Holdfast, clock: FrozenClock) -> None:
    @tool
    def nap(context: ToolCall) -> str:
        context.sleep(600, key="nap")
        return "Awake."

    agent = hf.agent("a", model=Scripted([call("nap"), "Good."]), tools=[nap])
    assert agent.send("s", "Go.", key="k").status == "waiting"
    clock.advance(5 * MINUTE)
    assert hf.sweep_sessions().ended == 0
    clock.advance(6 * MINUTE)
    assert hf.sweep_sessions().ended == 0, "the timer rang, and any process may go on"
    assert agent.send("s", key=None).text == "Good."


def _ask(hf: Holdfast) -> Any:
    @tool(needs_approval=True)
    def pay() -> str:
        return "Paid."

    agent: Any = hf.agent("a", model=Scripted([call("pay"), "Good."]), tools=[pay])
    assert agent.send("s", "Pay.", key="k").status == "waiting"
    return agent


def test_a_swept_session_ends_its_questions_as_a_reset_does(hf: Holdfast, clock: FrozenClock) -> None:
    _ask(hf)
    (question,) = hf.questions()
    clock.advance(2 * MINUTE)
    assert hf.sweep_sessions().ended == 1
    assert list(hf.questions()) == []
    with pytest.raises(QuestionNotFound):
        hf.answer(question.id, approve=True)
    assert hf.agent("a", model=Scripted(["Hello."])).send("s", "Hi.").text == "Hello."
    assert statuses(hf) == ["user", "assistant"]


def test_a_turn_whose_question_is_answered_is_not_idle(hf: Holdfast, clock: FrozenClock) -> None:
    agent = _ask(hf)
    (question,) = hf.questions()
    hf.answer(question.id, approve=True)
    clock.advance(2 * MINUTE)
    assert hf.sweep_sessions().ended == 0
    assert agent.send("s").text == "Good."


def test_a_sweep_that_ends_working_sessions_is_found(
    hf: Holdfast, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "is_at_work", lambda env, thread: False)
    with pytest.raises(AssertionError):
        test_a_turn_whose_question_is_answered_is_not_idle(hf, clock)


def test_a_sweep_that_leaves_questions_open_is_found(
    hf: Holdfast, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_open, "end_if_over", lambda env, thread: None)
    with pytest.raises(AssertionError):
        test_a_swept_session_ends_its_questions_as_a_reset_does(hf, clock)
