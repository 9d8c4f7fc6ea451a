"""Operators through asyncio: plain ones in threads, async ones on the loop, each once for its key."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.aio import effects as async_effects
from holdfast.aio.effects import AsyncEffects
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.effects import Custom, OperatorOutput, WriteState
from holdfast.errors import InvalidValue
from holdfast.types import AsyncStateReader, StateReader
from tests.effects.operators import MANY, declared, tidy, tidy_async
from tests.scale import seeded, volume
from tests.sessions.looped import play


class Tidy:
    """An operator that is an object."""

    async def __call__(self, order: int, view: AsyncStateReader) -> OperatorOutput:
        return await tidy_async(order, view)


async def _lent(order: int, view: StateReader) -> OperatorOutput:
    return declared(order, await asyncio.to_thread(view("user/42").read, "seen", default=0))


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (tidy, "tidy"),
        (tidy_async, "tidy_async"),
        (Tidy(), "Tidy"),
        (functools.partial(tidy_async), "mine"),
        (lambda order, view: _lent(order, view), "mine"),
    ],
)
def test_an_operator_of_any_kind_runs_once_for_its_key_under_its_name(operator: Any, name: str) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        await hf.state("user/42").write("seen", 6)
        given = name if name == "mine" else None
        done = await hf.effects.operate(operator, 1, key="k", name=given)
        again = await hf.effects.operate(operator, 1, key="k", name=given)
        assert (done.output, done.repeated) == ({"order": 1, "seen": 6}, False)
        assert (again.output, again.outcomes, again.repeated) == (done.output, done.outcomes, True)
        assert [(one.kind, one.outcome) for one in done.outcomes] == [("write", "applied"), ("note", "pending")]
        assert await hf.state("user/42").read("seen") == 7
        (info,) = [one async for one in hf.effects.pending()]
        assert (info.operator, info.payload) == (name, {"order": 1})

    play(test)
    gc.collect()


def test_an_async_operator_is_awaited_on_the_loop_and_searches_with_an_async_embedder() -> None:
    async def lengths(texts: Sequence[str]) -> list[list[float]]:
        return [[len(text), 1.0] for text in texts]

    def plain(given: str, view: StateReader) -> list[str]:
        return [one.key for one in view("user/42").search(given)]

    async def test(hf: AsyncHoldfast) -> None:
        loop = asyncio.get_running_loop()

        async def awaited(given: str, view: AsyncStateReader) -> list[str]:
            assert asyncio.get_running_loop() is loop
            return [one.key for one in await view("user/42").search(given)]

        await hf.state("user/42").write("a", "something long")
        for operator in (plain, awaited):
            assert (await hf.effects.operate(operator, "quite another thing")).output == ["a"]  # type: ignore[arg-type]

    play(test, embedder=lengths)


def test_an_operator_that_raises_writes_nothing_and_is_heard_as_it_is() -> None:
    async def fails(given: Any, view: AsyncStateReader) -> Any:
        raise TimeoutError("no answer")

    def fails_in_a_thread(given: Any, view: StateReader) -> Any:
        raise TimeoutError("no answer")

    async def odd(given: Any, view: AsyncStateReader) -> Any:
        return OperatorOutput(None, [WriteState("user/42", "a", 1), 3])  # type: ignore[list-item]

    async def test(hf: AsyncHoldfast) -> None:
        position = await hf.journal.position()
        for operator in (fails, fails_in_a_thread):
            with pytest.raises(TimeoutError, match="no answer") as told:
                await hf.effects.operate(operator, key="k")
            assert told.value.__context__ is None
        with pytest.raises(InvalidValue, match="effects"):
            await hf.effects.operate(odd, key="k")
        assert await hf.journal.position() == position

    play(test)


async def _cancelled_operator(hf: AsyncHoldfast) -> None:
    asked, free = asyncio.Event(), asyncio.Event()
    went_on: list[int] = []

    async def slow(given: Any, view: AsyncStateReader) -> OperatorOutput:
        asked.set()
        await free.wait()
        went_on.append(given)
        return await tidy_async(given, view)

    position = await hf.journal.position()
    running = asyncio.create_task(hf.effects.operate(slow, 1, key="k"))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    free.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert went_on == []
    assert await hf.journal.position() == position
    assert not (await hf.effects.operate(slow, 1, key="k")).repeated
    assert await hf.state("user/42").read("seen") == 1


def test_an_async_operator_that_is_cancelled_is_stopped_and_has_written_nothing() -> None:
    play(_cancelled_operator)


def test_an_operator_that_is_carried_out_after_a_cancellation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: it runs as a task of its own, which nobody cancels."""
    operate = AsyncEffects.operate

    async def shielded(self: AsyncEffects, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.shield(operate(self, *args, **kwargs))

    monkeypatch.setattr(AsyncEffects, "operate", shielded)

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(AssertionError):
            await _cancelled_operator(hf)

    play(test)


async def _cancelled_anywhere(hf: AsyncHoldfast, rng: random.Random, times: int) -> None:
    """Operators of both kinds that are cancelled whenever, and then asked for again with their keys."""
    for n in range(times):
        user, keys = f"user/{n}", [f"{n}.{m}" for m in range(10)]

        async def awaited(given: Any, view: AsyncStateReader, user: str = user) -> OperatorOutput:
            await asyncio.sleep(0)
            return OperatorOutput(given, [WriteState(user, "count", 1, reducer="sum"), Custom("note", given, "crm")])

        def plain(given: Any, view: StateReader, user: str = user) -> OperatorOutput:
            return OperatorOutput(given, [WriteState(user, "count", 1, reducer="sum"), Custom("note", given, "crm")])

        def run(key: str, n: int = n, operators: tuple[Any, Any] = (awaited, plain)) -> Any:
            return hf.effects.operate(operators[n % 2], key, key=key, name="count")

        running = [asyncio.create_task(run(key)) for key in keys]
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        done = await asyncio.gather(*(run(key) for key in keys))
        assert [one.output for one in done] == keys
        assert await hf.state(user).read("count") == len(keys)
    declared = [one.payload async for one in hf.effects.pending()]
    assert sorted(declared) == sorted(f"{n}.{m}" for n in range(times) for m in range(10))


def test_operators_cancelled_at_any_moment_happen_once_when_they_are_asked_for_again() -> None:
    rng = seeded("cancelled operators")
    play(lambda hf: _cancelled_anywhere(hf, rng, volume(6, 200)))


async def _meeting(hf: AsyncHoldfast, seconds: float) -> None:
    """More operators than there are threads, none of which ends before all have begun; each asks for another one."""
    all_here = asyncio.Barrier(MANY)

    async def inner(given: int, view: AsyncStateReader) -> int:
        return given + await view("user/42").read("seen", default=0)

    async def meets(given: int, view: AsyncStateReader) -> Any:
        async with asyncio.timeout(seconds):
            await all_here.wait()
        return (await hf.effects.operate(inner, given)).output

    done = await asyncio.gather(*(hf.effects.operate(meets, n) for n in range(MANY)))
    assert [one.output for one in done] == list(range(MANY))


def test_async_operators_hold_no_threads_while_they_run() -> None:
    play(lambda hf: _meeting(hf, 10))


def test_operators_that_are_awaited_by_threads_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_effects, "is_async", lambda operator: False)

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(TimeoutError):
            await _meeting(hf, 0.05)

    play(test)


def test_a_plain_operator_runs_in_a_thread_and_the_loop_goes_on() -> None:
    async def test(hf: AsyncHoldfast) -> None:
        loop, begun, turned = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def slow(given: Any, view: StateReader) -> bool:
            loop.call_soon_threadsafe(begun.set)
            return turned.wait(10)

        running = asyncio.create_task(hf.effects.operate(slow))
        await begun.wait()
        await hf.state("user/42").write("meanwhile", 1)
        turned.set()
        assert (await running).output is True

    play(test)
