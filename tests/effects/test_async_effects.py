"""Effects through asyncio: the same answers, one crossing each, and sinks that are awaited on the loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError
from holdfast.aio import effects as async_effects
from holdfast.aio.effects import AsyncEffects, LoopSink
from holdfast.aio.executor import SHORT
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.aio.state import open_store_async
from holdfast.effects import Custom, DeclaredEffect, DispatchReport, OperatorOutput, WriteState
from holdfast.errors import Closed, EffectRefused, InvalidValue, RetryLater
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.types import StateReader
from tests.effects.operators import MANY, tidy, tidy_async
from tests.effects.sinks import Noting
from tests.sessions.looped import counted, play

# the same answers

Op = tuple[Any, str, tuple[Any, ...], dict[str, Any]]


def _approval(given: Any, view: StateReader) -> OperatorOutput:
    return OperatorOutput(given, [Custom("note", given, "mail", needs_approval=True)] * 2)


def _suppress(effect: Any) -> Any:
    return None if getattr(effect, "payload", None) == "secret" else effect


def _story(hf: Any, clock: FrozenClock, crm: Noting) -> Generator[Op, Any, None]:
    """Every operation at least once, each with what the ones before gave."""

    def op(target: Any, member: str, /, *args: Any, **kwargs: Any) -> Op:
        return target, member, args, kwargs

    effects = hf.effects
    yield op(effects, "operate", tidy if isinstance(hf, holdfast.Holdfast) else tidy_async, 1, key="k", name="tidy")
    yield op(effects, "operate", tidy, 1, key="k")
    yield op(effects, "operate", tidy, 2, scope="operator/other")
    yield op(effects, "operate", _approval, 2, key="k", scope="operator/tidy")
    yield op(effects, "operate", lambda given, view: OperatorOutput(None, [3]), name="wrong")
    yield op(effects, "operate", 3)
    yield op(effects, "operate", tidy, 2, name="no\nname")
    yield op(effects, "pending")
    yield op(effects, "dispatch")
    undo = yield op(effects, "add_sink", "crm", crm)
    yield op(effects, "add_sink", "crm", crm)
    yield op(effects, "add_sink", "state", crm)
    yield op(effects, "add_sink", "mail", 3)
    yield op(effects, "dispatch", limit=0)
    crm.failing = lambda effect: ConnectionError("away") if effect.payload["order"] == 1 else None
    yield op(effects, "dispatch")
    failed = yield op(effects, "pending")
    yield op(effects, "get", failed[0].id)
    yield op(effects, "revive", failed[0].id)
    crm.failing = lambda effect: EffectRefused("never")
    yield op(effects, "dispatch")
    dead = yield op(effects, "dead")
    yield op(effects, "discard", dead[0].id, reason="who needs it")
    yield op(effects, "get", dead[0].id)
    undo_middleware = yield op(effects, "add_middleware", _suppress)
    yield op(effects, "add_middleware", 3)
    yield op(effects, "operate", _approval, "secret")
    undo_middleware()
    asked = yield op(effects, "operate", _approval, "to be approved")
    yield op(effects, "approve", asked.outcomes[0].effect)
    yield op(effects, "reject", asked.outcomes[1].effect, reason="no")
    yield op(effects, "reject", asked.outcomes[1].effect)
    clock.advance(3_600_000)
    yield op(effects, "dispatch", sink="mail")
    undo()
    yield op(effects, "dispatch")


def _tell(target: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What the plain client gives, or the error that it raises."""
    try:
        made = getattr(target, name)(*args, **kwargs)
        return list(made) if isinstance(made, Iterator) else made
    except HoldfastError as error:
        return error


async def _tell_async(target: Any, name: str, args: Any, kwargs: Any) -> Any:
    try:
        made = getattr(target, name)(*args, **kwargs)
        if isinstance(made, AsyncIterator):
            return [item async for item in made]
        return await made if inspect.isawaitable(made) else made
    except HoldfastError as error:
        return error


def _shown(answer: Any) -> str:
    return "what undoes it" if callable(answer) else repr(answer)


def _told(story: Generator[Op, Any, None]) -> list[str]:
    told, sent = [], None
    try:
        while True:
            sent = _tell(*story.send(sent))
            told.append(_shown(sent))
    except StopIteration:
        return told


async def _told_async(
    story: Generator[Op, Any, None], crossings: Callable[[], int]
) -> tuple[list[str], list[tuple[str, int]]]:
    told: list[str] = []
    crossed: list[tuple[str, int]] = []
    sent = None
    while True:
        try:
            asked = story.send(sent)
        except StopIteration:
            return told, crossed
        before = crossings()
        sent = await _tell_async(*asked)
        told.append(_shown(sent))
        crossed.append((asked[1], crossings() - before))


