"""Blocks beside each other, beside other owners and beside a journal that cannot be written for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Limits
from holdfast.connect import assemble_env
from holdfast.errors import ActorBusy, Draining, KeyReused, StaleEpoch, StorageFull
from holdfast.testing.clock import FrozenClock
from tests.frames.conftest import ACTOR


def _another(hf: holdfast.Holdfast) -> holdfast.Holdfast:
    """Another owner on the same journal, as a second process would be."""
    env: Any = hf.env
    return holdfast.Holdfast(assemble_env(env.journal, env.settings, env.clock), owner=False)


def test_two_blocks_do_not_work_on_one_frame(hf: holdfast.Holdfast) -> None:
    with hf.frame("A", key="k") as outer:
        with pytest.raises(ActorBusy, match="another block"), hf.frame("A", key="k"):
            raise AssertionError("entered")
        assert outer.run(lambda: 1, key="step") == 1
    assert hf.index.get_frame(outer.id).status == "completed"
    with hf.frame("A", key="k") as again:
        assert again.run(lambda: 2, key="step") == 1


def test_a_journal_that_cannot_be_written_fails_no_frame(hf: holdfast.Holdfast, monkeypatch: Any) -> None:
    ran = []
    env: Any = hf.env
    append = env.journal.append

    def full(batch: Any) -> Any:
        if any(event.type == "run.returned" for part in batch.parts for event in part.events):
            raise StorageFull
        return append(batch)

    monkeypatch.setattr(env.journal, "append", full)
    with pytest.raises(StorageFull), hf.frame("A", key="k") as frame:
        frame.run(lambda: ran.append(1), key="pay")
    monkeypatch.setattr(env.journal, "append", append)
    assert hf.index.get_frame(frame.id).status == "active"
    assert hf.index.resume_actor(ACTOR).holder is None
    with pytest.raises(holdfast.errors.Waiting), hf.frame("A", key="k") as frame:
        frame.run(lambda: ran.append(2), key="pay")
    assert ran == [1]


def test_a_block_that_lost_its_lease_leaves_a_newer_one_alone(hf: holdfast.Holdfast) -> None:
    first = hf.frame("first")
    first.open()
    usurper = _another(hf)
    usurper.index.resume_actor(ACTOR, incarnation="b")
    with pytest.raises(StaleEpoch):
        first.spend(1)
    usurper.index.release_actor(ACTOR)
    with hf.frame("second") as second:
        first.leave(KeyboardInterrupt())
        second.spend(1)
        assert hf.index.resume_actor(ACTOR).holder == hf.env.leases.process.name
    assert hf.index.get_frame(second.id).status == "completed"
    assert hf.index.get_frame(first.id).status == "active"


def test_an_actor_taken_for_good_and_a_block_share_the_lease(hf: holdfast.Holdfast) -> None:
    with hf.frame("block") as frame:
        hf.index.resume_actor(ACTOR, incarnation="a")
        hf.index.release_actor(ACTOR)
        hf.index.release_actor(ACTOR)
        frame.spend(1)
        assert hf.index.resume_actor(ACTOR).holder is not None
    hf.index.resume_actor(ACTOR, incarnation="c")
    with hf.frame("block"):
        pass
    assert hf.index.resume_actor(ACTOR).holder is not None
    hf.index.release_actor(ACTOR)
    assert hf.index.resume_actor(ACTOR).holder is None


def test_a_torn_call_shows_beside_an_unrelated_question(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    call = hf.index.begin_tool_call(frame, "pay")
    question = hf.index.suspend_frame(frame, "Meanwhile?").question
    found = [(work.kind, work.question, work.call, work.next) for work in hf.index.resume_actor(ACTOR).pending]
    assert found == [("waiting_for_user", question, None, "answer"), ("tool_in_progress", None, call, "ask")]


def test_a_token_answers_and_resumes_in_one_append(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    asked = hf.index.suspend_frame(frame, "?", token=True)
    before = hf.journal.position()
    assert hf.index.resume_frame(token=asked.token, approve=True) == frame
    events = list(hf.journal.events(after=before))
    assert [event.type for event in events] == ["question.answered", "frame.resumed"]
    assert events[0].facts.via == "token"
    with pytest.raises(holdfast.errors.TokenNotFound):
        hf.index.resume_frame(token=asked.token)


def test_a_key_stands_for_one_goal_with_its_inputs(hf: holdfast.Holdfast) -> None:
    with hf.frame("send 5 to A", key="k", inputs={"n": 5}):
        pass
    for goal, inputs in (("send 9 to B", {"n": 5}), ("send 5 to A", {"n": 9})):
        with pytest.raises(KeyReused, match="new key"), hf.frame(goal, key="k", inputs=inputs):
            raise AssertionError("entered")


def test_a_client_that_drains_takes_up_nothing(hf: holdfast.Holdfast) -> None:
    block = hf.frame("A", key="k", on_error="leave")
    with pytest.raises(KeyboardInterrupt), block:
        raise KeyboardInterrupt
    assert hf.drain(0) == 0
    for act in (hf.frame("A", key="k").open, hf.frame("B").open, lambda: hf.index.push_frame("C", scope=ACTOR)):
        with pytest.raises(Draining):
            act()


def test_a_step_is_not_retried_in_a_suspended_or_late_frame(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    def torn() -> None:
        raise KeyboardInterrupt

    ran = []
    with pytest.raises(KeyboardInterrupt), hf.frame("A", key="k", limits=Limits(timeout_ms=1000)) as frame:
        frame.run(torn, key="s", if_interrupted="retry")
    question = hf.index.suspend_frame(frame.id, "?").question
    with (
        pytest.raises(holdfast.errors.FrameSuspended),
        hf.frame("A", key="k", limits=Limits(timeout_ms=1000)) as frame,
    ):
        frame.run(lambda: ran.append(1), key="s", if_interrupted="retry")
    hf.index.resume_frame(question, approve=True)
    clock.advance(1001)
    with (
        pytest.raises(holdfast.errors.DeadlineExceeded),
        hf.frame("A", key="k", limits=Limits(timeout_ms=1000), on_error="leave") as frame,
    ):
        frame.run(lambda: ran.append(1), key="s", if_interrupted="retry")
    assert ran == []


def test_repeating_a_completed_frame_waits_for_nobody(hf: holdfast.Holdfast) -> None:
    with hf.frame("A", key="k") as frame:
        frame.result(5)
    other = _another(hf)
    with other.frame("busy"):
        before = hf.journal.position()
        with hf.frame("A", key="k") as again:
            assert again.value() == 5
            assert again.result(5) == 5
            with pytest.raises(holdfast.errors.FrameEnded):
                again.result(6)
        assert hf.journal.position() == before


def test_keys_inside_a_frame_are_its_own(hf: holdfast.Holdfast) -> None:
    for number in range(2):
        with hf.frame(f"job {number}", tokens=100) as frame:
            for _ in range(2):
                frame.spend(10, key="read")
                frame.reserve("reply", 5, key="read reply")
                frame.attach("document", handle="d", key="doc")
            assert frame.tokens == holdfast.types.TokenBudget(granted=100, used=10, reserved=5)
            with frame.frame("child") as child:
                child.spend(1, key="read")
        assert hf.index.get_frame(frame.id).tokens.used == 11


def test_asking_again_neither_moves_nor_revives_an_expiry(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)

    def ask() -> holdfast.types.QuestionReceipt:
        return hf.index.suspend_frame(frame, "?", token=True, expires_ms=1000, on_expiry="fail", key="q")

    first = ask()
    clock.advance(900)
    assert ask().token is not None
    assert hf.index.question(first.question).expires_at == clock.now_ms() + 100
    clock.advance(101)
    assert ask().token is None
    with pytest.raises(holdfast.errors.QuestionExpired):
        hf.index.reissue_token(first.question)
    hf.answer(token=hf.index.reissue_token(first.question, expires_ms=50), approve=True)


def test_an_expiry_without_a_policy_ends_the_token_and_not_the_question(
    hf: holdfast.Holdfast, clock: FrozenClock
) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    asked = hf.index.suspend_frame(frame, "?", token=True, expires_ms=10)
    clock.advance(11)
    with pytest.raises(holdfast.errors.QuestionExpired):
        hf.answer(token=asked.token, approve=True)
    assert hf.index.sweep() == holdfast.types.SweepReport()
    assert hf.index.resume_frame(asked.question, approve=True) == frame


def test_a_child_elsewhere_settles_with_a_parent_that_somebody_works_on(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, limits=Limits(timeout_ms=1000))
    away = hf.index.push_frame("away", parent=root, scope="actor/away")
    hf.index.suspend_frame(hf.index.push_frame("asks", parent=root), "?")
    owner = _another(hf)
    owner.index.resume_actor(ACTOR, incarnation="b")
    hf.index.pop_frame(away)
    assert owner.index.get_frame(root).children_elsewhere == {}
    owner.index.record_usage(root, 1)
    owner.index.release_actor(ACTOR)


def test_a_result_is_given_as_it_will_be_read(hf: holdfast.Holdfast) -> None:
    with hf.frame("f", key="k") as frame:
        assert frame.result((1, (2,))) == [1, [2]]
    assert frame.value() == [1, [2]]


def test_who_answered_is_told_to_who_listens(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        heard: list[holdfast.types.Event] = []
        hf.on("question.*", heard.append)
        frame = hf.index.push_frame("f", scope=ACTOR)
        hf.answer(hf.index.suspend_frame(frame, "?").question, approve=True, note="ok", by="alice")
        (stored,) = hf.journal.events(types=["question.answered"])
        assert heard == [stored]
        assert stored.user is not None
