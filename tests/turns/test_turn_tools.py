"""Tools of a turn: what they give, how they fail, what a model may write, and who is asked before they run."""

from __future__ import annotations

import json
from typing import Any

import pytest

import holdfast
from holdfast import Ask, CallModel, CallTool
from holdfast.errors import InvalidMessage, InvalidValue, Refused, TooLarge
from holdfast.flow.turns.calls import ToolCallReturn
from holdfast.records.messages import Message, ToolCallRequest
from tests.backends import IN_MEMORY
from tests.turns.loops import (
    SESSION,
    asks,
    echo,
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


def test_a_failure_is_told_to_the_model_and_the_turn_goes_on(hf: Holdfast) -> None:
    shown: list[Any] = []

    def model(step: CallModel) -> None:
        shown.append(step.pack.to_openai()["messages"][-1])
        step.done(REFUND if len(shown) == 1 else "Sorry.")

    done = take(hf, "Refund.", model, lambda step: step.fail(ValueError("no such order")))
    assert done.text == "Sorry."
    assert "ValueError: no such order" in shown[1]["content"]
    (result,) = hf.session(SESSION).messages()[2].tool_results
    assert (result.is_error, result.interrupted) == (True, False)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("text", "text"), (None, None), (17, 17), ([1, {"a": None}], [1, {"a": None}]), ("", ""), (True, True)],
)
def test_a_tool_gives_text_or_plain_data(hf: Holdfast, given: Any, kept: Any) -> None:
    take(hf, "Look.", replies(asks(("a", {})), "Seen."), lambda step: step.done(given))
    assert hf.session(SESSION).messages()[2].tool_results[0].result == kept


class Odd:
    """Nothing that can be stored."""


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@IN_MEMORY
@pytest.mark.parametrize(
    "wrong", [b"bytes", {1, 2}, Odd(), {"a": Odd()}, float("nan"), HOLDS_ITSELF, {1: 2}, "\ud800", 2**70, Odd]
)
def test_what_cannot_be_stored_is_refused_and_the_step_stays_open(hf: Holdfast, wrong: Any) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        turn.steps()[0].done(asks(("a", {})))
        (step,) = turn.steps()
        before = hf.journal.position()
        with pytest.raises(InvalidValue):
            step.done(wrong)
        assert hf.journal.position() == before, "nothing is half written"
        assert not step.answered
        step.fail("It gave nothing that can be stored.")
        turn.steps()[0].done("Done.")