@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_every_operation_gives_the_same_and_crosses_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ambient(name: str) -> tuple[FrozenClock, Noting, dict[str, Any]]:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        clock = FrozenClock()
        return clock, Noting(), {"clock": clock, "ids": SeededIds(clock)}

    clock, crm, beside = ambient("sync")
    with holdfast.open(url, **beside) as hf:
        expected = _told(_story(hf, clock, crm))
    clock, same, beside = ambient("async")

    async def test(hf: AsyncHoldfast) -> None:
        told, crossed = await _told_async(_story(hf, clock, same), counted(hf._threads, monkeypatch))
        for one, async_one, (name, _) in zip(expected, told, crossed, strict=True):
            assert one == async_one, name
        assert [one.id for one in same.asked] == [one.id for one in crm.asked]
        at_once = {"add_sink", "add_middleware"}
        assert crossed[0] == ("operate", 3), "an async operator runs between two crossings, and reads once"
        assert {times for name, times in crossed[1:] if name not in at_once} == {1}
        assert {times for name, times in crossed if name in at_once} == {0}
        assert {name for name, _ in crossed} == {name for name in dir(AsyncEffects) if not name.startswith("_")}
        assert (await hf.journal.verify()).ok

    play(test, url, **beside)


# sinks


class Taking:
    """An async sink that notes what it took, and on which loop; it fails as often as it is told to."""

    def __init__(self, *fails: Exception) -> None:
        self.asked: list[DeclaredEffect] = []
        self.loops: set[Any] = set()
        self.fails = list(fails)
        self.reached, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def deliver(self, effect: DeclaredEffect) -> Any:
        self.asked.append(effect)
        self.loops.add(asyncio.get_running_loop())
        self.reached.set()
        await self.free.wait()
        if self.fails:
            raise self.fails.pop(0)
        return {"taken": effect.payload}


async def _declare(hf: AsyncHoldfast, *payloads: Any, sink: str = "crm", key: str | None = None) -> list[str]:
    wanted = [Custom("note", payload, sink) for payload in payloads]
    done = await hf.effects.operate(lambda given, view: OperatorOutput(None, wanted), name="test", key=key)
    return [one.effect for one in done.outcomes]


@pytest.mark.parametrize("kind", ["object", "function", "lambda", "plain"])
def test_a_sink_of_any_kind_takes_each_effect_once_in_order(kind: str) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        taking = Taking()
        plain: list[DeclaredEffect] = []
        sinks: dict[str, Any] = {
            "object": taking,
            "function": taking.deliver,
            "lambda": lambda effect: taking.deliver(effect),
            "plain": plain.append,
        }
        undo = hf.effects.add_sink("crm", sinks[kind])
        ids = await _declare(hf, 1, 2, 3)
        assert await hf.effects.dispatch() == DispatchReport(applied=3)
        assert [one.id for one in (plain if kind == "plain" else taking.asked)] == ids
        assert taking.loops <= {asyncio.get_running_loop()}
        assert await hf.effects.dispatch() == DispatchReport()
        undo()
        await _declare(hf, 4)
        assert await hf.effects.dispatch() == DispatchReport(deferred=1)

    play(test)


def test_what_a_sink_answers_is_kept() -> None:
    async def test(hf: AsyncHoldfast) -> None:
        hf.effects.add_sink("crm", Taking())
        await hf.effects.operate(tidy_async, 1, key="k")
        await hf.effects.dispatch()
        again = await hf.effects.operate(tidy_async, 1, key="k")
        assert (again.outcomes[1].outcome, again.outcomes[1].answer) == ("applied", {"taken": {"order": 1}})

    play(test)


def test_a_sink_that_fails_is_asked_again_and_one_that_never_will_is_dead() -> None:
    clock = FrozenClock()

    async def test(hf: AsyncHoldfast) -> None:
        taking = Taking(ConnectionError("away"), RetryLater(retry_after=60), asyncio.CancelledError(), EffectRefused())  # type: ignore[arg-type]
        hf.effects.add_sink("crm", taking)
        await _declare(hf, 1)
        for wait, outcome in [(5, "failed"), (61, "failed"), (30, "failed"), (0, "dead")]:
            assert await hf.effects.dispatch() == DispatchReport(**{outcome: 1})
            clock.advance(wait * 1000)
        assert [one.attempts async for one in hf.effects.dead()] == [4]
        assert [one.attempt for one in taking.asked] == [1, 2, 3, 4]

    play(test, clock=clock)


