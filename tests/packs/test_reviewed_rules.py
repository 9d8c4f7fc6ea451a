"""Rules that are async, rules that append, and the lines of code that warnings about rules point at."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.compaction import Always, BudgetGuard, CompactionConfig, Rule, TelemetryRecorder
from holdfast.errors import BudgetExhausted, InvalidValue
from holdfast.flow.compaction import rules
from holdfast.testing.clock import FrozenClock


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=FrozenClock(), tokenizer=count) as client:
        yield client
        assert client.journal.verify().findings == ()


# with asyncio


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


# rules that append


def test_what_a_rule_appends_is_no_occasion_for_rules(hf: Holdfast) -> None:
    chat = hf.session("a")
    told: list[int] = []

    def answer(occasion: Any) -> None:
        chat.append(f"you said {len(occasion.new)}")
        hf.session("b").append("noted")

    chat.compaction.add_rule(Rule("answer", Always(), answer))
    chat.compaction.add_rule(TelemetryRecorder(lambda data: told.append(data["messages"])))
    hf.session("b").compaction.add_rule(Rule("echo", Always(), answer))
    for _ in range(3):
        chat.append("hello")
    assert [one.text for one in chat.messages()] == ["hello", "you said 1"] * 3
    assert len(hf.session("b")) == 3
    assert told == [1, 1, 1]


def test_without_the_guard_a_rule_that_appends_does_not_end(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "is_rule_running", lambda: False)
    chat = hf.session("a")
    calls: list[int] = []

    def answer(occasion: Any) -> None:
        calls.append(1)
        if len(calls) < 30:
            chat.append("again")

    chat.compaction.add_rule(Rule("answer", Always(), answer))
    chat.append("hello")
    assert len(calls) == 30


def test_what_others_append_while_a_rule_is_at_work_is_an_occasion(hf: Holdfast) -> None:
    chat, seen = hf.session("a"), []

    def answer(occasion: Any) -> None:
        seen.append(occasion.new[0].text)
        if occasion.new[0].text == "first":
            other = threading.Thread(target=lambda: chat.append("second"))
            other.start()
            other.join()

    chat.compaction.add_rule(Rule("answer", Always(), answer))
    chat.append("first")
    assert seen == ["first", "second"]
    assert not rules.is_rule_running()


def test_a_guard_holds_for_what_a_rule_does_too(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-5-mini")
    found: list[str] = []

    def call(occasion: Any) -> None:
        try:
            chat.packs.begin_model_call(chat.pack(2_000))
        except BudgetExhausted as error:
            found.append(str(error))

    chat.compaction.add_rule(BudgetGuard(pack=3))
    chat.compaction.add_rule(Rule("call", Always(), call))
    chat.append("hello " * 20)
    assert len(found) == 1
    assert "the rule budget_guard allows 3" in found[0]


def test_async_rules_that_append_never_wait_for_each_other() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:", tokenizer=count) as hf:
            chats = [await hf.session(f"s{number}") for number in range(40)]
            ready = asyncio.Event()
            begun: list[int] = []

            def answering(chat: Any) -> Any:
                async def answer(occasion: Any) -> None:
                    begun.append(1)
                    if len(begun) == 16:  # As many threads as there are to wait for them.
                        ready.set()
                    await ready.wait()
                    await chat.append("answered")

                return answer

            for chat in chats:
                await chat.compaction.add_rule(Rule("answer", Always(), answering(chat)))
            await asyncio.wait_for(asyncio.gather(*(chat.append("hello") for chat in chats)), 20)
            assert [len(await chat.messages()) for chat in chats] == [2] * 40

    asyncio.run(main())


def test_a_task_that_outlives_its_rule_gives_occasions_again() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:", tokenizer=count) as hf:
            chat, go_on, seen = await hf.session("a"), asyncio.Event(), []
            tasks: list[asyncio.Task[None]] = []

            async def late() -> None:
                await go_on.wait()
                await chat.append("late")

            async def notice(occasion: Any) -> None:
                seen.append(occasion.new[0].text)
                if not tasks:
                    tasks.append(asyncio.create_task(late()))

            await chat.compaction.add_rule(Rule("notice", Always(), notice))
            await chat.append("hello")
            go_on.set()
            await tasks[0]
            assert seen == ["hello", "late"]

    asyncio.run(main())


# where warnings point


CALL = {"id": "p", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def broken(occasion: Any) -> None:
    raise ValueError("oh no")


def test_a_warning_about_a_rule_points_at_the_callers_line(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-5-mini")
    chat.compaction.add_rule(Rule("broken", Always(), broken))
    frame = hf.index.push_frame("work", scope="actor/x/session/a/thread/main")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        chat.append("hello")
        chat.append({"role": "assistant", "content": "x", "tool_calls": [CALL]})
        chat.append_result("p", "done")
        hf.index.begin_model_call(frame, chat.pack(2_000))
        chat.packs.begin_model_call(chat.pack(2_000))
    assert [one.filename for one in found] == [__file__] * 5
    assert len({one.lineno for one in found}) == 5


def test_also_with_asyncio() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:", tokenizer=count) as hf:
            chat = await hf.session("a", model="gpt-5-mini")
            await chat.compaction.add_rule(Rule("broken", Always(), broken))
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                await chat.append("hello")
                await chat.packs.begin_model_call(await chat.pack(2_000))
            assert [one.filename for one in found] == [__file__] * 2
            assert found[1].lineno == found[0].lineno + 1

    asyncio.run(main())
