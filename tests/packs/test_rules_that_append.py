"""Rules that append: what a rule appends is no occasion for rules, and what others append meanwhile is one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.compaction import Always, BudgetGuard, Rule, TelemetryRecorder
from holdfast.errors import BudgetExhausted
from holdfast.flow.compaction import rules
from holdfast.testing.clock import FrozenClock


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=FrozenClock(), tokenizer=count) as client:
        yield client
        assert client.journal.verify().findings == ()


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
