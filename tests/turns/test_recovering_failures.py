"""Turns that cannot be taken up: who runs `recovering` hears of each, and what fails keeps none of the others."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest

import holdfast
from holdfast import OpenAIChat
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import InvalidValue, ModelFailed, Refused, StaleEpoch
from holdfast.model.scripted import Scripted
from holdfast.runtime import recovery
from holdfast.runtime.recovery import Recovery, RecoveryFailure
from holdfast.testing.clock import FrozenClock
from tests.turns.agent_world import until, until_async
from tests.turns.test_recovering import left, looked, words


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


# what an operator has to mend


class Wrong(Scripted):
    """A model with a name that its provider does not know, until somebody corrects it."""

    def __init__(self, kind: str) -> None:
        super().__init__(self._answer)
        self.identity, self.asked, self._kind = "wrong", 0, kind

    def _answer(self, pack: Any) -> str:
        self.asked += 1
        if self.identity != "right":
            raise ModelFailed("There is no such model.", kind=self._kind)
        return "Hi."


async def mended(kind: str) -> None:
    clock = FrozenClock()
    async with holdfast.open_async("memory:", clock=clock) as hf:
        await left(hf, "s")
        model, told = Wrong(kind), list[RecoveryFailure]()
        agent: Any = hf.agent("a", model=model)
        recovering = agent.recovering(every=1.0, on_error=told.append)
        assert await looked(agent, recovering) == 1
        for _ in range(5):
            clock.advance(3_600_000)
            assert await looked(agent, recovering) == 0, "nothing has changed"
        assert (len(told), [one.times for one in recovering.failures.values()]) == (1, [1])
        model.identity = "wrong in another way"
        assert await looked(agent, recovering) == 1
        clock.advance(3_600_000)
        assert await looked(agent, recovering) == 0
        model.identity = "right"
        assert await looked(agent, recovering) == 1
        assert (model.asked, recovering.failures, await words(hf)) == (3, {}, ["Hello", "Hi."])


@pytest.mark.parametrize("kind", ["unauthorised", "unknown_model", "quota"])
def test_what_an_operator_has_to_mend_is_tried_again_once_the_model_has_changed(kind: str) -> None:
    asyncio.run(mended(kind))


def test_planted_tries_without_a_change_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "MENDABLE_KINDS", frozenset())
    with pytest.raises(AssertionError, match="nothing has changed"):
        asyncio.run(mended("unknown_model"))


def test_another_agent_tries_it_at_once() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:", clock=FrozenClock()) as hf:
            await left(hf, "s")
            for model in (Wrong("unknown_model"), Scripted(["Hi."])):  # As after a restart with another model.
                agent: Any = hf.agent("a", model=model)
                recovering = agent.recovering(on_error=lambda failure: None)
                assert await looked(agent, recovering) == 1
            assert await words(hf) == ["Hello", "Hi."]

    asyncio.run(main())


def test_a_model_is_known_by_its_name_its_address_and_its_credentials() -> None:
    made = [
        OpenAIChat("m", api_key="sk-one"),
        OpenAIChat("n", api_key="sk-one"),
        OpenAIChat("m", api_key="sk-two"),
        OpenAIChat("m", api_key="sk-one", base_url="https://models.example.com/v1"),
        OpenAIChat("m", api_key="sk-one", headers={"OpenAI-Project": "p"}),
    ]
    found = [model.identity for model in made]
    assert len(set(found)) == len(made)
    assert OpenAIChat("m", api_key="sk-one").identity == found[0]
    assert not any("sk-" in one for one in found)


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


# looks


def test_a_look_that_fails_is_warned_of_once_and_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    async def look(self: Recovery) -> int:
        looked.append(1)
        raise ZeroDivisionError

    async def test() -> None:
        async with holdfast.open_async("memory:") as hf, hf.agent("a", model=Scripted([])).recovering(every=0.001):
            await until_async(lambda: len(looked) > 2)

    monkeypatch.setattr(Recovery, "poll", look)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(test())
    assert ["ZeroDivisionError" in str(one.message) for one in warned if one.category is RuntimeWarning] == [True]
