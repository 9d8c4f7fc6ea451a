"""What each strategy lets go, as pure choices: by priority, by policy, by what somebody else chose, and into words."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.compaction import summary
from holdfast.core.compaction.state_extract import MAX_ENTRIES, extract_state, render_state
from holdfast.core.compaction.strategies import (
    CompactionItem,
    choose_by_policy,
    choose_by_priority,
    count_rounds_within,
    make_segments,
    run_strategy,
)
from holdfast.core.compaction.summary import PASSAGE_CHARS, read_passage, split_messages
from holdfast.errors import InvalidValue, StrategyFailed
from holdfast.records.compaction import POLICY_PRIORITY, policy_of, priority_of
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult
from holdfast.records.packs import CompactionLevel
from tests.scale import seeded, volume
from tests.sessions.generated import conversation

SCORES = list(PRIORITY_SCORE.values())
POLICIES = list(POLICY_PRIORITY)


@st.composite
def some_items(draw: st.DrawFn) -> list[CompactionItem]:
    count = draw(st.integers(0, 12))
    return [
        CompactionItem(
            id=f"h{position}",
            score=draw(st.sampled_from(SCORES)),
            position=position,
            tokens=draw(st.integers(0, 400)),
            policy=draw(st.sampled_from(POLICIES)),
            held=draw(st.booleans()) and draw(st.booleans()),
            done=draw(st.booleans()),
        )
        for position in range(1, count + 1)
    ]


def words(text: str) -> int:
    return len(text.split())


# evidence


def check_choice(items: list[CompactionItem], target: int, choose: Any) -> None:
    """What must hold of any choice by priority or policy."""
    chosen = choose(items, target)
    by_id = {item.id: item for item in items}
    gone = [by_id[id] for id in chosen.gone]
    assert not any(item.score == PRIORITY_SCORE["critical"] or item.held for item in gone)
    assert not any(item.policy == "pinned" for item in gone)
    assert chosen.original == sum(item.tokens for item in items)
    assert chosen.final == chosen.original - sum(item.tokens for item in gone) >= 0
    left = chosen.original
    for item in gone:
        assert left > target, "something went that did not have to"
        left -= item.tokens
    rest = [item for item in items if item.id not in chosen.gone]
    if chosen.final > target:
        assert all(item.is_kept or not item.tokens for item in rest), "something could still go"
    only_critical = all(item.score == PRIORITY_SCORE["critical"] for item in rest)
    wanted = CompactionLevel.CRITICAL_ONLY if only_critical else CompactionLevel.AGGRESSIVE
    assert chosen.level == (wanted if gone else CompactionLevel.NONE)
    assert set(choose(items, target // 2).gone) >= set(chosen.gone), "a smaller target keeps more"


@given(some_items(), st.integers(0, 3_000))
def test_only_what_may_go_goes_and_no_more_than_must(items: list[CompactionItem], target: int) -> None:
    check_choice(items, target, choose_by_priority)
    check_choice(items, target, choose_by_policy)


@given(some_items(), st.integers(0, 3_000))
def test_lowest_priority_goes_first_and_of_equals_the_oldest(items: list[CompactionItem], target: int) -> None:
    by_id = {item.id: item for item in items}
    gone = [(by_id[id].score, by_id[id].position) for id in choose_by_priority(items, target).gone]
    assert gone == sorted(gone)
    stayed = [item for item in items if not item.is_kept and item.tokens and (item.score, item.position) not in gone]
    assert all((item.score, item.position) > place for item in stayed for place in gone)


def test_a_dropped_critical_item_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        CompactionItem(id="a", score=100, position=1, tokens=50),
        CompactionItem(id="b", score=50, position=2, tokens=50),
    ]
    check_choice(items, 0, choose_by_priority)
    monkeypatch.setattr(CompactionItem, "is_kept", property(lambda self: False))
    with pytest.raises(AssertionError):
        check_choice(items, 0, choose_by_priority)


def test_what_was_to_be_discarded_goes_once_it_is_done_and_then_what_is_to_be_compressed() -> None:
    def item(name: str, policy: str, *, done: bool = True, score: int = 50) -> CompactionItem:
        return CompactionItem(id=name, score=score, position=len(name), tokens=10, policy=policy, done=done)

    items = [
        item("n", "normal"),
        item("cc", "compress_first", score=75),
        item("ddd", "discard_when_done"),
        item("wwww", "discard_when_done", done=False),
        item("ppppp", "pinned"),
    ]
    order = [choose_by_policy(items, target).gone[-1] for target in (40, 30, 20, 10)]
    assert order == ["ddd", "cc", "n", "wwww"]
    assert choose_by_policy(items, 0).gone == tuple(order)


def test_policies_and_priorities_are_one_order_and_a_given_priority_wins() -> None:
    assert [priority_of(policy) for policy in POLICY_PRIORITY] == ["critical", "medium", "low", "background"]
    assert priority_of("discard_when_done", "critical") == "critical"
    assert priority_of(None) == "medium"
    assert [policy_of(PRIORITY_SCORE[priority]) for priority in PRIORITY_SCORE] == [
        "pinned",
        "normal",
        "normal",
        "compress_first",
        "discard_when_done",
    ]
    for wrong in ("keep", "", 3, ["pinned"]):
        with pytest.raises(InvalidValue, match="not a policy"):
            priority_of(wrong)  # type: ignore[arg-type]


# conversations


def test_at_least_the_newest_round_stays() -> None:
    messages = [Message(role="user", content=str(number)) for number in range(5)]
    assert [count_rounds_within(messages, most, lambda _: 10) for most in (0, 10, 25, 50, 500)] == [1, 1, 2, 5, 5]
    assert count_rounds_within([], 10, lambda _: 1) == 0


def said(role: str, text: str, policy: str | None = None, *, pinned: bool = False) -> Message:
    return Message(role=role, content=text, policy=policy, pinned=pinned)


def test_by_policy_texts_are_shortened_before_they_are_left_out() -> None:
    long = "word " * 200
    messages = [
        said("user", f"goal {long}"),
        said("tool", f"rows {long}", "discard_when_done"),
        said("assistant", f"draft {long}", "compress_first"),
        said("user", f"keep {long}", pinned=True),
        said("user", "and now?"),
    ]
    whole = summary.reduce_by_policy(messages, 10_000, words)
    assert whole.level == CompactionLevel.LIGHT
    assert "rows" in whole.text
    assert "keep" not in whole.text, "what is pinned is shown as itself"
    first = summary.reduce_by_policy(messages, 500, words)
    assert first.level == CompactionLevel.AGGRESSIVE
    assert first.text.startswith("[1 earlier message left out]")
    assert "rows" not in first.text
    assert "draft" in first.text
    second = summary.reduce_by_policy(messages, 300, words)
    assert "draft" in second.text
    assert long.strip() in second.text, "what is normal is still whole"
    assert "characters left out" in second.text
    last = summary.reduce_by_policy(messages, 0, words)
    assert last.text == "[4 earlier messages left out]"


def test_what_is_told_of_older_messages_is_within_its_limit() -> None:
    rng = seeded("older messages in words")
    for _ in range(volume(60, 2_000)):
        messages = conversation(rng, turns=rng.randint(1, 8), pinned=True)
        messages = [replace(one, policy=rng.choice([None, *POLICIES[1:]])) for one in messages]
        for way in (summary.reduce_by_policy, summary.reduce_by_priority):
            most = rng.randint(5, 400)
            told = way(messages, most, words)
            assert words(told.text) <= max(most, 5), way
            assert told == way(messages, most, words)
            tighter = words(way(messages, most // 2, words).text)
            assert tighter <= max(most // 2, 5)


CALL = ToolCallRequest(id="c1", name="read_file", arguments='{"path": "src/app.py"}', provider_id="p")
TALK = [
    said("user", "Please fix the login bug. My team is Blue and the ticket is BUG-42."),
    Message(role="assistant", content="I will look at config.yaml first.", tool_calls=(CALL,)),
    Message(role="tool", tool_results=(ToolCallResult(tool_call_id="c1", result="ok"),)),
    said("assistant", "We decided to keep sessions for 30 days. Shall I also rotate the keys?"),
    said("user", "That is fine. Which region do we deploy to?"),
]


def test_a_state_is_drawn_from_what_was_said() -> None:
    state = extract_state(TALK)
    assert state["goals"][0] == "Please fix the login bug."
    assert state["decisions"] == ["We decided to keep sessions for 30 days."]
    assert any("BUG-42" in fact for fact in state["facts"])
    assert state["open_questions"] == ["Which region do we deploy to?"]
    assert state["files"] == ["config.yaml", "src/app.py"]
    text = render_state(state, 1_000, words)
    assert text.startswith("Goals:\n- Please fix the login bug.\nDecisions:\n- We decided")
    assert extract_state([]) == {}
    assert render_state({}, 10, words) == ""


def test_a_state_is_always_the_same_bounded_and_taken_from_the_messages() -> None:
    rng = seeded("state of conversations")
    for _ in range(volume(40, 1_500)):
        messages = conversation(rng, turns=rng.randint(1, 10), huge=rng.random() < 0.05)
        state = extract_state(messages)
        assert state == extract_state(messages)
        everything = " ".join(" ".join(message.text.split()) for message in messages)
        for name, entries in state.items():
            assert len(entries) == len(set(entries)) <= MAX_ENTRIES
            if name != "files":
                assert all(part.strip() in everything for one in entries for part in one.rstrip("…").split(";"))
        most = rng.randint(3, 200)
        assert words(render_state(state, most, words)) <= most


def test_what_was_erased_is_in_no_state_and_in_no_words() -> None:
    gone = [replace(message, content="[erased]", erased=True) for message in TALK]
    assert extract_state(gone) == {}
    assert summary.reduce_by_policy(gone, 1_000, words).text == "[5 earlier messages left out]"


# strategies of the caller's own


def some_segments(rng: random.Random) -> list[Any]:
    messages = conversation(rng, turns=4, broken=False, own_ids=True, system=False, pinned=True)
    numbered = [replace(one, stream="s", version=at, id=f"id{at}") for at, one in enumerate(messages, 1)]
    return make_segments(numbered, "s", lambda message: 10)


def test_a_strategy_may_leave_out_whole_segments() -> None:
    rng = seeded("strategies of one's own")
    for _ in range(volume(40, 1_000)):
        given_segments = some_segments(rng)

        def keep(segments: list[Any], *, budget: int) -> Any:
            return (one for one in segments if one.priority == "critical" or rng.random() < 0.5)

        kept = run_strategy("mine", keep, given_segments, 10_000)
        assert [one.id for one in kept] == [one.id for one in given_segments if one in kept]


def _invented(segments: list[Any], *, budget: int) -> Any:
    return [*segments, replace(segments[0], id="m999")]


def _torn(segments: list[Any], *, budget: int) -> Any:
    return [
        replace(one, messages=one.messages[:1]) if any(message.tool_calls for message in one.messages) else one
        for one in segments
    ]


def _reworded(segments: list[Any], *, budget: int) -> Any:
    first = segments[0]
    return [replace(first, messages=(Message(role="user", content="something else"),)), *segments[1:]]


def _raises(segments: list[Any], *, budget: int) -> Any:
    raise RuntimeError("out of order")


BROKEN: dict[str, tuple[Any, str]] = {
    "leaves out what is critical": (lambda segments, budget: segments[:0], "critical"),
    "is over the budget": (lambda segments, budget: segments, "where 5 are allowed"),
    "invents a segment": (_invented, "not given"),
    "tears calls from results": (_torn, "tore calls"),
    "changes what was said": (_reworded, "changed what"),
    "turns the order round": (lambda segments, budget: segments[::-1], "order"),
    "gives one twice": (lambda segments, budget: [segments[0], *segments], "twice"),
    "changes a priority": (lambda segments, budget: [replace(one, priority="low") for one in segments], "altered"),
    "gives text": (lambda segments, budget: "all is well", "str"),
    "gives nothing at all": (lambda segments, budget: None, "failed"),
    "raises": (_raises, "out of order"),
    "takes no budget": (lambda segments: segments, "failed"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_strategy_that_breaks_a_rule_is_refused(name: str) -> None:
    function, reason = BROKEN[name]
    given_segments = next(
        found
        for found in (some_segments(random.Random(seed)) for seed in range(50))
        if any(one.priority == "critical" for one in found)
        and any(len(one.messages) > 1 for one in found)
        and found[0].priority != "critical"
    )
    with pytest.raises(StrategyFailed, match=reason):
        run_strategy("mine", function, given_segments, 5 if "budget" in name else 10_000)


# passages


def test_passages_hold_everything_in_pieces_with_the_lowest_trust() -> None:
    rng = seeded("passages")
    for _ in range(volume(40, 1_000)):
        messages = conversation(rng, turns=rng.randint(1, 6), huge=rng.random() < 0.1)
        trusted = [replace(one, trust=rng.choice(["operator", "user", "tool", "model"])) for one in messages]
        found = split_messages(trusted)
        assert all(len(one.text) <= PASSAGE_CHARS for one in found)
        text = "".join("".join(one.text.split()) for one in found)
        assert all("".join(one.text.split()) in text for one in trusted if one.role != "tool")


def test_a_passage_is_trusted_no_further_than_its_writer() -> None:
    assert read_passage({"text": "a", "trust": "system"}, "external").trust == "external"  # type: ignore[union-attr]
    assert read_passage({"text": "a", "trust": "tool"}, "system").trust == "tool"  # type: ignore[union-attr]
    assert read_passage({"text": "a", "trust": "the boss"}, "system").trust == "external"  # type: ignore[union-attr]
    for nothing in (None, "text", {"text": " "}, {"text": 3}, [], {}):
        assert read_passage(nothing, "system") is None
