"""What turns cost, and what bounds them: no call is free because its price is unknown, and nothing goes on for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, Holdfast, Message, Refused, Usage, tool
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.flow.turns import calls, outcome
from holdfast.flow.turns.model_calls import TurnCost
from holdfast.flow.turns.open import TurnOpener, TurnTerms
from holdfast.model.scripted import Scripted, call
from holdfast.models import ModelReply
from holdfast.records.models import Delta, ModelCall
from holdfast.testing import kill_everywhere
from tests.turns.agent_world import Counted, facts
from tests.turns.loops import IN_MEMORY, SESSION, replies, take

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
    monkeypatch.setattr(TurnCost, "_find_unknown_cost", lambda self: None)
    if planted == "no fallback":
        monkeypatch.setattr(calls, "add_cost", lambda env, usage, model: usage)
    _, asked = spend(hf, "gpt-5-mini" if planted == "no fallback" else "unheard-of", Usage(input=M))
    assert asked == 25


# what was used without a reply


class Talking(Scripted):
    """A model that talks until it is stopped, and reports nothing."""

    def __init__(self, stop: Callable[[], object]) -> None:
        super().__init__([])
        self._stop = stop

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        assert say is not None
        say(Delta(text="So far"))
        await asyncio.to_thread(self._stop)
        await asyncio.Event().wait()
        raise AssertionError("it was stopped")


def test_a_reply_that_was_stopped_counts_what_the_model_was_shown(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Talking(lambda: agent.stop(SESSION)))
    reply = agent.send(SESSION, "word " * 500)
    (failed,) = facts(hf, "model.failed")
    assert (reply.status, reply.text, failed.error) == ("stopped", "So far", "stopped")
    assert reply.usage.input == failed.usage.input > 500


def deltas(*words: str) -> list[dict[str, Any]]:
    return [{"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": one}}]} for one in words]


@IN_MEMORY
def test_stopping_ones_own_stream_counts_what_the_model_was_shown(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("word " * 500) as turn:
        (step,) = turn.steps()
        assert isinstance(step, CallModel)
        for _ in step.stream(deltas("So", " far")):
            turn.stop()
        assert turn.usage.input == step.pack.tokens > 500


@IN_MEMORY
def test_a_turn_that_is_stopped_before_its_call_was_made_used_nothing(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Go.") as turn:
        turn.steps()
        turn.stop()
        assert turn.usage.spent == 0


@IN_MEMORY
def test_failed_calls_are_in_the_usage_of_the_turn_and_not_of_the_session(hf: Holdfast) -> None:
    left = [Usage(input=M), Usage(input=2 * M)]

    def model(step: CallModel) -> None:
        used = left.pop(0)
        if left:
            step.fail("cut", retryable=True, usage=used)
        else:
            step.done("Hi.", usage=used)

    hf.session(SESSION, model="gpt-5-mini")
    with hf.session(SESSION).turn("Go.") as turn:
        for step in turn:
            if isinstance(step, CallModel):
                model(step)
    assert (turn.usage.input, turn.usage.cost) == (3 * M, 750 * M)
    assert (hf.session(SESSION).usage.input, hf.usage().cost) == (2 * M, 500 * M)


# a model that does nothing but fail


@IN_MEMORY
def test_a_model_that_always_fails_is_given_up(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "MAX_FAILURES", 4)
    model = Cut(Usage())
    agent = hf.agent("a", model=model)
    for _ in range(4):
        with pytest.raises(ModelFailed):
            agent.send(SESSION, "Go.", key="k")
    for _ in range(2):
        reply = agent.send(SESSION, "Go.", key="k")
        assert (model.asked, reply.status) == (4, "stopped")
        assert reply.reason.startswith("model: failed 4 times in a row")
    assert hf.agent("a", model=Scripted(["Hi."])).send(SESSION, "Again.").text == "Hi.", "the conversation goes on"


@IN_MEMORY
def test_failures_with_an_answer_between_them_are_not_in_a_row(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "MAX_FAILURES", 3)

    def failing() -> None:
        with pytest.raises(ModelFailed):
            hf.agent("a", model=Cut(Usage()), tools=[work]).send(SESSION, "Go.", key="k")

    failing()
    failing()
    flaky = [working(Usage()), ModelFailed("away", kind="unavailable", retryable=True)]
    with pytest.raises(ModelFailed):
        hf.agent("a", model=Scripted(flaky), tools=[work]).send(SESSION, "Go.", key="k")
    failing()
    well = Scripted(lambda pack: "Hi.")
    assert hf.agent("a", model=well, tools=[work]).send(SESSION, "Go.", key="k").text == "Hi."


def test_a_model_may_fail_for_a_while() -> None:
    assert outcome.MAX_FAILURES == 25


# bad values


@IN_MEMORY
@pytest.mark.parametrize("wait", [-1, -0.1, float("nan"), float("inf"), 10**400, True, "1"])
def test_a_wait_that_is_no_time_is_refused(hf: Holdfast, wait: Any) -> None:
    with pytest.raises(InvalidValue, match="wait must be seconds"):
        TurnOpener(hf.env, f"session/{SESSION}/thread/main", TurnTerms(wait=wait))
    with pytest.raises(InvalidValue, match="wait must be seconds"):
        take(hf, "Go.", replies("no"), wait=wait)
    assert take(hf, "Go.", replies("Hi."), wait=0).text == "Hi."


async def nothing() -> AsyncIterator[Any]:
    for one in ():
        yield one


def test_an_empty_stream_is_refused_alike_in_threads_and_tasks() -> None:
    async def in_a_task() -> str:
        async with holdfast.open_async("memory:") as hf:
            async with (await hf.session(SESSION)).turn("Go.") as turn:
                (step,) = await turn.steps()
                with pytest.raises(InvalidValue) as refused:
                    [word async for word in step.stream(nothing())]
                await step.done("Hi.")
            return str(refused.value)

    with holdfast.open("memory:") as hf, hf.session(SESSION).turn("Go.") as turn:
        (step,) = turn.steps()
        assert isinstance(step, CallModel)
        with pytest.raises(InvalidValue) as refused:
            list(step.stream([]))
        step.done("Hi.")
    assert asyncio.run(in_a_task()) == str(refused.value)


def test_a_turn_is_entered_once_in_threads_and_tasks() -> None:
    async def in_a_task() -> str:
        async with holdfast.open_async("memory:") as hf:
            async with (await hf.session(SESSION)).turn("Go.") as turn:
                with pytest.raises(Refused) as refused:
                    await turn.__aenter__()
            return str(refused.value)

    with holdfast.open("memory:") as hf, hf.session(SESSION).turn("Go.") as turn, pytest.raises(Refused) as refused:
        turn.engine.open()
    assert asyncio.run(in_a_task()) == str(refused.value)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (0, "points are the numbers"),
        ("17", "points are the numbers"),
        ([], "names no point"),
        (range(0), "names no point"),
        ([0, 1], "counted from 1"),
        ([True], "counted from 1"),
        ([1.5], "counted from 1"),
        ([99_998, 99_999], "the first that is wanted is 99998"),
    ],
)
def test_killing_nowhere_is_refused(points: Any, why: str) -> None:
    def run(hf: Holdfast) -> None:
        hf.session(SESSION)

    with pytest.raises(InvalidValue, match=why):
        kill_everywhere(run, check=lambda hf: True, journal="memory", points=points)
