"""A budget that is too small says whether it is counted in tokens or in messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.errors import BudgetTooSmall
from holdfast.testing.clock import FrozenClock
from holdfast.windows import slide_window

CALL = {"id": "p", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=FrozenClock(), tokenizer=count) as client:
        yield client
        assert client.journal.verify().findings == ()


def test_a_budget_that_is_too_small_says_in_what(hf: Holdfast) -> None:
    chat = hf.session("a", system="Be kind. " * 30)
    chat.append("hello " * 30, policy="pinned")
    chat.append("and then")
    with pytest.raises(BudgetTooSmall, match=r"\d+ tokens") as tokens:
        chat.pack(5)
    assert tokens.value.unit == "tokens"
    assert chat.pack(tokens.value.required).tokens <= tokens.value.required
    with pytest.raises(BudgetTooSmall, match=r"need \d+ messages") as messages:
        chat.pack(4_000, max_messages=1)
    assert messages.value.unit == "messages"
    assert chat.pack(4_000, max_messages=messages.value.required).messages
    assert BudgetTooSmall().unit == "tokens"


def test_a_window_that_is_too_small_says_in_what() -> None:
    messages: list[Any] = [
        {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "p", "content": "y"},
    ]
    with pytest.raises(BudgetTooSmall, match="need 2 messages") as raised:
        slide_window(messages, max_messages=1)
    assert (raised.value.required, raised.value.unit) == (2, "messages")
