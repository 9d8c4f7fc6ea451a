"""Limits of a turn: it stops, says why, and leaves a conversation that every provider takes."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Ask, CallModel, CallTool, Limits
from holdfast.records.usage import Usage
from holdfast.testing.clock import FrozenClock
from tests.turns.loops import SESSION, asks, check_valid, echo, leave_at, place, replies, spoken, take

Holdfast = holdfast.Holdfast


def endless(step: CallModel) -> None:
    """A model that only calls tools."""
    step.done(asks(("a", {"n": 1}), ("b", {"n": 2})), usage=Usage(input=100, output=50))


def check_stopped(hf: Holdfast, done: Any, reason: str) -> None:
    assert done.status == "stopped"
    assert done.reason.startswith(f"{reason}: "), done.reason
    assert hf.session(SESSION).details.open_calls() == [], "each call has a result"
    resumed = hf.index.resume_actor(place())
    assert (resumed.frames, resumed.holder) == ((), None)
    check_valid(hf)
    assert take(hf, "Again", replies("Hi.")).text == "Hi.", "the conversation goes on"


def test_too_many_tool_calls(hf: Holdfast) -> None:
    limits = Limits(context_tokens=4_000, tool_calls=3, depth=3, timeout_ms=None)
    done = take(hf, "Go.", endless, key="k", limits=limits)
    ran = [message.tool_results[0] for message in hf.session(SESSION).messages() if message.tool_results]
    assert [result.interrupted for result in ran] == [False, False, False, True]
    again = take(hf, "Go.", replies(), key="k")
    assert (again.status, again.reason) == ("stopped", done.reason), "the key gives what came of it"
    check_stopped(hf, done, "tool_calls")


def test_several_at_once_beyond_the_limit_do_not_begin(hf: Holdfast) -> None:
    limits = Limits(context_tokens=4_000, tool_calls=3, depth=3, timeout_ms=None)
    with hf.session(SESSION).turn("Go.", limits=limits) as turn:
        for _ in range(2):
            turn.steps()[0].done(asks(("a", {}), ("b", {})))
            done: Any
            done, *others = turn.steps()
            for step in (done, *others):
                if isinstance(step, CallTool):
                    step.done("ok")
    check_stopped(hf, done, "tool_calls")


def test_the_deadline(hf: Holdfast, clock: FrozenClock) -> None:
    def slow(step: CallTool) -> None:
        clock.advance(1_500)
        step.done("late")

    limits = Limits(context_tokens=4_000, tool_calls=50, depth=3, timeout_ms=2_000)
    done = take(hf, "Go.", endless, slow, limits=limits)
    results = [message.tool_results[0].result for message in hf.session(SESSION).messages() if message.tool_results]
    assert results == ["late", "late"], "what was begun in time counts, however late it ends"
    check_stopped(hf, done, "deadline")


def test_the_deadline_stands_still_while_a_person_is_asked(hf: Holdfast, clock: FrozenClock) -> None:
    limits = Limits(context_tokens=4_000, tool_calls=50, depth=3, timeout_ms=2_000)
    ask = take(hf, "Go.", replies(asks(("a", {}))), needs_approval=["a"], limits=limits)
    assert isinstance(ask, Ask)
    clock.advance(86_400_000)
    hf.answer(ask.id, approve=True)
    assert take(hf, None, replies("Done."), needs_approval=["a"]).text == "Done."


def test_a_turn_that_is_overdue_when_it_is_taken_up(hf: Holdfast, clock: FrozenClock) -> None:
    limits = Limits(context_tokens=4_000, tool_calls=50, depth=3, timeout_ms=2_000)
    leave_at(hf, "Go.", CallTool, endless, key="k", limits=limits, if_interrupted="retry")
    clock.advance(86_400_000)
    check_stopped(hf, take(hf, "Go.", endless, key="k"), "deadline")


@pytest.mark.parametrize(("tokens", "used"), [(900, 1_000), (1_100, 1_000)])
def test_the_token_budget(hf: Holdfast, tokens: int, used: int) -> None:
    def model(step: CallModel) -> None:
        step.done(asks(("a", {})), usage=Usage(input=900, output=100))

    done = take(hf, "Go.", model, key="k", tokens=tokens)
    frame = next(event.facts.frame for event in hf.journal.events(place()) if event.type == "frame.pushed")
    assert hf.index.get_frame(frame).tokens.used == used, "what was paid is recorded, also beyond the grant"
    check_stopped(hf, done, "budget")


def test_the_number_of_model_calls_over_all_processes(hf: Holdfast) -> None:
    calls = []

    def model(step: CallModel) -> None:
        calls.append(step.call)
        endless(step)

    leave_at(hf, "Go.", CallTool, model, key="k", loops=3, if_interrupted="retry")
    done = take(hf, "Go.", model, key="k", loops=3, if_interrupted="retry")
    assert len(calls) == 3
    check_stopped(hf, done, "loops")


def test_failures_cost_no_loops_and_none_is_retried_for_ever(hf: Holdfast) -> None:
    done = take(hf, "Go.", lambda step: step.fail("busy", retryable=True), loops=4)
    check_stopped(hf, done, "model")


def test_a_turn_in_which_no_tool_may_have_a_frame(hf: Holdfast) -> None:
    done = take(hf, "Go.", endless, limits=Limits(context_tokens=4_000, tool_calls=9, depth=1, timeout_ms=None))
    if done.reason.startswith("loops"):
        pytest.fail("a depth is no number of loops")
    assert done.status == "stopped"


def test_words_that_were_said_before_the_limit_are_shown(hf: Holdfast) -> None:
    def model(step: CallModel) -> None:
        step.done(asks(("a", {}), text="Let me look."))

    done = take(hf, "Go.", model, lambda step: echo(step), loops=1)
    assert (done.status, done.text) == ("stopped", "Let me look.")
    assert spoken(hf)[1] == ("assistant", "Let me look.")
