"""Turns for asyncio: the loop of one's own, steps beside each other, and cancellation that leaves nothing behind."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast import Ask, CallModel, CallTool, Done, Refused
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.aio.turn import AsyncCallModel, AsyncCallTool, AsyncTurn
from holdfast.client.turn import Turn
from holdfast.errors import ActorBusy, InvalidValue, ModelFailed, StepUnanswered
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from tests.model_events import chat_events
from tests.model_replies import chat
from tests.turns.agent_world import spoken_async
from tests.turns.loops import SESSION, asks

Work = Callable[[AsyncHoldfast], Awaitable[None]]


def run(work: Work, url: str = "memory:") -> None:
    async def main() -> None:
        async with holdfast.open_async(url) as hf:
            await work(hf)
            assert (await hf.journal.verify()).findings == ()

    asyncio.run(main())


async def looped(turn: Any, *replies: Any) -> list[str]:
    """The loop that everybody writes; gives what it saw."""
    left, seen = list(replies), []
    async for step in turn:
        seen.append(type(step).__name__.removeprefix("Async"))
        if isinstance(step, CallModel):
            await step.done(left.pop(0))
        elif isinstance(step, CallTool):
            await step.done({"got": step.args})
    return seen


async def answered(hf: AsyncHoldfast, message: Any, *replies: Any, **how: Any) -> list[str]:
    async with (await hf.session(SESSION)).turn(message, **how) as turn:
        return await looped(turn, *replies)


# the loop


def test_a_loop_of_ones_own() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        chat = await hf.session(SESSION, model="gpt-4o")
        async with chat.turn("Look.", key="k") as turn:
            seen = await looped(turn, asks(("look", {"at": 1})), "I saw it.")
            assert seen == ["CallModel", "CallTool", "CallModel", "Done"]
            assert (turn.text, turn.key, await turn.status()) == ("I saw it.", "k", "completed")
        assert await spoken_async(hf) == [
            ("user", "Look."),
            ("assistant", ["look"]),
            ("tool", [{"got": {"at": 1}}]),
            ("assistant", "I saw it."),
        ]
        position = await hf.journal.position()
        assert await answered(hf, "Look.", key="k") == ["Done"]
        assert await hf.journal.position() == position

    run(work)


def test_steps_beside_each_other() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        async with (await hf.session(SESSION)).turn("Look.") as turn:
            (model,) = await turn.steps()
            with pytest.raises(StepUnanswered):
                await turn.steps()
            await model.done(asks(*((f"t{n}", {"n": n}) for n in range(10))))
            tools: Any = await turn.steps()
            met = asyncio.Barrier(10)

            async def one(step: Any) -> None:
                await met.wait()
                await (step.fail("no") if step.args["n"] == 3 else step.done(step.args["n"]))

            await asyncio.gather(*(one(step) for step in tools))
            (model,) = await turn.steps()
            await model.done("Done.")
            (done,) = await turn.steps()
            assert (done.text, await turn.steps()) == ("Done.", [])
        results = [one[0] for role, one in await spoken_async(hf) if role == "tool"]
        assert sorted(map(str, results)) == sorted(["no", *(str(n) for n in range(10) if n != 3)])

    run(work)


def test_a_question_and_its_answer() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        async with (await hf.session(SESSION)).turn("Pay.", key="k") as turn:
            async for step in turn:
                if isinstance(step, CallModel):
                    await step.done(asks(("pay", {"amount": 5})))
                elif isinstance(step, CallTool):
                    await step.ask("May I?")
                elif isinstance(step, Ask):
                    question = step.id
        await hf.answer(question, approve=True)
        assert await answered(hf, "Pay.", "Paid.", key="k") == ["CallTool", "CallModel", "Done"]

    run(work)


async def chunked(events: list[Any]) -> AsyncIterator[Any]:
    for event in events:
        await asyncio.sleep(0)
        yield event


def test_a_stream_of_chunks() -> None:
    whole = chat({"model": "m"}, "Here it is, word by word.", 1)

    async def work(hf: AsyncHoldfast) -> None:
        async with (await hf.session(SESSION)).turn("Hello") as turn:
            async for step in turn:
                if isinstance(step, CallModel):
                    words = [word async for word in step.stream(chunked(chat_events(whole)))]
                    assert "".join(words) == "Here it is, word by word."
                    assert len(words) > 3
            assert turn.text == "Here it is, word by word."
            assert (await turn.usage()).input == 20

    run(work)


def test_a_stream_that_is_cut_is_no_reply() -> None:
    whole = chat({"model": "m"}, "Here it is, word by word.", 1)

    async def work(hf: AsyncHoldfast) -> None:
        async with (await hf.session(SESSION)).turn("Hello", key="k") as turn:
            (step,) = await turn.steps()
            with pytest.raises(ModelFailed):
                assert [word async for word in step.stream(chunked(chat_events(whole)[:4]))]
            (again,) = await turn.steps()
            assert again.call != step.call
            with pytest.raises((InvalidValue, ModelFailed)):
                assert [word async for word in again.stream(chunked([]))]
        assert await answered(hf, "Hello", "Hi.", key="k") == ["CallModel", "Done"]

    run(work)


def test_a_stop_during_a_stream_keeps_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.aio.turn.STOP_POLL_SECONDS", -1.0)
    whole = chat({"model": "m"}, "Here it is, word by word.", 1)

    async def work(hf: AsyncHoldfast) -> None:
        session = await hf.session(SESSION)
        shown = ""
        async with session.turn("Hello") as turn:
            async for step in turn:
                if isinstance(step, CallModel):
                    async for word in step.stream(chunked(chat_events(whole))):
                        shown += word
                        assert await session.stop("enough")
                elif isinstance(step, Done):
                    assert (step.status, step.reason, step.text) == ("stopped", "enough", shown)
        assert shown
        assert (await session.messages())[-1].partial

    run(work)


# in line


def test_waiting_in_line_takes_no_thread() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        session, many = await hf.session(SESSION), 100
        order: list[int] = []

        async def one(number: int) -> None:
            async with session.turn(f"Message {number}") as turn:
                order.append(number)
                await looped(turn, f"To {number}.")

        async with session.turn("First") as turn:
            (step,) = await turn.steps()
            before = threading.active_count()
            waiting = []
            for number in range(many):
                waiting.append(asyncio.ensure_future(one(number)))
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            assert threading.active_count() <= before + 16, "a hundred who wait need no hundred threads"
            assert await hf.journal.position() > 0, "and whoever wants a thread gets one"
            for number in (3, 50):
                waiting[number].cancel()
            await step.done("Hi.")
        await asyncio.gather(*waiting, return_exceptions=True)
        assert sorted(order) == sorted(set(range(many)) - {3, 50})
        assert hf._sync.env.queues._waiting == {}

    run(work)


def test_patience_ends() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        session = await hf.session(SESSION)

        async def second() -> None:
            async with session.turn("Second", wait=0.01):
                raise AssertionError("it is not its turn")

        async with session.turn("First") as turn:
            (step,) = await turn.steps()
            with pytest.raises(ActorBusy, match="Nothing was written"):
                await asyncio.create_task(second())
            await step.done("Hi.")
        assert len(await spoken_async(hf)) == 2

    run(work)


# cancellation


class Cancelled:
    """Awaits something and cancels it at the n-th time that it is waited for."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, work: Any) -> Any:
        return _Awaited(self, work)


