"""What a turn answers stays in sight, however much its tools say; and what is not shown is marked for everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from bench.counting import counting
from holdfast import CallModel, ContextPack, Holdfast, Session, Turn
from holdfast.core.packs import fit
from holdfast.core.packs import rounds as pack_rounds
from holdfast.core.packs.fit import _Attempt
from holdfast.core.packs.rounds import share_evenly
from holdfast.flow.packs import recent as asking
from holdfast.flow.turns.calls import TurnModelCall
from holdfast.records.scope import parse_scope
from tests.packs.questions_kit import MARK, UNMARKED, call, is_of, least, packs_of_a_turn, problems, same, text, told
from tests.scale import seeded, volume

BUDGETS = (700, 1_500, 4_000)
ROUNDS = 9
WORLDS = volume(4, 200)


@pytest.fixture(params=("memory", "sqlite"))
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, durability="fast") as client:
        yield client


@pytest.fixture
def chat() -> Iterator[Session]:
    with holdfast.open("memory:") as client:
        yield client.session("s", model="gpt-4o")


def following(turn: Turn) -> Any:
    """What comes next in a turn."""
    return turn.steps(at_once=1)[0]


def results(turn: Turn, *sizes: int) -> ContextPack:
    """Calls with outputs of so many lines, one after the other, and the pack that comes then."""
    for number, lines in enumerate(sizes):
        step = following(turn)
        assert isinstance(step, CallModel)
        step.done(call(number))
        following(turn).done("\n".join(f"row {number} {at} {at * at}" for at in range(lines)))
    pack: ContextPack = following(turn).pack
    return pack


def answered(turn: Turn, reply: Any) -> None:
    """What the model said to the pack that was made last."""
    (call,) = (call for call in turn.engine._open.values() if isinstance(call, TurnModelCall) and not call.answered)
    turn.engine.finish_model(call, reply)


# worlds


def wrong(hf: Holdfast, name: str, worlds: int = WORLDS) -> Iterator[str]:
    """What is wrong with the packs of generated turns, also those that are made without what is remembered."""
    rng = seeded(name)
    assert hf.env.recent is not None
    for _ in range(worlds):
        budget = rng.choice(BUDGETS)
        for turn, pack, said in packs_of_a_turn(hf, rng, budget=budget, rounds=ROUNDS):
            yield from problems(pack, said)
            hf.env.recent.clear()
            yield from problems(turn.frame.pack(budget), said)


def test_no_pack_of_a_turn_is_without_what_the_turn_answers(hf: Holdfast) -> None:
    assert list(wrong(hf, "questions")) == []


def test_a_turn_s_pack_is_shown_again_and_is_the_same_in_the_past_and_without_what_is_remembered(
    hf: Holdfast,
) -> None:
    rng = seeded("again")
    for _ in range(WORLDS // 2):
        shown: list[ContextPack] = []
        for turn, pack, _ in packs_of_a_turn(hf, rng, budget=(budget := rng.choice(BUDGETS)), rounds=ROUNDS):
            warm = turn.frame.pack(budget)
            assert same(turn.frame.pack(budget, as_of=warm.metadata.log_seq), warm)
            assert hf.env.recent is not None
            hf.env.recent.clear()
            assert same(turn.frame.pack(budget), warm)
            shown.append(pack)
        chat = hf.session(parse_scope(shown[0].metadata.scope).get("session") or "", create=False)
        for info, pack in zip(reversed(chat.packs.list()), shown, strict=True):
            again = chat.pack_at(info.call)
            assert same(again, pack)
            # Nobody pinned anything here.
            assert "pinned" not in {one.reason for one in (*pack.decisions, *again.decisions)}


def test_at_exactly_the_least_budget_there_is_a_pack_and_more_never_loses_a_question(hf: Holdfast) -> None:
    rng = seeded("least")
    for _ in range(WORLDS // 2):
        for turn, _, said in packs_of_a_turn(hf, rng, budget=4_000, rounds=4):
            start = least(turn)
            for budget in (start, start + 1, start + 15, start + 60, start + 400, start * 4):
                pack = turn.frame.pack(budget)
                assert pack.tokens <= budget
                # At the least there is no room for the mark.
                assert [one for one in problems(pack, said) if one != UNMARKED] == []


# planted


def questions_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asking, "_find_questions", lambda *given: frozenset())


def what_was_said_before_the_end_is_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asking, "user_messages_before", lambda *given: [])


def only_what_began_the_turn_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asking, "MAX_QUESTIONS", 1)


def the_mark_has_no_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Attempt, "_marker_room", lambda self: 0)


def questions_have_no_floor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pack_rounds, "shorten_question", lambda rounds, form: rounds.shorten_to(form, 0))
    patch.setattr(fit, "share_evenly", lambda wanted, room: share_evenly(wanted, 0))


PLANTS = (
    questions_are_not_kept,
    what_was_said_before_the_end_is_not_read,
    only_what_began_the_turn_is_kept,
    the_mark_has_no_room,
    questions_have_no_floor,
)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_question_that_is_lost_is_found_out(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with holdfast.open("memory:") as client:
        assert next(wrong(client, plant.__name__, 60), None) is not None


# by example


def test_a_large_output_gives_way_to_the_question(chat: Session) -> None:
    with chat.turn("Refund order 17 for ACME", budget=1_500) as turn:
        pack = results(turn, 3_000)
        assert [message.role for message in pack.messages] == ["user", "assistant", "tool"]
        assert pack.messages[0].text == "Refund order 17 for ACME"
        assert [(one.outcome, one.reason) for one in pack.decisions] == [
            ("included", "question"),
            ("shortened", "newest"),
        ]
        assert pack.tokens > 1_450
        turn.stop()


def test_a_huge_question_is_shortened_and_leaves_half_to_what_came_of_it(chat: Session) -> None:
    with chat.turn("Read this. " + "a long contract of many pages " * 2_000, budget=1_500) as turn:
        pack = results(turn, 3_000)
        question, newest = pack.segments[-2:]
        assert question.shortened
        assert newest.shortened
        assert question.text.startswith("Read this.")
        assert 0.8 < question.tokens / newest.tokens < 1.25
        assert 1_400 < pack.tokens <= 1_500
        turn.stop()


def test_a_huge_question_that_gets_no_room_is_found_out(chat: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "share_evenly", lambda wanted, room: share_evenly(wanted, 0))
    with pytest.raises(AssertionError):
        test_a_huge_question_is_shortened_and_leaves_half_to_what_came_of_it(chat)


def test_what_joined_a_turn_is_shown_beside_what_began_it(hf: Holdfast) -> None:
    session = hf.session("s", model="gpt-4o")
    with suppress(RuntimeError), session.turn("Refund order 17 for ACME", budget=1_000) as turn:
        results(turn, 10)
        raise RuntimeError("gone")
    with session.turn("In French, please.", budget=1_000) as turn:
        following(turn).done(call(7))
        following(turn).done("row " * 3_000)
        said = [message.text for message in results(turn).messages if message.role == "user"]
        assert said == ["Refund order 17 for ACME", f"[2 {MARK}.]", "In French, please."]
        turn.stop()


def test_what_the_last_turn_answered_may_leave(chat: Session) -> None:
    with chat.turn("Refund order 17 for ACME", budget=600) as turn:
        results(turn, 8)
        answered(turn, "Done.")
    with chat.turn("And order 18?", budget=600) as turn:
        pack = results(turn, *[8] * 8)
        assert "ACME" not in str(pack.to_openai())
        assert "order 18" in str(pack.to_openai())
        turn.stop()


def test_a_question_that_a_summary_covers_is_shown_beside_it(chat: Session) -> None:
    with chat.turn("Refund order 17 for ACME", budget=1_500) as turn:
        results(turn, 20, 20, 20)
        chat.compact(keep=1, summarizer=lambda messages: "They looked at rows.")
        pack = turn.frame.pack(1_500)
        assert "They looked at rows." in str(pack.to_openai())
        assert "Refund order 17 for ACME" in [message.text for message in pack.messages]
        turn.stop()


def test_what_the_library_says_in_a_user_s_place_is_no_question(chat: Session) -> None:
    with chat.turn("Refund order 17 for ACME", budget=700) as turn:
        results(turn, 5)
        turn.frame.append(holdfast.Message(role="user", content="[Answer it now.]", synthetic=True))
        answered(turn, call(8))
        following(turn).done("row " * 3_000)
        shown = str(turn.frame.pack(700).to_openai())
        assert "ACME" in shown
        assert "Answer it now" not in shown
        turn.stop()


def test_a_turn_that_very_many_join_is_held_to_the_first_and_the_newest_of_them(chat: Session) -> None:
    with chat.turn("Refund order 17 for ACME", budget=3_000) as turn:
        chat.append([f"And order {number}." for number in range(100, 200)])
        pack = results(turn, 2_000)
        shown = [message.text for message in pack.messages if message.role == "user"]
        assert shown[0] == "Refund order 17 for ACME"
        assert shown[-1] == "And order 199."
        assert len([one for one in pack.decisions if one.reason == "question"]) == asking.MAX_QUESTIONS
        turn.stop()


@pytest.mark.parametrize("floor", ["none", "aggressive", "critical"])
def test_what_is_left_out_is_marked_for_every_provider(chat: Session, floor: str) -> None:
    chat.append([text(seeded("mark"), 30) for _ in range(30)])
    chat.append(call(1))
    chat.append({"role": "tool", "tool_call_id": "c1", "content": "row " * 5_000})
    pack = chat.pack(500, min_compaction=floor)
    for request in (pack.to_openai(), pack.to_responses(), pack.to_anthropic()):
        assert str(request).count(MARK) == 1
    assert pack.tokens <= 500


def test_a_mark_costs_nobody_a_word(chat: Session) -> None:
    chat.append([text(seeded("words"), 30) for _ in range(30)])
    chat.append("a question that just fits " * 20)
    least_whole = next(budget for budget in range(60, 400) if not chat.pack(budget).shortened)
    assert chat.pack(least_whole).messages[-1].text == "a question that just fits " * 20


def test_the_mark_stands_where_something_is_missing(chat: Session) -> None:
    chat.append([text(seeded("place"), 30) for _ in range(30)])
    with chat.turn("Refund order 17 for ACME", budget=600) as turn:
        names = told(results(turn, 3_000))
        question = next(one.id for one in turn.frame.pack(600).segments if "ACME" in one.text)
        assert names[:2] == ["earlier", question]
        turn.stop()


def test_the_window_of_a_turn_stays_where_it_is_with_its_question(chat: Session) -> None:
    chat.append([text(seeded("stays"), 30) for _ in range(30)])
    starts = []
    with chat.turn("Refund order 17 for ACME", budget=1_500) as turn:
        for _ in range(8):
            pack = results(turn, 8)
            starts.append(told(pack)[:3])
            assert "ACME" in str(pack.to_openai())
            answered(turn, call(9))
            following(turn).done("one row")
        turn.stop()
    assert len({tuple(one) for one in starts}) <= 3


@pytest.mark.parametrize(
    ("wanted", "room", "shares"),
    [
        ({1: 5, 2: 100, 3: 100}, 105, {1: 5, 2: 50, 3: 50}),
        ({1: 5}, 3, {1: 3}),
        ({1: 5, 2: 5}, 0, {1: 0, 2: 0}),
        ({}, 10, {}),
    ],
)
def test_room_is_shared_evenly_among_those_that_want_more(
    wanted: dict[int, int], room: int, shares: dict[int, int]
) -> None:
    assert share_evenly(wanted, room) == shares


def test_a_question_is_told_from_another_by_its_words() -> None:
    assert is_of("one two three", "one  two three")
    assert not is_of("one two three", "one two")


def test_what_is_remembered_of_another_turn_is_not_this_one_s(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_adapt_to_turn", lambda known, stream, turn: known)
    with pytest.raises(AssertionError):
        test_what_the_last_turn_answered_may_leave(hf.session("s", model="gpt-4o"))


def test_a_segment_says_what_it_takes_as_everything_else_does(chat: Session) -> None:
    chat.append("Hello.")
    for segment in chat.pack(500).segments:
        assert segment.tokens == segment.estimated_tokens


def asked_of_sqlite(path: Path) -> tuple[float, float]:
    """What the fourth and the last of many packs of one turn ask, in steps of SQLite."""
    found = []
    with (
        holdfast.open(str(path), durability="fast", settings=holdfast.Settings(index_text=0)) as client,
        client.session("s", model="gpt-4o").turn("Refund order 17 for ACME", budget=700) as turn,
    ):
        for number in range(20):
            with counting(client.env.journal) as counts:
                step = following(turn)
            found.append(counts.vm_steps)
            assert "ACME" in str(step.pack.to_openai())
            step.done(call(number))
            following(turn).done("row " * 60)
        turn.stop()
    return found[3], found[-1]


def test_a_turn_asks_for_its_question_once_however_long_it_gets(tmp_path: Path) -> None:
    early, late = asked_of_sqlite(tmp_path / "a.db")
    assert late <= early * 1.1


def test_a_question_that_is_looked_for_anew_each_time_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_adapt_to_turn", lambda known, stream, turn: None)
    early, late = asked_of_sqlite(tmp_path / "a.db")
    assert late > early * 1.1
