"""`await session.compact(…)`: async summarizers, appends that arrive meanwhile, and a loop that is never held up."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast
from holdfast import Conflict, Message
from holdfast.aio.callbacks import AsyncCompaction
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.aio.session import AsyncSession
from holdfast.errors import SummaryFailed
from holdfast.records.compaction import CompactionConfig
from tests.scale import seeded, volume
from tests.sessions.looped import play


async def _filled(hf: AsyncHoldfast, id: str = "alice", messages: int = 6) -> AsyncSession:
    chat = await hf.session(id)
    await chat.append([f"{id} {n}" for n in range(messages)])
    return chat


def _texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


# messages that arrive meanwhile


async def _appends_arrive(hf: AsyncHoldfast, rng: random.Random, id: str) -> None:
    """Writers and summaries of one line, in whatever order the loop and the threads make of it."""
    chat = await _filled(hf, id, rng.randint(1, 6))
    told: list[list[Message]] = []

    async def summarise(messages: Sequence[Message]) -> str:
        told.append(list(messages))
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        await chat.append(f"{id} during {len(told)}")
        return f"summary {len(told)}"

    async def write(name: str) -> None:
        for n in range(3):
            await chat.append(f"{id} {name}{n}")

    before = await chat.messages()
    keep = rng.randrange(3)
    made, *_ = await asyncio.gather(chat.compact(keep, summarizer=summarise), write("a"), write("b"))
    again = await chat.compact(rng.randrange(3), summarizer=summarise)
    whole = await chat.messages()
    assert len(whole) == len(before) + 6 + len(told)
    assert whole[: len(before)] == before
    covered = [await chat.compaction.expand(one) for one in await chat.compaction.summaries()]
    assert covered == told
    behind = [message.id for part in covered for message in part]
    assert behind == [one.id for one in whole[: len(behind)]]
    assert [one for one in (made, again) if one is not None] == await chat.compaction.summaries()
    shown = (await chat.pack()).messages
    assert _texts(shown[len(told) :]) == _texts(whole[len(behind) :])


def test_messages_that_arrive_during_a_summary_are_kept_and_none_is_covered_twice() -> None:
    rng = seeded("async summaries")

    async def test(hf: AsyncHoldfast) -> None:
        for n in range(volume(30, 2_000)):
            await _appends_arrive(hf, rng, f"s{n}")

    play(test)


def test_a_summary_noted_for_more_than_it_was_made_from_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the range is taken when the summary is written, and not when it was begun."""
    note = AsyncCompaction._write_summary

    def late(self: AsyncCompaction, plan: Any, *words: Any) -> Any:
        again = AsyncCompaction(self._env, self._thread_stream, self._threads, self._given, CompactionConfig(keep=0))
        planned = again._make_plan(False)
        assert planned is not None
        return note(self, planned[1], *words)

    monkeypatch.setattr(AsyncCompaction, "_write_summary", late)

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(AssertionError):
            await _appends_arrive(hf, random.Random(1), "alice")

    play(test)


def test_a_range_that_changes_is_summarised_again_and_given_up_in_the_end() -> None:
    async def test(hf: AsyncHoldfast) -> None:
        chat = await _filled(hf, messages=20)
        seen: list[int] = []

        async def unsettled(messages: Sequence[Message]) -> str:
            seen.append(len(messages))
            if len(seen) not in (2, 6):
                await chat.rewind(before=messages[-1])
            return "too late"

        made = await chat.compact(0, summarizer=unsettled)
        assert made is not None
        assert (seen, made.messages) == ([20, 19], 19)
        await chat.append(["once more"] * 5)
        with pytest.raises(Conflict):
            await chat.compact(0, summarizer=unsettled)
        assert seen == [20, 19, 5, 4, 3]
        assert await chat.compaction.summaries() == [made]

    play(test)


# kinds of summarizers


class Asked:
    """An async summarizer with a name."""

    name = "asked"

    async def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        await asyncio.sleep(0)
        return f"{len(messages)} in {max_tokens}"


