"""Search through asyncio with embedders of every kind: awaited on the loop, never at a standstill."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast
from holdfast import Refused
from holdfast.aio import callbacks as async_embedding
from holdfast.aio.callbacks import LoopEmbedder, wrap_embedder
from holdfast.aio.executor import SHORT
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.aio.state import open_store_async
from holdfast.client.state import open_store
from tests.sessions.looped import play

MANY = 20
"""More than there are threads of a kind."""
LIKE = {"bicycle": 0, "bike": 0, "cellar": 1, "basement": 1}
"""Words that mean the same, by the dimension that they are in."""


def numbers(texts: Sequence[str]) -> list[list[float]]:
    """A vector for each text: which of the things above it names."""
    rows = []
    for text in texts:
        row = [0.0, 0.0, 0.01]
        for word in text.lower().split():
            if word.strip(".?") in LIKE:
                row[LIKE[word.strip(".?")]] += 1.0
        rows.append(row)
    return rows


async def toy(texts: Sequence[str]) -> list[list[float]]:
    await asyncio.sleep(0)
    return numbers(texts)


def toy_in_a_thread(texts: Sequence[str]) -> list[list[float]]:
    assert asyncio._get_running_loop() is None
    return numbers(texts)


class Toy:
    """An async embedder with a name, that notes what it was asked and where."""

    name = "toy"
    dimensions = 3

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.loops: set[Any] = set()

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        self.loops.add(asyncio.get_running_loop())
        self.queries += texts if query else []
        return await toy(texts)


class Called:
    """An object that is called, and whose answer turns out to be awaitable."""

    name = "called"

    def __call__(self, texts: Sequence[str]) -> Any:
        return toy(texts)


def _partly() -> Any:
    given: Any = functools.partial(toy)
    given.name = "partly"
    return given


async def _found(hf: AsyncHoldfast, where: str) -> list[str]:
    """What a question finds that has no word in common with the answer."""
    if where == "session":
        chat = await hf.session("alice")
        await chat.append(["My bicycle is green.", "So is my hat.", "It rains."])
        return [one.value.text for one in await chat.search("bike", limit=1)]
    state = hf.state("user/42")
    await state.write("a", "My bicycle is green.")
    await state.write("b", "It rains.")
    return [one.value for one in await state.search("bike", limit=1)]


@pytest.mark.parametrize("where", ["session", "state"])
@pytest.mark.parametrize("given", [toy, toy_in_a_thread, Toy(), Called(), _partly()])
def test_an_embedder_of_any_kind_finds_what_is_meant(given: Any, where: str) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        assert await _found(hf, where) == ["My bicycle is green."]

    play(test, embedder=given)


def test_without_an_embedder_words_alone_find_nothing_there() -> None:
    async def test(hf: AsyncHoldfast) -> None:
        assert [await _found(hf, where) for where in ("session", "state")] == [[], []]

    play(test)


def test_it_is_awaited_on_the_loop_and_told_what_is_a_query() -> None:
    given = Toy()

    async def test(hf: AsyncHoldfast) -> None:
        await _found(hf, "session")
        assert given.loops == {asyncio.get_running_loop()}
        assert given.queries == ["bike"]

    play(test, embedder=given)


def test_a_store_embeds_what_is_written_and_gives_the_same_as_without_asyncio(tmp_path: Any) -> None:
    texts = {"a": "My bicycle is green.", "b": "It rains.", "c": "In the cellar."}
    with open_store(f"sqlite:///{tmp_path}/sync.db", embedder=toy_in_a_thread) as store:
        for key, text in texts.items():
            store("user/42").write(key, text)
        expected = [(one.key, one.score) for one in store("user/42").search("basement", limit=2)]

    async def main() -> None:
        async with open_store_async(f"sqlite:///{tmp_path}/async.db", embedder=toy) as store:
            state = store("user/42")
            await asyncio.gather(*(state.write(key, text) for key, text in texts.items()))
            assert [(one.key, one.score) for one in await state.search("basement", limit=2)] == expected
        assert expected[0][0] == "c"

    asyncio.run(main())


# embedders that are out of order


@pytest.mark.parametrize("problem", ["raises", "is cancelled", "gives nonsense"])
def test_an_embedder_that_fails_leaves_the_words_to_search_by(problem: str, tmp_path: Any) -> None:
    async def broken(texts: Sequence[str]) -> Any:
        if problem == "raises":
            raise TimeoutError("away")
        if problem == "is cancelled":
            raise asyncio.CancelledError
        return "nonsense"

    async def test(hf: AsyncHoldfast) -> None:
        await _found(hf, "state")
        assert [one.key for one in await hf.state("user/42").search("green")] == ["a"]
        async with open_store_async(f"sqlite:///{tmp_path}/store.db", embedder=broken) as store:
            await store("user/42").write("k", "My bicycle is green.")
            assert [one.key for one in await store("user/42").search("green")] == ["k"]

    play(test, embedder=broken)


def test_what_is_no_embedder_is_refused_as_without_asyncio() -> None:
    class Odd:
        @property
        def embed(self) -> Any:
            raise OSError("no model")

    async def main() -> None:
        for given in (3, Odd(), Toy, "no such embedder", lambda texts: toy(texts)):
            with pytest.raises(holdfast.errors.InvalidValue) as told:
                holdfast.open("memory:", embedder=given)  # type: ignore[arg-type]
            with pytest.raises(holdfast.errors.InvalidValue) as same:
                await holdfast.open_async("memory:", embedder=given)  # type: ignore[arg-type]
            assert "await" in str(told.value) or str(same.value) == str(told.value)

    asyncio.run(main())


# the loop


class Asking:
    """An embedder that keeps its vectors in the very client that searches with it."""

    name = "asking"
    seconds = 10.0
    hf: AsyncHoldfast

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        async with asyncio.timeout(self.seconds):
            await self.hf.state("vectors").write("asked", len(texts), reducer="sum")
        return numbers(texts)


async def _all_search(hf: AsyncHoldfast, embedder: Asking) -> None:
    embedder.hf = hf
    await asyncio.gather(*(hf.state(f"user/{n}").write("a", "My bicycle is green.") for n in range(MANY)))
    found = await asyncio.gather(*(hf.state(f"user/{n}").search("bike") for n in range(MANY)))
    assert [[one.key for one in each] for each in found] == [["a"]] * MANY


def test_an_embedder_that_uses_the_client_never_waits_for_itself() -> None:
    embedder = Asking()
    play(lambda hf: _all_search(hf, embedder), embedder=embedder)


def test_searches_that_take_threads_from_others_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_embedding, "SEARCH_POOL", SHORT)
    embedder = Asking()
    embedder.seconds = 0.05

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(AssertionError):
            await _all_search(hf, embedder)

    play(test, embedder=embedder)


def test_a_slow_embedder_holds_up_neither_the_loop_nor_short_operations() -> None:
    free = threading.Event()

    def slow(texts: Sequence[str]) -> list[list[float]]:
        assert free.wait(10)
        return numbers(texts)

    async def test(hf: AsyncHoldfast) -> None:
        state = hf.state("user/42")
        await state.write("a", "My bicycle is green.")
        searching = [asyncio.create_task(state.search("bike")) for _ in range(MANY)]
        await asyncio.sleep(0)
        assert await state.read("a") == "My bicycle is green."
        free.set()
        assert all(len(found) == 1 for found in await asyncio.gather(*searching))

    play(test, embedder=slow)


def test_a_write_that_is_cancelled_while_it_is_embedded_is_carried_out(tmp_path: Any) -> None:
    asked, free = asyncio.Event(), asyncio.Event()

    async def slow(texts: Sequence[str]) -> list[list[float]]:
        asked.set()
        await free.wait()
        return numbers(texts)

    async def main() -> None:
        async with open_store_async(f"sqlite:///{tmp_path}/a.db", embedder=slow) as store:
            writing = asyncio.create_task(store("user/42").write("k", "My bicycle is green."))
            await asked.wait()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert await store("user/42").read("k") is None
            free.set()
            while await store("user/42").read("k") is None:
                await asyncio.sleep(0)
            assert [one.key for one in await store("user/42").search("bike")] == ["k"]

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_loop_that_stops_is_not_waited_for_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed, stopped = threading.Event(), async_embedding._loop_stopped
    monkeypatch.setattr(async_embedding, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(async_embedding, "_loop_stopped", lambda what: noticed.set() or stopped(what))
    asked: list[asyncio.Event] = []
    held = True

    async def embedding(texts: Sequence[str]) -> list[list[float]]:
        asked[-1].set()
        if held:
            await asyncio.sleep(3600)
        return numbers(texts)

    async def left_behind() -> AsyncHoldfast:
        asked.append(asyncio.Event())
        hf = await holdfast.open_async("memory:", embedder=embedding)
        await hf.state("user/42").write("a", "My bicycle is green.")
        kept.append(asyncio.create_task(hf.state("user/42").search("bike")))
        await asked[-1].wait()
        return hf

    async def taken_up(hf: AsyncHoldfast) -> None:
        asked.append(asyncio.Event())
        assert [one.key for one in await hf.state("user/42").search("bike")] == ["a"]
        await hf.close()

    kept: list[asyncio.Task[Any]] = []
    first = asyncio.new_event_loop()
    hf = first.run_until_complete(left_behind())
    held = False
    asyncio.run(asyncio.wait_for(taken_up(hf), 10))
    assert noticed.wait(10)
    first.run_until_complete(asyncio.gather(*kept, return_exceptions=True))
    first.close()
    gc.collect()


def test_an_async_embedder_is_refused_where_nobody_could_await_it() -> None:
    async def test(hf: AsyncHoldfast) -> None:
        await hf.state("user/42").write("a", "My bicycle is green.")
        with pytest.raises(Refused, match="asyncio client"):
            hf.state("user/42").reader().search("bike")
        with pytest.raises(Refused, match="asyncio client"):
            await asyncio.to_thread(LoopEmbedder(toy).embed, ["bike"])

    play(test, embedder=toy)
    gc.collect()


def test_what_is_not_the_callers_own_is_passed_on_as_it_is() -> None:
    odd: Any = object()
    assert [wrap_embedder(given) for given in (None, "wordllama", odd)] == [None, "wordllama", odd]
