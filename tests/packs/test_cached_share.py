"""How much of a request its provider has already: what the last journaled one began with, and never more than that."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Holdfast, Message, Session, ToolCallRequest
from tests.packs.pack_rules import kept_tokens
from tests.packs.worlds import TOOLS, World

BUDGET = 700


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as client:
        yield client


def cached(chat: Session, budget: int = BUDGET) -> int:
    pack = chat.pack(budget)
    return round(pack.cached_share * pack.tokens)


def test_nothing_is_cached_before_the_first_call(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    chat.append("hello")
    assert cached(chat) == 0
    chat.packs.begin_model_call(chat.pack(BUDGET))
    assert cached(chat) == chat.pack(BUDGET).tokens


def test_what_is_shown_after_something_that_went_is_not_cached(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    said = [
        chat.append(f"message {nth} " + "with some words " * 8, policy="pinned" if nth < 3 else None)
        for nth in range(22)
    ]
    before = chat.pack(BUDGET)
    chat.packs.begin_model_call(before)
    chat.unpin(said[1])
    after = chat.pack(BUDGET)
    assert [message.text[:9] for message in after.messages[:2]] == ["message 0", "message 2"]
    assert cached(chat) == kept_tokens(World(hf, random.Random(0), chat), before, after) < 60


def test_another_brief_is_not_cached(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o", system="Be terse.", tools=TOOLS)
    chat.append("hello")
    chat.packs.begin_model_call(chat.pack(BUDGET))
    hf.session("s", tools=[])
    assert cached(chat) == 0
    hf.session("s", tools=TOOLS)
    assert cached(chat) == chat.pack(BUDGET).tokens


def test_a_result_that_was_taken_back_is_not_cached(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    chat.append("hello")
    asked = chat.append(Message(role="assistant", tool_calls=(ToolCallRequest(name="find"),)))
    chat.append_result(asked.tool_calls[0], "found")
    chat.packs.begin_model_call(chat.pack(BUDGET))
    chat.rewind(to=asked)
    assert cached(chat) == 3 + (chat.messages()[0].tokens or 0)


def test_what_was_erased_since_is_not_cached(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    hf.as_user("bob").session("s").append("I am Bob.")
    chat.append("hello")
    chat.packs.begin_model_call(chat.pack(BUDGET))
    hf.journal.erase("bob")
    assert cached(chat) == 0
    chat.packs.begin_model_call(chat.pack(BUDGET))
    assert cached(chat) == chat.pack(BUDGET).tokens
