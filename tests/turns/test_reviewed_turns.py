"""Found by reading and trying: answers that are no yes, calls that are gone, keys, turns within turns, stops."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import CallModel, CallTool, Scripted, ToolCall, tool
from holdfast.client.holdfast import Holdfast
from holdfast.errors import ActorBusy, InvalidValue, KeyReused, Refused
from holdfast.model.scripted import call

from .loops import SESSION


class Shop:
    """An agent whose one tool needs a yes, and what it paid."""

    def __init__(self, hf: Holdfast, *replies: Any) -> None:
        self.paid: list[int] = []
        paid = self.paid

        @tool(needs_approval=True)
        def refund(order: int) -> str:
            """Pay back."""
            paid.append(order)
            return "paid"

        script = [call("refund", order=17), "Done."] if not replies else list(replies)
        self.agent = hf.agent("shop", model=Scripted(script), tools=[refund], history=False)


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


def test_a_call_that_is_rewound_while_it_waits_for_a_yes_is_let_go(hf: Holdfast) -> None:
    shop = Shop(hf)
    assert shop.agent.send(SESSION, "Refund.", key="k").status == "waiting"
    chat = hf.session(SESSION)
    chat.rewind(to=chat.messages()[0])
    other = Shop(hf, "Never mind.")
    assert other.agent.send(SESSION, "Refund.", key="k").text == "Never mind."
    assert not list(hf.questions())
    assert other.paid == shop.paid == []


def test_work_of_the_turns_own_is_not_taken_for_a_call(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello.") as turn:
        (step,) = turn.steps()
        child = turn.frame.frame("look around", key="c")
        child.open()
        step.done("Hi.")
        assert hf.index.get_frame(child.id).live


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([{"type": "text", "text": "pay 1"}], [{"type": "text", "text": "pay 1000"}]),
        (
            [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}],
            "see",
        ),
    ],
)
def test_a_key_stands_for_all_that_was_said_with_it(hf: Holdfast, first: Any, then: Any) -> None:
    agent = hf.agent("a", model=Scripted(["One."]), history=False)
    agent.send(SESSION, {"role": "user", "content": first}, key="k")
    with pytest.raises(KeyReused):
        agent.send(SESSION, {"role": "user", "content": then}, key="k")
    assert agent.send(SESSION, {"role": "user", "content": first}, key="k").text == "One."


def test_the_words_of_a_stopped_turn_are_its_own(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Hello.", key="k") as turn:
        turn.steps()
        turn.stop("enough")
    chat.append({"role": "assistant", "content": "Somebody else's."})
    with chat.turn("Hello.", key="k") as turn:
        (done,) = turn.steps()
    assert (done.status, done.text) == ("stopped", "")


def test_a_turn_within_a_turn_of_the_same_conversation_is_refused(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("One."):
        with pytest.raises(Refused, match="wait for itself"), chat.turn("Two."):
            pass
        with hf.session("another").turn("Three."):
            pass
        with pytest.raises(ActorBusy), chat.turn("Two.", if_busy="reject"):
            pass
    with chat.turn() as turn:
        assert isinstance(turn.steps()[0], CallModel)


def test_whoever_would_be_rejected_is_also_rejected_with_a_key_that_is_under_way(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("One.", key="k"), pytest.raises(ActorBusy), chat.turn("One.", key="k", if_busy="reject"):
        pass


def test_a_turn_that_nobody_works_on_has_ended_when_it_is_stopped(hf: Holdfast) -> None:
    shop = Shop(hf)
    shop.agent.send(SESSION, "Refund.", key="k")
    assert shop.agent.stop(SESSION, "never mind")
    assert not list(hf.questions())
    assert [event.kind for event in shop.agent.tail(SESSION)] == []
    reply = shop.agent.send(SESSION, "Refund.", key="k")
    assert (reply.status, reply.reason) == ("stopped", "never mind")


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
