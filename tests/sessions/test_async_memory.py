"""Ended conversations handed over to a memory that is awaited: once, on the loop, and never at a standstill."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import holdfast
from holdfast import Refused
from holdfast.aio import callbacks
from holdfast.aio.callbacks import LoopMemory, wrap_memory
from holdfast.aio.executor import SHORT
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.types import EndedConversation
from tests.sessions.looped import count, play

MANY = 20
"""More than there are threads of a kind."""


class Taking:
    """An async memory that notes what it took, and on which loop; it fails as often as it is told to."""

    def __init__(self, fails: int = 0) -> None:
        self.took: list[tuple[str, list[str]]] = []
        self.keys: list[str] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.fails = fails
        self.asked, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def take(self, ended: EndedConversation) -> None:
        self.keys.append(ended.key)
        self.loops.add(asyncio.get_running_loop())
        said = await asyncio.to_thread(list, ended.messages())
        self.asked.set()
        await self.free.wait()
        if self.fails:
            self.fails -= 1
            raise TimeoutError("memory is away")
        self.took.append((ended.session, [one.text for one in said]))


def test_a_memory_that_is_awaited_takes_each_conversation_once() -> None:
    memory = Taking()

    async def test(hf: AsyncHoldfast) -> None:
        chat = await hf.session("alice")
        await chat.append(["one", "two"])
        await chat.reset()
        assert memory.took == [("alice", ["one", "two"])]
        assert await chat.details.status() == "ended"
        await chat.append("three")
        await chat.close()
        assert memory.took[1:] == [("alice", ["three"])]
        assert await chat.details.status() == "closed"
        assert memory.loops == {asyncio.get_running_loop()}
        assert await hf.sweep_sessions() == holdfast.types.SessionSweepReport(ended=0, handed_over=0)
        assert len(set(memory.keys)) == len(memory.keys) == 2

    play(test, memory=memory)


def test_a_memory_that_fails_is_offered_the_same_again_by_a_sweep() -> None:
    memory = Taking(fails=2)

    async def test(hf: AsyncHoldfast) -> None:
        chat = await hf.session("alice")
        await chat.append("one")
        await chat.close()
        assert (memory.took, await chat.details.status()) == ([], "closing")
        assert (await hf.sweep_sessions()).handed_over == 0
        assert (await hf.sweep_sessions()).handed_over == 1
        assert (memory.took, await chat.details.status()) == ([("alice", ["one"])], "closed")
        assert len(memory.keys) == 3
        assert len(set(memory.keys)) == 1

    play(test, memory=memory)


def test_a_cancelled_close_is_carried_out_and_hands_over_once() -> None:
    memory = Taking()
    memory.free.clear()

    async def test(hf: AsyncHoldfast) -> None:
        chat = await hf.session("alice")
        await chat.append("one")
        closing = asyncio.create_task(chat.close())
        await memory.asked.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        memory.free.set()
        while await chat.details.status() != "closed":
            await asyncio.sleep(0)
        assert memory.took == [("alice", ["one"])]

    play(test, memory=memory)


class Noting:
    """A memory that writes what it learns through the client that offers it."""

    seconds = 10.0
    hf: AsyncHoldfast

    async def take(self, ended: EndedConversation) -> None:
        async with asyncio.timeout(self.seconds):
            notes = await self.hf.session(f"about {ended.session}")
            await notes.append([one.text for one in ended.messages()])


class Learning(Noting):
    """The same in a frame with a step, which takes threads of every kind."""

    async def take(self, ended: EndedConversation) -> None:
        async with self.hf.frame("learn", actor=ended.session) as frame:
            await frame.run(lambda: len(list(ended.messages())), key="count")
            await super().take(ended)


async def _all_at_once(hf: AsyncHoldfast, memory: Noting) -> None:
    memory.hf = hf
    chats = [await hf.session(f"s{n}") for n in range(MANY)]
    await asyncio.gather(*(chat.append(f"I am {chat.id}") for chat in chats))
    await asyncio.gather(*(chat.close() for chat in chats))
    for chat in chats:
        assert await chat.details.status() == "closed"
        assert [one.text async for one in await hf.session(f"about {chat.id}")] == [f"I am {chat.id}"]


def test_a_memory_that_uses_the_client_never_waits_for_itself() -> None:
    memory = Learning()
    play(lambda hf: _all_at_once(hf, memory), memory=memory)


def test_a_hand_over_that_takes_threads_from_others_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "MEMORY_POOL", SHORT)
    memory = Noting()
    memory.seconds = 0.05

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(AssertionError):
            await _all_at_once(hf, memory)

    play(test, memory=memory)


def test_a_loop_that_stops_is_not_waited_for_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "POLL_SECONDS", 0.01)
    memory = Taking()
    memory.free.clear()

    async def left_behind() -> AsyncHoldfast:
        hf = await holdfast.open_async("memory:", tokenizer=count, memory=memory)
        chat = await hf.session("alice")
        await chat.append("one")
        kept.append(asyncio.create_task(chat.close()))
        await memory.asked.wait()
        return hf

    async def taken_up(hf: AsyncHoldfast) -> None:
        while not [event async for event in hf.journal.events(types=["session.offered"])]:
            await asyncio.sleep(0)
        memory.free = asyncio.Event()
        memory.free.set()
        assert (await hf.sweep_sessions()).handed_over == 1
        assert await (await hf.session("alice")).details.status() == "closed"
        await hf.close()

    kept: list[asyncio.Task[None]] = []
    first = asyncio.new_event_loop()
    hf = first.run_until_complete(left_behind())
    asyncio.run(asyncio.wait_for(taken_up(hf), 10))
    assert memory.took == [("alice", ["one"])]
    first.run_until_complete(asyncio.gather(*kept, return_exceptions=True))
    first.close()
    gc.collect()


def test_a_loop_that_is_closed_fails_the_offer() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    before = callbacks._caller_loop.set(loop)
    try:
        with pytest.raises(holdfast.Unavailable):
            LoopMemory(Taking()).take(_ended())
    finally:
        callbacks._caller_loop.reset(before)
    gc.collect()


def _ended() -> EndedConversation:
    how: Any = {"key": "k", "tenant": "t", "session": "s", "generation": 0, "cause": "close", "ended_at": 0}
    return EndedConversation(threads=(), read=lambda thread: iter(()), **how)


def test_an_async_memory_is_refused_where_nobody_could_await_it() -> None:
    async def main() -> None:
        before = callbacks._caller_loop.set(asyncio.get_running_loop())
        with pytest.raises(Refused, match="asyncio client"):
            LoopMemory(Taking()).take(_ended())
        callbacks._caller_loop.reset(before)

    asyncio.run(main())
    with pytest.raises(Refused, match="asyncio client"):
        LoopMemory(Taking()).take(_ended())
    gc.collect()


def test_what_is_no_memory_is_passed_on_as_it_is() -> None:
    odd: Any = object()
    assert wrap_memory(odd) is odd
    assert wrap_memory(None) is None
