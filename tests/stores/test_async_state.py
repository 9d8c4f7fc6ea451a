"""State through asyncio: the same answers, one crossing each, and writes that are whole whatever is cancelled."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import random
import re
import threading
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncState, AsyncStateStore, Closed, Conflict, HoldfastError, KeyReused, StateReader
from holdfast.async_client import AsyncHoldfast
from holdfast.async_reading import AsyncReads, AsyncStateReader
from holdfast.async_state import open_store_async
from holdfast.client_state import State, open_store
from holdfast.flow import storing
from holdfast.flow.state import JournaledStore
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.conversations.looped import counted, play
from tests.scale import seeded, volume

Op = tuple[Any, str, tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass
class Prefs:
    theme: str
    size: int = 1


# the same answers


def _story(store: Any) -> Generator[Op, Any, None]:
    """Every operation at least once, most with something that is refused, each with what the ones before gave."""

    def op(target: Any, name: str, *args: Any, **kwargs: Any) -> Op:
        return target, name, args, kwargs

    user = yield op(store, "__call__", "user/42")
    yield op(store, "__call__", "no/such/kind/of/scope/")
    yield op(store, "capabilities")
    yield op(user, "scope")
    first = yield op(user, "write", "prefs", Prefs("dark"), salience=0.5, tier="hot", content_kind="semantic")
    yield op(user, "write", "prefs", Prefs("light", 2), expected_version=first)
    yield op(user, "write", "prefs", {}, expected_version=first)
    yield op(user, "write", "count", 2, reducer="sum", key="k")
    yield op(user, "write", "count", 2, reducer="sum", key="k")
    yield op(user, "write", "prefs", 1, reducer="sum")
    yield op(user, "write", "prefs", object())
    yield op(user, "write", "note", "a green bicycle", ttl=60)
    yield op(user, "write", "note", "never", ttl=-1)
    yield op(user, "write", "for a moment", [1], lifetime="transient")
    for name, kwargs in [("prefs", {}), ("prefs", {"as_": Prefs}), ("prefs", {"as_": int}), ("none", {"default": 7})]:
        yield op(user, "read", name, **kwargs)
    yield op(user, "require", "prefs", as_=Prefs)
    yield op(user, "require", "none")
    yield op(user, "entry", "note")
    yield op(user, "list", "p")
    yield op(user, "list", after="count", limit=1)
    yield op(user, "entries", limit=2)
    yield op(user, "entries", limit=-1)
    yield op(user, "__iter__")
    yield op(user, "search", "bicycle")
    yield op(user, "search", 'durable-execution "AND C++', limit=3)
    yield op(user, "search", "bicycle", limit=0)
    yield op(user, "history", "prefs")
    yield op(user, "link", "prefs", "about", "note", weight=0.5, data={"n": 1})
    yield op(user, "link", "note", "about", "prefs", target_scope="user/7")
    yield op(user, "neighbours", "note", direction="both")
    yield op(user, "neighbours", "note", direction="up")
    yield op(user, "traverse", "prefs", depth=2, kinds=["about"])
    yield op(user, "unlink", "prefs", "about", "note")
    yield op(user, "unlink", "prefs", "about", "note")
    yield op(user, "clear_transient")
    yield op(user, "delete", "note", key="gone")
    yield op(user, "delete", "note")
    yield op(user, "delete", "none", expected_version=3)
    reader = yield op(user, "reader")
    yield op(reader, "list")
    everything = yield op(store, "reader")
    yield op(everything("user/42"), "entries")
    session = yield op(store, "__call__", "s1")
    yield op(session, "write", "draft", "x", lifetime="session")
    yield op(store, "end_session", "s1")
    yield op(store, "datalog", "?[a] := a = 1", {})


async def _tell(target: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What a member of either side gives, or the error that it raises."""
    try:
        if name == "__iter__":
            return [key async for key in target] if isinstance(target, AsyncState) else list(target)
        member = getattr(target, name)
        made = member(*args, **kwargs) if callable(member) else member
        return await made if inspect.isawaitable(made) else made
    except HoldfastError as error:
        return error


