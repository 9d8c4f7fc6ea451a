"""Questions: asked, answered once from anywhere, resumed; tokens, expiry, timers, subtrees, budgets, clocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

import holdfast
from holdfast import Limits
from holdfast.core.frames import budgets
from holdfast.errors import (
    AlreadyAnswered,
    FrameSuspended,
    InvalidValue,
    QuestionExpired,
    QuestionNotFound,
    TokenNotFound,
    Waiting,
)
from holdfast.flow.frames import questions
from holdfast.testing.clock import FrozenClock
from tests.backends import IN_MEMORY
from tests.frames.conftest import ACTOR

KINDS = ("approval", "input", "external", "checkpoint", "pause")


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_is_asked_answered_and_the_frame_goes_on(hf: holdfast.Holdfast, kind: str) -> None:
    frame = hf.index.push_frame("Refund", scope=ACTOR)
    options = ["yes", "no"]
    asked = hf.index.suspend_frame(
        frame, "Refund 40?", kind=kind, options=options, recommended="no", arguments={"amount": 40}, payload=[1]
    )
    assert asked.token is None
    (question,) = hf.questions()
    assert (question.id, question.frame, question.scope, question.kind) == (asked.question, frame, ACTOR, kind)
    assert (question.reason, question.options, question.recommended) == ("Refund 40?", options, "no")
    assert (question.arguments, question.payload, question.answered) == ({"amount": 40}, [1], False)
    assert hf.index.get_frame(frame).status == "suspended"
    hf.answer(question.id, approve=True, args={"amount": 30}, payload={"x": 1}, note="less", by="alice")
    assert hf.index.question(question.id).answered
    assert hf.index.get_frame(frame).status == "suspended"
    assert hf.index.resume_frame(question.id) == frame
    assert hf.index.get_frame(frame).status == "active"
    answer = hf.index.answer_to(ACTOR, question.id)
    assert answer is not None
    assert (answer.approved, answer.arguments, answer.payload, answer.note) == (True, {"amount": 30}, {"x": 1}, "less")
    (event,) = hf.journal.events(ACTOR, types=["question.answered"])
    assert (event.facts.via, event.facts.edited) == ("id", True)
    assert event.user is not None
    assert list(hf.questions()) == []


def test_an_answer_can_be_brought_along_with_the_resumption(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    question = hf.index.suspend_frame(frame, "?").question
    before = hf.journal.position()
    hf.index.resume_frame(question, approve=False, payload="no")
    assert [event.type for event in hf.journal.events(after=before)] == [
        "question.answered",
        "frame.resumed",
        "frame.handle_added",
    ]
    answer = hf.index.answer_to(ACTOR, question)
    assert answer is not None
    assert (answer.approved, answer.payload) == (False, "no")


def test_one_question_has_one_answer(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    question = hf.index.suspend_frame(frame, "?").question
    hf.answer(question, approve=True)
    before = hf.journal.position()
    assert hf.answer(question, approve=True) == question
    with pytest.raises(AlreadyAnswered):
        hf.answer(question, approve=False)
    with pytest.raises(AlreadyAnswered):
        hf.index.resume_frame(question, approve=False)
    assert hf.journal.position() == before
    hf.index.resume_frame(question)
    with pytest.raises(QuestionNotFound):
        hf.answer(question, approve=True)
    with pytest.raises(QuestionNotFound):
        hf.index.resume_frame(question)


def test_an_unanswered_question_is_not_resumed_without_an_answer(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    hf.index.suspend_frame(frame, "?")
    with pytest.raises(FrameSuspended):
        hf.index.begin_tool_call(frame, "t")
    with pytest.raises(FrameSuspended, match="One frame, one question"):
        hf.index.suspend_frame(frame, "again?")
    with pytest.raises(FrameSuspended):
        hf.index.pop_frame(frame)
    hf.index.pop_frame(frame, "cancelled")
    assert list(hf.questions()) == []


def test_a_token_opens_one_question_once_and_is_stored_as_a_hash(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    asked = hf.index.suspend_frame(frame, "?", token=True)
    assert asked.token is not None
    assert len(asked.token) >= 43
    (event,) = hf.journal.events(ACTOR, types=["frame.suspended"])
    assert event.facts.token == hashlib.sha256(asked.token.encode()).hexdigest()
    assert asked.token not in repr(list(hf.journal.events()))
    for forged in (asked.token[:-1] + ("A" if asked.token[-1] != "A" else "B"), "x", asked.question):
        with pytest.raises(TokenNotFound):
            hf.answer(token=forged, approve=True)
    with pytest.raises(TokenNotFound):
        hf.tenant("acme").answer(token=asked.token, approve=True)
    assert hf.answer(token=asked.token, approve=True) == asked.question
    for approve in (True, False):
        with pytest.raises(TokenNotFound):
            hf.answer(token=asked.token, approve=approve)
    (answered,) = hf.journal.events(ACTOR, types=["question.answered"])
    assert answered.facts.via == "token"


def test_a_new_token_voids_the_old_one(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    asked = hf.index.suspend_frame(frame, "?", token=True, key="ask")
    again = hf.index.suspend_frame(frame, "?", token=True, key="ask")
    assert again.repeated
    assert again.question == asked.question
    assert again.token not in (None, asked.token)
    third = hf.index.reissue_token(asked.question)
    for void in (asked.token, again.token):
        with pytest.raises(TokenNotFound):
            hf.answer(token=void, approve=True)
    assert hf.index.resume_frame(token=third, approve=True) == frame
    assert hf.index.get_frame(frame).status == "active"


@pytest.mark.parametrize(("policy", "status"), [("fail", "failed"), ("cancel", "cancelled"), ("keep", "suspended")])
def test_a_question_expires_as_agreed(hf: holdfast.Holdfast, clock: FrozenClock, policy: str, status: str) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    asked = hf.index.suspend_frame(frame, "?", token=True, expires_ms=1_000, on_expiry=policy)
    clock.advance(1_000)
    assert hf.index.sweep() == holdfast.types.SweepReport()
    clock.advance(1)
    with pytest.raises(QuestionExpired):
        hf.answer(token=asked.token, approve=True)
    if policy == "keep":
        assert hf.index.sweep() == holdfast.types.SweepReport()
        assert hf.index.get_frame(frame).status == status
        hf.answer(token=hf.index.reissue_token(asked.question, expires_ms=5), approve=True)
        return
    with pytest.raises(QuestionExpired):
        hf.answer(asked.question, approve=True)
    assert hf.index.sweep().expired == (frame,)
    assert hf.index.get_frame(frame).status == status
    with pytest.raises(TokenNotFound):
        hf.answer(token=asked.token, approve=True)


def test_a_timer_rings(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    question = hf.index.suspend_frame(frame, "later", kind="timer", until=clock.now_ms() + 500).question
    assert hf.index.sweep() == holdfast.types.SweepReport()
    clock.advance(500)
    assert hf.index.sweep().resumed == (frame,)
    assert hf.index.get_frame(frame).status == "active"
    assert hf.index.answer_to(ACTOR, question) is None


def test_a_deadline_stands_still_while_suspended(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, limits=Limits(timeout_ms=1_000))
    child = hf.index.push_frame("child", parent=root, limits=Limits(timeout_ms=600))
    clock.advance(500)
    question = hf.index.suspend_frame(child, "?").question
    clock.advance(86_400_000)
    assert hf.index.sweep() == holdfast.types.SweepReport()
    hf.index.resume_frame(question, approve=True)
    for frame, left in ((root, 500), (child, 100)):
        assert hf.index.get_frame(frame).deadline == clock.now_ms() + left
    hf.index.begin_tool_call(child, "in time")
    clock.advance(101)
    with pytest.raises(holdfast.errors.DeadlineExceeded):
        hf.index.begin_tool_call(child, "late")


def test_an_ancestors_clock_runs_while_anything_below_it_works(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, limits=Limits(timeout_ms=1_000))
    asks, works = (hf.index.push_frame(name, parent=root) for name in ("asks", "works"))
    question = hf.index.suspend_frame(asks, "?").question
    clock.advance(300)
    second = hf.index.suspend_frame(works, "?").question
    clock.advance(10_000)
    hf.index.resume_frame(question, approve=True)
    assert hf.index.get_frame(root).deadline == clock.now_ms() + 700
    clock.advance(100)
    hf.index.resume_frame(second, approve=True)
    assert hf.index.get_frame(root).deadline == clock.now_ms() + 600
    assert hf.index.get_frame(works).deadline == clock.now_ms() + 600


def test_unused_tokens_go_back_while_suspended_and_are_taken_again(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    child = hf.index.push_frame("child", parent=root, tokens=800)
    hf.index.record_usage(child, 100)
    question = hf.index.suspend_frame(child, "?").question
    assert hf.index.get_frame(root).tokens.available == 900
    other = hf.index.push_frame("meanwhile", parent=root, tokens=500)
    hf.answer(question, approve=True)
    with pytest.raises(holdfast.errors.InsufficientTokens):
        hf.index.resume_frame(question)
    assert hf.index.get_frame(child).status == "suspended"
    hf.index.pop_frame(other)
    hf.index.resume_frame(question)
    assert hf.index.get_frame(root).tokens == holdfast.types.TokenBudget(granted=1000, lent=800)
    held = hf.index.suspend_frame(child, "hold it", release_budget=False).question
    assert hf.index.get_frame(root).tokens.lent == 800
    hf.index.resume_frame(held, approve=True)
    hf.index.suspend_frame(child, "?")
    hf.index.pop_frame(child, "cancelled")
    assert hf.index.get_frame(root).tokens == holdfast.types.TokenBudget(granted=1000, used=100)


def test_a_subtree_is_suspended_leaf_first_and_resumed_root_first(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    child = hf.index.push_frame("child", parent=root, tokens=600)
    grandchild = hf.index.push_frame("grandchild", parent=child, tokens=200)
    waits = hf.index.push_frame("waits already", parent=child, tokens=100)
    own = hf.index.suspend_frame(waits, "own question").question
    with pytest.raises(holdfast.errors.HasLiveChildren, match="subtree"):
        hf.index.suspend_frame(child, "?")
    question = hf.index.suspend_frame(child, "all of it?", subtree=True).question
    assert [q.id for q in hf.questions()] == [question, own] or [q.id for q in hf.questions()] == [own, question]
    assert hf.index.get_frame(root).tokens == holdfast.types.TokenBudget(granted=1000)
    assert {hf.index.get_frame(frame).status for frame in (child, grandchild, waits)} == {"suspended"}
    nested = hf.index.get_frame(grandchild).question
    assert nested is not None
    assert nested.within == question
    with pytest.raises(holdfast.Refused, match=question):
        hf.answer(nested.id, approve=True)
    with pytest.raises(holdfast.errors.ParentNotActive):
        hf.index.push_frame("below", parent=child)
    hf.index.resume_frame(question, approve=True)
    resumed = [event.facts.frame for event in hf.journal.events(ACTOR, types=["frame.resumed"])]
    assert resumed == [child, grandchild]
    assert [hf.index.get_frame(frame).status for frame in (child, grandchild, waits)] == [
        "waiting",
        "active",
        "suspended",
    ]
    assert hf.index.get_frame(root).tokens.lent == 600


def test_parallel_questions_each_have_their_own_id(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR)
    children = [hf.index.push_frame(f"c{number}", parent=root) for number in range(3)]
    asked = {frame: hf.index.suspend_frame(frame, f"may {frame}?").question for frame in children}
    assert len(set(asked.values())) == 3
    hf.answer(asked[children[1]], approve=True)
    answered = {question.id: question.answered for question in hf.questions()}
    assert answered == {asked[children[0]]: False, asked[children[1]]: True, asked[children[2]]: False}


def test_who_listens_hears_of_a_suspension_after_it_is_stored(hf: holdfast.Holdfast) -> None:
    heard: list[tuple[str, int]] = []
    stop = hf.on("frame.suspended", lambda event: heard.append((event.facts.question, hf.journal.position())))
    frame = hf.index.push_frame("f", scope=ACTOR)
    question = hf.index.suspend_frame(frame, "?").question
    assert heard == [(question, hf.journal.position())]
    stop()
    hf.index.resume_frame(question, approve=True)
    hf.index.suspend_frame(frame, "?")
    assert len(heard) == 1
    with pytest.raises(holdfast.errors.InvalidValue):
        hf.on("frame.exploded", print)


@pytest.mark.parametrize(
    "terms",
    [
        {"kind": "rhetorical"},
        {"kind": "timer"},
        {"until": 5},
        {"on_expiry": "fail"},
        {"expires_ms": 10, "on_expiry": "explode"},
        {"expires_ms": 0},
        {"expires_ms": -5},
        {"reason": 5},
    ],
)
@IN_MEMORY
def test_terms_that_cannot_be_meant_are_refused(hf: holdfast.Holdfast, terms: dict[str, object]) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    before = hf.journal.position()
    with pytest.raises(holdfast.errors.InvalidValue):
        hf.index.suspend_frame(frame, **{"reason": "?", **terms})  # type: ignore[arg-type]
    assert hf.journal.position() == before


def test_a_question_in_other_words_is_the_same_question(hf: holdfast.Holdfast) -> None:
    for words in ("Refund 49.90 (2 left)?", "Refund 49.90 (1 left)?"):
        with pytest.raises(Waiting), hf.frame("r", key="r") as frame:
            frame.ask(words, key="q", token=True)
    (question,) = hf.questions()
    assert question.reason == "Refund 49.90 (2 left)?"
    hf.answer(question.id, approve=True)
    with hf.frame("r", key="r") as frame:
        assert frame.ask("Refund?", key="q").approved


def test_an_approval_needs_an_answer_that_says_something(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    question = hf.index.suspend_frame(frame, "?").question
    before = hf.journal.position()
    for act in (
        lambda: hf.answer(question),
        lambda: hf.answer(question, note="hm"),
        lambda: hf.index.resume_frame(question),
    ):
        with pytest.raises(InvalidValue, match="approve"):
            act()
    assert hf.journal.position() == before
    hf.index.resume_frame(question, payload={"ok": 1})
    pause = hf.index.suspend_frame(frame, "pause", kind="pause").question
    assert hf.index.resume_frame(pause) == frame


def test_ancestors_clocks_move_by_exactly_as_long_as_all_below_waited(
    hf: holdfast.Holdfast, clock: FrozenClock
) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, limits=Limits(timeout_ms=100_000))
    first = hf.index.get_frame(root).deadline
    assert first is not None
    waits, works = (hf.index.push_frame(name, parent=root) for name in ("waits", "works"))
    question = hf.index.suspend_frame(waits, "?").question
    clock.advance(90_000)
    hf.index.pop_frame(works)
    clock.advance(1_000)
    hf.index.resume_frame(question, approve=True)
    assert hf.index.get_frame(root).deadline == first + 1_000
    again = hf.index.suspend_frame(waits, "?").question
    clock.advance(5_000)
    hf.index.pop_frame(waits, "cancelled")
    assert hf.index.get_frame(root).deadline == first + 6_000
    with pytest.raises(holdfast.errors.QuestionNotFound):
        hf.answer(again, approve=True)


def test_a_parent_whose_clock_stands_still_may_work(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    def work(plan: int) -> None:
        with hf.frame("root", key="r", limits=Limits(timeout_ms=60_000)) as root:
            assert root.run(lambda: plan, key=f"plan {plan}") == plan
            with root.frame("child", key="c") as child:
                child.ask("?", key="q")

    with pytest.raises(Waiting):
        work(1)
    clock.advance(3_600_000)
    (question,) = hf.questions()
    hf.answer(question.id, approve=True)
    work(2)
    assert hf.index.stack(ACTOR) == []
    late = hf.index.push_frame("late", scope=ACTOR, limits=Limits(timeout_ms=10))
    clock.advance(11)
    with pytest.raises(holdfast.errors.DeadlineExceeded):
        hf.index.push_frame("child", parent=late)


def test_a_token_of_odd_text_opens_nothing(hf: holdfast.Holdfast) -> None:
    for token in ("\udcff", "\0", "x" * 100_000):
        with pytest.raises(holdfast.errors.TokenNotFound):
            hf.answer(token=token, approve=True)


def test_the_same_answer_by_another_way_is_the_same_answer(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    asked = hf.index.suspend_frame(frame, "?", token=True)
    hf.answer(token=asked.token, approve=True)
    assert hf.answer(asked.question, approve=True) == asked.question
    with pytest.raises(holdfast.errors.AlreadyAnswered):
        hf.answer(asked.question, approve=False)


CHANGES: dict[str, Callable[[holdfast.Holdfast, str], object]] = {
    "add_handle": lambda hf, frame: hf.index.add_handle(frame, "document", handle="h2", body="words"),
    "remove_handle": lambda hf, frame: hf.index.remove_handle(frame, ["h1"]),
    "record_usage": lambda hf, frame: hf.index.record_usage(frame, 5),
    "reserve": lambda hf, frame: hf.index.reserve(frame, "reply", 5),
    "release_reservation": lambda hf, frame: hf.index.release_reservation(frame, "tools"),
    "update_frame": lambda hf, frame: hf.index.update_frame(frame, goal="another"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_suspended_frame_is_not_changed_through_the_index(hf: holdfast.Holdfast, change: str) -> None:
    frame = hf.index.push_frame("work", scope=ACTOR, tokens=100)
    hf.index.add_handle(frame, "document", handle="h1", body="words")
    hf.index.reserve(frame, "tools", 7)
    question = hf.index.suspend_frame(frame, "Go on?").question
    before = hf.journal.position()
    with pytest.raises(FrameSuspended) as raised:
        CHANGES[change](hf, frame)
    assert raised.value.question == question
    assert hf.journal.position() == before
    hf.index.resume_frame(question, approve=True)
    CHANGES[change](hf, frame)


def test_a_call_in_flight_may_be_paid_for_while_its_frame_is_suspended(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("work", scope=ACTOR)
    call = hf.index.begin_model_call(frame)
    hf.index.suspend_frame(frame, "Go on?")
    hf.index.record_usage(frame, 5)
    hf.index.end_model_call(frame, call, usage=7)
    assert hf.index.get_frame(frame).tokens.used == 12
    with pytest.raises(FrameSuspended):
        hf.index.record_usage(frame, 1)


def test_a_repeated_change_is_answered_while_its_frame_is_suspended(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("work", scope=ACTOR)
    hf.index.reserve(frame, "reply", 5, key="k")
    hf.index.suspend_frame(frame, "Go on?")
    hf.index.reserve(frame, "reply", 5, key="k")
    assert hf.index.get_frame(frame).tokens.reserved == 5


def test_rules_that_do_not_look_for_a_question_are_noticed(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bug: a suspended frame is as good as any other."""
    monkeypatch.setattr(budgets, "check_awake", lambda frame: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_suspended_frame_is_not_changed_through_the_index(hf, "reserve")


@pytest.mark.parametrize("together", [True, False])
def test_the_payload_of_an_answer_is_in_the_next_pack(hf: holdfast.Holdfast, together: bool) -> None:
    frame = hf.index.push_frame("Choose a seat", scope=ACTOR)
    question = hf.index.suspend_frame(frame, "Which seat?", kind="input").question
    payload = {"seat": "14C, by the window"}
    if together:
        hf.index.resume_frame(question, payload=payload)
    else:
        hf.answer(question, payload=payload)
        hf.index.resume_frame(question)
    pack = hf.index.assemble_context_pack(frame=frame)
    assert [one.handle_id for one in pack.evidence] == [question]
    assert "14C, by the window" in str(pack.messages)
    assert hf.index.answer_to(ACTOR, question).payload == payload


def test_an_answer_without_a_payload_adds_nothing_to_a_pack(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("Refund", scope=ACTOR)
    question = hf.index.suspend_frame(frame, "Really?").question
    hf.index.resume_frame(question, approve=True)
    assert hf.index.handles(frame) == []


def test_a_payload_that_goes_nowhere_is_noticed(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the answer is stored, and nothing leads to it."""
    monkeypatch.setattr(questions, "_attach_payload", lambda *given: [])
    with pytest.raises(AssertionError):
        test_the_payload_of_an_answer_is_in_the_next_pack(hf, together=True)
