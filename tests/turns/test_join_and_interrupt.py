"""A message is never said into a turn that can only stop, and who interrupts does not wait behind those who queue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Limits, Usage
from holdfast.errors import ActorBusy, ModelFailed
from holdfast.flow.turns import limits
from holdfast.flow.turns.open import TurnOpener
from holdfast.models import ModelReply
from holdfast.records.messages import Message
from holdfast.testing.clock import FrozenClock

PATIENCE = 20.0


class Moody:
    """A model that is away until it is back."""

    name = "moody"

    def __init__(self) -> None:
        self.up = False

    async def reply(self, asked: Any, say: Any = None) -> ModelReply:
        if not self.up:
            raise ModelFailed("away", kind="unavailable", retryable=True)
        return ModelReply(message=Message(role="assistant", content="I am back."))

    async def close(self) -> None:
        pass


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def hf(clock: FrozenClock) -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=clock) as opened:
        yield opened


def failing(hf: Holdfast, model: Moody, times: int, **how: Any) -> Any:
    agent = hf.agent("b", model=model, **how)
    for number in range(times):
        with pytest.raises(ModelFailed):
            agent.send("a", f"try {number}", key=f"k{number}")
    model.up = True
    return agent


def test_who_speaks_after_a_model_was_given_up_is_answered(hf: Holdfast) -> None:
    agent = failing(hf, Moody(), limits.MAX_FAILURES)
    reply = agent.send("a", "are you back?", key="new")
    assert (reply.status, reply.text) == ("done", "I am back.")
    assert agent.send("a", "are you back?", key="new").status == "done"
    before = agent.send("a", "try 0", key="k0")
    assert (before.status, before.reason.split(":")[0]) == ("stopped", "model")
    said = [message.text for message in hf.session("a").messages()]
    assert said[-2:] == ["are you back?", "I am back."], "what was said before is still there, and answered with it"


def test_who_speaks_after_the_deadline_is_answered(hf: Holdfast, clock: FrozenClock) -> None:
    agent = failing(hf, Moody(), 1, limits=Limits(timeout_ms=1_000))
    clock.advance(2_000)
    assert agent.send("a", "second", key="new").status == "done"
    assert agent.send("a", "try 0", key="k0").reason.startswith("deadline: ")


def test_a_turn_in_time_is_joined(hf: Holdfast, clock: FrozenClock) -> None:
    agent = failing(hf, Moody(), 3, limits=Limits(timeout_ms=60_000))
    clock.advance(2_000)
    assert agent.send("a", "second", key="new").status == "done"
    assert agent.send("a", "try 0", key="k0").status == "done"


def test_a_turn_that_has_made_its_calls_is_not_joined(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-5-mini")
    with chat.turn("first", key="k1", loops=1) as turn:
        turn.steps()[0].done({"role": "assistant", "tool_calls": [CALL]})
        turn.steps()[0].done("result")
    with chat.turn("second", key="k2", loops=1) as turn:
        turn.steps()[0].done("Yes.")
        assert turn.steps()[0].status == "done"
    with chat.turn("first", key="k1", loops=1) as turn:
        (over,) = turn.steps()
        assert (over.status, over.reason.split(":")[0]) == ("stopped", "loops")


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_a_turn_that_cost_what_it_may_is_not_joined(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-5-mini")
    with chat.turn("first", key="k1", budget_usd=0.001) as turn:
        said = {"role": "assistant", "tool_calls": [CALL]}
        turn.steps()[0].done(said, usage=Usage(input=1_000, output=10, cost=2_000_000))
        turn.steps()[0].done("result")
    with chat.turn("second", key="k2", budget_usd=0.001) as turn:
        turn.steps()[0].done("Yes.", usage=Usage(input=10, output=1, cost=10))
        assert turn.steps()[0].status == "done"
    with chat.turn("first", key="k1", budget_usd=0.001) as turn:
        assert turn.steps()[0].reason == "budget: the turn has reached its cost limit."


def test_a_turn_that_made_its_tool_calls_is_not_joined(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-5-mini")
    few = Limits(tool_calls=1)
    with chat.turn("first", key="k1", limits=few) as turn:
        turn.steps()[0].done({"role": "assistant", "tool_calls": [CALL]})
        turn.steps()[0].done("result")
        turn.steps()[0].done({"role": "assistant", "tool_calls": [CALL]})
    with chat.turn("second", key="k2", limits=few) as turn:
        turn.steps()[0].done("Yes.")
        assert turn.steps()[0].status == "done"


def test_messages_that_join_dead_ends_are_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "find_exhausted_limit", lambda *given: None)
    with pytest.raises(AssertionError):
        test_who_speaks_after_a_model_was_given_up_is_answered(hf)


# interrupting


class Chat:
    """Threads that take turns of one conversation, each until it is stopped or told to end."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf, self.began, self.ended = hf, list[str](), dict[str, str]()
        self.go, self.deaf = threading.Event(), threading.Event()
        self.looks = 2_000
        self.threads: list[threading.Thread] = []

    def take(self, name: str, if_busy: str, until_told: bool = True) -> None:
        thread = threading.Thread(target=self._turn, args=(name, if_busy, until_told), daemon=True)
        thread.start()
        self.threads.append(thread)

    def _turn(self, name: str, if_busy: str, until_told: bool) -> None:
        with self.hf.session("a").turn(name, if_busy=if_busy, wait=PATIENCE) as turn:
            self.began.append(name)
            (step,) = turn.steps()
            while until_told and not self.go.is_set() and (self.deaf.is_set() or not turn.is_stopping()):
                self.go.wait(0.01)
            if turn.is_stopping():
                self.ended[name] = turn.stop().status
            else:
                step.done(f"for {name}")
                self.ended[name] = turn.steps()[0].status

    def wait_for(self, seen: Any) -> None:
        for _ in range(self.looks):
            if seen():
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"it took too long: {self.began} {self.ended}")

    def waiting(self) -> int:
        return sum(map(len, self.hf.env.queues._waiting.values()))  # type: ignore[union-attr]


