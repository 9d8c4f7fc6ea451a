"""Turns and the conversation that they are in: it may end, be rewound, branch or be erased while they are live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Ask, CallModel, CallTool, Done
from holdfast.errors import QuestionNotFound, SessionClosed
from holdfast.flow.turns import append as turn_append
from holdfast.records.usage import Usage
from tests.turns.agent_world import Shop
from tests.turns.loops import (
    SESSION,
    asks,
    check_valid,
    kinds,
    leave_at,
    loop,
    place,
    replies,
    spoken,
    take,
    types,
)

Holdfast = holdfast.Holdfast
REFUND = asks(("refund", {"order": 17}))
Ends = Callable[[Any], object]
ENDS: list[Any] = [
    pytest.param(lambda chat: chat.reset(), id="reset"),
    pytest.param(lambda chat: chat.close(), id="close"),
    pytest.param(lambda chat: chat.rewind(before=chat.messages()[0]), id="rewind"),
]


def never(step: CallTool) -> None:
    raise AssertionError("it ran")


def check_over(hf: Holdfast, turn: Any, done: Any) -> None:
    assert (done.status, done.reason) == ("stopped", "The conversation was ended.")
    assert hf.index.resume_actor(place()).frames == ()
    assert hf.index.resume_actor(place()).holder is None


@pytest.mark.parametrize("end", ENDS)
def test_a_reply_to_a_conversation_that_ended_is_not_said_in_the_next_one(hf: Holdfast, end: Ends) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Hello") as turn:
        (step,) = turn.steps()
        end(chat)
        step.done("Hi.", usage=Usage(input=7, output=1))
        (done,) = turn.steps()
    check_over(hf, turn, done)
    assert ("assistant", "Hi.") not in spoken(hf)
    assert turn.usage.spent == 8, "what was paid is recorded"


@pytest.mark.parametrize("end", ENDS)
def test_a_result_for_a_conversation_that_ended_is_not_said_in_the_next_one(hf: Holdfast, end: Ends) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Go.") as turn:
        turn.steps()[0].done(asks(("a", {}), ("b", {})))
        first, second = turn.steps()
        end(chat)
        first.done("ok")
        second.fail("no")
        (done,) = turn.steps()
    check_over(hf, turn, done)
    returned = [event.facts for event in hf.journal.events(place(), types=["tool.returned"])]
    assert [facts.failed for facts in returned] == [False, True], "what came of them is in the journal"
    assert not [role for role, _ in spoken(hf) if role == "tool"]


@pytest.mark.parametrize("end", ENDS)
def test_stopping_in_a_conversation_that_ended(hf: Holdfast, end: Ends) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Go.") as turn:
        turn.steps()[0].done(asks(("a", {})))
        turn.steps()
        end(chat)
        before = spoken(hf)
        assert turn.stop().status == "stopped"
    assert spoken(hf) == before


def test_after_a_reset_a_new_message_has_a_turn_of_its_own(hf: Holdfast) -> None:
    leave_at(hf, "Refund.", CallTool, replies(REFUND), key="old")
    hf.session(SESSION).reset()
    done = take(hf, "Hello", replies("Hi."), key="new")
    assert (done.status, done.text) == ("done", "Hi.")
    assert spoken(hf) == [("user", "Hello"), ("assistant", "Hi.")]
    assert take(hf, "Refund.", replies(), key="old").status == "stopped"


@pytest.mark.parametrize("end", ["reset", "close", "rewind"])
def test_a_turn_without_its_conversation_stops_and_its_questions_with_it(hf: Holdfast, end: str) -> None:
    ask = take(hf, "Refund.", replies(REFUND), key="old", needs_approval=["refund"])
    chat = hf.session(SESSION)
    if end == "rewind":
        chat.rewind(before=chat.messages()[0])
    else:
        getattr(chat, end)()
    assert list(hf.questions()) == []
    with pytest.raises(QuestionNotFound):
        hf.answer(ask.id, approve=True)
    done = take(hf, "Refund.", replies(), never, key="old", needs_approval=["refund"])
    assert (done.status, done.reason) == ("stopped", "The conversation was ended.")
    if end != "close":
        assert spoken(hf) == []
        assert take(hf, "Hello.", replies("Hi."), key="new").text == "Hi."


def test_who_works_on_a_turn_stops_it_when_its_conversation_is_gone(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Refund.", key="k") as turn:
        turn.steps()[0].done(REFUND)
        (tool,) = turn.steps()
        chat.reset()
        assert turn.status == "waiting", "it is for whoever works on it"
        tool.done("refunded")
        assert [step.reason for step in turn.steps() if isinstance(step, Done)] == ["The conversation was ended."]


def test_a_closed_session_takes_no_turns(hf: Holdfast) -> None:
    leave_at(hf, "Hello", CallModel, replies(), key="old")
    hf.session(SESSION).close()
    with pytest.raises(SessionClosed):
        take(hf, "Again", replies())
    assert take(hf, "Hello", replies(), key="old").status == "stopped"
    with pytest.raises(SessionClosed):
        take(hf, "Again", replies())


def test_a_call_that_was_rewound_is_let_go_and_the_turn_goes_on(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Refund.", key="k") as turn:
        turn.steps()[0].done(REFUND)
        (tool,) = turn.steps()
        chat.rewind(to=chat.messages()[0])
        tool.done("refunded")
        (model,) = turn.steps()
        assert isinstance(model, CallModel)
        model.done("What?")
    assert spoken(hf) == [("user", "Refund."), ("assistant", "What?")]
    assert turn.status == "completed"


def test_a_call_that_was_rewound_while_nobody_worked_on_it(hf: Holdfast) -> None:
    leave_at(hf, "Refund.", CallTool, replies(REFUND), key="k")
    chat = hf.session(SESSION)
    chat.rewind(to=chat.messages()[0])
    assert take(hf, "Refund.", replies("What?"), never, key="k").text == "What?"


def test_what_a_call_began_elsewhere_ends_when_it_was_rewound(hf: Holdfast) -> None:
    step = leave_at(hf, "Refund.", CallTool, replies(REFUND), key="k")
    below = hf.index.push_frame("ask the bank", parent=step.key, scope="actor/bank")
    chat = hf.session(SESSION)
    chat.rewind(to=chat.messages()[0])
    assert take(hf, "Refund.", replies("What?"), never, key="k").text == "What?"
    assert hf.index.get_frame(below).status == "cancelled"
    assert list(hf.index.stacks()) == []


def test_a_call_that_somebody_else_answered(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Refund.", key="k") as turn:
        turn.steps()[0].done(REFUND)
        (tool,) = turn.steps()
        chat.append_result(tool.key, "done by hand")
        tool.done("refunded")
        turn.steps()[0].done("Done.")
    assert [text for _, text in spoken(hf)] == ["Refund.", ["refund"], ["done by hand"], "Done."]


def test_a_fork_begins_where_it_branches_and_has_turns_of_its_own(hf: Holdfast) -> None:
    leave_at(hf, "Refund.", CallTool, replies(REFUND), key="k")
    branch = hf.session(SESSION).fork(thread="b")
    check_valid(hf, SESSION, "b")
    with branch.turn("What if?", key="k") as turn:
        assert kinds(loop(turn, replies("Then that."))) == ["CallModel", "Done"]
    assert isinstance(take(hf, "Refund.", replies(), key="k"), Ask), "the other line waits as it did"
    assert [thread for thread in ("main", "b") if types(hf, thread=thread).count("frame.pushed")] == ["main", "b"]


def test_threads_take_turns_beside_each_other(hf: Holdfast) -> None:
    one, two = (hf.session(SESSION, thread=thread) for thread in ("a", "b"))
    with one.turn("Hello") as first, two.turn("Hello") as second:
        first.steps()[0].done("One.")
        second.steps()[0].done("Two.")
    assert (spoken(hf, thread="a")[-1], spoken(hf, thread="b")[-1]) == (("assistant", "One."), ("assistant", "Two."))


def test_tenants_do_not_see_each_others_turns(hf: Holdfast) -> None:
    other = hf.tenant("other")
    leave_at(hf, "Refund.", CallTool, replies(REFUND), key="k")
    assert other.session(SESSION).stop() is False
    with pytest.raises(holdfast.Refused, match="nothing to continue"):
        take(other, None, replies())
    assert take(other, "Hello", replies("Hi."), key="k").text == "Hi."
    assert spoken(other) == [("user", "Hello"), ("assistant", "Hi.")]
    assert list(other.questions()) == []
    ask = take(hf, "Refund.", replies(), key="k")
    with pytest.raises(holdfast.errors.NotFound):
        other.answer(ask.id, approve=True)


# erasure


def test_a_finished_turn_whose_words_were_erased_is_still_finished(hf: Holdfast) -> None:
    ann = hf.as_user("ann")
    take(ann, "My name is Ann.", replies("Hello Ann."), key="k")
    hf.journal.erase("ann")
    done = take(hf, "My name is Ann.", replies(), key="k")
    assert done.status == "done"
    assert "Ann" not in done.text
    assert take(hf, "Hello", replies("Hi.")).text == "Hi."


@pytest.mark.parametrize("at", [CallModel, CallTool, Ask])
def test_a_live_turn_whose_words_were_erased_comes_to_an_end(hf: Holdfast, at: Any) -> None:
    ann = hf.as_user("ann")
    how: Any = {"key": "k", "needs_approval": ["refund"] if at is Ask else []}
    step = leave_at(ann, "Refund my order.", at, replies(REFUND), **how)
    if at is Ask:
        ann.answer(step.id, approve=True, args={"order": 18})
    hf.journal.erase("ann")
    last: Any = None
    for _ in range(3):
        last = take(hf, None, lambda step: step.done("I cannot see it."), never, **{**how, "key": None})
        if not isinstance(last, Ask):
            break
        hf.answer(last.id, approve=True)
    assert last.status in ("done", "stopped")
    assert hf.session(SESSION).details.open_calls() == []
    assert hf.index.resume_actor(place()).frames == ()
    assert take(hf, "Hello", replies("Hi.")).text == "Hi."


def test_an_answer_that_was_erased_is_not_replaced_by_another(hf: Holdfast) -> None:
    ask = take(hf, "Refund.", replies(REFUND), needs_approval=["refund"])
    hf.as_user("bob").answer(ask.id, approve=True, args={"order": 18})
    hf.journal.erase("bob")
    assert take(hf, None, replies("No."), never).text == "No."
    ask = take(hf, "Refund.", replies(REFUND), needs_approval=["refund"])
    hf.as_user("eve").answer(ask.id, approve=False, payload="It did.")
    hf.journal.erase("eve")
    assert take(hf, None, replies("No."), never).text == "No."


# usage


def test_usage_and_cost_are_on_the_turn_the_session_and_the_tenant(hf: Holdfast) -> None:
    hf.session(SESSION, model="gpt-4o")
    response = {
        "id": "r1",
        "object": "chat.completion",
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1_000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 200}},
    }
    with hf.session(SESSION).turn("Hello") as turn:
        loop(turn, replies(response))
    for used in (turn.usage, hf.session(SESSION).usage, hf.usage()):
        assert (used.input, used.cached_input, used.output) == (1_000, 200, 100)
        assert (used.cost or 0) > 0, "it is a model whose price is known"
    with hf.session(SESSION).turn("Again") as turn:
        loop(turn, lambda step: step.done("Hi.", usage=Usage(input=10, output=5)))
    assert (turn.usage.input, turn.usage.output) == (10, 5)
    assert hf.session(SESSION).usage.input == 1_010, "also what the caller reports beside the reply"


def test_a_budget_in_the_pack_is_kept(hf: Holdfast) -> None:
    hf.session(SESSION).append([f"word {n} " * 50 for n in range(20)])
    sizes = []

    def model(step: CallModel) -> None:
        sizes.append(step.pack.tokens)
        step.done("Hi.")

    take(hf, "Hello", model, budget=500)
    assert sizes[0] <= 500


# approvals


def test_a_call_that_is_rewound_while_it_waits_for_a_yes_is_let_go(hf: Holdfast) -> None:
    shop = Shop(hf)
    assert shop.agent.send(SESSION, "Refund.", key="k").status == "waiting"
    chat = hf.session(SESSION)
    chat.rewind(to=chat.messages()[0])
    other = Shop(hf, "Never mind.")
    assert other.agent.send(SESSION, "Refund.", key="k").text == "Never mind."
    assert not list(hf.questions())
    assert other.paid == shop.paid == []


# transient entries


def write_transients(hf: Holdfast) -> None:
    for scope in SCOPES:
        hf.state(scope).write("x", "over", lifetime="transient")


def transients(hf: Holdfast) -> list[str]:
    return [scope for scope in SCOPES if hf.state(scope).read("x") == "over"]


SCOPES = [SESSION, f"session/{SESSION}/thread/main", f"session/{SESSION}/thread/other", "session/another", "user/42"]
KEPT_AFTER_A_TURN = SCOPES[2:]


def end_by_reply(hf: Holdfast) -> None:
    assert take(hf, "Hi.", replies(asks(("look_up", {})), "Bye."), lambda step: in_turn(hf, step)).status == "done"


def end_by_stop(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hi.") as turn:
        turn.steps()
        turn.stop()


def end_from_outside(hf: Holdfast) -> None:
    leave_at(hf, "Hi.", CallModel, replies())
    assert transients(hf) == SCOPES, "a turn that was only left goes on"
    hf.session(SESSION).stop()


def in_turn(hf: Holdfast, step: Any) -> None:
    assert transients(hf) == SCOPES, "it lasts as long as the turn"
    step.done("found")


@pytest.mark.parametrize("end", [end_by_reply, end_by_stop, end_from_outside])
def test_transient_entries_end_with_their_turn(hf: Holdfast, end: Any) -> None:
    hf.state(SESSION).write("x", "stored")
    write_transients(hf)
    end(hf)
    assert transients(hf) == KEPT_AFTER_A_TURN
    assert hf.state(SESSION).read("x") == "stored"


def test_transient_entries_of_a_session_stay_for_its_other_turns(hf: Holdfast) -> None:
    write_transients(hf)
    with hf.session(SESSION, thread="other").turn("Hi.") as outer:
        (step,) = outer.steps()
        end_by_stop(hf)
        assert transients(hf) == [SCOPES[0], *KEPT_AFTER_A_TURN]
        step.done("Bye.")
    assert transients(hf) == KEPT_AFTER_A_TURN[1:]


def test_planted_transient_entries_that_stay_are_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_append, "_clear_transients", lambda *given: None)
    with pytest.raises(AssertionError):
        test_transient_entries_end_with_their_turn(hf, end_by_stop)