async def _told(store: Any, crossings: Callable[[], int]) -> list[tuple[str, int, str]]:
    story, told, sent = _story(store), [], None
    while True:
        try:
            target, name, args, kwargs = story.send(sent)
        except StopIteration:
            return told
        before = crossings()
        sent = await _tell(target, name, args, kwargs)
        # Files are versioned by the time of day.
        shown = re.sub(r"\b\d{16}\b", "version", repr(sent).replace("AsyncState", "State"))
        told.append((name if not isinstance(target, StateReader) else "read in a thread", crossings() - before, shown))


KINDS = ["memory:", "a.db", "memory: as a store", "sqlite:///store.db", "fs:///folder"]
AT_ONCE = {"__call__", "capabilities", "scope", "reader", "read in a thread"}


@pytest.mark.parametrize("url", KINDS)
@pytest.mark.filterwarnings("ignore:Holdfast waits for the disk")
def test_every_operation_gives_the_same_and_crosses_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.chdir(_folder(tmp_path / "sync"))
        clock = FrozenClock()
        if url in KINDS[:2]:
            with holdfast.open(url, clock=clock, ids=SeededIds(clock)) as hf:
                expected = await _told(hf.state, lambda: 1)
        else:
            with open_store(url.split(maxsplit=1)[0], clock=clock) as store:
                expected = await _told(store, lambda: 1)
        monkeypatch.chdir(_folder(tmp_path / "async"))
        async with _opened(url, FrozenClock()) as other:
            told = await _told(other, counted(other._threads, monkeypatch))
        for (name, _, one), (_, _, async_one) in zip(expected, told, strict=True):
            assert one == async_one, name
        assert {crossed for name, crossed, _ in told if name not in AT_ONCE} == {1}
        assert {crossed for name, crossed, _ in told if name in AT_ONCE} == {0}
        everything = {name for kind in (AsyncState, AsyncStateStore) for name in dir(kind) if not name.startswith("_")}
        assert {name for name, _, _ in told} - {"__iter__", "__call__", "read in a thread"} == everything - {"close"}

    asyncio.run(main())


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


class _opened:
    """The state of a journal, or a store of its own, by its URL."""

    def __init__(self, url: str, clock: FrozenClock | None = None) -> None:
        ids = {"ids": SeededIds(clock)} if clock else {}
        journaled = url in KINDS[:2]
        self._opening: Any = (
            holdfast.open_async(url, clock=clock, **ids)
            if journaled
            else open_store_async(url.split(maxsplit=1)[0], clock=clock)
        )

    async def __aenter__(self) -> AsyncStateStore:
        opened: AsyncHoldfast | AsyncStateStore = await self._opening.__aenter__()
        return opened.state if isinstance(opened, AsyncHoldfast) else opened

    async def __aexit__(self, *error: object) -> None:
        await self._opening.__aexit__(*error)


def test_searching_everything_and_a_session_gives_the_same_as_without_asyncio(tmp_path: Path) -> None:
    async def written(hf: AsyncHoldfast) -> None:
        chat = await hf.session("alice")
        await chat.append(["My bicycle is green.", "Where is the bicycle?", "In the cellar."])
        await hf.state("user/1").write("bicycle", "green, 28 inches")
        found = await hf.search("green bicycle")
        said = await chat.search("Which bicycle is green?", limit=2)
        assert {one.kind for one in found} == {"entry", "message"}
        assert said[0].value.text == "My bicycle is green."
        assert list(found) == await asyncio.to_thread(hf._client.search, "green bicycle")
        assert list(said) == await asyncio.to_thread(chat._session.search, "Which bicycle is green?", limit=2)
        assert await hf.tenant("other").search("green bicycle") == []

    play(written, tmp_path / "a.db")


# many at once


async def _hundred_sums(state: AsyncState) -> None:
    await asyncio.gather(*(state.write("count", 1, reducer="sum") for _ in range(100)))
    assert await state.read("count") == 100


