"""A pack marks what it does not show, keeps memories to their share, and is a valid request if nothing was said."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from tests.sessions.provider_rules import anthropic_problems

MODEL = "gpt-4o"


@pytest.fixture
def hf() -> Any:
    with holdfast.open("memory:") as opened:
        yield opened


def test_what_no_shown_summary_stands_for_is_marked_and_decided(hf: Holdfast) -> None:
    chat = hf.session("s", model=MODEL)
    for number in range(30):
        chat.append(f"how many apples does person number {number} have in the basket? " * 4)
        chat.append({"role": "assistant", "content": f"exactly {number * 7}"})
    for keep in (40, 20, 2):
        chat.compact(keep=keep, max_tokens=400)
    for budget in (250, 600, 4_000):
        pack = chat.pack(budget)
        marked = any("not shown" in message.text for message in pack.messages)
        assert marked == (pack.conversation.truncated_count > 0)
        told = {one.id for one in pack.segments if one.kind == "summary"}
        decided = {one.id: one.outcome for one in pack.decisions if one.kind == "summary"}
        assert len(decided) == len(chat.compaction.summaries()) or pack.conversation.truncated_count
        assert {id for id, outcome in decided.items() if outcome == "summarised"} == told


def test_memories_keep_to_their_share_also_where_everything_would_fit(hf: Holdfast) -> None:
    chat = hf.session("s", model=MODEL)
    chat.append([f"the garage code number {number} is written down here " * 25 for number in range(8)])
    chat.compact(keep=1, store=True)
    for budget in (1_000, 2_000, 8_000):
        pack = chat.pack(budget, recall=5, query="garage code")
        assert pack.token_summary.breakdown.memory <= budget * 15 // 100


@pytest.mark.parametrize("system", [None, "Be terse."])
def test_a_request_of_an_empty_session_is_one_that_is_taken(hf: Holdfast, system: str | None) -> None:
    pack = hf.session("e", model=MODEL, system=system).pack(500)
    assert pack.to_openai()["messages"]
    assert pack.to_responses()["input"]
    assert anthropic_problems(dict(pack.to_anthropic())) == []
    assert pack.to_anthropic()["messages"]
