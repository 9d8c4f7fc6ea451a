"""Writes through asyncio: many at once lose none, and whatever is cancelled is whole, once, or not there."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncState, Conflict
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.client.state import State
from holdfast.errors import KeyReused
from holdfast.flow.state import write as state_write
from holdfast.flow.state.journal_store import JournalStore
from holdfast.testing.clock import FrozenClock
from tests.scale import seeded, volume
from tests.sessions.looped import play
from tests.stores.opened import KINDS, Opened


async def _hundred_sums(state: AsyncState) -> None:
    await asyncio.gather(*(state.write("count", 1, reducer="sum") for _ in range(100)))
    assert await state.read("count") == 100


@pytest.mark.parametrize("url", KINDS)
def test_a_hundred_sums_at_once_lose_none(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with Opened(url) as store:
            await _hundred_sums(store("user/42"))

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_sum_that_reads_before_it_crosses_to_write_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    write = AsyncState.write

    async def torn(self: AsyncState, name: str, value: int, **options: Any) -> int:
        before = await self.read(name, default=0)
        return await write(self, name, before + value)

    monkeypatch.setattr(AsyncState, "write", torn)

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(AssertionError):
            await _hundred_sums(hf.state("user/42"))

    play(test)


# cancelling


async def _cancelled_write(hf: AsyncHoldfast, monkeypatch: pytest.MonkeyPatch) -> None:
    state = hf.state("user/42")
    reached, opened = threading.Event(), threading.Event()
    journal = hf._sync.env.journal
    append = journal.append

    def held(batch: Any) -> Any:
        reached.set()
        assert opened.wait(10)
        return append(batch)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "append", held)
        writing = asyncio.create_task(state.write("count", 5, reducer="sum", key="k"))
        await asyncio.to_thread(reached.wait, 10)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        opened.set()
        while not (found := await hf.journal.events_by_key("user/42", "k")):
            await asyncio.sleep(0)
    assert await state.write("count", 5, reducer="sum", key="k") == found[0].version
    assert (await state.read("count"), len(await state.history("count"))) == (5, 1)


@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_a_cancelled_write_lands_once_and_its_key_gives_the_same_version(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(lambda hf: _cancelled_write(hf, monkeypatch), url if url == "memory:" else tmp_path / url)


async def _cancelled_anywhere(hf: AsyncHoldfast, rng: random.Random, times: int) -> None:
    """Sums that are cancelled whenever, and then tried again with their keys."""
    state = hf.state("user/42")
    for n in range(times):
        name, keys = f"count {n}", [f"{n}.{m}" for m in range(20)]
        writing = [asyncio.create_task(state.write(name, 1, reducer="sum", key=key)) for key in keys]
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        for one in writing:
            one.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        versions = await asyncio.gather(*(state.write(name, 1, reducer="sum", key=key) for key in keys))
        assert (await state.read(name), len(set(versions))) == (20, 20)
        told = [one.value for one in await state.history(name)]
        assert told == list(range(20, 0, -1))


def test_writes_cancelled_at_any_moment_are_there_once_when_they_are_tried_again() -> None:
    rng = seeded("cancelled writes")
    play(lambda hf: _cancelled_anywhere(hf, rng, volume(5, 200)))


def test_a_write_that_forgets_its_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    write = State.write

    def forgetful(self: State, *args: Any, key: str | None = None, **options: Any) -> int:
        return write(self, *args, **options)

    monkeypatch.setattr(State, "write", forgetful)

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(AssertionError):
            await _cancelled_anywhere(hf, random.Random(1), 20)

    play(test)


async def _overtaken(hf: AsyncHoldfast, call: str, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a retry looks, there is nothing under its key yet; by the time it writes, there is."""
    state, answered = hf.state("user/42"), JournalStore.version_by_key
    before = await state.write("k", 1)
    calls: dict[str, Callable[[], Any]] = {
        "overwrite": lambda: state.write("k", 2, key="once"),
        "sum": lambda: state.write("k", 2, reducer="sum", key="once"),
        "expected": lambda: state.write("k", 2, expected_version=before, key="once"),
        "ttl": lambda: state.write("k", 2, ttl=60, key="once"),
        "delete": lambda: state.delete("k", key="once"),
    }
    first = await calls[call]()
    clock.advance(1_000)
    looks: list[int] = []

    def late(self: Any, *asked: Any) -> Any:
        looks.append(1)
        return None if len(looks) == 1 else answered(self, *asked)

    monkeypatch.setattr(JournalStore, "version_by_key", late)
    assert await calls[call]() == first
    assert len(await state.history("k")) == 2
    with pytest.raises(KeyReused):
        await state.write("k", 3, key="once")
    assert len(await state.history("k")) == 2


@pytest.mark.parametrize("call", ["overwrite", "sum", "expected", "ttl", "delete"])
def test_a_retry_while_the_first_call_is_still_under_way_is_given_its_answer(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FrozenClock()
    play(lambda hf: _overtaken(hf, call, clock, monkeypatch), clock=clock)


@pytest.mark.parametrize("call", ["sum", "expected"])
def test_a_retry_that_looks_only_once_is_caught(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FrozenClock()
    monkeypatch.setattr(state_write, "_run_once", lambda earlier, do: earlier() or do())

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(Conflict):
            await _overtaken(hf, call, clock, monkeypatch)

    play(test, clock=clock)


def test_what_never_began_is_not_written() -> None:
    """More writes than there are threads, all of which are busy: those that wait are cancelled for good."""
    free = threading.Event()

    async def test(hf: AsyncHoldfast) -> None:
        state = hf.state("user/42")
        busy = [asyncio.ensure_future(hf._threads.run(free.wait, 10)) for _ in range(16)]
        await asyncio.sleep(0)
        waiting = asyncio.create_task(state.write("late", 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        free.set()
        await asyncio.gather(*busy)
        assert await state.entry("late") is None

    play(test)
