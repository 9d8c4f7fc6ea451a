"""Turns that cannot be taken up: who runs `recovering` hears of each, and what fails keeps none of the others."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest

import holdfast
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model.scripted import Scripted
from holdfast.runtime.recovery import Recovery, RecoveryFailure
from holdfast.testing.clock import FrozenClock
from tests.turns.agent_world import until, until_async
from tests.turns.test_recovering import left, looked


def failing(kind: str = "unavailable") -> Scripted:
    return Scripted(lambda pack: (_ for _ in ()).throw(ModelFailed("The model is away.", kind=kind, retryable=True)))


async def told(on_error: Any, looks: int = 2) -> tuple[list[RecoveryFailure], dict[str, RecoveryFailure]]:
    """What is told of a turn that fails at every look, and what is listed after the last one."""
    clock, heard = FrozenClock(), list[RecoveryFailure]()

    def tell(failure: RecoveryFailure) -> None:
        heard.append(failure)
        if on_error is not None:
            on_error(failure)

    async with holdfast.open_async("memory:", clock=clock) as hf:
        await left(hf, "s")
        agent: Any = hf.agent("a", model=failing())
        recovering = agent.recovering(every=1.0, on_error=tell)
        for _ in range(looks):
            assert await looked(agent, recovering) == 1
            clock.advance(3_600_000)
        listed = recovering.failures
        good: Any = hf.agent("a", model=Scripted(["Hi."]))
        recovering._take_up = lambda tenant, session, thread: good._resume(session, thread)
        assert await looked(agent, recovering) == 1
        assert (recovering.failures, recovering.taken_up) == ({}, 1), "it was taken up at last"
        return heard, listed


def test_each_failure_is_told_and_listed_until_the_turn_is_taken_up() -> None:
    heard, listed = asyncio.run(told(None))
    assert [(one.times, one.session, one.thread, one.tenant) for one in heard] == [
        (1, "s", "main", "default"),
        (2, "s", "main", "default"),
    ]
    assert all(isinstance(one.error, ModelFailed) for one in heard)
    assert listed == {heard[1].frame: heard[1]}


def test_failures_that_are_swallowed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_record_failure", lambda self, one, turn, error: None)
    with pytest.raises(AssertionError):
        test_each_failure_is_told_and_listed_until_the_turn_is_taken_up()


def test_an_on_error_that_fails_itself_is_warned_of_once_and_ends_nothing() -> None:
    def raises(failure: RecoveryFailure) -> None:
        raise RuntimeError("a bug of its own")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        heard, _ = asyncio.run(told(raises))
    assert len(heard) == 2
    assert [str(one.message) for one in caught if one.category is RuntimeWarning] == [
        "What was given as on_error raised RuntimeError('a bug of its own')"
    ]


async def warned(hf: AsyncHoldfast, clock: FrozenClock) -> list[str]:
    """What is warned of while two turns fail, in two ways after each other."""
    await left(hf, "s")
    await left(hf, "t")
    agent: Any = hf.agent("a", model=failing())
    recovering = agent.recovering(every=1.0)

    async def fails(*given: object) -> None:
        raise RuntimeError("a bug")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for at in range(4):
            if at == 2:
                recovering._take_up = fails
            await looked(agent, recovering)
            clock.advance(3_600_000)
    return [str(one.message) for one in caught if one.category is RuntimeWarning]


def test_without_on_error_each_turn_and_kind_is_warned_of_once() -> None:
    async def main() -> list[str]:
        clock = FrozenClock()
        async with holdfast.open_async("memory:", clock=clock) as hf:
            return await warned(hf, clock)

    found = asyncio.run(main())
    assert sorted(("'s'" in one, "ModelFailed" in one) for one in found) == [
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    ]


def test_code_without_asyncio_hears_of_it_as_well() -> None:
    with holdfast.open("memory:") as hf:
        agent: Any = hf.agent("a", model=failing())
        with pytest.raises(ModelFailed):
            agent.send("s", "Hello")
        heard = list[RecoveryFailure]()
        with agent.recovering(every=0.01, on_error=heard.append) as recovering:
            until(lambda: recovering.failures)
        assert heard[0].session == "s"
        assert isinstance(heard[0].error, ModelFailed)


def test_what_is_no_function_is_refused() -> None:
    with holdfast.open("memory:") as hf:
        agent: Any = hf.agent("a", model=failing())
        with pytest.raises(InvalidValue, match="on_error"), agent.recovering(on_error="log"):
            pass


# ending


async def ended_with_news() -> None:
    """The block is left at the very moment at which there are news."""
    async with holdfast.open_async("memory:") as hf:
        agent: Any = hf.agent("a", model=Scripted(["Hi."]))
        async with agent.recovering(every=3_600.0) as recovering:
            await until_async(lambda: recovering._watching._seen is not None and not recovering._news.is_set())
            for _ in range(5):
                await asyncio.sleep(0)
            recovering._news.set()
            recovering._task.cancel()
            try:
                await asyncio.wait({recovering._task}, timeout=0.5)
                assert recovering._task.done()
            finally:
                recovering._task.cancel()


def test_it_ends_when_it_is_told_to_also_with_news() -> None:
    asyncio.run(ended_with_news())


def test_an_end_that_is_lost_with_news_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def running(self: Recovery) -> None:
        await self.poll()
        while True:
            try:
                await asyncio.wait_for(self._news.wait(), self._every)
            except TimeoutError:
                pass
            self._news.clear()

    monkeypatch.setattr(Recovery, "_run", running)
    with pytest.raises(AssertionError):
        asyncio.run(ended_with_news())