async def bare(messages: Sequence[Message]) -> str:
    return f"{len(messages)} messages"


def test_summarizers_of_every_kind_are_used_and_noted() -> None:
    async def answer(prompt: str) -> str:
        return f"{prompt.count('s4 ')} messages"

    kinds: list[tuple[Any, str]] = [
        (bare, "bare"),
        (Asked(), "asked"),
        (lambda messages: bare(messages), "function"),
        (lambda messages, max_tokens: "plain", "function"),
        (holdfast.compaction.ModelSummarizer(answer, name="gpt"), "gpt"),
        (None, "bare"),
    ]

    async def test(hf: AsyncHoldfast) -> None:
        for n, (given, name) in enumerate(kinds):
            chat = await _filled(hf, f"s{n}")
            made = await chat.compact(2, summarizer=given, max_tokens=50)
            assert made is not None
            assert (made.method, made.messages) == (name, 4)
            assert made.text in ("4 messages", "4 in 50", "plain")
            assert await chat.compact(2, summarizer=given) is None

    play(test, summarizer=bare)


def test_a_summary_that_fails_or_says_nothing_changes_nothing() -> None:
    async def fails(messages: Sequence[Message]) -> str:
        raise TimeoutError("no answer")

    async def silent(messages: Sequence[Message]) -> str:
        return "  "

    async def odd(messages: Sequence[Message]) -> Any:
        return 3

    def fails_in_a_thread(messages: Sequence[Message]) -> str:
        raise StopIteration

    async def test(hf: AsyncHoldfast) -> None:
        chat = await _filled(hf)
        version = await hf.journal.version("session/alice/thread/main")
        for given in (fails, silent, odd, fails_in_a_thread, lambda messages: None):
            with pytest.raises(SummaryFailed):
                await chat.compact(0, summarizer=given)
        assert await hf.journal.version("session/alice/thread/main") == version

    play(test)


# the loop


async def _turns_while_it_summarises(hf: AsyncHoldfast, seconds: float) -> None:
    """A plain summarizer that ends only once the loop has taken a turn."""
    chat = await _filled(hf)
    asked, turned = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(messages: Sequence[Message]) -> str:
        loop.call_soon_threadsafe(asked.set)
        return "short" if turned.wait(seconds) else ""

    async def turn() -> None:
        await asked.wait()
        await chat.append("meanwhile")
        turned.set()

    made, _ = await asyncio.gather(chat.compact(0, summarizer=slow), turn())
    assert made is not None
    assert (made.messages, await chat.length()) == (6, 7)


def test_a_plain_summarizer_does_not_hold_up_the_loop() -> None:
    play(lambda hf: _turns_while_it_summarises(hf, 10))


def test_a_summarizer_that_is_called_on_the_loop_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncCompaction, "_make_async", lambda self, chosen: chosen)

    async def test(hf: AsyncHoldfast) -> None:
        with pytest.raises(SummaryFailed):
            await _turns_while_it_summarises(hf, 0.05)

    play(test)


@pytest.mark.parametrize("plain", [False, True])
def test_cancelled_while_it_summarises_nothing_is_written(plain: bool) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        chat = await _filled(hf)
        asked, go_on, done = asyncio.Event(), threading.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        async def for_ever(messages: Sequence[Message]) -> str:
            asked.set()
            await asyncio.sleep(3600)
            return "never"

        def in_a_thread(messages: Sequence[Message]) -> Any:
            loop.call_soon_threadsafe(asked.set)
            go_on.wait(10)
            done.set()
            return bare(messages)

        compacting = asyncio.create_task(chat.compact(0, summarizer=in_a_thread if plain else for_ever))
        await asked.wait()
        compacting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compacting
        go_on.set()
        if plain:
            await asyncio.to_thread(done.wait, 10)
        assert await chat.compaction.summaries() == []
        assert await chat.compact(0) is not None

    play(test)
