"""State through asyncio: the same answers, one crossing each; opening, closing and reading."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import threading
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncState, HoldfastError
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.aio.state import AsyncReadableState, AsyncStateReader, open_store_async
from holdfast.client.state import open_store
from holdfast.errors import Closed
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.types import AsyncStateStore, StateReader
from tests.sessions.looped import counted, play
from tests.stores.opened import KINDS, Opened

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
    yield op(reader("user/42"), "entries")
    session = yield op(store, "__call__", "s1")
    yield op(session, "write", "draft", "x", lifetime="session")
    yield op(store, "end_session", "s1")
    yield op(store, "purge")
    yield op(store, "scopes", limit=1)
    yield op(user, "neighbours", "note", direction="both", limit=1)
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
        async with Opened(url, FrozenClock()) as other:
            told = await _told(other, counted(other._threads, monkeypatch))
        for (name, _, one), (_, _, async_one) in zip(expected, told, strict=True):
            assert one == async_one, name
        assert {crossed for name, crossed, _ in told if name not in AT_ONCE} == {1}
        assert {crossed for name, crossed, _ in told if name in AT_ONCE} == {0}
        everything = {name for kind in (AsyncState, AsyncStateStore) for name in dir(kind) if not name.startswith("_")}
        assert {name for name, _, _ in told} - {"__iter__", "__call__", "read in a thread"} == everything - {
            "close",
            "storage",
        }

    asyncio.run(main())


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_searching_everything_and_a_session_gives_the_same_as_without_asyncio(tmp_path: Path) -> None:
    async def written(hf: AsyncHoldfast) -> None:
        chat = await hf.session("alice")
        await chat.append(["My bicycle is green.", "Where is the bicycle?", "In the cellar."])
        await hf.state("user/1").write("bicycle", "green, 28 inches")
        found = await hf.search("green bicycle")
        said = await chat.search("Which bicycle is green?", limit=2)
        assert {one.kind for one in found} == {"entry", "message"}
        assert said[0].value.text == "My bicycle is green."
        assert list(found) == await asyncio.to_thread(hf._sync.search, "green bicycle")
        assert list(said) == await asyncio.to_thread(chat._sync.search, "Which bicycle is green?", limit=2)
        assert await hf.tenant("other").search("green bicycle") == []

    play(written, tmp_path / "a.db")


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

    monkeypatch.setattr("holdfast.aio.state.open_store", slow)

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
        assert await asyncio.to_thread(hf.state("user/43").reader()("user/42").read, "k") == 1
        view = AsyncStateReader(reader, hf._threads)
        assert (await view.read("k"), await view("user/7").list(), view.scope) == (1, [], "user/42")
        assert repr(view("user/7")) == "AsyncStateReader('user/7')"

    play(test, tmp_path / "a.db")


def test_a_view_that_is_awaited_has_nothing_that_writes() -> None:
    with open_store("memory:") as store:
        view: Any = AsyncStateReader(store("user/42").reader(), object())  # type: ignore[arg-type]
    public = {name for name in dir(view) if not name.startswith("_")}
    assert public == {name for name in dir(AsyncReadableState) if not name.startswith("_")} | {"scope"}
    assert isinstance(view._sync, StateReader)
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