@pytest.fixture
def chat() -> Iterator[Chat]:
    with holdfast.open("memory:") as opened:
        found = Chat(opened)
        yield found
        found.go.set()
        for thread in found.threads:
            thread.join(PATIENCE)


def test_who_interrupts_goes_before_those_who_queue(chat: Chat) -> None:
    chat.take("a", "queue")
    chat.wait_for(lambda: chat.began == ["a"])
    chat.take("b", "queue", until_told=False)
    chat.wait_for(lambda: chat.waiting() == 1)
    chat.take("c", "interrupt", until_told=False)
    chat.wait_for(lambda: len(chat.ended) == 3)
    assert chat.began == ["a", "c", "b"]
    assert chat.ended == {"a": "stopped", "c": "done", "b": "done"}


def test_of_several_who_interrupt_the_last_one_stays(chat: Chat) -> None:
    chat.deaf.set()
    chat.take("a", "queue")
    chat.wait_for(lambda: chat.began == ["a"])
    chat.take("b", "interrupt")
    chat.wait_for(lambda: chat.waiting() == 1)
    chat.take("c", "interrupt")
    chat.wait_for(lambda: chat.waiting() == 2)
    chat.deaf.clear()
    chat.wait_for(lambda: chat.began[-1] == "c")
    chat.go.set()
    chat.wait_for(lambda: len(chat.ended) == 3)
    assert chat.ended == {"a": "stopped", "b": "stopped", "c": "done"}


def test_who_gives_up_to_interrupt_is_told_what_was_done(chat: Chat) -> None:
    chat.hf.session("a")
    held, left = threading.Event(), threading.Event()

    def hold() -> None:
        with chat.hf.session("a").turn("deaf") as turn:
            turn.steps()
            held.set()
            left.wait(PATIENCE)

    deaf = threading.Thread(target=hold, daemon=True)
    deaf.start()
    assert held.wait(PATIENCE)
    with pytest.raises(ActorBusy, match="asked to stop"), chat.hf.session("a").turn("c", if_busy="interrupt", wait=0.1):
        pass
    left.set()
    deaf.join(PATIENCE)
    assert not deaf.is_alive()


def test_who_interrupts_only_once_is_found(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TurnOpener, "_interrupt_until_called", lambda opening, lined: iter((lined,)))
    chat.looks = 50
    with pytest.raises(AssertionError):
        test_of_several_who_interrupt_the_last_one_stays(chat)
