"""A model call that its process died in, and a turn that is stopped before anybody makes it again: it may have been
paid for, so it counts as it would if it had been made again and answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import CallModel
from holdfast.flow.turns import stop as turn_stop
from holdfast.flow.turns import turns
from holdfast.records.usage import Usage
from tests.turns.loops import SESSION, leave_at, place, replies, take
from tests.turns.test_turn_stops import chunks

Holdfast = holdfast.Holdfast
ANSWERED = Usage(input=10, output=5)
Stop = Callable[[Holdfast], object]


def ask_for_a_stop(hf: Holdfast) -> None:
    """What somebody writes who cannot end the turn himself."""
    live = turns.find_live_turn(hf.env, turns.turns_place(f"session/{SESSION}/thread/main"))
    assert live is not None
    turns.request_stop(hf.env, live, "Enough.")


def by_the_button(hf: Holdfast) -> object:
    return hf.session(SESSION).stop("Enough.")


def by_an_interrupt(hf: Holdfast) -> object:
    """Its process asked for the stop while somebody worked on it, who then died."""
    ask_for_a_stop(hf)
    return take(hf, "Another.", lambda step: step.done("Yes?", usage=ANSWERED), if_busy="interrupt")


def by_a_reset(hf: Holdfast) -> object:
    hf.session(SESSION).reset()
    return take(hf, "Another.", lambda step: step.done("Yes?", usage=ANSWERED))


def by_its_key(hf: Holdfast) -> object:
    ask_for_a_stop(hf)
    return take(hf, "Hello", replies(), key="k")


def taken_up_and_left(hf: Holdfast) -> object:
    """Taken up, and stopped before the model was called again."""
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        (step,) = turn.steps()
        assert step.repeated
        return turn.stop("Enough.")


WAYS = [by_the_button, by_an_interrupt, by_a_reset, by_its_key, taken_up_and_left]


def torn(hf: Holdfast, **how: Any) -> CallModel:
    found: CallModel = leave_at(hf, "Hello", CallModel, replies(), key="k", **how)
    assert found.pack.tokens > 0
    return found


def usage_of_the_turn(hf: Holdfast, step: CallModel) -> Usage:
    return hf.index.get_frame(step._engine.id).usage


def answered_after_all(hf: Holdfast, **how: Any) -> CallModel:
    step = torn(hf, **how)
    take(hf, "Hello", lambda again: again.done("Hi.", usage=ANSWERED), key="k", **how)
    return step


@pytest.mark.parametrize("stop", WAYS)
def test_a_torn_call_of_a_stopped_turn_counts_as_one_that_was_made_again(hf: Holdfast, stop: Stop) -> None:
    step = torn(hf)
    stop(hf)
    used = usage_of_the_turn(hf, step)
    assert (used.input, used.output) == (step.pack.tokens, 0)
    with holdfast.open("memory:") as other:
        again = answered_after_all(other)
        assert again.pack.tokens == step.pack.tokens
        assert usage_of_the_turn(other, again) == used + ANSWERED, "the same, and what the answer took"


@pytest.mark.parametrize("stop", WAYS)
def test_its_budget_is_spent_in_the_same_way(hf: Holdfast, stop: Stop) -> None:
    step = torn(hf, tokens=1_000)
    stop(hf)
    info = hf.index.get_frame(step._engine.id)
    assert info.tokens.used == step.pack.tokens
    (failed,) = [event.facts for event in hf.journal.events(place(), types=["model.failed"])]
    assert (failed.error, failed.usage.spent, failed.overdraft) == ("stopped", step.pack.tokens, 0)


def test_more_than_the_budget_is_said_to_be_too_much(hf: Holdfast) -> None:
    step = torn(hf, tokens=1_000)
    hf.index.record_usage(step._engine.id, 1_000 - 1)
    by_the_button(hf)
    (failed,) = [event.facts for event in hf.journal.events(place(), types=["model.failed"])]
    assert failed.overdraft == step.pack.tokens - 1


@pytest.mark.parametrize("stop", WAYS)
def test_what_sessions_and_tenants_used_is_what_providers_reported_either_way(hf: Holdfast, stop: Stop) -> None:
    torn(hf)
    stop(hf)
    said = ANSWERED.spent if stop in (by_an_interrupt, by_a_reset) else 0
    assert (hf.usage().spent, hf.session(SESSION).usage.spent) == (said, said)
    with holdfast.open("memory:") as other:
        answered_after_all(other)
        assert (other.usage().spent, other.session(SESSION).usage.spent) == (ANSWERED.spent, ANSWERED.spent)


def test_a_call_that_was_shown_before_the_stop_counts_for_both_times(hf: Holdfast) -> None:
    first = torn(hf)
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        (step,) = turn.steps()
        for _ in step.stream(chunks("One ", "two ", "three.")):
            turn.stop("Enough.")
    assert usage_of_the_turn(hf, first).input == 2 * first.pack.tokens


def test_a_call_that_ended_after_a_reset_counts_for_both_times(hf: Holdfast) -> None:
    first = torn(hf)
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        (step,) = turn.steps()
        hf.session(SESSION).reset()
        step.done("Hi.", usage=ANSWERED)
    used = usage_of_the_turn(hf, first)
    assert (used.input, used.output) == (ANSWERED.input + first.pack.tokens, ANSWERED.output)


def test_a_call_of_ones_own_that_was_not_made_yet_counts_for_nothing(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello") as turn:
        turn.steps()
        turn.stop("Never mind.")
    assert turn.usage.spent == 0


def test_a_stop_that_forgets_torn_calls_is_found_out(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_stop, "_estimate_usage", lambda *given: Usage())
    with pytest.raises(AssertionError):
        test_a_torn_call_of_a_stopped_turn_counts_as_one_that_was_made_again(hf, by_the_button)


def test_a_cost_that_nobody_reported_is_not_made_up_either_way() -> None:
    def prices(model: str | None, usage: Usage) -> float:
        return usage.spent / 1_000

    with holdfast.open("memory:", prices=prices) as stopped, holdfast.open("memory:", prices=prices) as answered:
        step, again = torn(stopped), answered_after_all(answered)
        by_the_button(stopped)
        assert not usage_of_the_turn(stopped, step).cost
        assert usage_of_the_turn(answered, again).cost == ANSWERED.spent * 1_000_000
        assert (stopped.usage().cost or 0, answered.usage().cost) == (0, ANSWERED.spent * 1_000_000)
