"""A compaction that cannot be done is refused when it is asked for, and fails no pack later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Session
from holdfast.compaction import Always, CompactionConfig, Rule
from holdfast.errors import InvalidValue
from holdfast.testing.clock import FrozenClock


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=FrozenClock(), tokenizer=count) as client:
        yield client
        assert client.journal.verify().findings == ()


def talked(hf: Holdfast, id: str = "a", times: int = 12) -> Session:
    chat = hf.session(id)
    chat.append([f"message {number} " + "and so on " * 8 for number in range(times)])
    return chat


WRONG: list[dict[str, Any]] = [
    {"keep": None},
    {"keep": 1.5},
    {"summary_tokens": None},
    {"summary_tokens": 0},
    {"recall": None},
    {"recall": True},
    {"threshold": "x", "max_messages": 3},
    {"max_tokens": float("nan")},
    {"timeout": float("nan")},
    {"timeout": float("inf")},
    {"timeout": 1e30},
    {"timeout": 10**400},
    {"timeout": -1},
    {"timeout": 0},
    {"timeout": "5"},
    {"store": None},
    {"keep_goal": None},
    {"enabled": "no"},
    {"summarizer": 5},
    {"summarizer": lambda: "takes nothing"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:30])
def test_a_configuration_that_cannot_be_followed_is_refused_when_given(hf: Holdfast, wrong: dict[str, Any]) -> None:
    chat = hf.session("a")
    for given in (CompactionConfig(**wrong), Rule("x", Always(), CompactionConfig(**wrong))):
        with pytest.raises(InvalidValue):
            chat.compaction.add_rule(given)
    assert chat.compaction.rules == ()


@pytest.mark.parametrize(
    "how",
    [
        {"keep": None},
        {"max_tokens": None},
        {"max_tokens": True},
        {"summarizer": 5},
        {"strategy": None},
        {"store": None},
        {"timeout": float("nan")},
        {"timeout": 1e30},
        {"timeout": -1},
    ],
    ids=str,
)
def test_what_is_asked_for_once_is_refused_as_well(hf: Holdfast, how: dict[str, Any]) -> None:
    frame = hf.index.push_frame("work", scope="actor/main/session/a/thread/main")
    chat = talked(hf)
    asked = {"strategy": "summarise_oldest"} | how
    with pytest.raises(InvalidValue):
        hf.index.compact_context(frame, 10, **asked)
    if "timeout" not in how:
        with pytest.raises(InvalidValue):
            chat.compact(**how)
    assert chat.compaction.summaries() == []


def test_compact_without_a_number_is_refused_with_asyncio_too() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:", tokenizer=count) as hf:
            chat = await hf.session("a")
            await chat.append(["hello"] * 5)
            with pytest.raises(InvalidValue, match="keep must be a number"):
                await chat.compact(None)  # type: ignore[arg-type]
            with pytest.raises(InvalidValue):
                await chat.compaction.add_rule(CompactionConfig(recall=None))  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_refused_rule_fails_no_pack(hf: Holdfast) -> None:
    chat = talked(hf)
    chat.compaction.add_rule(Rule("one", Always(), CompactionConfig(recall=2)))
    with pytest.raises(InvalidValue):
        chat.compaction.add_rule(Rule("two", Always(), CompactionConfig(recall=None)))  # type: ignore[arg-type]
    assert chat.pack(2_000).tokens > 0
