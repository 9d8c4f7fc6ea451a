"""Costs of turns and budgets in dollars: no call is free because its price or its usage is unknown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import CallModel, Holdfast, Message, Usage, tool
from holdfast.compaction import BudgetGuard
from holdfast.errors import BudgetExhausted, InvalidValue, ModelFailed
from holdfast.flow.turns import calls
from holdfast.flow.turns.model_calls import TurnModelCalls
from holdfast.model.scripted import Scripted, call
from holdfast.models import ModelReply
from holdfast.records.messages import Delta, ModelCall
from holdfast.records.usage import NANO_USD
from tests.backends import IN_MEMORY
from tests.turns.agent_world import Counted
from tests.turns.loops import SESSION, asks, replies, take
from tests.turns.test_usage import response

M = 1_000_000


@tool(if_interrupted="retry")
def work() -> str:
    """Work."""
    return "ok"


def working(usage: Usage, *, model: str | None = None) -> ModelReply:
    """A reply that asks for more work."""
    message = Message(role="assistant", content="More.", tool_calls=(call("work"),), model=model)
    return ModelReply(message=message, usage=usage)


def spend(hf: Holdfast, name: str, usage: Usage, *, said: str | None = None) -> tuple[Any, int]:
    """A turn of an agent that would go on for ever, with 0.6 dollars; gives its reply and how often it was asked."""
    model = Counted([working(usage, model=said)] * 30, name=name)
    reply = hf.agent("a", model=model, tools=[work], budget_usd=0.6).send(SESSION, "Go.")
    return reply, model.asked


# budgets in dollars


@IN_MEMORY
@pytest.mark.parametrize("said", [None, "gpt-5-mini"])
def test_a_reply_that_names_no_model_costs_what_the_called_one_costs(hf: Holdfast, said: str | None) -> None:
    reply, asked = spend(hf, "gpt-5-mini", Usage(input=M, output=1_000), said=said)
    assert (asked, reply.status, reply.usage.cost) == (3, "stopped", 756 * M)
    assert reply.reason.startswith("budget: the turn has reached its cost limit")
    assert hf.session(SESSION).usage.cost == hf.usage().cost == 756 * M


@IN_MEMORY
def test_a_loop_of_ones_own_is_priced_by_the_model_of_its_session(hf: Holdfast) -> None:
    hf.session(SESSION, model="gpt-5-mini")
    take(hf, "Go.", lambda step: step.done("Hi.", usage=Usage(input=M)))
    assert hf.session(SESSION).usage.cost == 250 * M


@IN_MEMORY
def test_a_budget_stops_a_turn_whose_model_has_no_known_price(hf: Holdfast) -> None:
    reply, asked = spend(hf, "unheard-of", Usage(input=M))
    assert (asked, reply.status) == (1, "stopped")
    assert reply.reason.startswith("budget: no price is known for unheard-of; give one with holdfast.open(prices=…)")


@IN_MEMORY
def test_a_budget_stops_a_turn_whose_model_does_not_say_what_it_used(hf: Holdfast) -> None:
    reply, asked = spend(hf, "gpt-5-mini", Usage())
    assert (asked, reply.status) == (1, "stopped")
    assert reply.reason.startswith("budget: gpt-5-mini did not report what it used")


@IN_MEMORY
def test_a_call_that_is_said_to_be_free_needs_no_price(hf: Holdfast) -> None:
    reply, asked = spend(hf, "unheard-of", Usage(input=M, cost=0))
    assert (asked, reply.reason.split(":")[0]) == (25, "loops")


@IN_MEMORY
def test_without_a_budget_no_price_is_needed(hf: Holdfast) -> None:
    model = Scripted([working(Usage(input=M)), "Done."], name="unheard-of")
    assert hf.agent("a", model=model, tools=[work]).send(SESSION, "Go.").text == "Done."


class Cut(Scripted):
    """A model that is paid, and whose answer is cut off."""

    def __init__(self, usage: Usage, name: str = "scripted") -> None:
        super().__init__([], name=name)
        self.usage, self.asked = usage, 0

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        self.asked += 1
        raise ModelFailed("cut off", kind="cut", retryable=True, usage=self.usage)


def test_an_unknown_cost_stops_also_the_process_that_takes_the_turn_up(hf: Holdfast) -> None:
    model = Cut(Usage(input=M), name="unheard-of")
    agent = hf.agent("a", model=model, budget_usd=1)
    with pytest.raises(ModelFailed):
        agent.send(SESSION, "Go.", key="k")
    reply = agent.send(SESSION, "Go.", key="k")
    assert (model.asked, reply.status) == (1, "stopped")
    assert reply.reason.startswith("budget: no price is known for unheard-of")


@IN_MEMORY
@pytest.mark.parametrize("planted", ["no fallback", "no refusal"])
def test_a_budget_that_counts_unknown_costs_as_nothing_is_found_out(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.setattr(TurnModelCalls, "_find_unknown_cost", lambda self: None)
    if planted == "no fallback":
        monkeypatch.setattr(calls, "add_cost", lambda env, usage, model: usage)
    _, asked = spend(hf, "gpt-5-mini" if planted == "no fallback" else "unheard-of", Usage(input=M))
    assert asked == 25


# money


@IN_MEMORY
def test_a_turn_of_one_s_own_stops_when_it_has_cost_its_dollars(hf: Holdfast) -> None:
    hf.session(SESSION, model="gpt-5-mini", tools=[work])
    asked: list[int] = []

    def dear(step: CallModel) -> None:
        asked.append(1)
        step.done(asks(("work", {})), usage=Usage(input=M, output=1_000))

    done = take(hf, "Go.", dear, budget_usd=0.6)
    assert (len(asked), done.status) == (3, "stopped")
    assert done.reason.startswith("budget: the turn has reached its cost limit")
    assert hf.usage().cost_usd == pytest.approx(0.756)


@IN_MEMORY
@pytest.mark.parametrize("usage", [None, Usage(input=M)])
def test_a_turn_with_a_budget_does_not_go_on_when_nobody_knows_its_cost(hf: Holdfast, usage: Usage | None) -> None:
    hf.session(SESSION, model="unheard-of" if usage else "gpt-5-mini", tools=[work])
    done = take(hf, "Go.", lambda step: step.done(asks(("work", {})), usage=usage), budget_usd=5)
    why = "no price is known for unheard-of" if usage else "gpt-5-mini did not report what it used"
    assert done.reason.startswith(f"budget: {why}")


@pytest.mark.parametrize("usd", [0, -1, True, math.nan, math.inf, "5"])
@IN_MEMORY
def test_a_budget_that_is_no_money_is_refused(hf: Holdfast, usd: Any) -> None:
    with pytest.raises(InvalidValue, match="budget_usd"):
        hf.session(SESSION).turn("Hi", budget_usd=usd)
    with pytest.raises(InvalidValue, match="usd"):
        hf.session(SESSION).compaction.add_rule(BudgetGuard(usd=usd))


@IN_MEMORY
@pytest.mark.parametrize("guard", [BudgetGuard(usd=0.25), BudgetGuard(cost=NANO_USD // 4)])
def test_a_guard_takes_dollars_or_billionths_of_one(hf: Holdfast, guard: BudgetGuard) -> None:
    chat = hf.session(SESSION, model="gpt-5-mini")
    chat.compaction.add_rule(guard)
    chat.append("hi")
    chat.append(response("gpt-5-mini", input=M - 1, output=0))
    assert take(hf, "Hi", replies("Hello.")).status == "done"
    chat.append(response("gpt-5-mini", input=1_000, output=0))
    with pytest.raises(BudgetExhausted, match="allows 250000000"):
        chat.packs.begin_model_call(chat.pack())
    assert take(hf, "Hi", replies()).reason.startswith("budget: ")


@IN_MEMORY
def test_a_guard_in_two_units_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidValue, match="not both"):
        hf.session(SESSION).compaction.add_rule(BudgetGuard(usd=1, cost=1))
