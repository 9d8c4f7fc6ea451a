"""A warning about a rule points at the line of code that called."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.compaction import Always, Rule
from holdfast.testing.clock import FrozenClock


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=FrozenClock(), tokenizer=count) as client:
        yield client
        assert client.journal.verify().findings == ()


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
