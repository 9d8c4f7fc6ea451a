"""Failures of models: whatever one raises is journaled, typed and counted, and one that only fails is given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Usage
from holdfast.errors import ModelFailed
from holdfast.flow.turns import limits
from holdfast.model.scripted import Scripted
from holdfast.models import ModelReply
from holdfast.records.messages import Delta, Message, ModelCall
from holdfast.runtime import driver
from holdfast.runtime.driver import request_reply
from tests.backends import IN_MEMORY
from tests.turns.agent_world import SESSION, facts, until
from tests.turns.loops import place, spoken
from tests.turns.model_kit import Shown
from tests.turns.test_turn_costs import Cut, work, working

Holdfast = holdfast.Holdfast
SECRET = "sk-very-secret-0123456789"


class Own:
    """A model that raises what it is told to, and answers after that."""

    def __init__(self, *errors: Any) -> None:
        self.errors, self.asked = list(errors), 0

    name = "own"

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        self.asked += 1
        if self.errors:
            error = self.errors.pop(0)
            if error is cancels_itself:
                cancels_itself()
                await asyncio.sleep(0)
            raise error
        return ModelReply(message=Message(role="assistant", content="Here."))

    async def close(self) -> None:
        pass


def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


RAISED: list[Any] = [
    RuntimeError(f"401 for {SECRET}"),
    TimeoutError(),
    holdfast.errors.InvalidValue(SECRET),
    SystemExit(3),
    KeyboardInterrupt(),
    BaseExceptionGroup("several", [KeyboardInterrupt()]),
    asyncio.CancelledError(SECRET),
    cancels_itself,
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: getattr(error, "__name__", type(error).__name__))
def test_whatever_a_model_raises_is_a_failed_call_that_leaves_the_turn_live(hf: Holdfast, error: Any) -> None:
    model = Own(error)
    agent = hf.agent("a", model=model)
    with pytest.raises(ModelFailed) as caught:
        agent.send(SESSION, "Go", key="k")
    assert (caught.value.kind, caught.value.retryable) == ("failed", True)
    assert SECRET not in str(caught.value)
    if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
        assert caught.value.__cause__ is error
        assert type(error).__name__ in str(caught.value)
    else:
        assert "was cancelled" in str(caught.value)
    (failed,) = facts(hf, "model.failed")
    assert (failed.error, failed.retryable) == ("failed", True)
    assert all(SECRET not in repr(event) for event in hf.journal.events())
    assert hf.index.stack(place())[0].status == "active"
    assert agent.send(SESSION, "Go", key="k").text == "Here.", "the loop works, and the turn goes on"
    assert model.asked == 2


def test_a_model_that_never_stops_raising_is_given_up(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FAILURES", 4)
    model = Own(*(RuntimeError("Down.") for _ in range(99)))
    agent = hf.agent("a", model=model)
    for _ in range(4):
        with pytest.raises(ModelFailed):
            agent.send(SESSION, "Go", key="k")
    reply = agent.send(SESSION, "Go", key="k")
    assert (reply.status, model.asked) == ("stopped", 4)
    assert str(reply.reason).startswith("model: failed 4 times in a row")
    assert spoken(hf) == [("user", "Go")]


def test_those_who_recover_turns_do_not_pay_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FAILURES", 3)
    model = Own(*(RuntimeError("Down.") for _ in range(99)))
    with holdfast.open("memory:") as hf:
        agent = hf.agent("a", model=model)
        with pytest.raises(ModelFailed):
            agent.send(SESSION, "Go")
        with agent.recovering(every=0.001):
            until(lambda: not hf.index.stack(place()))
        assert model.asked == 3


def test_a_planted_driver_that_asks_the_model_itself_is_caught(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "request_reply", lambda model, asked, say: model.reply(asked, say))
    with pytest.raises(RuntimeError):
        hf.agent("a", model=Own(RuntimeError("Down."))).send(SESSION, "Go", key="k")
    assert facts(hf, "model.failed") == []


def test_through_asyncio_a_stray_cancellation_is_no_closing() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            agent = hf.agent("a", model=Own(asyncio.CancelledError(), SystemExit(), cancels_itself))
            for _ in range(3):
                with pytest.raises(ModelFailed) as caught:
                    await agent.send(SESSION, "Go", key="k")
                assert caught.value.kind == "failed"
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            assert (await agent.send(SESSION, "Go", key="k")).text == "Here."

    asyncio.run(main())


def test_a_person_who_interrupts_the_program_is_not_taken_for_a_model_that_failed() -> None:
    """On a loop in the main thread, KeyboardInterrupt is Ctrl-C."""
    asked = ModelCall(pack=Shown())
    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        request_reply(Own(KeyboardInterrupt()), asked, lambda delta: None).send(None)
    with pytest.raises(ModelFailed):
        request_reply(Own(SystemExit()), asked, lambda delta: None).send(None)


def test_a_cancelled_send_is_cancelled() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as other:
            begun = asyncio.Event()

            class Slow(Own):
                async def reply(self, asked: ModelCall, say: Any = None) -> ModelReply:
                    begun.set()
                    await asyncio.sleep(60)
                    return await super().reply(asked, say)

            sending = asyncio.create_task(other.agent("a", model=Slow()).send(SESSION, "Go", key="k"))
            await begun.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            types = [event.type async for event in other.journal.events(place())]
            assert "model.failed" not in types

    asyncio.run(main())


# a model that does nothing but fail


@IN_MEMORY
def test_a_model_that_always_fails_is_given_up(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FAILURES", 4)
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
@pytest.mark.parametrize("kind", ["unauthorised", "unknown_model", "quota"])
def test_a_turn_waits_for_an_operator_for_as_long_as_it_takes(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(limits, "MAX_FAILURES", 2)
    wrong = Scripted(lambda pack: (_ for _ in ()).throw(ModelFailed("Not so.", kind=kind)))
    for _ in range(6):
        with pytest.raises(ModelFailed):
            hf.agent("a", model=wrong).send(SESSION, "Go.", key="k")
    with pytest.raises(ModelFailed):
        hf.agent("a", model=Cut(Usage())).send(SESSION, "Go.", key="k")
    assert hf.agent("a", model=Scripted(["Hi."])).send(SESSION, "Go.", key="k").text == "Hi."


@IN_MEMORY
def test_planted_waiting_that_ends_is_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MENDABLE_KINDS", frozenset())
    with pytest.raises(pytest.fail.Exception):
        test_a_turn_waits_for_an_operator_for_as_long_as_it_takes(hf, monkeypatch, "unknown_model")


@IN_MEMORY
def test_failures_with_an_answer_between_them_are_not_in_a_row(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FAILURES", 3)

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
    assert limits.MAX_FAILURES == 25