@pytest.mark.parametrize("url", KINDS)
def test_a_hundred_sums_at_once_lose_none(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with _opened(url) as store:
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
    journal = hf._client._ports.journal
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
        while not (found := await hf.journal.happened("user/42", "k")):
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
    state, answered = hf.state("user/42"), JournaledStore.answered
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

    monkeypatch.setattr(JournaledStore, "answered", late)
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
    monkeypatch.setattr(storing, "_once", lambda earlier, do: earlier() or do())

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(Conflict):
            await _overtaken(hf, call, clock, monkeypatch)

    play(test, clock=clock)


def test_what_never_began_is_not_written() -> None:
    """More writes than there are threads, all of which are busy: those that wait are cancelled for good."""
    free = threading.Event()

    async def test(hf: AsyncHoldfast) -> None:
        state = hf.state("user/42")
        busy = [asyncio.create_task(hf._threads.run(free.wait, 10)) for _ in range(16)]
        await asyncio.sleep(0)
        waiting = asyncio.create_task(state.write("late", 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        free.set()
        await asyncio.gather(*busy)
        assert await state.entry("late") is None

    play(test)


# opening, closing, reading


def test_a_closed_client_and_a_closed_store_say_so() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            state, chat = hf.state("user/42"), await hf.session("alice")
            async with hf.state as kept:
                assert kept is not hf.state
            await state.write("k", 1)  # Leaving hf.state closes nothing.
            assert await hf.tenant("acme").state("user/42").read("k") is None
        store = await open_store_async("memory:", search=True)
        other = store("user/42")
        await other.write("k", 1)
        await store.close()
        await store.close()
        for call in (
            lambda: state.read("k"),
            lambda: state.write("k", 1),
            lambda: state.search("k"),
            lambda: hf.search("k"),
            lambda: chat.search("k"),
            lambda: other.read("k"),
            lambda: other.search("k"),
            lambda: other.write("k", 1),
            lambda: store.end_session("s"),
        ):
            with pytest.raises(Closed):
                await call()

    asyncio.run(main())


def test_a_store_that_cannot_be_opened_says_why_as_without_asyncio() -> None:
    async def main() -> None:
        for url, options in [("carrier-pigeon:", {}), ("memory:", {"format": "json"}), ("memory:", {"embedder": 3})]:
            with pytest.raises(HoldfastError) as told:
                open_store(url, **options)
            with pytest.raises(type(told.value)) as same:
                await open_store_async(url, **options)
            assert str(same.value) == str(told.value)

    asyncio.run(main())


def test_a_store_whose_opening_was_cancelled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def close(self) -> None:
            closed.set()

    def slow(*given: Any, **options: Any) -> Any:
        begun.set()
        go_on.wait(10)
        return Slow()

    monkeypatch.setattr("holdfast.async_state.open_store", slow)

    async def main() -> None:
        async def opening() -> None:
            await open_store_async("memory:")

        task = asyncio.create_task(opening())
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await asyncio.to_thread(closed.wait, 10)

    asyncio.run(main())


def test_a_reader_reads_in_threads_and_what_is_awaited_reads_on_the_loop(tmp_path: Path) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        state = hf.state("user/42")
        await state.write("k", 1)
        reader = state.reader()
        assert await asyncio.to_thread(reader.read, "k") == 1
        assert await asyncio.to_thread(hf.state.reader()("user/42").read, "k") == 1
        view = AsyncStateReader(reader, hf._threads)
        assert (await view.read("k"), await view("user/7").list(), view.scope) == (1, [], "user/42")
        assert repr(view("user/7")) == "AsyncStateReader('user/7')"

    play(test, tmp_path / "a.db")


def test_a_view_that_is_awaited_has_nothing_that_writes() -> None:
    view: Any = AsyncStateReader(StateReader(object()), object())  # type: ignore[arg-type]
    public = {name for name in dir(view) if not name.startswith("_")}
    assert public == {name for name in dir(AsyncReads) if not name.startswith("_")} | {"scope"}
    assert isinstance(view._of, StateReader)
    with pytest.raises(AttributeError):
        view.write = 1


def test_keys_are_given_one_by_one_to_whoever_iterates() -> None:
    async def test(hf: AsyncHoldfast) -> None:
        state = hf.state("user/42")
        for n in range(3):
            await state.write(f"k{n}", n)
        found: AsyncIterator[str] = aiter(state)
        assert [key async for key in found] == ["k0", "k1", "k2"]

    play(test)