class Using:
    """A sink that writes through the client that dispatches."""

    seconds = 10.0
    hf: AsyncHoldfast

    async def deliver(self, effect: DeclaredEffect) -> int:
        async with asyncio.timeout(self.seconds):
            return await self.hf.state("user/42").write("taken", 1, reducer="sum")


async def _all_dispatch(hf: AsyncHoldfast, sink: Using) -> None:
    sink.hf = hf
    tenants = [hf.tenant(f"t{n}") for n in range(MANY)]
    hf.effects.add_sink("crm", sink)
    await asyncio.gather(*(_declare(one, 1) for one in tenants))
    done = await asyncio.gather(*(one.effects.dispatch() for one in tenants))
    assert done == [DispatchReport(applied=1)] * MANY
    assert await hf.state("user/42").read("taken") == MANY


def test_a_sink_that_uses_the_client_never_waits_for_itself() -> None:
    play(lambda hf: _all_dispatch(hf, Using()))


def test_dispatches_that_take_threads_from_others_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_effects, "OUTBOX_POOL", SHORT)
    sink = Using()
    sink.seconds = 0.05

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(AssertionError):
            await _all_dispatch(hf, sink)

    play(test)


def test_a_dispatch_that_is_cancelled_is_carried_out_and_gives_each_effect_once() -> None:
    async def test(hf: AsyncHoldfast) -> None:
        taking = Taking()
        taking.free.clear()
        hf.effects.add_sink("crm", taking)
        ids = await _declare(hf, 1, 2, 3)
        dispatching = asyncio.create_task(hf.effects.dispatch())
        await taking.reached.wait()
        dispatching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dispatching
        taking.free.set()
        while [one async for one in hf.effects.pending()]:
            await asyncio.sleep(0)
        assert [one.id for one in taking.asked] == ids

    play(test)


def test_a_loop_that_is_gone_fails_the_attempt_and_kills_no_effect(tmp_path: Path) -> None:
    """An async sink that is asked without a loop is asked again: whoever dispatches next may have one."""
    clock, taking = FrozenClock(), Taking()

    async def main() -> None:
        async with holdfast.open_async(tmp_path / "a.db", clock=clock) as hf:
            hf.effects.add_sink("crm", taking)
            await _declare(hf, 1)
            done = await asyncio.to_thread(lambda: hf._sync.effects.dispatch())
            assert done == DispatchReport(failed=1)
            (info,) = [one async for one in hf.effects.pending()]
            assert "asyncio client" in info.reason
            clock.advance(60_000)
            assert await hf.effects.dispatch() == DispatchReport(applied=1)

    asyncio.run(main())
    gc.collect()


def test_a_store_of_asyncio_is_a_sink(tmp_path: Path) -> None:
    async def lengths(texts: Sequence[str]) -> list[list[float]]:
        return [[len(text), 1.0] for text in texts]

    async def test(hf: AsyncHoldfast) -> None:
        async with open_store_async(f"sqlite:///{tmp_path}/store.db", embedder=lengths) as store:
            hf.effects.add_sink("elsewhere", store)
            wanted = [WriteState("user/42", "count", 2, reducer="sum", store="elsewhere")]
            for _ in range(2):
                await hf.effects.operate(lambda given, view: OperatorOutput(None, wanted), name="count", key="k")
                await hf.effects.dispatch()
            assert await store("user/42").read("count") == 2
            assert [one.key for one in await store("user/42").search("anything")] == ["count"]

    play(test)


def test_what_is_no_sink_is_refused_as_without_asyncio() -> None:
    async def awaited(effect: Any) -> Any:
        return effect

    async def test(hf: AsyncHoldfast) -> None:
        for given in (3, Taking, object()):
            with pytest.raises(InvalidValue, match="sink"):
                hf.effects.add_sink("crm", given)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="iddleware"):
            hf.effects.add_middleware(awaited)  # type: ignore[arg-type]
        assert LoopSink(len).deliver("four") == 4  # type: ignore[arg-type]

    play(test)


def test_a_closed_client_says_so() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            effects = hf.effects
        for call in (
            lambda: hf.effects.operate(tidy, 1),
            lambda: hf.effects.operate(tidy_async, 1),
            effects.dispatch,
            lambda: anext(effects.pending()),
            lambda: effects.get("0" * 26),
        ):
            with pytest.raises(Closed):
                await call()

    asyncio.run(main())