def test_a_result_of_20_mb_is_refused_and_the_step_stays_open(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        turn.steps()[0].done(asks(("a", {})))
        (step,) = turn.steps()
        before = hf.journal.position()
        with pytest.raises(TooLarge):
            step.done("x" * 20_000_000)
        assert hf.journal.position() == before
        step.done("x" * 300_000)
        turn.steps()[0].done("Done.")
    hf.journal.collect()
    assert hf.journal.verify().findings == ()


def calling(name: str, arguments: str = "{}") -> Message:
    """A reply as a model's adapter gives it, whatever the model wrote."""
    return Message(role="assistant", tool_calls=(ToolCallRequest(name=name, arguments=arguments, provider_id="c1"),))


NAMES = ["no_such_tool", "ünicode", "with blank", "a" * 128, "a" * 129, "\x07bell", "e\u0301", "<|x|>"]


@IN_MEMORY
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_the_model_invented_never_stops_the_turn(hf: Holdfast, name: str) -> None:
    how: Any = {"needs_approval": lambda name, args: False}
    done = take(hf, "Look.", replies(calling(name), "Done."), lambda step: step.fail("unknown"), **how)
    assert done.text == "Done."
    assert hf.session(SESSION).details.open_calls() == []


DEEP = "[" * 50 + "]" * 50
ARGUMENTS = [
    "null",
    "[]",
    "17",
    '"text"',
    '{"a": 1, "a": 2}',
    "[1e5]",
    f'"{"x" * 900}"',
    DEEP,
    f'{{"n": {10**40}}}',
    "[" * 90 + "]" * 90,
]


@IN_MEMORY
@pytest.mark.parametrize("text", ARGUMENTS)
def test_arguments_of_any_shape_come_to_the_loop(hf: Holdfast, text: str) -> None:
    def tool(step: CallTool) -> None:
        json.dumps(step.args)
        step.fail("They do not fit.")

    for how in ({}, {"needs_approval": ["a"]}, {"needs_approval": lambda name, args: False}):
        done = take(hf, "Look.", replies(calling("a", text), "Done."), tool, **how)
        while isinstance(done, Ask):
            hf.answer(done.id, approve=True)
            done = take(hf, None, replies("Done."), tool, **how)
        assert done.text == "Done."


CUT = ["{", '{"at": ', "[" * 500, "1e999", '{"a": "\\ud800"}']


@IN_MEMORY
@pytest.mark.parametrize("text", CUT)
def test_a_reply_whose_arguments_are_not_json_is_refused_and_the_step_stays_open(hf: Holdfast, text: str) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        (step,) = turn.steps()
        before = hf.journal.position()
        for wrong in (asks(("a", text)), calling("a", text), calling(" ")):
            with pytest.raises(InvalidMessage):
                step.done(wrong)
        assert hf.journal.position() == before
        step.fail("It was cut.", retryable=True)
        turn.steps()[0].done("Done.")


# a yes beforehand


def test_a_call_that_needs_a_yes_runs_after_it_and_never_before(hf: Holdfast) -> None:
    ran: list[Any] = []

    def tool(step: CallTool) -> None:
        ran.append((step.name, step.args, step.attempt, step.answer and step.answer.approved))
        step.done("ok")

    how = {"key": "k", "needs_approval": ["refund"]}
    reply = asks(("look", {"n": 1}), ("refund", {"order": 17, "amount": 240}))
    for _ in range(2):
        ask = take(hf, "Refund.", replies(reply), tool, **how)
        assert isinstance(ask, Ask)
        assert ask.question == "refund(17, 240): may it run?"
        assert ran == [("look", {"n": 1}, 1, None)], "what needs no yes runs at once, and once"
    assert [info.id for info in hf.questions()] == [ask.id]
    hf.answer(ask.id, approve=True)
    assert take(hf, "Refund.", replies("Refunded."), tool, **how).text == "Refunded."
    assert ran[1:] == [("refund", {"order": 17, "amount": 240}, 1, True)]


def test_a_call_that_is_not_allowed_never_runs_and_the_model_is_told(hf: Holdfast) -> None:
    def never(step: CallTool) -> None:
        raise AssertionError("it ran")

    ask = take(hf, "Refund.", replies(REFUND), never, needs_approval=lambda name, args: args["amount"] > 100)
    hf.answer(ask.id, approve=False, note="Ask the owner first.")
    assert take(hf, None, replies("I may not."), never).text == "I may not."
    (result,) = hf.session(SESSION).messages()[2].tool_results
    assert result.is_error
    assert result.result == "A person did not allow this call. It was not made. Ask the owner first."


@pytest.mark.parametrize("value", ["text", {"n": 1}, [{"type": "text", "text": "a"}], None])
def test_changed_arguments_are_used_journaled_beside_the_originals_and_told(hf: Holdfast, value: Any) -> None:
    ask = take(hf, "Refund.", replies(REFUND), needs_approval=["refund"])
    hf.answer(ask.id, approve=True, args={"order": 17, "amount": 24})
    shown = []

    def model(step: CallModel) -> None:
        shown.append(str(step.pack.to_openai()["messages"][-1]["content"]))
        step.done("Refunded 24.")

    def tool(step: CallTool) -> None:
        assert (step.args, step.edited) == ({"order": 17, "amount": 24}, True)
        assert step.request.args["amount"] == 240, "what the model wrote stays"
        step.done(value)

    take(hf, None, model, tool, needs_approval=["refund"])
    (begun,) = [event for event in hf.journal.events(place()) if event.type == "tool.requested"]
    assert begun.content.arguments == {"order": 17, "amount": 24}
    assert hf.session(SESSION).messages()[1].tool_calls[0].args["amount"] == 240
    assert "24" in shown[0]
    assert "changed the arguments" in shown[0]


@pytest.mark.parametrize("policy", ["retry", "ask"])
def test_changed_arguments_survive_a_crash(hf: Holdfast, policy: str) -> None:
    how: Any = {"needs_approval": ["refund"], "if_interrupted": policy, "key": "k"}
    ask = take(hf, "Refund.", replies(REFUND), **how)
    hf.answer(ask.id, approve=True, args={"order": 17, "amount": 24})
    for _ in range(2):
        step = leave_at(hf, "Refund.", CallTool, replies(), **how)
        assert step.args["amount"] == 24, "never what the person took back"
        if policy == "ask":
            again = take(hf, "Refund.", replies(), **how)
            assert again.question == "refund(17, 24) may have run. Run again?"
            assert only_question(hf).arguments == {"order": 17, "amount": 24}
            hf.answer(again.id, approve=True)
    seen = []

    def tool(step: CallTool) -> None:
        seen.append((step.args, step.attempt))
        step.done("ok")

    take(hf, "Refund.", replies("Refunded."), tool, **how)
    assert seen == [({"order": 17, "amount": 24}, 3)]
    assert "changed the arguments" in hf.session(SESSION).messages()[2].tool_results[0].result


# a tool that asks


def test_a_tool_may_ask_and_is_called_again_with_the_answer(hf: Holdfast) -> None:
    def tool(step: CallTool) -> None:
        if step.answer is None:
            step.ask("Which account?", kind="input", options=["a", "b"], recommended="b", payload={"n": 1})
        else:
            seen.append((step.answer.payload, step.attempt, step.key))
            step.done(f"from {step.answer.payload}")

    seen: list[Any] = []
    ask = take(hf, "Refund.", replies(REFUND), tool)
    assert isinstance(ask, Ask)
    (info,) = ask.questions
    assert (info.reason, info.kind) == ("Which account?", "input")
    assert (list(info.options), info.recommended) == (["a", "b"], "b")
    assert info.arguments == {"order": 17, "amount": 240}
    hf.answer(ask.id, payload="a")
    assert take(hf, None, replies("Refunded."), tool).text == "Refunded."
    assert seen == [("a", 2, hf.session(SESSION).messages()[1].tool_calls[0].id)]


@pytest.mark.parametrize(("payload", "told"), [(None, "It was not made."), ({"n": 1}, 'It was not made. {"n":1}')])
def test_a_no_to_a_tools_question_is_its_outcome(hf: Holdfast, payload: Any, told: str) -> None:
    ask = take(hf, "Refund.", replies(REFUND), lambda step: step.ask("Really?"))
    hf.answer(ask.id, approve=False, payload=payload)
    take(hf, None, replies("No."), lambda step: pytest.fail("it ran"))
    (result,) = hf.session(SESSION).messages()[2].tool_results
    assert result.is_error
    assert result.result == f"A person did not allow this call. {told}"


def test_a_tool_may_ask_again_and_keeps_what_was_changed(hf: Holdfast) -> None:
    def tool(step: CallTool) -> None:
        given.append(step.args)
        step.ask(f"{len(given)}?") if len(given) < 3 else step.done("ok")

    given: list[Any] = []
    ask = take(hf, "Refund.", replies(REFUND), tool)
    hf.answer(ask.id, approve=True, args={"order": 1})
    ask = take(hf, None, replies(), tool)
    assert (ask.question, only_question(hf).arguments) == ("2?", {"order": 1})
    hf.answer(ask.id, approve=True)
    assert take(hf, None, replies("Done."), tool).text == "Done."
    assert given == [{"order": 17, "amount": 240}, {"order": 1}, {"order": 1}]


@IN_MEMORY
@pytest.mark.parametrize(
    ("reason", "how"),
    [
        ("a", {"unknown": 1}),
        ("a", {"options": "ab"}),
        ("a", {"options": ["a"], "recommended": "b"}),
        ("a", {"kind": "riddle"}),
        ("a", {"kind": "timer"}),
        ("a", {"arguments": 1}),
        ("a", {"payload": Odd()}),
        (17, {}),
    ],
)
def test_what_cannot_be_asked_is_refused_and_the_step_stays_open(hf: Holdfast, reason: Any, how: Any) -> None:
    with hf.session(SESSION).turn("Refund.") as turn:
        turn.steps()[0].done(REFUND)
        (step,) = turn.steps()
        with pytest.raises(InvalidValue):
            step.ask(reason, **how)
        assert list(hf.questions()) == []
        step.done("ok")
        turn.steps()[0].done("Done.")


def test_an_answer_within_the_loop_goes_on_in_it(hf: Holdfast) -> None:
    seen = []
    with hf.session(SESSION).turn("Refund.", needs_approval=["refund"]) as turn:
        for step in turn:
            seen.append(type(step).__name__)
            if isinstance(step, CallModel):
                step.done(REFUND if len(seen) == 1 else "Refunded.")
            elif isinstance(step, CallTool):
                step.done("ok")
            elif isinstance(step, Ask):
                hf.answer(step.id, approve=True)
    assert seen == ["CallModel", "Ask", "CallTool", "CallModel", "Done"]


def test_tools_wait_beside_each_other_and_go_on_one_by_one(hf: Holdfast) -> None:
    how = {"needs_approval": ["a", "b"], "key": "k"}
    ran: list[str] = []

    def tool(step: CallTool) -> None:
        ran.append(step.name)
        step.done("ok")

    ask = take(hf, "Go.", replies(asks(("a", {}), ("b", {}), ("c", {}))), tool, **how)
    assert (len(ask.questions), ran) == (2, ["c"])
    for question, name in zip(reversed(ask.questions), ("b", "a"), strict=True):
        hf.answer(question.id, approve=True)
        last = take(hf, "Go.", replies("Done."), tool, **how)
        assert ran[-1] == name
    assert last.text == "Done."


# a question that somebody swallowed


def test_nothing_happens_in_a_frame_that_waits_whatever_its_code_does(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Refund.") as turn:
        turn.steps()[0].done(REFUND)
        (step,) = turn.steps()
        step.ask("Really?")
        before = types(hf)
        index, id = hf.index, step.key
        wrong = [
            lambda: step.done("ok"),
            lambda: step.fail("no"),
            lambda: step.ask("Again?"),
            lambda: turn.engine.end_tool(step._call, ToolCallReturn(result="past the guard of the step")),
            lambda: index.push_frame("below", parent=id),
            lambda: index.begin_tool_call(id, "x"),
            lambda: index.begin_model_call(id),
            lambda: index.suspend_frame(id, "Another?"),
            lambda: index.pop_frame(id),
            lambda: turn.frame.tool_frame(step.key).run(lambda: 1, key="r"),
            lambda: turn.frame.tool_frame(step.key).spend(1),
            lambda: turn.frame.tool_frame(step.key).reserve("p", 1),
            lambda: turn.frame.tool_frame(step.key).attach("url", target="x"),
            lambda: turn.frame.tool_frame(step.key).detach("h"),
            lambda: turn.frame.tool_frame(step.key).ask("Another?", key="q"),
            lambda: turn.frame.tool_frame(step.key).frame("below").open(),
        ]
        for at, one in enumerate(wrong):
            with pytest.raises(Refused):
                one()
            assert types(hf) == before, at
        (ask,) = turn.steps()
        assert isinstance(ask, Ask)
    hf.answer(ask.id, approve=True)
    steps = []
    with hf.session(SESSION).turn(None) as turn:
        steps = loop(turn, replies("Refunded."), echo)
    assert kinds(steps) == ["CallTool", "CallModel", "Done"]
    assert [role for role, _ in spoken(hf)] == ["user", "assistant", "tool", "assistant"]
