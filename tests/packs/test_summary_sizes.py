"""A summary is smaller than what it stands for, whichever strategy made it; otherwise nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Session
from holdfast.compaction import CompactionConfig
from holdfast.core.compaction.summary import fit_tokens
from holdfast.core.sessions.shorten import omission_marker
from holdfast.errors import SummaryFailed, TooLarge
from holdfast.flow.compaction import summaries, threads
from holdfast.flow.compaction.summaries import SMALL_SUMMARY_TOKENS
from holdfast.testing.clock import FrozenClock
from tests.scale import seeded, volume
from tests.sessions.generated import as_dicts, conversation

HUGE = "word " * 50_000


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


def shown(chat: Session) -> int:
    """The tokens of what stands in a line now: messages that nothing covers, what is pinned, and summaries."""
    covered = {one.id for summary in chat.compaction.summaries() for one in chat.compaction.expand(summary)}
    left = sum(one.tokens or 0 for one in chat.messages() if one.id not in covered or one.pinned)
    return left + sum(summary.tokens or 0 for summary in chat.compaction.summaries())


# no larger than before


def test_a_summary_is_cut_to_the_tokens_it_was_allowed_and_both_ends_stay(hf: Holdfast) -> None:
    chat = talked(hf)
    made = chat.compact(1, summarizer=lambda messages: f"It began. {HUGE} It ended.", max_tokens=50)
    assert made is not None
    assert count(made.text) <= 50
    assert made.text.startswith("It began.")
    assert made.text.endswith("It ended.")
    assert "characters left out" in made.text


def test_a_text_is_cut_to_as_many_tokens_as_fit() -> None:
    rng = seeded("texts within tokens")
    for _ in range(volume(300, 5_000)):
        text = "".join(rng.choice(("word ", "x", " ", "é", "\n")) for _ in range(rng.randint(0, 400)))
        most = rng.randint(1, 120)
        short = fit_tokens(text, most, count)
        assert count(short) <= most or not short
        assert short == text or len(short) < len(text) + len(omission_marker(len(text)))
        assert short == text if count(text) <= most else True


def test_a_summary_that_takes_as_much_as_it_stands_for_is_refused(hf: Holdfast) -> None:
    chat = talked(hf, times=4)
    events = list(hf.journal.events())
    with pytest.raises(SummaryFailed, match="what it stands for takes") as refused:
        chat.compact(1, summarizer=lambda messages: HUGE, max_tokens=5_000)
    assert refused.value.longer
    assert list(hf.journal.events()) == events


@pytest.mark.parametrize(
    "strategy", ["summarise_oldest", "extract_state", "policy_trim", "priority", "sliding_window", "truncate_at"]
)
def test_no_strategy_makes_a_conversation_larger(hf: Holdfast, strategy: str) -> None:
    rng = seeded(f"never larger by {strategy}")
    made = 0
    for number in range(volume(15, 400)):
        chat = hf.session(f"s{number}")
        chat.import_messages(as_dicts(conversation(rng, turns=rng.randint(1, 8), pinned=True)) or [{"role": "user"}])
        before = shown(chat)
        try:
            summary = chat.compact(rng.randint(0, 3), strategy=strategy, max_tokens=rng.choice((10, 100, 2_000)))
        except SummaryFailed:
            summary = None
        if summary is None:
            assert shown(chat) == before
        else:
            assert shown(chat) < before or (summary.tokens or 0) <= SMALL_SUMMARY_TOKENS
            made += 1
    assert made > 3


def test_a_larger_context_is_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "check_shorter", lambda *given: None)
    chat = talked(hf, times=4)
    before = shown(chat)
    chat.compact(1, summarizer=lambda messages: HUGE, max_tokens=5_000)
    assert shown(chat) > before


def test_the_next_strategy_is_tried_for_a_frame_and_the_note_says_so(hf: Holdfast) -> None:
    frame = hf.index.push_frame("work", scope="actor/main/session/a/thread/main")
    chat = talked(hf, times=6)
    done = hf.index.compact_context(frame, 80, "summarise_oldest", keep=1, summarizer=lambda messages: "")
    assert done.strategy == "extract_state"
    assert done.final_tokens < done.original_tokens
    assert done.note is not None
    assert "summarise_oldest: " in done.note
    assert len(chat.compaction.summaries()) == 1


def test_a_summary_for_a_frame_is_cut_to_what_the_target_leaves_for_it(hf: Holdfast) -> None:
    frame = hf.index.push_frame("work", scope="actor/main/session/a/thread/main")
    talked(hf, times=6)
    done = hf.index.compact_context(
        frame, 80, "summarise_oldest", keep=1, summarizer=lambda messages: HUGE, max_tokens=5_000
    )
    assert (done.strategy, done.reached_target) == ("summarise_oldest", True)
    assert done.final_tokens <= 80


def test_where_nothing_makes_it_smaller_nothing_is_written_and_the_note_says_so(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = hf.index.push_frame("work", scope="actor/main/session/a/thread/main")
    chat = hf.session("a")
    chat.append(["a", "b"])
    monkeypatch.setattr(summaries, "SMALL_SUMMARY_TOKENS", 0)
    events = list(hf.journal.events())
    done = hf.index.compact_context(frame, 1, "summarise_oldest", keep=1, summarizer=lambda messages: HUGE)
    assert (done.summary, done.id, done.reached_target) == (None, None, False)
    assert done.original_tokens == done.final_tokens
    assert done.note is not None
    assert all(name in done.note for name in ("summarise_oldest", "extract_state", "sliding_window"))
    assert list(hf.journal.events()) == events


def test_a_text_that_no_event_can_hold_falls_to_the_next_strategy(hf: Holdfast) -> None:
    frame = hf.index.push_frame("work", scope="actor/main/session/a/thread/main")
    chat = hf.session("a")
    chat.append(["word " * 30_000] * 16)
    enormous = "x" * 2_000_000
    with pytest.raises(TooLarge):
        chat.compact(1, summarizer=lambda messages: enormous, max_tokens=10**6)
    done = hf.index.compact_context(
        frame, 550_000, "summarise_oldest", keep=1, summarizer=lambda messages: enormous, max_tokens=10**6
    )
    assert done.strategy == "extract_state"
    assert done.note is not None
    assert "summarise_oldest: " in done.note


@pytest.mark.filterwarnings("error")
def test_a_rule_waits_in_silence_until_there_is_enough_to_summarise(hf: Holdfast) -> None:
    chat = hf.session("a")
    asked: list[int] = []

    def wordy(messages: Any) -> str:
        asked.append(len(messages))
        return "so it was, and so it went on, " * 45

    chat.compaction.add_rule(CompactionConfig(threshold=2, keep=1, summarizer=wordy))
    for number in range(40):
        chat.append(f"m{number} " + "and so on " * 6)
    assert chat.compaction.summaries(), "in the end it is shorter"
    assert len(asked) < 20, "it is not asked again and again"


def test_what_is_pinned_alone_is_not_summarised(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append("never green " * 20, policy="pinned")
    chat.append("ok")
    assert chat.compact(1, summarizer=lambda messages: pytest.fail("nobody is asked")) is None


def test_what_is_pinned_in_the_same_commit_saves_nothing(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(
        CompactionConfig(threshold=2, keep=1, keep_goal=True, summarizer=lambda messages: "so " * 500)
    )
    chat.append(["I want to go to Rome " * 200, "x", "y"])
    assert chat.compaction.summaries() == []
    assert not chat.messages()[0].pinned


def test_the_words_of_our_own_strategies_are_bounded_by_what_they_stand_for(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "SMALL_SUMMARY_TOKENS", 0)
    for name in ("a", "b"):
        hf.session(name).append(["Anna sold 12 red cars in Rome. Bob paid 4711 dollars on 3 May.", "ok"])
    assert hf.session("a").compact(1) is not None
    monkeypatch.setattr(threads, "token_allowance", lambda env, plan, config, method: config.summary_tokens)
    with pytest.raises(SummaryFailed, match="what it stands for"):
        hf.session("b").compact(1)
