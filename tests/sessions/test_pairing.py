"""Calls and results are matched as they were meant, and a broken list becomes a valid one with a report."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from holdfast.core.sessions import rounds
from holdfast.core.sessions.rounds import group_rounds, repair_messages
from holdfast.core.wire import calls
from holdfast.records.messages import INTERRUPTED_RESULT, Message, ToolCallRequest, ToolCallResult
from tests.scale import seeded, volume
from tests.sessions.generated import conversation, number_of, torn


def asks(*calls: str | tuple[str, str], text: str | None = None, **fields: Any) -> Message:
    """An assistant message with calls: a provider's id each, or (own id, provider's id)."""
    pairs = [("", call) if isinstance(call, str) else call for call in calls]
    made = (ToolCallRequest(name="find", id=own, provider_id=provider or None) for own, provider in pairs)
    return Message(role="assistant", content=text, tool_calls=tuple(made), **fields)


def gives(*results: str | tuple[str, str, str]) -> Message:
    """A tool message: "id=text" each, or (own id, provider's id, text)."""
    parts = [("", *each.split("=")) if isinstance(each, str) else each for each in results]
    made = (
        ToolCallResult(tool_call_id=own, provider_id=provider or None, result=text) for own, provider, text in parts
    )
    return Message(role="tool", tool_results=tuple(made))


def user(text: str = "hi") -> Message:
    return Message(role="user", content=text)


def shape(messages: list[Message]) -> list[str]:
    """Roles and results, for reading."""
    return [
        ",".join("!" if result.interrupted else str(result.result) for result in message.tool_results)
        if message.role == "tool"
        else message.role
        for message in messages
    ]


def found(messages: list[Message]) -> list[str]:
    return [repair.problem for repair in repair_messages(messages).repairs]


def test_a_valid_list_stays_the_same_objects_and_nothing_is_reported() -> None:
    rng = seeded("valid")
    for _ in range(volume(150, 5_000)):
        messages = conversation(rng, broken=False, own_ids=rng.random() < 0.5)
        fixed = repair_messages(messages)
        assert fixed.repairs == []
        assert [id(message) for message in fixed.messages] == [id(message) for message in messages]


def test_whatever_is_torn_becomes_valid_and_stays_as_it_is_when_repaired_again() -> None:
    rng = seeded("torn")
    for _ in range(volume(400, 20_000)):
        messages = conversation(rng, own_ids=rng.random() < 0.5)
        before = msgspec.json.encode(messages)
        fixed = repair_messages(messages)
        assert torn(fixed.messages) == []
        assert msgspec.json.encode(messages) == before
        assert bool(fixed.repairs) == bool(torn(messages))
        again = repair_messages(fixed.messages)
        assert again.repairs == []
        assert all(left is right for left, right in zip(again.messages, fixed.messages, strict=True))


def test_nothing_is_invented_nothing_said_is_lost_and_the_order_is_kept() -> None:
    rng = seeded("kept")
    for _ in range(volume(200, 10_000)):
        messages = conversation(rng)
        fixed = repair_messages(messages).messages
        spoken = [message for message in messages if message.role != "tool" and (message.text or message.tool_calls)]
        left = [message for message in fixed if message.role != "tool"]
        assert all(one is other for one, other in zip(left, spoken, strict=True))
        given = {number_of(result) for message in messages for result in message.tool_results} - {0}
        shown = [number_of(result) for message in fixed for result in message.tool_results]
        assert sorted(filter(None, shown)) == sorted(filter(None, given))
        assert all(message.synthetic == (shape([message]) == ["!"]) for message in fixed)


def test_a_round_holds_a_call_with_all_its_results_and_every_message_once() -> None:
    messages = [user(), asks("a", "b"), gives("b=2"), user("note"), gives("a=1"), user()]
    assert group_rounds(messages) == [(0,), (1, 2, 4), (3,), (5,)]
    rng = seeded("rounds")
    for _ in range(volume(50, 2_000)):
        messages = conversation(rng)
        every = [index for each in group_rounds(messages) for index in each]
        assert sorted(every) == list(range(len(messages)))


def test_an_own_id_decides_wherever_the_result_stands() -> None:
    messages = [asks(("1", "x"), ("2", "x")), gives(("2", "x", "two"), ("1", "x", "one"))]
    assert calls.match_results(messages).answers == {(0, 1): (1, 0), (0, 0): (1, 1)}
    early = [gives(("1", "", "one")), asks(("1", ""))]
    assert shape(repair_messages(early).messages) == ["assistant", "one"]
    # The first has only the provider's id, which fits both calls; the second names its call.
    mixed = [asks(("1", "x"), ("2", "x")), gives("x=two", ("1", "x", "one"))]
    assert calls.match_results(mixed).answers == {(0, 1): (1, 0), (0, 0): (1, 1)}


def test_an_own_id_comes_back_from_a_provider_as_the_providers_id() -> None:
    messages = [asks(("own", "")), gives("own=1")]
    assert found(messages) == []


def test_results_and_calls_without_any_id_are_matched_by_position() -> None:
    messages = [asks("", ""), gives("=1"), gives("=2")]
    assert repair_messages(messages).repairs == []


def test_a_reused_id_belongs_to_the_nearest_open_call_before_it() -> None:
    messages = [asks("x"), gives("x=1"), asks("x", "x"), gives("x=2"), gives("x=3"), asks("x"), gives("x=4")]
    assert found(messages) == []
    open_one = [asks("x"), user(), asks("x"), gives("x=near"), user(), gives("x=far")]
    assert shape(repair_messages(open_one).messages) == ["assistant", "far", "user", "assistant", "near", "user"]


def test_parallel_results_keep_the_order_they_came_in_unless_one_is_missing() -> None:
    assert found([asks("a", "b"), gives("b=2"), gives("a=1")]) == []
    assert found([asks("a", "b"), gives("b=2", "a=1")]) == []
    late = repair_messages([asks("a", "b", "c"), gives("c=3", "a=1"), user("note"), gives("b=2")])
    assert shape(late.messages) == ["assistant", "3,1", "2", "user"]
    assert [repair.problem for repair in late.repairs] == ["misplaced_result"]
    torn = repair_messages([asks("a", "b", "c"), gives("c=3", "a=1"), user("note")])
    assert [message.synthetic for message in torn.messages] == [False, False, True, False, False]
    assert [message.tool_results[0].result for message in torn.messages[1:4:2]] == ["1", "3"]


def test_a_round_alone_is_shown_as_it_is_among_others() -> None:
    """So that a window, and a pack that is made again, need not know what else was there."""
    for results in ([gives("c=3", "a=1"), user("note"), gives("b=2")], [gives("b=2"), user("note"), gives("c=3")]):
        among = repair_messages([asks("a", "b", "c"), *results]).messages
        alone = repair_messages([asks("a", "b", "c"), *(one for one in results if one.role == "tool")]).messages
        assert [one for one in among if one.role != "user"] == alone


def test_results_of_two_rounds_in_one_message_are_split() -> None:
    fixed = repair_messages([asks("a"), user(), asks("b"), gives("b=2", "a=1")])
    assert shape(fixed.messages) == ["assistant", "1", "user", "assistant", "2"]


def test_what_a_provider_keeps_beside_a_result_or_call_moves_with_it() -> None:
    both = gives("b=2", "a=1")
    noted = msgspec.structs.replace(both, metadata={"anthropic": {"results": {"0": {"of": "b"}, "1": {"of": "a"}}}})
    first, second = (
        message for message in repair_messages([asks("a"), user(), asks("b"), noted]).messages if message.tool_results
    )
    assert first.metadata == {"anthropic": {"results": {"0": {"of": "a"}}}}
    assert second.metadata == {"anthropic": {"results": {"0": {"of": "b"}}}}


def test_a_missing_result_is_a_typed_stand_in_right_behind_its_call() -> None:
    fixed = repair_messages([user(), asks(("own", "x"), text="let me look"), user("and?")])
    stand_in = fixed.messages[2]
    assert (stand_in.role, stand_in.synthetic) == ("tool", True)
    assert stand_in.tool_results == (
        ToolCallResult(tool_call_id="own", provider_id="x", result=INTERRUPTED_RESULT, is_error=True, interrupted=True),
    )
    assert [(repair.index, repair.problem) for repair in fixed.repairs] == [(1, "missing_result")]


def test_the_real_result_takes_the_place_of_a_stand_in_that_was_stored() -> None:
    torn_call = repair_messages([user(), asks("x"), user("and?")]).messages
    fixed = repair_messages([*torn_call, gives("x=late")])
    assert shape(fixed.messages) == ["user", "assistant", "late", "user"]
    assert sorted(repair.problem for repair in fixed.repairs) == ["duplicate_result", "misplaced_result"]
    # But no stand-in ever replaces a real one.
    assert shape(repair_messages([asks("x"), gives("x=real"), torn_call[2]]).messages) == ["assistant", "real"]


def test_a_live_conversation_may_keep_its_newest_calls_open() -> None:
    live = [asks("a"), user(), asks("b", "c", "d"), gives("d=4"), gives("c=3")]
    kept = repair_messages(live, open_calls="keep")
    assert shape(kept.messages) == ["assistant", "!", "user", "assistant", "4", "3"]
    assert [repair.index for repair in kept.repairs] == [0]
    assert [repair.problem for repair in repair_messages([*live, user()], open_calls="keep").repairs] == [
        "missing_result"
    ] * 2


def test_each_kind_of_damage_is_named_and_strict_callers_learn_it_beforehand() -> None:
    nameless = Message(role="assistant", tool_calls=(ToolCallRequest(name="", provider_id="x"),))
    wrong = [
        Message(role="user", content=""),
        Message(role="user", content=[{"type": "text", "text": ""}]),
        Message(role="assistant", content=[]),
        Message(role="tool"),
        gives("nobody=1"),
        asks("a"),
        gives("a=1", "a=again"),
        nameless,
        Message(role="alien", content="hello"),
        Message(role="user", content="hi", tool_results=(ToolCallResult(result=1),)),
        Message(role="system", content="hi", tool_calls=(ToolCallRequest(name="f"),)),
    ]
    fixed = repair_messages(wrong)
    assert shape(fixed.messages) == ["assistant", "1", "user", "user", "system"]
    assert [(repair.index, repair.problem) for repair in fixed.repairs] == [
        *((index, "empty_message") for index in range(4)),
        (4, "orphan_result"),
        (6, "duplicate_result"),
        (7, "nameless_call"),
        (7, "empty_message"),
        (8, "unknown_role"),
        (9, "malformed"),
        (10, "malformed"),
    ]
    assert all(repair.done for repair in fixed.repairs)


def test_blank_text_an_image_alone_a_spoken_answer_and_an_erased_message_are_not_empty() -> None:
    image = Message(role="user", content=[{"type": "image", "url": "https://example.org/a.png"}])
    spoken = Message(role="assistant", metadata={"openai": {"message": {"audio": {"id": "a"}}}})
    assert found([image, spoken, Message(role="user", erased=True), Message(role="user", content=" ")]) == []


def test_a_partial_message_has_calls_like_any_other() -> None:
    assert found([asks("x", partial=True), user()]) == ["missing_result"]


def test_repair_of_a_long_list_with_one_id_for_everything_stays_linear() -> None:
    once = [asks("x"), gives("x=1"), user()]
    looked = 0

    class Counting(list[Message]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looked
            looked += 1
            return super().__getitem__(index)

    repeated = [gives("x=1") for _ in range(2_000)]
    calls.match_results(Counting([*once * 2_000, *repeated]))
    assert looked < 12 * 8_000


def pair_by_id_alone(messages: list[Message]) -> calls.CallMatches:
    """The usual mistake: the last call with this id, wherever it stands."""
    found = calls.CallMatches()
    last = {
        call.provider_id: (index, position)
        for index, message in enumerate(messages)
        for position, call in enumerate(message.tool_calls)
    }
    for index, message in enumerate(messages):
        for position, result in enumerate(message.tool_results):
            if result.provider_id in last:
                found.answers[last[result.provider_id]] = (index, position)
            else:
                found.refused[index, position] = "orphan_result"
    return found


def _only_behind(messages: list[Message]) -> calls.CallMatches:
    """Another: only what directly follows the calls belongs to them."""
    found = calls.match_results(messages)
    near = {call: result for call, result in found.answers.items() if result[0] <= call[0] + 2}
    found.answers = near
    return found


@pytest.mark.parametrize("planted", [pair_by_id_alone, _only_behind])
def test_pairing_by_id_alone_or_by_nearness_alone_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, planted: Any
) -> None:
    monkeypatch.setattr(rounds, "match_results", planted)
    rng = random.Random(5)
    spoiled = 0
    for _ in range(100):
        messages = conversation(rng, own_ids=False)
        given = {number_of(result) for message in messages for result in message.tool_results} - {0}
        fixed = repair_messages(messages).messages
        shown = {number_of(result) for message in fixed for result in message.tool_results}
        spoiled += bool(torn(fixed)) or not given <= shown
    assert spoiled > 30


def test_results_left_where_they_were_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_place_results", lambda messages, index, *_, **__: _following(messages, index))
    rng = random.Random(6)
    assert sum(bool(torn(repair_messages(conversation(rng)).messages)) for _ in range(60)) > 20


def _following(messages: list[Message], index: int) -> list[Message]:
    kept = []
    while index + 1 < len(messages) and messages[index + 1].role == "tool":
        index += 1
        kept.append(messages[index])
    return kept
