"""Few summaries stand for a long conversation, each made from what was said and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.compaction import CompactionConfig
from holdfast.flow.compaction import summaries as compaction_summaries
from tests.scale import volume

ROUNDS = volume(400, 4_000)


def said(number: int) -> str:
    return f"Question {number}: my code is C-{number}. Say what you know of it, at length."


@pytest.fixture
def hf() -> Any:
    with holdfast.open("memory:") as opened:
        yield opened


@pytest.mark.parametrize("rule", ["eko", CompactionConfig(threshold=10, keep=5, max_messages=15)])
def test_a_rule_leaves_as_many_summaries_as_a_number_has_digits(hf: Holdfast, rule: Any) -> None:
    chat, plain = hf.session("a", model="gpt-4o"), hf.session("b", model="gpt-4o")
    chat.compaction.add_rule(rule)
    for number in range(ROUNDS):
        chat.append(said(number))
        plain.append(said(number))
    summaries = chat.compaction.summaries()
    assert 1 < len(summaries) <= 7 * len(f"{ROUNDS // 5:o}"), "seven of each size at most"
    told = [message.text for summary in summaries for message in chat.compaction.expand(summary)]
    assert told == [said(number) for number in range(len(told))], "each message is covered once, in order"
    assert chat.pack(budget=60_000).tokens < plain.pack(budget=60_000).tokens / 2


def test_each_message_is_summarised_a_few_times_and_from_the_originals(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-4o")
    told: dict[str, int] = {}

    def summarise(messages: Any) -> str:
        for message in messages:
            told[message.text] = told.get(message.text, 0) + 1
        return f"S{len(messages)}"

    for number in range(ROUNDS):
        chat.append(said(number))
        chat.compact(keep=1, summarizer=summarise)
    assert set(told) == {said(number) for number in range(ROUNDS - 1)}, "no summary is summarised"
    assert max(told.values()) <= len(f"{ROUNDS:o}"), "once for each size that it grew to"


def test_whole_makes_one_of_all_and_shows_nothing_again(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-4o")
    for number in range(30):
        chat.append(said(number))
        if number % 6 == 5:
            chat.compact(keep=2)
    before = sum(one.messages for one in chat.compaction.summaries())
    assert len(chat.compaction.summaries()) == 5
    made = chat.compact(keep=10, whole=True)
    assert made is not None
    assert (made.messages, len(chat.compaction.summaries())) == (before, 1), "what was covered stays covered"
    assert chat.compact(keep=10, whole=True) is None, "there is nothing to make one"


def test_what_was_flushed_is_not_flushed_again_when_summaries_become_one(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-4o")
    chat.compaction.add_rule(CompactionConfig(threshold=4, keep=2, store=True))
    for number in range(60):
        chat.append(f"The word of day {number} is {number}xyzzy{number}.")
    assert len(chat.compaction.summaries()) < 10
    kept = [entry for entry in hf.state("session/a").entries("holdfast/") if " 7xyzzy7." in str(entry.value)]
    assert len(kept) == 1


def test_summaries_that_never_become_one_are_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_summaries, "MERGE_COUNT", 10**6)
    with pytest.raises(AssertionError):
        test_a_rule_leaves_as_many_summaries_as_a_number_has_digits(hf, "eko")
