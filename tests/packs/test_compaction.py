"""Conversations and frames made smaller: nothing is lost or torn, nothing that must stay goes, and one event says so.

Every strategy is run over generated conversations; what it covers comes back byte for byte, and a call that waits is
never covered. Evidence that went comes back by the name of its compaction.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast, Session
from holdfast.errors import (
    BudgetTooSmall,
    FrameEnded,
    FrameNotFound,
    InvalidValue,
    KeyReused,
    StrategyFailed,
    SummaryFailed,
    Unsupported,
)
from holdfast.flow.compaction import frames, recall, summaries
from holdfast.model.summarizers import CheckedSummarizer
from holdfast.records.compaction import STRATEGIES
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel, Segment
from holdfast.records.sessions import Summary
from holdfast.testing.clock import FrozenClock
from tests.backends import check_rebuilt
from tests.scale import seeded, volume
from tests.sessions.generated import as_dicts, conversation

CALL = {"id": "p", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ULID = "01JXT21Q00WQZ7JRP4047D5S0Y"


def odd_ones(segments: list[Segment], *, budget: int) -> list[Segment]:
    """A strategy of one's own: what is critical, and of the rest every other one as far as it fits."""
    kept = [one for at, one in enumerate(segments) if one.priority == "critical" or at % 2]
    while sum(one.estimated_tokens for one in kept) > budget:
        loose = [one for one in kept if one.priority != "critical"]
        if not loose:
            break
        kept.remove(loose[0])
    return kept


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    ways = {"odd ones": odd_ones, "all of it": lambda segments, budget: segments}
    with holdfast.open(url, clock=FrozenClock(), tokenizer=count, strategies=ways, durability="fast") as client:
        yield client
        check_rebuilt(client)


def types(hf: Holdfast, after: int = 0) -> list[str]:
    return [event.type for event in hf.journal.events(after=after)]


def as_bytes(value: Any) -> bytes:
    return msgspec.json.encode(value)


def short(messages: Any, max_tokens: int) -> str:
    return f"{len(messages)} messages, in short"


# conversations


def told(chat: Session, rng: random.Random) -> None:
    """A generated conversation; broken ones are made valid on their way in."""
    chat.import_messages(as_dicts(conversation(rng, turns=rng.randint(2, 7), pinned=True)) or [{"role": "user"}])
    if rng.random() < 0.3:
        chat.append({"role": "assistant", "content": None, "tool_calls": [CALL]})
        chat.append("meanwhile")
    for message in chat.messages():
        if rng.random() < 0.1 and message.role == "user":
            chat.pin(message)


def check_whole(before: list[Message], summary: Summary, given_back: list[Message], waiting: set[str]) -> None:
    """What a summary stands for is a stretch of whole rounds, it comes back as it was, and nothing in it waits."""
    assert as_bytes(given_back) == as_bytes([one for one in before if one in given_back])
    assert len(given_back) == summary.messages > 0
    covered = {one.id for one in given_back}
    first = before.index(given_back[0])
    assert [one.id for one in before[first : first + len(covered)]] == [one.id for one in given_back]
    assert all(one.role in ("system", "developer") for one in before[:first])
    for inside in (True, False):
        calls = {call.id for one in before if (one.id in covered) == inside for call in one.tool_calls}
        results = {one.tool_call_id for each in before if (each.id in covered) == inside for one in each.tool_results}
        assert results <= calls, "a result was torn from its call"
        assert not inside or calls <= results, "a call is covered that has no result"
        assert not inside or not calls & waiting


@pytest.mark.parametrize("strategy", [*STRATEGIES, "odd ones"])
def test_every_strategy_covers_whole_rounds_and_gives_them_back(hf: Holdfast, strategy: str) -> None:
    rng = seeded(f"rounds under {strategy}")
    for number in range(volume(6, 120)):
        chat = hf.session(f"s{number}")
        told(chat, rng)
        for _ in range(2):
            before, at = chat.messages(), hf.journal.position()
            waiting = {call.id for call in chat.details.open_calls()}
            try:
                summary = chat.compact(rng.randint(0, 4), strategy=strategy, max_tokens=rng.choice([20, 200]))
            except (SummaryFailed, StrategyFailed) as error:
                longer = isinstance(error, SummaryFailed) and error.longer
                assert longer or strategy in ("extract_state", "summarise_oldest", "odd ones")
                assert types(hf, after=at) == []
                continue
            assert chat.messages() == before, "something was removed"
            if summary is None:
                assert types(hf, after=at) == []
                continue
            assert types(hf, after=at) == ["summary.made"]
            *earlier, standing = chat.compaction.summaries()
            assert standing == summary
            covered = {one.id for old in earlier for one in chat.compaction.expand(old)}
            known = [one for one in before if one.id not in covered]
            check_whole(known, summary, chat.compaction.expand(summary), waiting)
            chat.append(["and then", {"role": "assistant", "content": "so it was"}])


