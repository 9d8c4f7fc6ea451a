"""Two questions of a turn are in every pack with words of their own; the others give way, and never refuse a pack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import ContextPack, Holdfast, Session, Turn
from holdfast.core.packs import rounds as pack_rounds
from holdfast.core.packs.rounds import ThreadRounds
from holdfast.errors import BudgetTooSmall
from tests.packs.pack_rules import MARKER, validity_problems
from tests.packs.questions_kit import MARK, call, has_words, is_of, least, same

FIRST = "Which of my orders are late?"
LAST = "last one?"
LONG = "Read this. " + "a long contract of many pages " * 80 + "What does it say?"
MODELS = ("gpt-5-mini", "claude-sonnet-4-5")


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as client:
        yield client


@pytest.fixture(params=MODELS)
def chat(hf: Holdfast, request: pytest.FixtureRequest) -> Session:
    return hf.session("s", model=request.param)


def said_by_users(pack: ContextPack) -> list[str]:
    return [one.text for one in pack.messages if one.role == "user" and MARK not in one.text]


def looked_up(turn: Turn, output: str) -> Any:
    """One call with its output, and the step that comes then."""
    for said in (call(1), output):
        step: Any = turn.steps(at_once=1)[0]
        step.done(said)
    return turn.steps(at_once=1)[0]


def joining(number: int, words: str = "") -> list[str]:
    return [f"and what about number {one}? {words}".strip() for one in range(1, number + 1)]


# what joined gives way


def test_many_messages_that_joined_a_turn_do_not_make_it_unusable(chat: Session) -> None:
    with chat.turn(FIRST, budget=300) as turn:
        chat.append([*joining(31), LAST])
        step = looked_up(turn, "ok")
        assert step.pack.tokens <= 300
        assert validity_problems(step.pack) == []
        said = said_by_users(step.pack)
        assert said[0] == FIRST
        assert said[1:] == [*joining(31), LAST][-len(said) + 1 :]
        assert 5 < len(said) < 30
        assert same(chat.pack_at(step.call), step.pack)
        turn.stop()


def test_that_they_all_must_be_shown_is_found_out(chat: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ThreadRounds, "rounds_to_keep", property(lambda self: sorted({*self.all_pinned, *self.all_asked}))
    )
    with pytest.raises(BudgetTooSmall):
        test_many_messages_that_joined_a_turn_do_not_make_it_unusable(chat)


def test_that_the_oldest_of_them_is_taken_first_is_found_out(chat: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = pack_rounds.unshown_questions
    monkeypatch.setattr(pack_rounds, "unshown_questions", lambda *given: joined(*given)[::-1])
    with pytest.raises(AssertionError):
        test_many_messages_that_joined_a_turn_do_not_make_it_unusable(chat)


def test_what_joined_adds_nothing_to_what_a_pack_requires(chat: Session) -> None:
    required = []
    for joined in (1, 5, 60):
        with chat.turn(FIRST, budget=5_000) as turn:
            chat.append([*joining(joined, "w " * 60), LAST])
            looked_up(turn, "row " * 3_000)
            required.append(least(turn))
            assert said_by_users(turn.frame.pack(required[-1])) == [FIRST, LAST]
            turn.stop()
    assert max(required) - min(required) <= 2  # Names of messages get longer.


def test_a_larger_budget_loses_no_question(chat: Session) -> None:
    with chat.turn(FIRST, budget=5_000) as turn:
        chat.append([*joining(20, "w " * 30), LAST])
        looked_up(turn, "row " * 3_000)
        shown: list[str] = []
        for budget in range(least(turn), 2_500, 37):
            pack = turn.frame.pack(budget)
            assert pack.tokens <= budget
            said = said_by_users(pack)
            assert set(shown) <= set(said)
            assert same(turn.frame.pack(budget), pack)
            shown = said
        assert len(shown) > 12
        turn.stop()


def test_what_joined_comes_before_anything_older(chat: Session) -> None:
    chat.append([f"older talk {number} " + "w " * 20 for number in range(40)])
    with chat.turn(FIRST, budget=900) as turn:
        chat.append([*joining(8), LAST])
        said = said_by_users(looked_up(turn, "row " * 3_000).pack)
        assert said == [FIRST, *joining(8), LAST]
        turn.stop()


def test_what_joined_leaves_half_of_the_room_to_the_newest_output(chat: Session) -> None:
    with chat.turn(FIRST, budget=1_500) as turn:
        chat.append([*joining(31, "w " * 60), LAST])
        pack = looked_up(turn, "row " * 3_000).pack
        newest = pack.segments[-1]
        assert 0.45 < newest.tokens / pack.tokens < 0.7
        turn.stop()


def test_a_limit_of_messages_is_no_reason_either(chat: Session) -> None:
    with chat.turn(FIRST, budget=5_000) as turn:
        chat.append([*joining(31), LAST])
        looked_up(turn, "ok")
        for most, shown in ((4, [FIRST, LAST]), (6, [FIRST, *joining(31)[-2:], LAST])):
            pack = turn.frame.pack(5_000, max_messages=most)
            assert said_by_users(pack) == shown
        turn.stop()


# words of their own


@pytest.mark.parametrize("question", [FIRST, "QUESTION: which rows? " + "word " * 60, LONG])
@pytest.mark.parametrize("output", [1, 3_000])
def test_a_question_is_never_a_bare_mark(chat: Session, question: str, output: int) -> None:
    with chat.turn(question, budget=5_000) as turn:
        looked_up(turn, "row " * output)
        start = least(turn)
        for budget in range(start, start + 300, 7):
            (shown,) = said_by_users(turn.frame.pack(budget))
            assert is_of(question, shown)
            assert has_words(question, shown)
        turn.stop()


def test_that_a_question_has_no_floor_is_found_out(chat: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_rounds, "shorten_question", lambda rounds, form: rounds.shorten_to(form, 0))
    with pytest.raises(AssertionError):
        test_a_question_is_never_a_bare_mark(chat, LONG, 3_000)


def test_the_output_is_cut_to_a_mark_before_a_question_is(chat: Session) -> None:
    with chat.turn(LONG, budget=5_000) as turn:
        looked_up(turn, "row " * 3_000)
        pack = turn.frame.pack(least(turn))
        assert MARKER.fullmatch(str(pack.messages[-1].tool_results[0].result))
        assert pack.messages[0].text.startswith("Read this.")
        assert pack.messages[0].text.endswith("What does it say?")
        turn.stop()


def test_the_newest_question_has_words_before_anything_came_of_it(chat: Session) -> None:
    with chat.turn(FIRST, budget=5_000) as turn:
        chat.append([*joining(3), LONG])
        pack = turn.frame.pack(least(turn))
        first, newest = said_by_users(pack)
        assert first == FIRST
        assert has_words(LONG, newest)
        assert is_of(LONG, newest)
        turn.stop()


def test_what_joined_is_left_out_rather_than_cut_to_a_mark(chat: Session) -> None:
    with chat.turn(FIRST, budget=5_000) as turn:
        chat.append([LONG, LAST])
        looked_up(turn, "row " * 3_000)
        seen = set()
        for budget in range(least(turn), 1_200, 11):
            others = said_by_users(turn.frame.pack(budget))[1:-1]
            seen.add(len(others))
            assert all(is_of(LONG, one) and has_words(LONG, one) for one in others)
        assert seen == {0, 1}
        turn.stop()


def test_a_question_of_many_parts_keeps_words_of_its_longest(chat: Session) -> None:
    parts = [{"type": "text", "text": "Compare:"}, {"type": "text", "text": LONG}, {"type": "text", "text": LONG}]
    with chat.turn({"role": "user", "content": parts}, budget=5_000) as turn:
        looked_up(turn, "row " * 3_000)
        content = turn.frame.pack(least(turn)).messages[0].content
        assert isinstance(content, list)
        assert content[0]["text"] == "Compare:"
        assert sum(len(MARKER.sub("", part["text"])) for part in content) >= 190
        turn.stop()
