"""An agent: what is sent is answered once, waiting is a value, and whatever stops a turn says why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import Limits
from holdfast.errors import InvalidValue, KeyReused, ModelFailed, Refused
from holdfast.model.scripted import Scripted, call
from holdfast.runtime.tools.tool import tool
from holdfast.testing.clock import FrozenClock
from tests.backends import IN_MEMORY
from tests.turns.agent_world import SESSION, Counted, costing, facts
from tests.turns.loops import spoken, types

Holdfast = holdfast.Holdfast


@tool(if_interrupted="retry")
def look(at: int) -> dict[str, int]:
    """Look at something."""
    return {"seen": at}


@tool(name="look")
def other() -> str:
    """Another tool of the same name."""
    return "no"


# sending


def test_what_is_sent_is_answered(hf: Holdfast) -> None:
    model = Counted([call("look", at=1), "I saw it."])
    reply = hf.agent("a", model=model, system="Be terse.", tools=[look]).send(SESSION, "Look.")
    assert (reply.status, reply.text, reply.reason, reply.data, reply.questions) == (
        "done",
        "I saw it.",
        None,
        None,
        (),
    )
    assert (reply.session, reply.usage.input > 0, reply.usage.output > 0) == (SESSION, True, True)
    assert spoken(hf) == [
        ("user", "Look."),
        ("assistant", ["look"]),
        ("tool", [{"seen": 1}]),
        ("assistant", "I saw it."),
    ]
    assert model.requests[0].pack.to_openai()["messages"][0]["content"].startswith("Be terse.")
    assert hf.index.get_frame(reply.turn_id).status == "completed"


def test_the_same_key_gives_the_same_reply_and_asks_no_model(hf: Holdfast) -> None:
    model = Counted(["Hi."])
    agent = hf.agent("a", model=model)
    first, position = agent.send(SESSION, "Hello", key="k"), hf.journal.position()
    assert agent.send(SESSION, "Hello", key="k") == first
    assert agent.send(SESSION, key="k") == first, "the key alone says which"
    assert (model.asked, hf.journal.position()) == (1, position)


def test_the_same_key_gives_the_same_data(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted(['{"value": 4}']), output=int)
    assert agent.send(SESSION, "2 + 2", key="k").data == 4
    assert agent.send(SESSION, "2 + 2", key="k").data == 4


def test_a_key_stands_for_the_words_it_came_with(hf: Holdfast) -> None:
    model = Counted(["Hi."])
    agent = hf.agent("a", model=model)
    agent.send(SESSION, "Hello", key="k")
    with pytest.raises(KeyReused):
        agent.send(SESSION, "Goodbye", key="k")
    assert (model.asked, len(spoken(hf))) == (1, 2)


def test_without_a_message_it_goes_on_with_what_is_live(hf: Holdfast) -> None:
    answers: list[Any] = [ModelFailed("It is away.", kind="unavailable", retryable=True), "Hi."]
    agent = hf.agent("a", model=Scripted(lambda pack: answers.pop(0)))
    with pytest.raises(ModelFailed, match="away"):
        agent.send(SESSION, "Hello")
    assert agent.send(SESSION).text == "Hi."
    assert spoken(hf) == [("user", "Hello"), ("assistant", "Hi.")]
    with pytest.raises(Refused, match="nothing to continue"):
        agent.send(SESSION)


def test_a_message_to_a_turn_that_nobody_works_on_joins_it(hf: Holdfast) -> None:
    answers: list[Any] = [ModelFailed("It is away.", kind="unavailable", retryable=True), "Hi, both."]
    agent = hf.agent("a", model=Scripted(lambda pack: answers.pop(0)))
    with pytest.raises(ModelFailed):
        agent.send(SESSION, "Hello", key="one")
    second = agent.send(SESSION, "Are you there?", key="two")
    assert second.text == "Hi, both."
    assert agent.send(SESSION, "Hello", key="one") == agent.send(SESSION, "Are you there?", key="two") == second


@pytest.mark.parametrize("given", ["", [], 17, {"role": "assistant", "content": "a"}])
@IN_MEMORY
def test_what_is_no_message_is_refused_before_anything_is_written(hf: Holdfast, given: Any) -> None:
    agent = hf.agent("a", model=Scripted(["Hi."]))
    with pytest.raises(InvalidValue):
        agent.send(SESSION, given)
    assert [event.type for event in hf.journal.events()] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": 17},
        {"model": ""},
        {"model": "nobody-knows-it"},
        {"model": "openai:"},
        {"budget_usd": 0},
        {"budget_usd": True},
        {"budget_usd": float("nan")},
        {"budget_usd": 1e308},
        {"budget_usd": 2**53},
        {"loops": 0},
        {"loops": "many"},
        {"tokens": -1},
        {"tokens": True},
        {"limits": 7},
        {"system": 7},
        {"tools": [7]},
        {"tools": [look, other]},
        {"output": object()},
        {"options": [1]},
        {"history": "yes"},
    ],
)
def test_an_agent_that_cannot_work_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with holdfast.open("memory:") as hf, pytest.raises(InvalidValue):
        hf.agent("a", **{"model": "scripted", **wrong})


@pytest.mark.parametrize("session", ["", "a\nb", 7, "x" * 1000])
@IN_MEMORY
def test_bad_names_of_conversations_are_refused(hf: Holdfast, session: Any) -> None:
    agent = hf.agent("a", model="scripted")
    for use in (lambda: agent.send(session, "Hi"), lambda: list(agent.tail(session)), lambda: agent.stop(session)):
        with pytest.raises(InvalidValue):
            use()
    with pytest.raises(InvalidValue):
        list(agent.stream(session, "Hi"))


def test_a_model_by_its_name(hf: Holdfast) -> None:
    reply = hf.agent("a", model="scripted").send(SESSION, "Hello there")
    assert reply.text.startswith("You said: Hello there")


# waiting


def asking() -> tuple[Any, list[int]]:
    paid: list[int] = []

    @tool(needs_approval=lambda amount: amount > 100)
    def refund(order: int, amount: int) -> str:
        """Pay money back."""
        paid.append(amount)
        return f"paid {amount}"

    return refund, paid


def test_waiting_for_a_yes_is_a_value(hf: Holdfast) -> None:
    refund, paid = asking()
    model = Counted([call("refund", order=17, amount=240), "Refunded."])
    agent = hf.agent("a", model=model, tools=[refund])
    waiting = agent.send(SESSION, "Refund order 17", key="k")
    assert (waiting.status, waiting.text, paid) == ("waiting", "", [])
    (question,) = waiting.questions
    assert waiting.reason == question.reason == "refund(17, 240): may it run?"
    assert question.arguments == {"order": 17, "amount": 240}
    assert agent.send(SESSION, "Refund order 17", key="k").questions == (question,), "asked again: still waiting"
    assert (len(list(hf.questions())), model.asked) == (1, 1)
    hf.answer(question.id, approve=True)
    done = agent.send(SESSION, "Refund order 17", key="k")
    assert (done.status, done.text, paid, model.asked) == ("done", "Refunded.", [240], 2)
    assert agent.send(SESSION, "Refund order 17", key="k") == done
    assert paid == [240]


def test_a_no_is_told_to_the_model_and_the_tool_never_runs(hf: Holdfast) -> None:
    refund, paid = asking()
    agent = hf.agent("a", model=Scripted([call("refund", order=17, amount=240), "I may not."]), tools=[refund])
    (question,) = agent.send(SESSION, "Refund order 17").questions
    hf.answer(question.id, approve=False, note="too much")
    assert (agent.send(SESSION).text, paid) == ("I may not.", [])
    assert "too much" in str(spoken(hf)[2])


def test_changed_arguments_are_used_and_journaled_beside_the_original(hf: Holdfast) -> None:
    refund, paid = asking()
    agent = hf.agent("a", model=Scripted([call("refund", order=17, amount=240), "Done."]), tools=[refund])
    (question,) = agent.send(SESSION, "Refund order 17").questions
    hf.answer(question.id, approve=True, args={"order": 17, "amount": 120})
    assert (agent.send(SESSION).status, paid) == ("done", [120])
    (asked,) = [
        event
        for event in hf.journal.events(f"actor/main/session/{SESSION}/thread/main")
        if event.type == "tool.requested"
    ]
    assert asked.content.arguments == {"order": 17, "amount": 120}
    assert '"amount":240' in hf.session(SESSION).messages()[1].tool_calls[0].arguments


def test_changed_arguments_that_do_not_fit_are_refused_and_the_question_stays_open(hf: Holdfast) -> None:
    refund, paid = asking()
    agent = hf.agent("a", model=Scripted([call("refund", order=17, amount=240), "Hm."]), tools=[refund])
    (question,) = agent.send(SESSION, "Refund order 17").questions
    with pytest.raises(InvalidValue, match="order: expected a whole number"):
        hf.answer(question.id, approve=True, args={"order": "seventeen"})
    assert [one.id for one in hf.questions()] == [question.id]
    hf.answer(question.id, approve=True, args={"order": 17, "amount": 24})
    assert (agent.send(SESSION).text, paid) == ("Hm.", [24])


def test_a_new_message_to_a_turn_that_waits_is_heard_once_it_goes_on(hf: Holdfast) -> None:
    refund, paid = asking()
    agent = hf.agent(
        "a", model=Scripted({"17": [call("refund", order=17, amount=240)], "hurry": "Done."}), tools=[refund]
    )
    (question,) = agent.send(SESSION, "Refund order 17").questions
    still = agent.send(SESSION, "Please hurry", key="k2")
    assert (still.status, still.questions[0].id) == ("waiting", question.id), "it gets that question first"
    hf.answer(question.id, approve=True)
    assert (agent.send(SESSION, "Please hurry", key="k2").text, paid) == ("Done.", [240])


# stopping


def ended(hf: Holdfast, model: Any, message: str = "Go", **how: Any) -> Any:
    reply = hf.agent("a", model=model, tools=[look], **how).send(SESSION, message, key="k")
    assert reply.status == "stopped"
    assert hf.agent("a", model=model, tools=[look], **how).send(SESSION, message, key="k") == reply, "for good"
    return reply


def test_too_many_tool_calls_stop_it(hf: Holdfast) -> None:
    model = Scripted([["Let me look.", call("look", at=1)], ["And again.", call("look", at=2)], "no"])
    reply = ended(hf, model, limits=Limits(tool_calls=1))
    assert reply.reason.startswith("tool_calls:")
    assert reply.code == "tool_calls"
    assert reply.text == "And again."


def test_a_deadline_stops_it(hf: Holdfast, clock: FrozenClock) -> None:
    def slow(pack: Any) -> Any:
        clock.advance(60_000)
        return ["Looking.", call("look", at=1)]

    reply = ended(hf, Scripted([slow, "no"]), limits=Limits(timeout_ms=30_000))
    assert reply.reason.startswith("deadline:")
    assert reply.code == "deadline"
    assert reply.text == "Looking."


def test_a_budget_of_tokens_stops_it(hf: Holdfast) -> None:
    spent = holdfast.models.ModelReply(
        message=holdfast.Message(role="assistant", content="Looking.", tool_calls=(call("look", at=1),)),
        usage=holdfast.Usage(input=4_900, output=200),
    )
    reply = ended(hf, Scripted([spent, "no"]), tokens=5_000)
    assert reply.reason.startswith("budget:")
    assert reply.code == "budget"
    assert reply.text == "Looking."


def test_a_budget_in_dollars_stops_it() -> None:
    with holdfast.open("memory:", prices={"dear": {"input": 1_000, "output": 1_000}}) as hf:
        spent = holdfast.models.ModelReply(
            message=holdfast.Message(role="assistant", content="Looking.", tool_calls=(call("look", at=1),)),
            usage=holdfast.Usage(input=1_000, output=1_000, model="dear"),
        )
        reply = ended(hf, Scripted([spent, spent, "no"], name="dear"), budget_usd=3)
        assert reply.reason.startswith("budget:")
        assert reply.code == "budget"
        assert (reply.text, reply.usage.cost) == ("Looking.", 4_000_000_000)
        assert (
            hf.agent("b", model=Scripted([spent, "Yes."], name="dear"), tools=[look], budget_usd=3).send("t", "Go").text
            == "Yes."
        )


def test_too_many_loops_stop_it(hf: Holdfast) -> None:
    model = Counted(lambda pack: ["Round.", call("look", at=1)])
    reply = ended(hf, model, loops=3)
    assert reply.reason.startswith("loops:")
    assert reply.code == "loops"
    assert (reply.text, model.asked) == ("Round.", 3)


@pytest.mark.parametrize("kind", ["rejected", "refused"])
def test_a_model_that_cannot_answer_stops_it(hf: Holdfast, kind: Any) -> None:
    error = ModelFailed("No such thing.", kind=kind, usage=holdfast.Usage(input=7), partial="As f")
    reply = ended(hf, Scripted([error]))
    assert (reply.code, reply.reason) == ("model", f"model: {kind}: No such thing.")
    assert reply.usage.input == 7
    (failed,) = facts(hf, "model.failed")
    assert (failed.error, failed.retryable, failed.usage.input) == (kind, False, 7)


@pytest.mark.parametrize(
    "kind", ["rate_limited", "unavailable", "timeout", "cut", "unauthorised", "unknown_model", "quota"]
)
def test_a_model_that_is_away_leaves_the_turn_live(hf: Holdfast, kind: Any) -> None:
    answers: list[Any] = [ModelFailed("Not now.", kind=kind, usage=holdfast.Usage(input=7)), costing("Yes.", input=5)]
    agent = hf.agent("a", model=Scripted(lambda pack: answers.pop(0)))
    with pytest.raises(ModelFailed) as caught:
        agent.send(SESSION, "Hello", key="k")
    assert caught.value.kind == kind
    (failed,) = facts(hf, "model.failed")
    assert (failed.error, failed.retryable, failed.usage.input) == (kind, True, 7)
    reply = agent.send(SESSION, "Hello", key="k")
    assert (reply.text, reply.usage.input) == ("Yes.", 12)


def test_a_model_that_raises_what_it_likes_leaves_the_turn_live(hf: Holdfast) -> None:
    answers: list[Any] = [RuntimeError("a bug of its own"), "Yes."]
    agent = hf.agent("a", model=Scripted(lambda pack: answers.pop(0)))
    with pytest.raises(ModelFailed, match="raised RuntimeError") as caught:
        agent.send(SESSION, "Hello", key="k")
    assert "of its own" in str(caught.value.__cause__)
    assert agent.send(SESSION, "Hello", key="k").text == "Yes."
    assert types(hf).count("frame.pushed") == 1


def test_both_colours_give_the_same(hf: Holdfast) -> None:
    script = [call("look", at=1), "I saw it."]
    there = hf.agent("a", model=Scripted(script), tools=[look]).send(SESSION, "Look.", key="k")

    async def main() -> Any:
        async with holdfast.open_async("memory:") as other:
            return await other.agent("a", model=Scripted(script), tools=[look]).send(SESSION, "Look.", key="k")

    here = asyncio.run(main())
    assert (here.status, here.text, here.usage) == (there.status, there.text, there.usage)
