"""Conversations through asyncio: pages, whole writes whatever is cancelled, and order."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSession, Message
from holdfast.aio.holdfast import AsyncHoldfast
from tests.scale import seeded, volume
from tests.sessions.looped import counted, play


def test_a_pack_with_files_is_rendered_without_another_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        chat = await hf.session("alice")
        await chat.append("see", files=[("a.png", b"\x89PNG")])
        pack = await chat.pack()
        sync = chat._sync.pack()
        expected = sync.to_openai()

        def read(*args: Any) -> Any:
            raise AssertionError("the loop waits for the disk")

        monkeypatch.setattr("holdfast.flow.journal.artifacts.read_artifact", read)
        with pytest.raises(AssertionError):
            sync.to_openai()
        assert pack.to_openai() == expected

    play(test)


def test_iterators_go_on_past_a_page_and_hold_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.aio.executor.PAGE", 4)
    monkeypatch.setattr("holdfast.flow.sessions.read.PAGE", 4)

    async def test(hf: AsyncHoldfast) -> None:
        for n in range(8):
            await (await hf.session(f"s{n}")).append("hi")
        chat = await hf.session("alice")
        await chat.append([f"{n}" for n in range(10)])
        crossings = counted(hf._threads, monkeypatch)
        texts = [message.text async for message in chat]
        assert texts == [f"{n}" for n in range(10)]
        assert crossings() == 3
        async for _ in chat:
            break
        assert crossings() == 4
        assert {info.id async for info in hf.sessions()} == {"alice", *(f"s{n}" for n in range(8))}
        assert crossings() == 7
        assert [info.id async for info in hf.sessions(limit=2)] == ["alice", "s7"]

    play(test)


# cancelling and order


class Gate:
    """Holds the next write to the journal until it is opened."""

    def __init__(self, hf: AsyncHoldfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        journal = hf._sync.env.journal
        append = journal.append

        def held(batch: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(10)
            return append(batch)

        monkeypatch.setattr(journal, "append", held)


async def _cancelled_append(hf: AsyncHoldfast, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = await hf.session("alice")
    with monkeypatch.context() as patched:
        gate = Gate(hf, patched)
        saying = asyncio.create_task(chat.append("pay 5", key="k"))
        await asyncio.to_thread(gate.reached.wait, 10)
        saying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saying
        gate.opened.set()
        while not (found := await hf.journal.events_by_key("session/alice/thread/main", "k")):
            await asyncio.sleep(0)
    again = await chat.append("pay 5", key="k")
    assert await chat.messages() == [again]
    assert (again.id, again.version) == (found[-1].id, found[-1].version)
    await chat.append("and then")
    assert [one.text async for one in chat] == ["pay 5", "and then"]


@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_a_cancelled_append_lands_once_and_its_key_gives_the_same_message(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = url if url == "memory:" else tmp_path / url
    play(lambda hf: _cancelled_append(hf, monkeypatch), place)


def test_appends_cancelled_at_any_moment_are_there_once_when_they_are_tried_again(tmp_path: Path) -> None:
    rng = seeded("cancelled appends")

    async def test(hf: AsyncHoldfast) -> None:
        chat = await hf.session("alice")
        for n in range(volume(5, 200)):
            keys = [f"{n}.{m}" for m in range(30)]
            saying = [asyncio.create_task(chat.append(key, key=key)) for key in keys]
            for _ in range(rng.randrange(20)):
                await asyncio.sleep(0)
            for one in saying:
                one.cancel()
            await asyncio.gather(*saying, return_exceptions=True)
            said = await asyncio.gather(*(chat.append(key, key=key) for key in keys))
            stored = await chat.messages(30)
            assert sorted(said, key=lambda one: one.version) == stored
            assert sorted(one.text for one in stored) == sorted(keys)
            assert await chat.length() == 30 * (n + 1)

    play(test, tmp_path / "a.db")


async def _crowd(hf: AsyncHoldfast) -> None:
    """Two writers for each session, each of which says one thing after the other."""
    rounds = volume(5, 200)
    chats = [await hf.session(f"s{n}") for n in range(20)]

    async def writer(chat: AsyncSession, name: str) -> list[Message]:
        return [await chat.append(f"{name}{n}") for n in range(rounds)]

    said = await asyncio.gather(*(writer(chat, name) for chat in chats for name in "ab"))
    for n, chat in enumerate(chats):
        stored = [message async for message in chat]
        assert stored == sorted([*said[2 * n], *said[2 * n + 1]], key=lambda one: one.version)
        for name in "ab":
            own = [one.text for one in stored if one.text.startswith(name)]
            assert own == [f"{name}{n}" for n in range(rounds)]
        assert await chat.length() == 2 * rounds
    assert (await hf.journal.verify()).ok


@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_many_appends_at_once_lose_nothing_and_keep_their_order(url: str, tmp_path: Path) -> None:
    play(_crowd, url if url == "memory:" else tmp_path / url)


@pytest.mark.parametrize("bug", ["answers before the write", "loses the key"])
def test_planted_bugs_in_append_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append = AsyncSession.append
    writes: list[asyncio.Task[Message]] = []

    async def hasty(self: AsyncSession, message: str, **how: Any) -> Message:
        writes.append(asyncio.create_task(append(self, message, **how)))
        return Message(role="user", content=message)

    async def keyless(self: AsyncSession, message: str, *, key: str | None = None) -> Message:
        return await append(self, message, key=None if await self.length() else key)

    early = bug == "answers before the write"
    monkeypatch.setattr(AsyncSession, "append", hasty if early else keyless)

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(AssertionError):
            await (_crowd(hf) if early else _cancelled_append(hf, monkeypatch))
        await asyncio.gather(*writes)

    play(test)
