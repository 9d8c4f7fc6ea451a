"""Rules that are async: awaited where somebody awaits them, and refused or said where nobody would."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.compaction import Always, CompactionConfig, Rule, TelemetryRecorder
from holdfast.errors import InvalidValue
from holdfast.testing.clock import FrozenClock


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=FrozenClock(), tokenizer=count) as client:
        yield client
        assert client.journal.verify().findings == ()


def test_an_async_summarizer_with_a_timeout_is_awaited_on_the_loop() -> None:
    async def main() -> None:
        home = asyncio.get_running_loop()

        async def slowly(messages: Any) -> str:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is home
            return "awaited"

        async with holdfast.open_async("memory:", tokenizer=count) as hf:
            chat = await hf.session("a")
            await chat.compaction.add_rule(CompactionConfig(threshold=3, keep=1, summarizer=slowly, timeout=5))
            await chat.append(["a " * 20, "b " * 20, "c", "d"])
            assert [one.text for one in await chat.compaction.summaries()] == ["awaited"]
            frame = await hf.index.push_frame("work", scope="actor/main/session/b/thread/main")
            other = await hf.session("b")
            await other.append(["e " * 20] * 6)
            done = await hf.index.compact_context(frame, 40, "summarise_oldest", summarizer=slowly, timeout=5)
            assert done.note is None
            assert done.summary is not None
            assert done.summary.text == "awaited"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


def test_an_async_summarizer_that_hangs_is_stopped_and_the_next_strategy_is_tried() -> None:
    async def main() -> None:
        stopped: list[str] = []

        async def hangs(messages: Any) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append("cancelled")
                raise
            return "never"

        async with holdfast.open_async("memory:", tokenizer=count) as hf:
            frame = await hf.index.push_frame("work", scope="actor/main/session/a/thread/main")
            chat = await hf.session("a")
            await chat.append(["I want a red car " * 5] * 6)
            done = await hf.index.compact_context(frame, 40, "summarise_oldest", keep=1, summarizer=hangs, timeout=0.05)
            assert done.strategy != "summarise_oldest"
            assert done.note is not None
            assert "took longer than 0.05 seconds" in done.note
            await asyncio.sleep(0.05)
            assert stopped == ["cancelled"]

    asyncio.run(main())


def test_an_async_function_of_a_rule_is_awaited_by_the_asyncio_client() -> None:
    async def main() -> None:
        home = asyncio.get_running_loop()
        seen: list[str] = []

        async def notice(occasion: Any) -> None:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is home
            seen.append(occasion.kind)

        async def tell(data: dict[str, Any]) -> None:
            await asyncio.sleep(0)
            seen.append("told")

        async with holdfast.open_async("memory:", tokenizer=count) as hf:
            chat = await hf.session("a", model="gpt-5-mini")
            await chat.compaction.add_rule(Rule("notice", Always(), notice))
            await chat.compaction.add_rule(Rule("wrapped", Always(), lambda occasion: notice(occasion)))
            await chat.compaction.add_rule(TelemetryRecorder(tell))
            await chat.append("hello")
            assert seen == ["appended", "appended", "told"]
            await chat.packs.begin_model_call(await chat.pack(2_000))
            assert seen[3:] == ["packed", "packed", "told"]

            async def fails(occasion: Any) -> None:
                raise ValueError("oh no")

            await chat.compaction.add_rule(Rule("notice", Always(), fails))
            with pytest.warns(RuntimeWarning, match="The rule notice of .* failed: .*oh no"):
                await chat.append("again")

    asyncio.run(main())


class Later:
    """Something that is called and then awaited."""

    async def __call__(self, occasion: Any) -> None:
        """Nothing."""


async def later(given: Any) -> str:
    return "later"


@pytest.mark.parametrize(
    "given",
    [
        Rule("x", Always(), later),
        Rule("x", Always(), Later()),
        TelemetryRecorder(later),
        CompactionConfig(threshold=3, summarizer=later),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_async_function_is_refused_where_nobody_would_await_it(hf: Holdfast, given: Any) -> None:
    chat = hf.session("a")
    with pytest.raises(InvalidValue, match="only the asyncio client"):
        chat.compaction.add_rule(given)
    assert chat.compaction.rules == ()


def test_what_cannot_be_seen_to_be_async_is_said_and_not_left_undone(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(Rule("x", Always(), lambda occasion: later(occasion)))
    with pytest.warns(RuntimeWarning, match="The rule x of .* is async, and only the asyncio client awaits it"):
        chat.append("hello")
