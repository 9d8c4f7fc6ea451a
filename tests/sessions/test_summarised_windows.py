"""Older rounds become one summary, which never breaks the window and never makes it too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.sessions.rounds import repair_messages
from holdfast.errors import BudgetTooSmall, InvalidValue
from holdfast.records.messages import Message
from tests.scale import seeded, volume
from tests.sessions.generated import torn
from tests.sessions.test_pairing import asks, gives, shape, user
from tests.sessions.test_windows import SYSTEM, count, kinds
from tests.sessions.window_kit import summarise_window
from tests.sessions.window_rules import instructions, refused, slide_window


def brief(messages: Sequence[Message]) -> str:
    """A summarizer that says what it was given."""
    return f"{len(messages)} messages from {messages[0].role} on"


def test_older_rounds_become_one_message_behind_the_instructions() -> None:
    messages = [SYSTEM, *(user(str(number)) for number in range(10)), asks("a"), gives("a=1")]
    window = summarise_window(messages, summarize=brief, keep=2, max_messages=6)
    summary = Message(role="system", content="Summary of previous context: 9 messages from user on", synthetic=True)
    assert window.messages == [SYSTEM, summary, user("9"), *messages[-2:]]
    assert (window.summarised, window.left_out, window.failure) == (9, 9, None)


def test_a_conversation_within_its_limit_is_not_summarised() -> None:
    messages = [SYSTEM, user(), user()]
    window = summarise_window(messages, summarize=lambda _: pytest.fail("asked"), max_messages=3)
    assert all(one is other for one, other in zip(window.messages, messages, strict=True))


def test_every_summarised_window_is_valid_and_within_its_limit() -> None:
    rng = seeded("summaries")
    made = 0
    for messages in kinds(rng, volume(60, 3_000)):
        limits = rng.choice([{"max_messages": rng.randint(3, 30)}, {"max_tokens": rng.randint(100, 3_000)}])
        said = "and so on " * rng.choice([1, 20, 2_000])
        try:
            window = summarise_window(
                messages, summarize=lambda _, said=said: said, keep=rng.randint(1, 6), count=count, **limits
            )
        except BudgetTooSmall:
            continue
        assert torn(window.messages) == []
        assert refused(window.messages) == []
        assert len(window.messages) <= limits.get("max_messages", 1 << 60)
        assert sum(map(count, window.messages)) <= limits.get("max_tokens", 1 << 60)
        valid = repair_messages(messages).messages
        assert window.messages[: len(instructions(valid))] == instructions(valid)
        if window.summarised:
            made += 1
            summary = window.messages[len(instructions(valid))]
            assert summary.text.startswith("Summary of previous context: and")
            assert window.summarised + len(window.messages) - 1 == len(valid)
            assert window.messages[-1] == valid[-1]
    assert made > 10


def test_everything_that_is_not_shown_was_given_to_the_summarizer_once_and_in_order() -> None:
    rng = seeded("covered")
    for messages in kinds(rng, volume(40, 2_000)):
        covered: list[Message] = []

        def summarize(given: Sequence[Message], covered: list[Message] = covered) -> str:
            covered += given
            return "short"

        window = summarise_window(messages, summarize=summarize, keep=2, max_messages=8)
        if window.summarised:
            valid = repair_messages(messages).messages
            rest = [message for message in window.messages if not message.text.startswith("Summary of")]
            together = [*instructions(valid), *covered, *rest[len(instructions(valid)) :]]
            where = {id(message): at for at, message in enumerate(messages)}
            assert sorted(map(repr, together)) == sorted(map(repr, valid))
            order = [where[id(message)] for message in covered if id(message) in where and message.role != "tool"]
            assert order == sorted(order)


def test_an_earlier_summary_is_summarised_anew_with_the_rest() -> None:
    earlier = Message(role="system", content="Summary of previous context: they met.")
    covered: list[Message] = []
    messages = [SYSTEM, earlier, *(user(str(number)) for number in range(9))]
    window = summarise_window(messages, summarize=lambda given: covered.extend(given) or "more", keep=2, max_messages=5)
    assert covered == messages[1:-2]
    assert [message.text for message in window.messages[:2]] == ["Be kind.", "Summary of previous context: more"]


@pytest.mark.parametrize("said", ["", "  \n", None, 7, RuntimeError("the model is down")])
def test_an_empty_or_failed_summary_changes_nothing_and_is_reported(said: Any) -> None:
    def summarize(_: Sequence[Message]) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    messages = [SYSTEM, *(user(str(number)) for number in range(10))]
    window = summarise_window(messages, summarize=summarize, max_messages=5)
    assert window.messages == slide_window(messages, max_messages=5).messages
    assert window.failure
    assert window.summarised == 0


def test_where_there_is_no_room_for_a_summary_none_is_asked_for() -> None:
    messages = [SYSTEM, user(), asks("a"), gives("a=1")]
    window = summarise_window(messages, summarize=lambda _: pytest.fail("asked"), max_messages=3)
    assert shape(window.messages) == ["system", "assistant", "1"]
    assert "room" in (window.failure or "")


def test_a_summary_longer_than_its_room_is_cut_with_a_marker() -> None:
    messages = [SYSTEM, *(user("hello " * 50) for _ in range(20))]
    window = summarise_window(messages, summarize=lambda _: "first " + "z" * 9_000, keep=2, max_tokens=400, count=count)
    assert window.messages[1].text.startswith("Summary of previous context: first zz")
    assert "characters left out" in window.messages[1].text
    assert [(each.index, each.what) for each in window.shortened] == [(1, "text")]
    assert 380 < window.tokens <= 400


def test_a_pinned_round_is_kept_beside_the_summary() -> None:
    pin = Message(role="user", content="allergic to nuts", pinned=True)
    messages = [SYSTEM, user("0"), pin, *(user(str(number)) for number in range(1, 10))]
    window = summarise_window(messages, summarize=brief, keep=1, max_messages=4)
    assert window.messages[2:] == [pin, messages[-1]]
    assert window.summarised == 9


@pytest.mark.parametrize("keep", [0, -1, True, 1.5])
def test_at_least_one_round_is_kept(keep: Any) -> None:
    with pytest.raises(InvalidValue):
        summarise_window([user()], summarize=brief, keep=keep, max_messages=1)
