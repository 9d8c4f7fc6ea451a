"""Limits of a turn: checked first, counted alike in one block and over several, and named when the turn stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from bench.counting import counting
from holdfast import Ask, CallModel, CallTool, Limits, Scripted, tool
from holdfast.core.frames import calls
from holdfast.errors import InvalidValue
from holdfast.flow.turns import engine, limits, turns
from holdfast.flow.turns.model_calls import TurnModelCalls
from holdfast.model.scripted import call
from holdfast.records.usage import Usage
from holdfast.testing.clock import FrozenClock
from tests.backends import IN_MEMORY
from tests.scale import seeded, volume
from tests.turns.loops import SESSION, asks, check_valid, echo, leave_at, loop, place, replies, spoken, take

Holdfast = holdfast.Holdfast


def endless(step: CallModel) -> None:
    """A model that only calls tools."""
    step.done(asks(("a", {"n": 1}), ("b", {"n": 2})), usage=Usage(input=100, output=50))


def check_stopped(hf: Holdfast, done: Any, reason: str) -> None:
    assert done.status == "stopped"
    assert done.reason.startswith(f"{reason}: "), done.reason
    assert done.code == reason
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
    done = take(hf, "Go.", endless, limits=Limits(context_tokens=4_000, tool_calls=9, depth=0, timeout_ms=None))
    assert (done.status, done.code) == ("stopped", "depth")


def test_words_that_were_said_before_the_limit_are_shown(hf: Holdfast) -> None:
    def model(step: CallModel) -> None:
        step.done(asks(("a", {}), text="Let me look."))

    done = take(hf, "Go.", model, lambda step: echo(step), loops=1)
    assert (done.status, done.text) == ("stopped", "Let me look.")
    assert spoken(hf)[1] == ("assistant", "Let me look.")


# the code


def test_the_end_of_a_turn_has_a_code_from_every_way_of_ending(hf: Holdfast) -> None:
    assert take(hf, "Hi", replies("Hi."), key="fine").code is None
    with hf.session(SESSION).turn("Go.", key="asked") as turn:
        assert turn.stop("model: not now").code == "stopped", "the words of a caller are no code"
    with pytest.raises(ZeroDivisionError), hf.session(SESSION).turn("Go.", key="raised", on_error="fail"):
        raise ZeroDivisionError("loops: no")
    failing = take(hf, "Go.", lambda step: step.fail("no"), key="model")
    with hf.session(SESSION).turn("Go.", key="cancelled") as turn:
        hf.index.pop_frame(turn.id, "cancelled")
    ends = {key: take(hf, "Go.", replies(), key=key).code for key in ("asked", "raised", "model", "cancelled")}
    assert ends == {"asked": "stopped", "raised": "failed", "model": failing.code, "cancelled": "stopped"}
    assert failing.code == "model"


def test_a_listener_and_another_process_are_given_the_code(tmp_path: Path) -> None:
    @tool
    def look() -> str:
        return "Nothing."

    path = str(tmp_path / "a.db")
    with holdfast.open(path) as hf:
        agent = hf.as_user("ann").agent("a", model=Scripted(lambda pack: [call("look")]), tools=[look], loops=2)
        last = list(agent.stream(SESSION, "Go.", key="k"))[-1]
        assert (last.kind, last.data["code"]) == ("stopped", "loops")
    with holdfast.open(path) as hf:
        reply = hf.agent("a", model=Scripted([]), tools=[look]).send(SESSION, "Go.", key="k")
        assert (reply.status, reply.code) == ("stopped", "loops")
        assert hf.index.get_frame(reply.turn_id).code == "loops"
        hf.journal.erase("ann")
        erased = take(hf, "Go.", replies(), key="k")
        assert (erased.reason, erased.code) == (None, "loops"), "a code is not about a person"


@IN_MEMORY
def test_a_planted_code_that_is_read_from_the_reason_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    read = turns.read_outcome

    def guess(env: Any, turn: Any) -> Any:
        end = read(env, turn)
        return replace(end, code=None if end.reason is None else end.reason.split(":")[0])

    monkeypatch.setattr(turns, "read_outcome", guess)
    with pytest.raises(AssertionError):
        test_the_end_of_a_turn_has_a_code_from_every_way_of_ending(hf)


# what cannot be meant


@pytest.mark.parametrize("budget", [0, -1, "a", 1.5, True])
@IN_MEMORY
def test_a_budget_that_cannot_be_meant_is_refused_before_anything_is_said(hf: Holdfast, budget: Any) -> None:
    chat = hf.session(SESSION)
    before = hf.journal.position()
    with pytest.raises(InvalidValue, match="budget must be a whole number of tokens for each pack"):
        chat.turn("Hi", budget=budget).__enter__()
    assert hf.journal.position() == before

    async def asked() -> None:
        async with holdfast.open_async("memory:") as client:
            other = await client.session(SESSION)
            with pytest.raises(InvalidValue, match="budget must be"):
                await other.turn("Hi", budget=budget).__aenter__()
            assert await other.messages() == []

    asyncio.run(asked())


@IN_MEMORY
def test_a_budget_that_is_looked_at_too_late_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "check_bounds", lambda budget, loops: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_budget_that_cannot_be_meant_is_refused_before_anything_is_said(hf, 0)


# failures


def flaky(chances: list[bool]) -> Callable[[CallModel], object]:
    """A model that is away where a chance says so, and else calls a tool; at the end it answers."""
    left_over = list(chances)

    def model(step: CallModel) -> object:
        if not left_over:
            return step.done("Done.")
        return step.fail("away", retryable=True) if left_over.pop(0) else step.done(asks(("look", {})))

    return model


def in_blocks(hf: Holdfast, model: Callable[[CallModel], object], *, session: str = SESSION, **how: Any) -> Any:
    """A whole turn with a block for each step; gives its last one."""
    while True:
        with hf.session(session).turn("Go.", key="k", **how) as turn:
            (step,) = turn.steps(at_once=1)
            if isinstance(step, CallModel):
                model(step)
            elif isinstance(step, CallTool):
                step.done("seen")
            else:
                return step


def in_one(hf: Holdfast, model: Callable[[CallModel], object], **how: Any) -> Any:
    """The same in one block."""
    return take(hf, "Go.", model, **how)


WAYS = pytest.mark.parametrize("way", [in_one, in_blocks])


@WAYS
@IN_MEMORY
def test_a_model_that_is_away_costs_no_loops(hf: Holdfast, way: Any) -> None:
    chance = seeded("loops")
    for trial in range(volume(8, 200)):
        chances = [chance.random() < 0.5 for _ in range(12)]
        needed = chances.count(False) + 1
        done = way(hf, flaky(chances), session=f"enough-{trial}", loops=needed)
        assert (done.status, done.text) == ("done", "Done."), chances
        if needed > 1:
            short = way(hf, flaky(chances), session=f"few-{trial}", loops=needed - 1)
            assert (short.status, short.reason.split(":")[0]) == ("stopped", "loops"), chances


@WAYS
def test_a_model_that_is_always_away_is_given_up(hf: Holdfast, way: Any) -> None:
    asked: list[str] = []

    def away(step: CallModel) -> None:
        asked.append(step.call)
        step.fail("away", retryable=True)

    done = way(hf, away, loops=4)
    assert (done.status, len(asked)) == ("stopped", limits.MAX_FAILURES)
    assert done.reason == "model: failed 25 times in a row. Send a message to try again."


@WAYS
@IN_MEMORY
def test_failures_with_an_answer_between_them_are_not_in_a_row(
    hf: Holdfast, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_FAILURES", 3)
    assert way(hf, flaky([True, True, False, True, True, False]), session="fine").text == "Done."
    given_up = way(hf, flaky([True, False, True, True, True]), session="given-up")
    assert given_up.reason.startswith("model: failed 3 times in a row")


@IN_MEMORY
def test_a_call_that_was_begun_before_counts_once(hf: Holdfast) -> None:
    leave_at(hf, "Go.", CallModel, replies(), key="k")
    done = in_blocks(hf, flaky([True, False]), loops=2)
    assert done.text == "Done."
    leave_at(hf, "More.", CallModel, replies(), key="m")
    with hf.session(SESSION).turn("More.", key="m", loops=1) as turn:
        assert loop(turn, flaky([True]))[-1].status == "done"


def test_failures_are_counted_without_reading_the_journal_again(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        asked: list[int] = []
        with hf.session(SESSION).turn("Go.") as turn, counting(hf.env.journal) as counts:
            for step in turn:
                if isinstance(step, CallModel):
                    asked.append(counts.statements)
                    step.fail("away", retryable=True)
    each = [after - before for before, after in pairwise(asked[2:])]
    assert len(asked) == limits.MAX_FAILURES
    assert max(each) <= min(each) + 2, f"the same for every failure: {each}"


def counts_as_loops(patch: pytest.MonkeyPatch) -> None:
    sound = TurnModelCalls.update_tally

    def note(self: TurnModelCalls, *, made: int = 0, in_a_row: int | None = None) -> None:
        sound(self, made=max(made, 0), in_a_row=in_a_row)

    patch.setattr(TurnModelCalls, "update_tally", note)


def forgets_answers(patch: pytest.MonkeyPatch) -> None:
    sound = TurnModelCalls.update_tally

    def note(self: TurnModelCalls, *, made: int = 0, in_a_row: int | None = None) -> None:
        sound(self, made=made, in_a_row=in_a_row or None)

    patch.setattr(TurnModelCalls, "update_tally", note)


@pytest.mark.parametrize("plant", [counts_as_loops, forgets_answers])
@IN_MEMORY
def test_failures_that_are_miscounted_are_found(
    hf: Holdfast, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(limits, "MAX_FAILURES", 3)
    assert take(hf, "Go.", flaky([True, True, False, True, True, False]), loops=3).status == "stopped"


@IN_MEMORY
def test_failures_that_are_counted_at_the_beginning_alone_are_found(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_FAILURES", 3)
    monkeypatch.setattr(TurnModelCalls, "update_tally", lambda self, *, made=0, in_a_row=None: None)
    assert take(hf, "Go.", flaky([True] * 5)).status == "done"


# tool calls


def test_calls_that_are_too_many_at_once_are_said_to_be(hf: Holdfast) -> None:
    ran: list[int] = []

    @tool
    def look() -> str:
        """Look."""
        ran.append(1)
        return "seen"

    agent = hf.agent("a", model=Scripted([[call("look")] * 7, "Done."]), tools=[look], limits=Limits(tool_calls=5))
    reply = agent.send(SESSION, "Go.")
    assert reply.reason is not None
    assert reply.reason.startswith("tool_calls: Frame ")
    assert "may make 5 tool calls and has made 0: 7 more at once are too many, and none was begun" in reply.reason
    assert ran == []


def test_calls_one_after_the_other_are_made_as_far_as_they_may(hf: Holdfast) -> None:
    ran: list[str] = []

    def look(step: CallTool) -> None:
        ran.append(step.key)
        step.done("seen")

    done = take(hf, "Go.", replies(asks(*[("look", {})] * 7)), look, limits=Limits(tool_calls=5))
    assert len(ran) == 5
    assert "has made 5 tool calls and may make 5. End it" in done.reason


def test_an_untrue_number_of_calls_is_found_out(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = calls.check_tool_calls
    monkeypatch.setattr(calls, "check_tool_calls", lambda state, frame, wanted=1: sound(state, frame))
    with pytest.raises(AssertionError):
        test_calls_that_are_too_many_at_once_are_said_to_be(hf)
