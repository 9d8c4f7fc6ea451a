"""One answer for a step, one owner for a turn, and nothing that a tool raises or a model writes said wrongly."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import holdfast
from holdfast import CallTool, Holdfast, Scripted, tool
from holdfast.core.wire.tools import describe_misfit
from holdfast.errors import InvalidValue, Refused, StaleEpoch
from holdfast.flow.turns import tool_rules
from holdfast.flow.turns.engine import TurnEngine
from holdfast.flow.turns.steps import TurnCall
from holdfast.model.scripted import call
from holdfast.records.messages import ToolDef
from holdfast.runtime.recovery import Recovery, RecoveryFailure
from holdfast.runtime.tools import run
from holdfast.runtime.tools.run import run_function
from tests.scale import volume
from tests.turns.loops import IN_MEMORY, SESSION, asks, leave_at, replies, take
from tests.turns.test_recovering import left, looked, words

THREADS = 8
PAY = ToolDef(
    name="pay", parameters={"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
)
UNFIT = [("null", "order is missing"), ("[]", "not an object"), ("{}", "order is missing")]


# one answer


def at_once(answer: Callable[[int], object]) -> tuple[list[object], list[Exception]]:
    """Several threads that answer at the same moment; gives what they got, and what they were refused with."""
    together, got, refused = threading.Barrier(THREADS), list[object](), list[Exception]()

    def go(number: int) -> None:
        together.wait()
        try:
            got.append(answer(number))
        except Refused as error:
            refused.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return got, refused


def check_answered_once(hf: Holdfast, trial: int) -> None:
    chat = hf.session(f"s{trial}")
    with chat.turn("Go.") as turn:
        model: Any = turn.steps()[0]
        got, refused = at_once(lambda number: model.done(asks((f"pay{number}", {}))))
        assert (len(got), len(refused)) == (1, THREADS - 1)
        pays: Any = turn.steps()[0]
        ways = [lambda number: pays.done(f"r{number}"), lambda number: pays.fail(f"r{number}")]
        got, refused = at_once(lambda number: ways[number % 2](number))
        assert (len(got), len(refused)) == (1, THREADS - 1)
    assert len([one for one in chat.messages() if one.role == "tool"]) == 1


@IN_MEMORY
def test_of_many_who_answer_a_step_at_once_all_but_one_are_refused(hf: Holdfast) -> None:
    for trial in range(volume(10, 300)):
        check_answered_once(hf, trial)


@IN_MEMORY
def test_answers_that_pass_each_other_are_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Barrier(THREADS)

    @contextmanager
    def passed(self: TurnCall) -> Iterator[None]:
        self.check_unanswered()
        slow.wait()
        yield
        self.answered = True

    monkeypatch.setattr(TurnCall, "answer_once", passed)
    with pytest.raises(AssertionError):
        check_answered_once(hf, 0)


def test_a_step_whose_answer_was_not_taken_can_be_answered_again(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    with hf.session(SESSION).turn("Go.") as turn:
        model: Any = turn.steps()[0]
        with pytest.raises(InvalidValue):
            model.done({"role": "user", "content": "no answer"})
        model.done(asks(("pay", {})))
        pays: Any = turn.steps()[0]
        with pytest.raises(InvalidValue):
            pays.done(object())
        with monkeypatch.context() as patch:
            patch.setattr(TurnEngine, "end_tool", lambda *given, **how: (_ for _ in ()).throw(holdfast.errors.Busy))
            with pytest.raises(holdfast.errors.Busy):
                pays.fail("away")
        assert pays.done("paid").tool_results[0].result == "paid"
        with pytest.raises(Refused, match="answered already"):
            pays.fail("late")


# one owner


async def taken_up(error: Exception, *, ends: bool) -> list[RecoveryFailure]:
    """What is told of a turn that could not be taken up, and that others may have ended meanwhile."""
    told: list[RecoveryFailure] = []
    async with holdfast.open_async("memory:") as hf:
        await left(hf, "s")
        agent: Any = hf.agent("a", model=Scripted(["Done."]))
        recovering: Any = agent.recovering(on_error=told.append)

        async def comes_second(tenant: str, session: str, thread: str) -> None:
            if ends:
                await agent._resume(session, thread)
            raise error

        recovering._take_up = comes_second
        assert await looked(agent, recovering) == 1
        assert recovering.failures == {one.frame: one for one in told}
        assert (await words(hf))[1:] == (["Done."] if ends else [])
        return told


def test_a_turn_that_others_ended_is_no_failure() -> None:
    async def second() -> list[RecoveryFailure]:
        """With what a worker that comes too late is really told."""
        async with holdfast.open_async("memory:") as hf:
            with pytest.raises(Refused) as told:
                await hf.agent("a", model=Scripted(["Hi."])).send("s")
        return await taken_up(told.value, ends=True)

    assert asyncio.run(second()) == []


def test_a_turn_that_others_took_over_is_no_failure() -> None:
    assert asyncio.run(taken_up(StaleEpoch("actor/main", 1, 2), ends=False)) == []


def test_what_is_really_refused_is_told() -> None:
    (failure,) = asyncio.run(taken_up(Refused("It has no such tool."), ends=False))
    assert (str(failure.error), failure.times) == ("It has no such tool.", 1)
    (failure,) = asyncio.run(taken_up(RuntimeError("a bug"), ends=True))
    assert str(failure.error) == "a bug", "it is told, whatever became of the turn"


def test_failures_that_are_none_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Recovery, turn: object) -> bool:
        return False

    async def always(self: Recovery, turn: object) -> bool:
        return True

    monkeypatch.setattr(Recovery, "_has_ended", never)
    assert asyncio.run(taken_up(Refused("Too late."), ends=True)) != []
    monkeypatch.setattr(Recovery, "_has_ended", always)
    assert asyncio.run(taken_up(Refused("It has no such tool."), ends=False)) == []


# what tools raise


def raising(error: BaseException, *, is_async: bool) -> Any:
    def plain() -> str:
        """Fail."""
        raise error

    async def awaited() -> str:
        """Fail."""
        await asyncio.sleep(0)
        raise error

    return tool(name="fail")(awaited if is_async else plain)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError(), StopIteration(), StopAsyncIteration()])
@IN_MEMORY
def test_whatever_a_tool_raises_is_told_to_the_model(hf: Holdfast, error: BaseException, is_async: bool) -> None:
    agent: Any = hf.agent("a", model=Scripted([call("fail"), "Done."]), tools=[raising(error, is_async=is_async)])
    assert agent.send(SESSION, "Go.").text == "Done."
    (told,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    assert told.is_error
    assert "fail " in str(told.result) or "Stop" in str(told.result)


@IN_MEMORY
def test_what_comes_out_of_a_tool_as_it_is_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_failure", lambda name, error: GeneratorExit())
    for is_async in (False, True):
        with pytest.raises(GeneratorExit):
            test_whatever_a_tool_raises_is_told_to_the_model(hf, GeneratorExit(), is_async)
        hf.session(SESSION).stop()


def test_a_tool_that_is_closed_is_closed() -> None:
    closed: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except GeneratorExit:
            closed.append("closed")
            raise

    async def begun() -> Any:
        at_work = run_function("waits", waits, {}, lambda work: asyncio.sleep(0), is_async=True, timeout=None)
        at_work.send(None)
        return at_work

    asyncio.run(begun()).close()  # A failure here would be raised in whoever lets go of it.
    gc.collect()
    assert closed == ["closed"]


# words


@pytest.mark.parametrize(("arguments", "wrong"), UNFIT)
def test_a_question_about_arguments_that_do_not_fit_is_one_sentence(hf: Holdfast, arguments: str, wrong: str) -> None:
    hf.session(SESSION, tools=[PAY])
    leave_at(hf, "Pay.", CallTool, replies(asks(("pay", arguments))), key="k", if_interrupted="retry")
    ask = take(hf, "Pay.", replies(), lambda step: pytest.fail("it ran"), key="k", if_interrupted="retry")
    assert " may have run, and the arguments " in ask.question
    assert wrong in ask.question


def test_no_arguments_at_all_fit_what_needs_none() -> None:
    assert describe_misfit("look", {"type": "object", "properties": {"at": {"type": "integer"}}}, None) is None
    assert describe_misfit("pay", PAY.parameters, None) == describe_misfit("pay", PAY.parameters, {})


def test_a_capital_in_mid_sentence_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_rules, "lower_first_letter", lambda sentence: sentence)
    with pytest.raises(AssertionError):
        test_a_question_about_arguments_that_do_not_fit_is_one_sentence(hf, "[]", "not an object")