def test_a_note_stands_for_what_is_left_out_without_a_model(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append([f"message {number}" for number in range(15)])
    chat.append("stays", policy="pinned")
    chat.append(["x", "y"])
    made = chat.compact(3, strategy="sliding_window")
    assert made is not None
    assert (made.text, made.method, made.trust) == ("[15 earlier messages left out]", "sliding_window", "user")
    cut = chat.compact(1, strategy="truncate_at")
    assert cut is not None
    assert cut.text == "[1 earlier message left out]"
    events = hf.journal.events("session/a/thread/main", types=["summary.made"])
    assert [event.facts.level for event in events] == ["aggressive", "aggressive"]


def test_truncating_counts_messages_and_keeps_rounds_whole(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append(["one", {"role": "assistant", "content": "look", "tool_calls": [CALL]}])
    chat.append_result("p", "found")
    chat.append(["two", "three"])
    made = chat.compact(3, strategy="truncate_at")
    assert made is not None
    assert [one.text for one in chat.messages()[made.messages :]] == ["two", "three"], "four would be a torn round"
    assert chat.compact(3, strategy="truncate_at") is None


def test_an_extracted_state_is_data_and_words(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append(["I need a refund for order 8812.", {"role": "assistant", "content": "Agreed, it is refunded."}, "ok"])
    made = chat.compact(1, strategy="extract_state")
    assert made is not None
    assert made.state == {
        "goals": ["I need a refund for order 8812."],
        "decisions": ["Agreed, it is refunded."],
    }
    assert chat.compaction.summaries()[0].state == made.state
    assert made.text.startswith("Goals:\n- I need a refund for order 8812.")


def test_policies_of_messages_are_kept_and_say_what_goes_first(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append("goal: paint the fence")
    said = chat.append({"role": "assistant", "content": "looking", "tool_calls": [CALL]})
    result = chat.append_result(said.tool_calls[0], "row " * 400, policy="discard_when_done")
    note = chat.append("by the way " + "so " * 300, policy="compress_first")
    pinned = chat.append("never green", policy="pinned")
    chat.append(["a", "b", "c"])
    assert (
        [one.policy for one in chat.messages()[2:4]]
        == ["discard_when_done", "compress_first"]
        == [
            result.policy,
            note.policy,
        ]
    )
    assert chat.messages()[4].pinned
    assert pinned.pinned
    made = chat.compact(3, strategy="policy_trim", max_tokens=120)
    assert made is not None
    assert "goal: paint the fence" in made.text
    assert "row" not in made.text
    assert "by the way" in made.text
    assert "characters left out" in made.text
    assert "never green" not in made.text, "it is shown as it was said"
    for wrong in ("keep", "", 3):
        with pytest.raises(InvalidValue, match="not a policy"):
            chat.append("x", policy=wrong)  # type: ignore[call-overload]


def test_an_open_call_is_never_covered_and_a_planted_bug_is_caught(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(id: str) -> None:
        chat = hf.session(id)
        chat.append(["one", {"role": "assistant", "content": "look", "tool_calls": [CALL]}, "two", "three"])
        waiting = {call.id for call in chat.details.open_calls()}
        summary = chat.compact(0, strategy="sliding_window")
        assert summary is not None
        check_whole(chat.messages(), summary, chat.compaction.expand(summary), waiting)

    run("a")
    monkeypatch.setattr(summaries, "_count_older", lambda messages, keep: max(len(messages) - keep, 0))
    with pytest.raises(AssertionError, match="no result"):
        run("b")


def test_a_broken_strategy_of_ones_own_changes_nothing(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append(["word " * 50] * 6)
    before = types(hf)
    with pytest.raises(StrategyFailed, match="are allowed"):
        chat.compact(1, strategy="all of it", max_tokens=50)
    with pytest.raises(InvalidValue, match=r"Known strategies: priority, .* all of it, odd ones"):
        chat.compact(1, strategy="by magic")
    assert types(hf) == before
    made = chat.compact(1, strategy="odd ones", max_tokens=150)
    assert made is not None
    assert made.method == "odd ones"
    assert made.text.startswith("[")


def test_what_cannot_be_asked_for_is_refused(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append(["a", "b", "c"])
    before = types(hf)
    for wrong in ({"keep": -1}, {"keep": 1.5}, {"max_tokens": 0}, {"strategy": 3}, {"store": "//"}, {"strategy": ""}):
        with pytest.raises(InvalidValue):
            chat.compact(**{"keep": 1, **wrong})  # type: ignore[arg-type]
    assert types(hf) == before


# frames


def pushed(hf: Holdfast, *sizes: tuple[str, int | None], **more: Any) -> str:
    """A frame with evidence: each its priority and its size."""
    frame = hf.index.push_frame("work", scope="actor/a")
    for number, (priority, tokens) in enumerate(sizes, 1):
        body = f"evidence {number} " * 3
        hf.index.add_handle(frame, "document", handle=f"h{number}", priority=priority, tokens=tokens, body=body, **more)
    return frame


def attached(hf: Holdfast, frame: str) -> list[str]:
    return [handle.id for handle in hf.index.handles(frame) if handle.removed is None]


def test_lowest_priority_goes_first_until_the_target_is_reached(hf: Holdfast) -> None:
    frame = pushed(hf, ("critical", 400), ("low", 100), ("high", 100), ("low", 100), ("background", 100))
    hf.index.record_usage(frame, 5_000)
    before = types(hf)
    done = hf.index.compact_context(frame, 600)
    assert (done.original_tokens, done.final_tokens) == (800, 600), "what was spent has nothing to do with it"
    assert (done.items_removed, done.reached_target, done.note) == (2, True, None)
    assert done.compaction_level == CompactionLevel.AGGRESSIVE
    assert attached(hf, frame) == ["h1", "h3", "h4"]
    assert types(hf) == [*before, "frame.compacted"]
    again = hf.index.compact_context(frame, 600)
    assert (again.id, again.items_removed, again.compaction_level) == (None, 0, CompactionLevel.NONE)
    assert types(hf) == [*before, "frame.compacted"]


def test_a_target_out_of_reach_is_said_and_refused_only_if_strict(hf: Holdfast) -> None:
    frame = pushed(hf, ("critical", 400), ("medium", 100))
    before = types(hf)
    with pytest.raises(BudgetTooSmall, match="400") as raised:
        hf.index.compact_context(frame, 10, strict=True)
    assert raised.value.required == 400
    assert types(hf) == before
    done = hf.index.compact_context(frame, 10)
    assert (done.reached_target, done.final_tokens) == (False, 400)
    assert done.compaction_level == CompactionLevel.CRITICAL_ONLY
    assert done.note is not None
    assert attached(hf, frame) == ["h1"]
    nothing = hf.index.compact_context(frame, 10)
    assert (nothing.reached_target, nothing.compaction_level) == (False, CompactionLevel.NONE)


def test_a_size_that_nobody_noted_is_measured_or_guessed(hf: Holdfast) -> None:
    frame = pushed(hf, ("low", None))
    hf.index.add_handle(frame, "document", handle="far", target="notes", priority="low")
    done = hf.index.compact_context(frame, 1_000)
    assert done.original_tokens == count("evidence 1 " * 3) + 100


def test_what_was_detached_comes_back_byte_for_byte(hf: Holdfast) -> None:
    rng = seeded("compacted evidence")
    names = ["critical", "high", "medium", "low", "background"]
    for _ in range(volume(8, 200)):
        sizes = [(rng.choice(names), rng.choice([None, 0, rng.randint(1, 300)])) for _ in range(rng.randint(0, 8))]
        frame = pushed(hf, *sizes)
        before, events = as_bytes(hf.index.handles(frame)), types(hf)
        strategy = rng.choice(["priority", "policy_trim", "odd ones"])
        try:
            done = hf.index.compact_context(frame, rng.randint(0, 600), strategy)
        except StrategyFailed:
            assert types(hf) == events
            continue
        assert len(attached(hf, frame)) == len(sizes) - done.items_removed
        critical = {f"h{at}" for at, (priority, _) in enumerate(sizes, 1) if priority == "critical"}
        assert critical <= set(attached(hf, frame))
        if done.id is None:
            assert types(hf) == events
            continue
        assert types(hf) == [*events, "frame.compacted"]
        hf.index.restore_handles(frame, done.id)
        assert as_bytes(hf.index.handles(frame)) == before


def test_by_policy_what_is_done_goes_first_and_what_a_call_needs_stays(hf: Holdfast) -> None:
    frame = hf.index.push_frame("work", scope="actor/a")
    running, over = hf.index.begin_tool_call(frame, "look"), hf.index.begin_tool_call(frame, "look")
    hf.index.end_tool_call(frame, over, value=1)
    for name, policy, call in (
        ("normal", None, None),
        ("compressed", "compress_first", None),
        ("needed", "discard_when_done", running),
        ("done", "discard_when_done", over),
        ("kept", "pinned", None),
    ):
        hf.index.add_handle(frame, "document", handle=name, body="x", tokens=100, policy=policy, call=call)
    gone = []
    for target in (400, 300, 200, 100):
        done = hf.index.compact_context(frame, target, "policy_trim")
        gone.append({"normal", "compressed", "needed", "done", "kept"} - set(attached(hf, frame)))
    assert gone[:3] == [{"done"}, {"done", "compressed"}, {"done", "compressed", "normal"}]
    assert set(attached(hf, frame)) == {"needed", "kept"}
    assert not done.reached_target


def test_a_strategy_of_ones_own_must_keep_what_is_critical_or_needed(hf: Holdfast) -> None:
    hf.env.strategies["nothing"] = lambda segments, budget: []
    frame = hf.index.push_frame("work", scope="actor/a")
    call = hf.index.begin_tool_call(frame, "look")
    hf.index.add_handle(frame, "document", handle="needed", body="x", tokens=100, call=call)
    before = types(hf)
    with pytest.raises(StrategyFailed, match="an open call needs"):
        hf.index.compact_context(frame, 0, "nothing")
    assert types(hf) == before
    hf.index.end_tool_call(frame, call, value=1)
    kept = hf.index.add_handle(frame, "document", body="x", tokens=100, priority="critical")
    with pytest.raises(StrategyFailed, match="is critical"):
        hf.index.compact_context(frame, 0, "nothing")
    hf.index.remove_handle(frame, kept)
    assert hf.index.compact_context(frame, 0, "nothing").final_tokens == 0


def test_a_policy_stands_for_a_priority_unless_one_is_given(hf: Holdfast) -> None:
    frame = hf.index.push_frame("work", scope="actor/a")
    hf.index.add_handle(frame, "document", handle="a", body="x", policy="pinned")
    hf.index.add_handle(frame, "document", handle="b", body="x", policy="discard_when_done", priority="high")
    assert [handle.priority for handle in hf.index.handles(frame)] == [100, 75]
    with pytest.raises(InvalidValue, match="not a policy"):
        hf.index.add_handle(frame, "document", body="x", policy="forever")
    with pytest.raises(InvalidValue, match="cannot be critical"):
        hf.index.add_handle(frame, "document", body="x", policy="pinned", trust="tool")


def test_a_key_gives_the_first_answer_again(hf: Holdfast) -> None:
    frame = pushed(hf, ("low", 100), ("low", 100))
    first = hf.index.compact_context(frame, 100, key="k")
    events = types(hf)
    assert hf.index.compact_context(frame, 100, key="k") == first
    hf.index.restore_handles(frame, str(first.id))
    assert hf.index.compact_context(frame, 100, key="k") == first
    assert types(hf) == [*events, "frame.handles_restored"]
    other = pushed(hf, ("low", 100))
    with pytest.raises(KeyReused):
        hf.index.compact_context(other, 0, key="k")


def test_only_live_frames_that_are_there_are_made_smaller(hf: Holdfast) -> None:
    with pytest.raises(FrameNotFound):
        hf.index.compact_context(ULID, 100)
    with pytest.raises(InvalidValue):
        hf.index.compact_context("nobody", 100)
    frame = pushed(hf, ("low", 100))
    with pytest.raises(FrameNotFound):
        hf.tenant("other").index.compact_context(frame, 0)
    for wrong in (-1, 1.5, "much", True, None):
        with pytest.raises(InvalidValue, match="target_budget"):
            hf.index.compact_context(frame, wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="not a strategy"):
        hf.index.compact_context(frame, 0, "by magic")
    with pytest.raises(InvalidValue, match="timeout"):
        hf.index.compact_context(frame, 0, timeout=0)
    hf.index.pop_frame(frame)
    with pytest.raises(FrameEnded):
        hf.index.compact_context(frame, 0)


# a frame's conversation


def talking(hf: Holdfast, rounds: int = 14) -> tuple[Session, str]:
    """A session with a conversation, and a root frame that works in it."""
    chat = hf.session("a")
    frame = hf.index.push_frame("work", scope="actor/main/session/a/thread/main")
    chat.append([f"message {number} " + "word " * 20 for number in range(rounds)])
    return chat, frame


def test_a_frames_conversation_is_summarised_in_one_commit(hf: Holdfast) -> None:
    chat, frame = talking(hf)
    before = types(hf)
    done = hf.index.compact_context(frame, 500, "summarise_oldest", summarizer=short, max_tokens=60, key="k")
    assert sorted(types(hf)[len(before) :]) == ["frame.compacted", "summary.made"]
    assert done.summary is not None
    assert chat.compaction.summaries() == [done.summary]
    assert done.items_summarized == done.summary.messages >= 4
    assert done.compaction_level == CompactionLevel.MODERATE
    assert done.id is None, "nothing was detached"
    assert done.final_tokens <= 500 < done.original_tokens
    assert done.reached_target
    assert hf.index.compact_context(frame, 500, "summarise_oldest", summarizer=short, key="k") == done
    fits = hf.index.compact_context(frame, 500, "summarise_oldest", summarizer=short)
    assert (fits.compaction_level, fits.reached_target) == (CompactionLevel.NONE, True)


def talk_of(hf: Holdfast, messages: int) -> str:
    """A frame in a session with so many messages of one size; a message is a round."""
    chat = hf.session("s", model="gpt-4o")
    for nth in range(messages):
        role = "assistant" if nth % 2 else "user"
        chat.append({"role": role, "content": f"message {nth:02} is about trains and the weather in town {nth:02}"})
    return hf.index.push_frame("Work", scope="actor/main/session/s")


def kept_messages(hf: Holdfast) -> int:
    return sum(1 for message in hf.session("s").pack(90_000).messages if not message.synthetic)


@pytest.mark.parametrize("strategy", ["summarise_oldest", "truncate_at", "sliding_window", "extract_state"])
@pytest.mark.parametrize("more", [20, 40, 400])
def test_the_newest_rounds_stay_whenever_they_fit_the_target(hf: Holdfast, strategy: str, more: int) -> None:
    frame = talk_of(hf, 60)
    target = more + sum(message.tokens or 0 for message in hf.session("s").messages()[-10:])
    done = hf.index.compact_context(frame, target, strategy, keep=10, strict=True)
    assert done.final_tokens <= target
    assert kept_messages(hf) == 10


def test_a_summary_that_takes_its_share_first_is_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the room for rounds is what a summary of full length would leave."""
    monkeypatch.setattr(frames, "_share_target", lambda work, thread, tokens: (work.config, 100))
    with pytest.raises(AssertionError):
        test_the_newest_rounds_stay_whenever_they_fit_the_target(hf, "sliding_window", 400)


def test_rounds_that_do_not_fit_the_target_leave_room_for_the_summary(hf: Holdfast) -> None:
    frame = talk_of(hf, 60)
    done = hf.index.compact_context(frame, 300, "summarise_oldest", keep=40, max_tokens=100)
    assert done.reached_target
    assert 5 < kept_messages(hf) < 20


@pytest.mark.parametrize("strategy", ["truncate_at", "sliding_window", "extract_state"])
def test_a_frames_conversation_is_made_to_fit_without_a_model(hf: Holdfast, strategy: str) -> None:
    chat, frame = talking(hf)
    done = hf.index.compact_context(frame, 300, strategy, max_tokens=60)
    assert done.reached_target
    assert done.summary is not None
    assert chat.compaction.expand(done.summary) == chat.messages()[: done.items_summarized]
    with pytest.raises(BudgetTooSmall):
        hf.index.compact_context(frame, 1, strategy, strict=True)


def _raises(messages: Any) -> str:
    raise RuntimeError("the model is out of order")


@pytest.mark.parametrize(("summarizer", "reason"), [(_raises, "out of order"), (lambda messages: " ", "nothing")])
def test_a_summarizer_that_fails_changes_nothing_and_the_next_strategy_is_tried(
    hf: Holdfast, summarizer: Any, reason: str
) -> None:
    chat, frame = talking(hf)
    done = hf.index.compact_context(frame, 300, "summarise_oldest", summarizer=summarizer, max_tokens=100)
    assert done.note is not None
    assert reason in done.note
    assert done.strategy in ("extract_state", "sliding_window")
    assert [one.text.strip() != "" for one in chat.compaction.summaries()] == [True]
    events = types(hf)
    with pytest.raises(SummaryFailed):
        chat.compact(2, summarizer=summarizer)
    assert types(hf) == events


def test_a_summarizer_that_hangs_is_not_waited_for(hf: Holdfast) -> None:
    chat, frame = talking(hf)
    hanging = threading.Event()

    def hang(messages: Any) -> str:
        hanging.wait(30)
        return "too late"

    try:
        done = hf.index.compact_context(frame, 300, "summarise_oldest", summarizer=hang, timeout=0.05)
    finally:
        hanging.set()
    assert done.note is not None
    assert "0.05 seconds" in done.note
    assert [one.text != "too late" for one in chat.compaction.summaries()] == [True]
    quick = hf.session("b")
    quick.append(["x"] * 20)
    other = hf.index.push_frame("work", scope="actor/main/session/b/thread/main")
    done = hf.index.compact_context(other, 10, "summarise_oldest", summarizer=short, timeout=30)
    assert done.note is None


def test_a_summary_of_nothing_is_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(id: str) -> None:
        chat = hf.session(id)
        chat.append(["x"] * 4)
        with pytest.raises(SummaryFailed):
            chat.compact(1, summarizer=lambda messages: "")
        assert chat.compaction.summaries() == []

    run("a")
    drafted = summaries.draft_summary
    monkeypatch.setattr(CheckedSummarizer, "_check_text", lambda self, answer: str(answer))
    monkeypatch.setattr(
        summaries,
        "draft_summary",
        lambda env, plan, words: drafted(env, plan, replace(words, text=words.text or "\u200b")),
    )
    with pytest.raises(pytest.fail.Exception):
        run("b")


def test_a_frame_without_a_conversation_has_nothing_to_summarise(hf: Holdfast) -> None:
    frame = pushed(hf, ("low", 100))
    done = hf.index.compact_context(frame, 0, "sliding_window")
    assert done.note == "This frame has no conversation yet."
    assert attached(hf, frame) == ["h1"]


# what is flushed


def test_what_is_compacted_is_written_in_the_same_commit(hf: Holdfast) -> None:
    chat, frame = talking(hf)
    hf.index.add_handle(frame, "document", handle="h", body="the vault is behind the clock", tokens=50, trust="tool")
    before = types(hf)
    done = hf.index.compact_context(frame, 0, store=True)
    assert types(hf)[len(before) :] in (
        ["state.written", "frame.compacted"],
        ["frame.compacted", "state.written"],
    ), "one commit over two streams"
    assert done.flushed == f"holdfast/context/{done.id}"
    entry = hf.state("session/a").entry(done.flushed)
    assert entry is not None
    assert entry.content_kind == "episodic"
    assert entry.value == {"text": "the vault is behind the clock", "trust": "tool", "of": done.id}
    made = chat.compact(3, summarizer=short, store="user/u1")
    assert made is not None
    keys = hf.state("user/u1").list()
    assert keys[0] == f"holdfast/context/{made.id}"
    text = "\n".join(hf.state("user/u1").read(key)["text"] for key in keys)
    assert all(one.text.strip() in text for one in chat.compaction.expand(made))


def test_what_cannot_be_flushed_is_not_compacted(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, frame = talking(hf)
    hf.index.add_handle(frame, "document", handle="h", body="x", tokens=50)
    before = types(hf)

    def broken(*args: Any) -> Any:
        raise Unsupported("There is no room for it.")

    monkeypatch.setattr(recall, "flush_passages", broken)
    for strategy in ("priority", "sliding_window"):
        with pytest.raises(Unsupported):
            hf.index.compact_context(frame, 0, strategy, store=True)
    with pytest.raises(Unsupported):
        chat.compact(1, store=True)
    assert types(hf) == before
    assert attached(hf, frame) == ["h"]
    assert chat.compact(1) is not None, "without a store nothing has to be flushed"
