"""Windows are valid, never over their limit, as long as they can be, and say what they left out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from holdfast.core.sessions import rounds as conversation_module
from holdfast.core.sessions import windows
from holdfast.core.sessions.rounds import ConversationRounds
from holdfast.core.sessions.shorten import cut_text
from holdfast.core.sessions.tokens import OPENAI, message_tokens
from holdfast.errors import BudgetTooSmall, InvalidValue
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult
from tests.scale import seeded, volume
from tests.sessions.generated import conversation
from tests.sessions.test_pairing import asks, gives, pair_by_id_alone, shape, user
from tests.sessions.window_rules import complaints, refused, slide_window

SYSTEM = Message(role="system", content="Be kind.")


def count(message: Message) -> int:
    """A cheap stand-in for a tokenizer, with a provider's framing."""
    return message_tokens(message, lambda text: (len(text) + 3) // 4, OPENAI)


def kinds(rng: random.Random, times: int) -> Iterator[list[Message]]:
    """Conversations of every kind."""
    for _ in range(times):
        yield conversation(
            rng,
            broken=rng.random() < 0.7,
            own_ids=rng.random() < 0.3,
            huge=rng.random() < 0.3,
            pinned=rng.random() < 0.3,
        )


def judged(messages: list[Message], **limits: Any) -> list[str]:
    """What is wrong with the window of this limit, or with the refusal to make one."""
    try:
        window = slide_window(messages, count=count, **limits)
    except BudgetTooSmall as error:
        name, limit = next(iter(limits.items()))
        if error.required <= limit:
            return [f"{limit} is refused, {error.required} is said to be enough"]
        return complaints(
            messages,
            slide_window(messages, count=count, **{name: error.required}),
            count=count,
            **{name: error.required},
        )
    return complaints(messages, window, count=count, **limits)


def test_every_window_by_messages_is_valid_and_as_long_as_it_can_be() -> None:
    rng = seeded("by messages")
    for messages in kinds(rng, volume(60, 3_000)):
        for limit in {1, 2, 3, 4, 5, 7, 10, 15, 20, rng.randint(1, 40), len(messages)}:
            assert judged(messages, max_messages=limit) == [], limit


def test_every_window_by_tokens_is_valid_and_as_long_as_it_can_be() -> None:
    rng = seeded("by tokens")
    for messages in kinds(rng, volume(60, 3_000)):
        for limit in {10, 50, 100, 200, 400, 1_000, 3_000, 8_000, rng.randint(1, 2_000)}:
            assert judged(messages, max_tokens=limit) == [], limit


def test_both_limits_hold_together() -> None:
    rng = seeded("both")
    for messages in kinds(rng, volume(40, 2_000)):
        for _ in range(6):
            limits = {"max_messages": rng.randint(2, 20), "max_tokens": rng.randint(100, 3_000)}
            try:
                window = slide_window(messages, count=count, **limits)
            except BudgetTooSmall:
                continue
            assert complaints(messages, window, count=count, **limits) == []


def test_a_conversation_that_fits_is_shown_as_it_is() -> None:
    messages = [SYSTEM, user(), asks("a"), gives("a=1"), Message(role="assistant", content="done")]
    window = slide_window(messages, max_messages=5)
    assert all(one is other for one, other in zip(window.messages, messages, strict=True))
    assert (window.left_out, window.shortened, window.repairs, window.tokens) == (0, (), (), None)
    assert slide_window([], max_messages=0).messages == []


def test_a_smaller_window_is_the_instructions_and_the_newest_whole_rounds() -> None:
    messages = [SYSTEM, user("1"), asks("a", "b"), gives("a=1"), gives("b=2"), user("2")]
    assert slide_window(messages, max_messages=4).messages == [SYSTEM, user("2")]
    assert shape(slide_window(messages, max_messages=5).messages) == ["system", "assistant", "1", "2", "user"]
    assert slide_window(messages, max_messages=5).left_out == 1


def test_a_round_too_long_in_messages_keeps_its_newest_calls_with_their_results() -> None:
    parts = [{"type": "call", "call": 1}, {"type": "text", "text": "both"}, {"type": "call", "call": 2}]
    called = msgspec.structs.replace(
        asks("a", "b", "c"), content=parts, metadata={"openai": {"calls": {"0": {"x": 0}, "2": {"x": 2}}}}
    )
    messages = [SYSTEM, user(), called, gives("c=3"), gives("a=1"), gives("b=2")]
    window = slide_window(messages, max_messages=3)
    asked = window.messages[1]
    assert shape(window.messages) == ["system", "assistant", "3"]
    assert [call.provider_id for call in asked.tool_calls] == ["c"]
    assert asked.content == [{"type": "text", "text": "both"}, {"type": "call", "call": 0}]
    assert asked.metadata == {"openai": {"calls": {"0": {"x": 2}}}}
    assert [(each.index, each.what, each.left_out) for each in window.shortened] == [(1, "calls", 2)]
    together = [SYSTEM, asks("a", "b", "c"), gives("c=3", "a=1"), gives("b=2")]
    assert shape(slide_window(together, max_messages=3).messages) == ["system", "assistant", "3"]
    assert shape(slide_window(together, max_messages=4).messages) == ["system", "assistant", "3,1", "2"]


def test_a_call_is_never_shown_without_its_result_however_small_the_limit() -> None:
    messages = [SYSTEM, asks("a", text="let me look"), gives("a=1")]
    with pytest.raises(BudgetTooSmall) as refusal:
        slide_window(messages, max_messages=2)
    assert refusal.value.required == 3
    assert "3" in str(refusal.value)


def test_the_newest_round_gives_way_in_its_outputs_first_then_in_its_texts() -> None:
    long = "begin " + "x" * 4_000 + " end"
    asked = Message(role="assistant", content=long, tool_calls=(ToolCallRequest(name="f", provider_id="a"),))
    answer = Message(role="tool", tool_results=(ToolCallResult(provider_id="a", result=long),))
    little = Message(role="tool", tool_results=(ToolCallResult(provider_id="a", result="short"),))
    outputs = slide_window([SYSTEM, user(), asked, answer], max_tokens=1_600, count=count)
    body = outputs.messages[-1].tool_results[0].result
    assert body.startswith("begin xx")
    assert body.endswith("xx end")
    kept = len(long) - outputs.shortened[0].left_out
    assert f"[… {len(long) - kept} characters left out …]" in body
    assert outputs.messages[-2] is asked
    assert 1_600 * 0.95 < outputs.tokens <= 1_600
    both = slide_window([SYSTEM, asked, answer], max_tokens=600, count=count)
    assert [each.what for each in both.shortened] == ["results", "text"]
    assert both.messages[-2].text.endswith("xx end")
    texts = slide_window([SYSTEM, asked, little], max_tokens=600, count=count)
    assert texts.messages[-1] is little
    assert texts.messages[1].tool_calls == asked.tool_calls


def test_arguments_are_cut_only_where_nothing_else_helps_and_stay_json() -> None:
    call = ToolCallRequest(name="write", provider_id="a", arguments=msgspec.json.encode({"text": "x" * 9_000}).decode())
    asked = Message(role="assistant", content="y" * 400, tool_calls=(call,))
    window = slide_window([SYSTEM, asked, gives("a=written")], max_tokens=200, count=count)
    assert [each.what for each in window.shortened] == ["text", "arguments"]
    shown = window.messages[1].tool_calls[0]
    assert (shown.name, shown.provider_id) == ("write", "a")
    assert [*shown.args] == ["SHORTENED_JSON"]
    assert shown.args["SHORTENED_JSON"].startswith('{"text":"xx')
    assert 190 < window.tokens <= 200
    assert refused(window.messages) == []
    enough = slide_window([SYSTEM, asked, gives("a=written")], max_tokens=2_400, count=count)
    assert enough.messages[1].tool_calls == (call,)


def test_of_several_outputs_the_long_ones_give_way_and_short_ones_stay_whole() -> None:
    results = tuple(
        ToolCallResult(provider_id=name, result=body)
        for name, body in (
            ("a", "x" * 9_000),
            ("b", "fine"),
            ("c", [{"type": "text", "text": "y" * 9_000}]),
            ("d", {"rows": ["z" * 9_000]}),
        )
    )
    asked = asks("a", "b", "c", "d")
    window = slide_window([asked, Message(role="tool", tool_results=results)], max_tokens=1_000, count=count)
    shown = [result.result for result in window.messages[-1].tool_results]
    assert shown[1] == "fine"
    assert "characters left out" in shown[0]
    assert "characters left out" in shown[2][0]["text"]
    assert shown[3].startswith('{"rows":["zz')
    assert max(map(len, (shown[0], shown[2][0]["text"], shown[3]))) < 1.1 * min(
        map(len, (shown[0], shown[2][0]["text"], shown[3]))
    )


def test_cutting_keeps_both_ends_and_never_makes_a_text_longer() -> None:
    for length in (0, 10, 33, 34, 35, 36, 100, 5_000):
        text = "".join(chr(97 + at % 26) for at in range(length))
        for keep in (0, 1, 2, 9, 50, length):
            shorter, left_out = cut_text(text, keep)
            assert len(shorter) <= len(text)
            assert left_out in (0, length - keep)
            if left_out:
                head, _, rest = shorter.partition("[… ")
                number, _, tail = rest.partition(" characters left out …]")
                assert (int(number), len(head) + len(tail)) == (left_out, keep)
                assert text.startswith(head)
                assert text.endswith(tail)


def test_a_huge_output_is_shortened_without_counting_it_again_and_again() -> None:
    counted = 0

    def counting(message: Message) -> int:
        nonlocal counted
        tokens = count(message)
        counted += tokens
        return tokens

    huge = Message(role="tool", tool_results=(ToolCallResult(provider_id="a", result="x" * 40_000_000),))
    window = slide_window([SYSTEM, asks("a"), huge], max_tokens=1_000, count=counting)
    assert 950 < window.tokens <= 1_000
    assert counted < 10_000_000 + 40 * 1_000


def test_what_is_pinned_stays_with_its_round_if_it_fits() -> None:
    pinned = msgspec.structs.replace(gives("a=1"), pinned=True)
    messages = [SYSTEM, user("0"), asks("a"), pinned, *(user(str(number)) for number in range(1, 9))]
    assert shape(slide_window(messages, max_messages=5).messages) == ["system", "assistant", "1", "user", "user"]
    assert slide_window(messages, max_messages=5).messages[-2:] == messages[-2:]
    # It is the newest round that must be there.
    assert slide_window(messages, max_messages=3).messages == [SYSTEM, messages[-2], messages[-1]]


def test_an_earlier_summary_stays_when_older_rounds_go() -> None:
    summary = Message(role="system", content="Summary of previous context: they met.")
    messages = [SYSTEM, summary, *(user(str(number)) for number in range(9))]
    assert slide_window(messages, max_messages=4).messages == [SYSTEM, summary, *messages[-2:]]
    assert slide_window(messages, max_messages=2).messages == [SYSTEM, messages[-1]]


def test_tokens_reserved_for_other_things_are_left_free() -> None:
    messages = [user("hello there") for _ in range(50)]
    window = slide_window(messages, max_tokens=200, reserve=100, count=count)
    assert sum(map(count, window.messages)) <= 100
    assert window.tokens == 100 + sum(map(count, window.messages))
    with pytest.raises(BudgetTooSmall) as refusal:
        slide_window(messages, max_tokens=90, reserve=100, count=count)
    assert refusal.value.required == 100 + count(user("hello there"))


def test_only_what_is_shown_is_counted() -> None:
    counted = []

    def counting(message: Message) -> int:
        counted.append(message)
        return count(message)

    messages = [SYSTEM, *(user(f"message {number}") for number in range(20_000))]
    window = slide_window(messages, max_tokens=100, count=counting)
    assert len(counted) == len(window.messages) + 1


@pytest.mark.parametrize(
    "limits",
    [{}, {"max_messages": -1}, {"max_messages": 2.0}, {"max_messages": True}, {"max_tokens": 5}, {"max_tokens": "5"}],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        slide_window([user()], **limits)


@pytest.mark.parametrize("bad", [lambda _: 1 / 0, lambda _: -1, lambda _: None, lambda _: 1.5])
def test_a_count_that_fails_or_is_no_number_is_a_typed_error(bad: Any) -> None:
    with pytest.raises(InvalidValue):
        slide_window([user()], max_tokens=5, count=bad)


def _every_message_is_a_round(patch: pytest.MonkeyPatch) -> None:
    made = ConversationRounds.__init__

    def torn_apart(self: ConversationRounds, messages: Sequence[Message], limits: Any, *rest: Any) -> None:
        made(self, messages, limits, *rest)
        begin = len(self.first)
        self._starts = [*range(begin, len(self.messages) + 1)]
        self.rounds = len(self._starts) - 1

    patch.setattr(ConversationRounds, "__init__", torn_apart)


def _no_instructions(patch: pytest.MonkeyPatch) -> None:
    made = ConversationRounds.__init__

    def forgetful(self: ConversationRounds, messages: Sequence[Message], limits: Any, *rest: Any) -> None:
        made(self, messages, limits, *rest)
        self.first = []

    patch.setattr(ConversationRounds, "__init__", forgetful)


def _ids_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversation_module, "match_results", pair_by_id_alone)


def _nothing_repaired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        conversation_module, "repair_messages", lambda messages: conversation_module.RepairResult([*messages], [])
    )


