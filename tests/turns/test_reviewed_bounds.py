"""What a turn may do: counted alike in one block and over several, said truly, refused before anything is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from bench.counting import counting
from holdfast import CallModel, CallTool, Holdfast, Limits, Scripted, tool
from holdfast.core.frames import calls
from holdfast.errors import InvalidValue
from holdfast.flow.turns import model_calls, outcome
from holdfast.flow.turns.model_calls import TurnModelCalls
from holdfast.model.scripted import call
from tests.scale import seeded, volume
from tests.turns.loops import IN_MEMORY, SESSION, asks, leave_at, loop, replies, take

# what cannot be meant


@pytest.mark.parametrize("budget", [0, -1, "a", 1.5, True])
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
    monkeypatch.setattr(model_calls, "check_bounds", lambda budget, loops: None)
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
    assert (done.status, len(asked)) == ("stopped", outcome.MAX_FAILURES)
    assert done.reason == "model: failed 25 times in a row. Send a message to try again."


@WAYS
@IN_MEMORY
def test_failures_with_an_answer_between_them_are_not_in_a_row(
    hf: Holdfast, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "MAX_FAILURES", 3)
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
    assert len(asked) == outcome.MAX_FAILURES
    assert max(each) <= min(each) + 2, f"the same for every failure: {each}"


def counts_as_loops(patch: pytest.MonkeyPatch) -> None:
    sound = TurnModelCalls._update_tally

    def note(self: TurnModelCalls, *, made: int = 0, in_a_row: int | None = None) -> None:
        sound(self, made=max(made, 0), in_a_row=in_a_row)

    patch.setattr(TurnModelCalls, "_update_tally", note)


def forgets_answers(patch: pytest.MonkeyPatch) -> None:
    sound = TurnModelCalls._update_tally

    def note(self: TurnModelCalls, *, made: int = 0, in_a_row: int | None = None) -> None:
        sound(self, made=made, in_a_row=in_a_row or None)

    patch.setattr(TurnModelCalls, "_update_tally", note)


@pytest.mark.parametrize("plant", [counts_as_loops, forgets_answers])
@IN_MEMORY
def test_failures_that_are_miscounted_are_found(
    hf: Holdfast, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(outcome, "MAX_FAILURES", 3)
    assert take(hf, "Go.", flaky([True, True, False, True, True, False]), loops=3).status == "stopped"


@IN_MEMORY
def test_failures_that_are_counted_at_the_beginning_alone_are_found(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "MAX_FAILURES", 3)
    monkeypatch.setattr(TurnModelCalls, "_update_tally", lambda self, *, made=0, in_a_row=None: None)
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
