"""Calls with an intent and no outcome: made again under the same id, asked about, or given up; never guessed."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Ask, CallModel, CallTool
from holdfast.flow.turns.engine import UNSEEN_NOTICE
from holdfast.flow.turns.tool_calls import CHECK_FIRST
from holdfast.records.messages import INTERRUPTED_RESULT
from holdfast.records.usage import Usage
from tests.turns.loops import (
    SESSION,
    asks,
    kinds,
    leave_at,
    loop,
    only_question,
    place,
    replies,
    spoken,
    take,
    types,
)

Holdfast = holdfast.Holdfast
REFUND = asks(("refund", {"order": 17, "amount": 240}))


def never(step: CallTool) -> None:
    raise AssertionError("it ran")


def test_a_torn_tool_runs_again_only_with_a_yes_and_each_time_with_a_new_one(hf: Holdfast) -> None:
    first = leave_at(hf, "Refund.", CallTool, replies(REFUND), key="k")
    for attempt in (2, 3):
        for _ in range(2):
            ask = take(hf, "Refund.", replies(), never, key="k")
            assert isinstance(ask, Ask)
            assert ask.question == "refund(17, 240) may have run. Run again?"
            assert (list(ask.questions[0].options), ask.questions[0].recommended) == (["run again", "do not"], "do not")
        assert only_question(hf).id == ask.id, "asked once for each time that it was torn"
        hf.answer(ask.id, approve=True)
        again = leave_at(hf, "Refund.", CallTool, replies(), key="k")
        assert (again.key, again.attempt, again.args) == (first.key, attempt, {"order": 17, "amount": 240})
        assert again.answer.approved
    ask = take(hf, "Refund.", replies(), never, key="k")
    hf.answer(ask.id, approve=True)
    assert take(hf, "Refund.", replies("Refunded."), key="k").text == "Refunded."
    assert types(hf).count("tool.requested") == 4
    assert types(hf).count("tool.returned") == 1


@pytest.mark.parametrize(
    ("payload", "told", "failed"),
    [
        (None, f"{INTERRUPTED_RESULT} {CHECK_FIRST}", True),
        ({"receipt": 9}, {"receipt": 9}, False),
        ("It did.", "It did.", False),
    ],
)
def test_a_no_never_runs_it_and_what_the_person_found_is_the_result(
    hf: Holdfast, payload: Any, told: Any, failed: bool
) -> None:
    leave_at(hf, "Refund.", CallTool, replies(REFUND), key="k")
    ask = take(hf, "Refund.", replies(), never, key="k")
    hf.answer(ask.id, approve=False, payload=payload)
    assert take(hf, "Refund.", replies("I looked."), never, key="k").text == "I looked."
    (result,) = hf.session(SESSION).messages()[2].tool_results
    assert (result.result, result.is_error, result.interrupted) == (told, failed, failed)


def test_a_tool_that_may_be_retried_runs_again_under_the_same_key(hf: Holdfast) -> None:
    first = leave_at(hf, "Look.", CallTool, replies(asks(("look", {}))), key="k", if_interrupted="retry")
    again = leave_at(hf, "Look.", CallTool, replies(), key="k", if_interrupted="retry")
    assert (again.key, again.attempt, again.answer) == (first.key, 2, None)
    assert take(hf, "Look.", replies("Seen."), key="k", if_interrupted="retry").text == "Seen."
    assert list(hf.questions()) == []


def test_a_tool_that_counts_as_failed_never_runs_again(hf: Holdfast) -> None:
    leave_at(hf, "Look.", CallTool, replies(asks(("look", {}))), key="k", if_interrupted={"look": "fail"})
    assert take(hf, "Look.", replies("Sorry."), never, key="k").text == "Sorry."
    (result,) = hf.session(SESSION).messages()[2].tool_results
    assert (result.is_error, result.interrupted) == (True, True)


def test_what_was_said_when_it_began_counts_and_not_what_is_said_now(hf: Holdfast) -> None:
    leave_at(hf, "Refund.", CallTool, replies(REFUND), key="k")
    assert isinstance(take(hf, "Refund.", replies(), never, key="k", if_interrupted="retry"), Ask)


def test_each_tool_has_its_own_policy_and_ask_is_the_default(hf: Holdfast) -> None:
    rules = {"a": "retry", "b": "fail"}
    with hf.session(SESSION).turn("Go.", key="k", if_interrupted=rules) as turn:
        turn.steps()[0].done(asks(("a", {}), ("b", {}), ("c", {})))
        turn.steps()
    ran: list[str] = []

    def tool(step: CallTool) -> None:
        ran.append(step.name)
        step.done("ok")

    ask = take(hf, "Go.", replies(), tool, key="k", if_interrupted=rules)
    assert (ran, ask.question) == (["a"], "c() may have run. Run again?")
    hf.answer(ask.id, approve=False)
    assert take(hf, "Go.", replies("Done."), tool, key="k", if_interrupted=rules).text == "Done."
    assert ran == ["a"]


def test_a_new_message_to_a_torn_turn_gets_that_question_first_and_is_answered_then(hf: Holdfast) -> None:
    leave_at(hf, "Refund.", CallTool, replies(REFUND), key="k")
    ask = take(hf, "What now?", replies(), never, key="other")
    assert isinstance(ask, Ask)
    hf.answer(ask.id, approve=False)
    shown: list[Any] = []

    def model(step: CallModel) -> None:
        shown[:] = [message["role"] for message in step.pack.to_openai()["messages"]]
        step.done("It is not clear.")

    assert take(hf, "What now?", model, never, key="other").text == "It is not clear."
    assert shown == ["user", "assistant", "tool", "user"], "the result stands behind its call, whenever it came"
    assert take(hf, "Refund.", replies(), key="k").text == "It is not clear."


# models


def test_a_torn_model_call_is_made_again_with_its_id_and_with_what_was_shown_then(hf: Holdfast) -> None:
    chat = hf.session(SESSION, system="Be terse.", model="gpt-4o")
    first = leave_at(hf, "Hello", CallModel, replies(), key="k")
    chat.append("And quickly.")
    with chat.turn("Hello", key="k") as turn:
        (again,) = turn.steps()
        assert (again.call, again.repeated, again.model) == (first.call, True, "gpt-4o")
        assert again.pack.digest == first.pack.digest
        assert again.pack.to_openai() == first.pack.to_openai()
        again.done("Hi.", usage=Usage(input=10, output=5))
        (more,) = turn.steps()
        assert isinstance(more, CallModel), "what was said meanwhile is answered as well"
        assert not more.repeated
        more.done("At once.", usage=Usage(input=20, output=5))
    responded = [event.facts for event in hf.journal.events(place(), types=["model.responded"])]
    assert [facts.doubtful for facts in responded] == [Usage.estimate(first.pack.tokens), None]
    assert turn.usage.input == 30 + first.pack.tokens, "what may have been paid is counted"
    assert types(hf).count("model.requested") == 2


def test_a_model_call_that_failed_is_made_anew(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello", key="k") as turn:
        (first,) = turn.steps()
        first.fail(TimeoutError("slow"), retryable=True, usage=7)
        (second,) = turn.steps()
        assert second.call != first.call
        assert not second.repeated
        second.done("Hi.")
    failed: Any = next(event for event in hf.journal.events(place()) if event.type == "model.failed")
    assert (failed.facts.retryable, failed.facts.usage.spent) == (True, 7)
    assert turn.usage.spent - turn.usage.estimated == 7


def test_a_model_call_that_cannot_succeed_ends_the_turn(hf: Holdfast) -> None:
    done = take(hf, "Hello", lambda step: step.fail("The key is wrong."), key="k")
    assert (done.status, done.reason) == ("stopped", "model: The key is wrong.")
    assert take(hf, "Hello", replies(), key="k").status == "stopped"
    assert take(hf, "Hello again", replies("Hi.")).text == "Hi."


def test_a_failure_says_what_went_wrong(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello") as turn:
        (step,) = turn.steps()
        for wrong in ("", None, 17):
            with pytest.raises(holdfast.errors.InvalidValue):
                step.fail(wrong)
        step.done("Hi.")


# what is said meanwhile


def test_a_message_that_came_while_the_model_worked_is_answered(hf: Holdfast) -> None:
    def model(step: CallModel) -> None:
        if len(shown) == 0:
            hf.session(SESSION).append("Wait, also this.")
        shown.append([message["content"] for message in step.pack.to_openai()["messages"]])
        step.done(f"Reply {len(shown)}.")

    shown: list[Any] = []
    with hf.session(SESSION).turn("First this.") as turn:
        steps = loop(turn, model)
    assert kinds(steps) == ["CallModel", "CallModel", "Done"]
    # Last stands somebody who wants an answer: providers refuse requests that end with a reply.
    assert shown == [["First this."], ["First this.", "Wait, also this.", "Reply 1.", UNSEEN_NOTICE]]
    assert [role for role, _ in spoken(hf)] == ["user", "user", "assistant", "assistant"]


def test_a_message_that_came_while_the_pack_was_made_is_shown_or_answered(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the journal before the pack is, and not in the pack: it must not count as seen."""
    original = holdfast.flow.packs.manifest.begin_call
    said: list[str] = []

    def begin_call(*args: Any, **how: Any) -> Any:
        if not said:
            said.append(hf.session(SESSION).append("Wait, also this.").text)
        return original(*args, **how)

    monkeypatch.setattr(holdfast.flow.packs.manifest, "begin_call", begin_call)
    seen: list[str] = []

    def model(step: CallModel) -> None:
        seen.append(str(step.pack.to_openai()["messages"]))
        step.done("Yes.")

    take(hf, "First this.", model)
    assert any("also this" in one for one in seen)


def test_a_message_that_came_at_the_very_end_is_answered(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply is written and the turn is about to end: whoever spoke just then is not left without an answer."""
    calls = holdfast.flow.turns.calls
    original, said = calls.finish_turn, []

    def finish(*args: Any, **how: Any) -> Any:
        if not said:
            said.append(hf.session(SESSION).append("One more thing.").text)
        return original(*args, **how)

    monkeypatch.setattr(calls, "finish_turn", finish)
    with hf.session(SESSION).turn("Hello") as turn:
        turn.engine.find_problem = lambda message: "no" if not said and message.text == "never" else None
        (step,) = turn.steps()
        hf.session(SESSION).append("Wait.")
        step.done("Hi.")
        hf.session(SESSION).rewind(to=hf.session(SESSION).messages()[0])
        hf.session(SESSION).append({"role": "assistant", "content": "Hi."})
        steps = loop(turn, replies("And that."))
    assert said == ["One more thing."]
    assert kinds(steps) == ["CallModel", "Done"]
