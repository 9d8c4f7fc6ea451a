"""Approvals: only a clear yes runs a call, a no is told with its words, and people are shown what a tool will use."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import CallModel, CallTool, Scripted, ToolCall, tool
from holdfast.client.holdfast import Holdfast
from holdfast.core.wire.tools import describe_call
from holdfast.errors import AlreadyAnswered, InvalidValue
from holdfast.model.scripted import call
from holdfast.records.messages import ToolCallRequest
from tests.turns.agent_world import Shop
from tests.turns.loops import SESSION, asks, only_question, replies, take


@pytest.mark.parametrize("answer", [{"payload": "deny"}, {"payload": False}, {"payload": {"approve": False}}])
def test_words_alone_are_no_yes(hf: Holdfast, answer: dict[str, Any]) -> None:
    shop = Shop(hf)
    (question,) = shop.agent.send(SESSION, "Refund.", key="k").questions
    hf.answer(question.id, **answer)
    assert shop.agent.send(SESSION, "Refund.", key="k").status == "done"
    assert shop.paid == []


def test_a_no_is_told_as_a_no_with_what_was_said(hf: Holdfast) -> None:
    shop = Shop(hf)
    (question,) = shop.agent.send(SESSION, "Refund.", key="k").questions
    hf.answer(question.id, approve=False, payload="budget is used up", note="ask again in May")
    shop.agent.send(SESSION, "Refund.", key="k")
    (result,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    assert result.is_error
    assert result.result == "A person did not allow this call. It was not made. budget is used up ask again in May"


def test_a_tool_that_asks_itself_deals_with_a_no_itself(hf: Holdfast) -> None:
    @tool
    def close(name: str, call: ToolCall) -> str:
        """Close an account."""
        return "closed" if call.ask(f"Close {name}?").approved else "kept"

    agent = hf.agent("clerk", model=Scripted([call("close", name="Eve"), "Done."]), tools=[close], history=False)
    (question,) = agent.send(SESSION, "Close.", key="k").questions
    hf.answer(question.id, approve=False)
    agent.send(SESSION, "Close.", key="k")
    (result,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    assert (result.result, result.is_error) == ("kept", False)


def test_what_needs_approval_is_said_by_names_or_by_a_function(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    for wrong in ("refund", 3):
        with pytest.raises(InvalidValue, match="needs_approval"):
            chat.turn("Hello.", needs_approval=wrong)  # type: ignore[arg-type]


def test_a_function_that_fails_asks(hf: Holdfast) -> None:
    def broken(name: str, args: Any) -> bool:
        raise LookupError(name)

    calls = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "pay", "arguments": "{}"}}]}
    with hf.session(SESSION).turn("Pay.", needs_approval=broken) as turn:
        for step in turn:
            assert not isinstance(step, CallTool)
            if isinstance(step, CallModel):
                step.done(calls)
    assert [question.reason for question in hf.questions()] == ["pay(): may it run?"]
    assert isinstance(step, holdfast.Ask)


# what a person is shown, and may answer


@tool(needs_approval=True)
def refund(order: int, amount: float = 500.0, note: str | None = None) -> str:
    """Refund."""
    return f"{order} {amount}"


def refunding(hf: Holdfast, made: Any = refund, **args: Any) -> Any:
    agent = hf.agent("a", model=Scripted([call("refund", **args), "Done."]), tools=[made], history=False)
    return lambda: agent.send(SESSION, "Refund.", key="k")


def test_an_approval_shows_what_is_used_where_the_model_said_nothing(hf: Holdfast) -> None:
    (question,) = refunding(hf, order=4)().questions
    assert question.reason == "refund(4, amount=500.0): may it run?"
    assert question.arguments == {"order": 4, "amount": 500.0, "note": None}


def test_a_null_that_stands_for_nothing_said_is_shown_as_what_is_used(hf: Holdfast) -> None:
    @tool(name="refund", needs_approval=True, strict=True)
    def strictly(order: int, amount: float = 500.0) -> str:
        """Refund."""
        return f"{order} {amount}"

    send = refunding(hf, strictly, order=4, amount=None)
    (question,) = send().questions
    assert (question.reason, question.arguments) == (
        "refund(4, amount=500.0): may it run?",
        {"order": 4, "amount": 500.0},
    )
    hf.answer(question.id, approve=True)
    send()
    assert hf.session(SESSION).messages()[2].tool_results[0].result == "4 500.0"


def test_an_own_loop_shows_it_too_as_far_as_it_is_stored(hf: Holdfast) -> None:
    hf.session(SESSION, tools=[refund])
    ask = take(hf, "Refund.", replies(asks(("refund", {"order": 4}))), key="k", needs_approval=["refund"])
    assert ask.question == "refund(4, amount=500.0): may it run?"
    assert only_question(hf).arguments == {"order": 4, "amount": 500.0, "note": None}


def test_words_of_a_call_name_what_nobody_wrote() -> None:
    request = ToolCallRequest(id="c", name="refund", arguments='{"order": 4, "amount": null}')
    assert describe_call(request, None, {"amount": 5, "note": "", "to": None}) == 'refund(4, amount=5, note="")'
    assert describe_call(request) == "refund(4, null)"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"order": 4, "amount": "lots"}, "amount: expected a number"),
        ({"amount": 5}, "order is missing"),
        ({"order": 4, "sum": 5}, "'sum' is not known"),
        ([4], "not an object"),
    ],
)
@pytest.mark.parametrize("with_token", [False, True])
def test_arguments_that_can_never_fit_are_refused_and_the_question_stays_open(
    hf: Holdfast, args: Any, why: str, with_token: bool
) -> None:
    send = refunding(hf, order=4)
    (question,) = send().questions
    who = {"token": hf.index.reissue_token(question.id)} if with_token else {"question": question.id}
    with pytest.raises(InvalidValue, match=why):
        hf.answer(**who, approve=True, args=args)
    with pytest.raises(InvalidValue, match=why):
        hf.index.resume_frame(**who, approve=True, args=args)
    assert [one.id for one in hf.questions()] == [question.id]
    hf.answer(**who, approve=True, args={"order": 4, "amount": "5"})  # As models write numbers: the tool takes it.
    with pytest.raises(AlreadyAnswered):
        hf.answer(question.id, approve=True, args=args)
    assert send().text == "Done."
    assert "4 5.0" in hf.session(SESSION).messages()[2].tool_results[0].result


def test_arguments_of_what_is_no_tool_call_are_whatever_its_code_takes(hf: Holdfast) -> None:
    with hf.frame("Work.", on_error="leave") as frame:
        asked = frame.suspend("Which?", key="q")
    hf.answer(asked.question, approve=True, args=["anything"])
