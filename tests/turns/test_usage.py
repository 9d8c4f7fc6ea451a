"""Usage and its cost: nothing unknown passes for nothing, and a part never passes for the whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import CallModel, Holdfast, Message, Scripted, Usage, tool
from holdfast.core.journal import project
from holdfast.flow.turns import model_calls
from holdfast.model.scripted import call
from holdfast.models import ModelReply
from holdfast.records.messages import Delta, ModelCall
from tests.backends import IN_MEMORY
from tests.turns.agent_world import facts
from tests.turns.loops import SESSION, asks, replies, take

M = 1_000_000


@tool(if_interrupted="retry")
def work() -> str:
    """Work."""
    return "x" * 200


def response(model: str, input: int = 1_000, output: int = 5) -> dict[str, Any]:
    """A provider's response, with what it used."""
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output},
    }


def chunks(text: str = "", name: str | None = None) -> Iterator[dict[str, Any]]:
    """A stream of chat completions as it comes when nobody asks for its usage."""
    delta: dict[str, Any] = {"role": "assistant", "content": text or None}
    if name is not None:
        delta["tool_calls"] = [
            {"index": 0, "id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
        ]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-mini"}
    yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if name else "stop"}]}


# sums

amounts = st.integers(0, 10**9)
used = st.builds(
    Usage,
    input=amounts,
    cached_input=amounts,
    output=st.integers(1, 10**9),
    cost=st.none() | amounts,
    model=st.sampled_from([None, "m", "n"]),
    estimated=st.integers(0, 1),
)


@given(used)
def test_adding_nothing_loses_nothing(usage: Usage) -> None:
    assert Usage() + usage == usage + Usage() == usage
    assert Usage() + Usage() == Usage()


@given(used, used, used)
def test_sums_do_not_depend_on_the_order(a: Usage, b: Usage, c: Usage) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a


@given(st.lists(used, min_size=1, max_size=8))
def test_a_sum_tells_what_is_known_and_what_is_not(every: list[Usage]) -> None:
    total = sum(every, Usage(cost=0))
    priced = [usage for usage in every if usage.cost is not None]
    unpriced = sum(usage.spent for usage in every if usage.cost is None)
    known = sum(usage.cost or 0 for usage in priced)
    assert (total.cost or 0, total.unpriced) == (known, unpriced)
    assert total.cost_known == (not unpriced)
    assert (total.cost is None) == (not known and unpriced > 0)
    assert total.estimated == sum(usage.estimated for usage in every)


def test_a_part_does_not_pass_for_the_whole() -> None:
    part = Usage(input=1) + Usage(input=2, cost=7)
    assert (part.cost, part.unpriced, part.cost_known) == (7, 1, False)
    assert Usage(input=1, model="m").cost_known is False
    assert (Usage(cost=1_500_000_000).cost_usd, Usage().cost_usd) == (1.5, None)


# sessions


def test_an_unknown_price_is_unknown_everywhere(hf: Holdfast) -> None:
    chat = hf.session(SESSION, model="gpt-5-mini")
    chat.append("hi")
    chat.append(response("my-local-model"))
    for usage in (chat.usage, hf.usage(), next(iter(hf.sessions())).usage):
        assert (usage.cost, usage.unpriced, usage.spent) == (None, 1_005, 1_005)
    chat.append(response("gpt-5-mini", input=M))
    for usage in (chat.usage, hf.usage(), next(iter(hf.sessions(order="cost"))).usage):
        assert usage.cost is not None
        assert (usage.cost > 0, usage.unpriced, usage.cost_known) == (True, 1_005, False)
    before = chat.usage
    hf.journal.rebuild()
    assert chat.usage == hf.usage() == before