def _one_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversation_module, "fits", lambda size, room: size[0] <= room[0] + 1 and size[1] <= room[1] + 1)


def _one_too_few(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversation_module, "fits", lambda size, room: size[0] < room[0] and size[1] < room[1])


def _oldest_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ConversationRounds, "choose_rounds", lambda self, room, **_: [*range(min(self.rounds - 1, max(room[0], 0)))]
    )


def _newest_first(patch: pytest.MonkeyPatch) -> None:
    made = ConversationRounds.choose_rounds
    patch.setattr(ConversationRounds, "choose_rounds", lambda self, room, **how: made(self, room, **how)[::-1])


def _newest_not_shortened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(windows, "fit_messages", lambda messages, room, count: windows.ShortenedMessages([*messages], (), 0))


@pytest.mark.parametrize(
    "plant",
    [
        _every_message_is_a_round,
        _no_instructions,
        _ids_only,
        _nothing_repaired,
        _one_too_many,
        _one_too_few,
        _oldest_first,
        _newest_first,
        _newest_not_shortened,
    ],
)
def test_each_planted_bug_is_noticed(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    noticed = 0
    for messages in kinds(random.Random(18), 25):
        for limits in ({"max_messages": 6}, {"max_messages": 15}, {"max_tokens": 60}, {"max_tokens": 400}):
            try:
                with monkeypatch.context() as patch:
                    plant(patch)
                    window = slide_window(messages, count=count, **limits)
            except (BudgetTooSmall, IndexError, KeyError):
                continue
            noticed += bool(complaints(messages, window, count=count, **limits))
    assert noticed > 3