class _Awaited:
    def __init__(self, cancelled: Cancelled, work: Any) -> None:
        self._cancelled, self._work = cancelled, work

    def __await__(self) -> Any:
        waiting, given = self._work.__await__(), None
        while True:
            self._cancelled.left -= 1
            try:
                future = waiting.throw(asyncio.CancelledError()) if self._cancelled.left == 0 else waiting.send(given)
            except StopIteration as ended:
                return ended.value
            given = yield future


def test_cancelled_anywhere_the_turn_stays_live_and_the_line_is_free() -> None:
    """Cancel at the first await, at the second, and so on, until the turn comes to its end before."""

    async def body(hf: AsyncHoldfast) -> None:
        async with (await hf.session(SESSION)).turn("Look.", key="k") as turn:
            await looped(turn, asks(("look", {"at": 1})), "I saw it.", "I saw it.")

    async def goes_on(hf: AsyncHoldfast) -> None:
        async with (await hf.session(SESSION)).turn("Look.", key="k", wait=1.0, if_interrupted="retry") as turn:
            async for step in turn:
                if isinstance(step, CallModel):
                    called = any(role == "tool" for role, _ in await spoken_async(hf))
                    await step.done("I saw it." if called else asks(("look", {"at": 1})))
                elif isinstance(step, CallTool):
                    await step.done("again")
                elif isinstance(step, Ask):
                    await hf.answer(step.id, approve=True)
            assert turn.text == "I saw it."

    async def attempt(at: int) -> bool:
        async with holdfast.open_async("memory:") as hf:
            work, cancelled = asyncio.ensure_future(_run(Cancelled(at), body(hf))), False
            try:
                await work
            except asyncio.CancelledError:
                cancelled = True
            assert hf._sync.env.queues._waiting == {}
            await goes_on(hf)
            assert [role for role, _ in await spoken_async(hf)] == ["user", "assistant", "tool", "assistant"]
            assert (await hf.journal.verify()).findings == ()
            return cancelled

    async def main() -> int:
        at = 1
        while await attempt(at):
            at += 1
        return at

    assert asyncio.run(main()) > 8, "it was cancelled at many places"


async def _run(cancelled: Cancelled, work: Any) -> None:
    await cancelled(work)


def test_cancelled_while_it_waits_in_line_nothing_is_left_behind() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        session = await hf.session(SESSION)
        async with session.turn("First") as turn:
            (step,) = await turn.steps()

            async def second() -> None:
                async with session.turn("Second"):
                    raise AssertionError("it is not its turn")

            for _ in range(3):
                waiting = asyncio.ensure_future(second())
                await asyncio.sleep(0.005)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            await step.done("Hi.")
        assert await answered(hf, "Third", "Yes.", if_busy="reject") == ["CallModel", "Done"]
        assert [text for role, text in await spoken_async(hf) if role == "user"] == ["First", "Third"]

    run(work)


# the same as without asyncio


def _public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers_static(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("sync", "colour", "own", "more"),
    [
        (Turn, AsyncTurn, set(), set()),
        (CallModel, AsyncCallModel, set(), set()),
        (CallTool, AsyncCallTool, set(), set()),
        (ToolCall, AsyncToolCall, set(), set()),
    ],
)
def test_both_sides_have_the_same_members_with_the_same_parameters(
    sync: type, colour: type, own: set[str], more: set[str]
) -> None:
    """`own` is for who drives a turn in threads, `more` for who drives it on a loop."""
    one, other = _public(sync), _public(colour)
    assert one.keys() - own == other.keys() - more
    for name in one.keys() - own:
        if inspect.isfunction(one[name]):
            given, same = (inspect.signature(member).parameters.values() for member in (one[name], other[name]))
            assert [(p.name, p.kind, p.default) for p in given] == [(p.name, p.kind, p.default) for p in same], name
            assert inspect.getdoc(other[name]), name


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