@IN_MEMORY
def test_what_nothing_was_used_for_costs_nothing(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    assert chat.usage == hf.usage() == Usage(cost=0)


@IN_MEMORY
def test_an_agent_s_reply_does_not_say_that_an_unknown_model_is_free(hf: Holdfast) -> None:
    reply = hf.agent("a", model=Scripted(["Hi."], name="unheard-of")).send(SESSION, "Hi")
    assert (reply.usage.cost, reply.usage.cost_known) == (None, False)
    assert reply.usage.unpriced == reply.usage.spent > 0


def test_sums_that_forget_what_has_no_price_are_found_out(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    amounts_of = project.usage_amounts
    monkeypatch.setattr(
        project,
        "usage_amounts",
        lambda usage: {**amounts_of(usage), "unpriced_tokens": 0, "cost": usage.cost or 0},
    )
    hf.session(SESSION).append(["hi", response("my-local-model")])
    assert hf.usage().cost == 0
    monkeypatch.undo()
    assert hf.journal.verify().findings
    hf.journal.rebuild()


# what nobody reported


def streaming(step: CallModel) -> None:
    for _ in step.stream(chunks(name="work")):
        pass


@pytest.mark.parametrize("model", [streaming, lambda step: step.done(asks(("work", {})))])
def test_a_turn_without_reports_spends_what_it_was_shown_and_said(hf: Holdfast, model: Callable[..., Any]) -> None:
    shown: list[int] = []

    def counted(step: CallModel) -> None:
        shown.append(step.pack.tokens)
        model(step)

    chat = hf.session(SESSION, model="gpt-5-mini", tools=[work])
    with chat.turn("Hi", tokens=600, loops=20) as turn:
        for step in turn:
            if isinstance(step, CallModel):
                counted(step)
            elif isinstance(step, holdfast.CallTool):
                step.done("x" * 200)
        done = turn.steps() or step
    assert getattr(done, "reason", "").startswith("budget: ")
    usage = turn.usage
    assert usage.input == sum(shown)
    assert usage.estimated == usage.spent == usage.unpriced > usage.input
    assert usage.cost is None
    assert turn.frame.left is not None
    assert turn.frame.left < shown[-1], "there is not enough left for one more pack"
    assert len(shown) < 10
    assert chat.usage == hf.usage() == usage, "what the replies used is what the session used"
    hf.journal.rebuild()
    assert chat.usage == hf.usage() == usage


def test_what_is_reported_is_not_estimated(hf: Holdfast) -> None:
    take(hf, "Hi", lambda step: step.done("Hello.", usage=Usage(input=3, output=4)))
    take(hf, "Hi", lambda step: step.done("Hello.", usage=7))
    take(hf, "Hi", lambda step: step.done("Hello.", usage=0))
    take(hf, "Hi", lambda step: step.done("Hello.", usage=Usage(cost=5)))
    usage = hf.session(SESSION).usage
    assert (usage.spent, usage.estimated, usage.cost) == (14, 0, 5)


class Silent(Scripted):
    """A model that never says what it used."""

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        said = await super().reply(asked, say)
        return ModelReply(message=said.message, finish=said.finish)


@IN_MEMORY
def test_an_agent_whose_model_reports_nothing_spends_its_tokens(hf: Holdfast) -> None:
    more = [ModelReply(message=Message(role="assistant", tool_calls=(call("work"),)))] * 30
    reply = hf.agent("a", model=Silent(more), tools=[work], tokens=3_000, history=False).send(SESSION, "Go.")
    assert reply.reason is not None
    assert reply.reason.startswith("budget: ")
    assert reply.usage.estimated == reply.usage.spent >= 3_000


@IN_MEMORY
def test_a_stopped_call_is_marked_as_estimated(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hi") as turn:
        (step,) = turn.steps()
        assert isinstance(step, CallModel)
        words = step.stream(chunks("Hello there."))
        next(words)
        turn.stop()
        assert turn.usage.estimated == turn.usage.input == step.pack.tokens


@IN_MEMORY
def test_a_call_that_is_made_again_counts_what_was_shown_before_as_estimated(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hi", key="k") as turn:
        turn.steps()
    with hf.session(SESSION).turn("Hi", key="k") as turn:
        (step,) = turn.steps()
        assert isinstance(step, CallModel)
        step.done("Hello.", usage=Usage(input=10, output=2, cost=9))
    tokens = step.pack.tokens
    assert turn.usage == Usage(input=10 + tokens, output=2, cost=9, unpriced=tokens, estimated=tokens)


def test_calls_that_are_free_because_nobody_reports_them_are_found_out(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_calls, "reply_usage", lambda *where: where[-1] or where[-2].usage or 0)
    hf.session(SESSION, model="gpt-5-mini", tools=[work])
    done = take(hf, "Hi", replies(*[asks(("work", {}))] * 9, "Done."), tokens=600)
    assert (done.status, hf.usage().spent) == ("done", 0)


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
