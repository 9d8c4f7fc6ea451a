"""The built-in sinks: frames, questions, signals and approved state, each once by the effect's id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Limits
from holdfast.effects import (
    Delegate,
    DeleteState,
    Handoff,
    LinkState,
    OperatorOutput,
    PushFrame,
    RequestApproval,
    Signal,
    UnlinkState,
    WriteState,
)
from holdfast.flow.effects import outbox
from holdfast.flow.effects import settle as settling
from holdfast.testing.clock import FrozenClock
from holdfast.types import FrameLimits
from tests.effects.sinks import declare


def answers(hf: holdfast.Holdfast, *effects: Any, key: str = "k") -> list[holdfast.effects.EffectOutcome]:
    """Declare, dispatch, and what came of it."""

    def operator(given: Any, view: Any) -> OperatorOutput:
        return OperatorOutput(None, list(effects))

    hf.effects.operate(operator, key=key, name="x")
    hf.effects.dispatch()
    return list(hf.effects.operate(operator, key=key, name="x").outcomes)


def test_a_frame_is_pushed_under_the_effects_id(hf: holdfast.Holdfast) -> None:
    limits = Limits(tool_calls=3)
    (done,) = answers(hf, PushFrame("main", "look", session="s1", inputs={"a": 1}, tokens=500, limits=limits))
    assert done.outcome == "applied"
    assert done.answer == {"frame": done.effect}
    frame = hf.index.get_frame(done.effect)
    assert frame.scope == "actor/main/session/s1/thread/main"
    assert (frame.goal, frame.inputs, frame.tokens.granted, frame.limits) == (
        "look",
        {"a": 1},
        500,
        FrameLimits(tool_calls=3),
    )


def test_work_is_delegated_below_a_frame_of_another_actor(hf: holdfast.Holdfast) -> None:
    parent = hf.index.push_frame("all of it", scope="actor/main", tokens=1_000)
    (done,) = answers(hf, Delegate("helper", "a part", parent, tokens=0.5))
    child = hf.index.get_frame(done.effect)
    assert (child.scope, child.parent, child.tokens.granted) == ("actor/helper", parent, 500)
    assert hf.index.get_frame(parent).children_elsewhere == {done.effect: "actor/helper"}


def test_a_handoff_ends_one_frame_and_begins_another(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("mine", scope="actor/main")
    (done,) = answers(hf, Handoff("other", "yours now", frame, summary="half done"))
    ended, begun = hf.index.get_frame(frame), hf.index.get_frame(done.effect)
    assert (ended.status, ended.summary) == ("completed", "half done")
    assert ended.value == {"handed_to": "other", "frame": done.effect}
    assert (begun.scope, begun.status, begun.goal, begun.parent) == ("actor/other", "active", "yours now", None)


def test_a_handoff_waits_for_what_is_below_and_begins_nothing_before(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    frame = hf.index.push_frame("mine", scope="actor/main")
    below = hf.index.push_frame("below", parent=frame)
    (done,) = answers(hf, Handoff("other", "yours now", frame))
    assert done.outcome == "failed"
    assert "HasLiveChildren" in done.reason
    assert hf.index.stack("actor/other") == []
    hf.index.pop_frame(below)
    clock.advance(2_000)
    assert hf.effects.dispatch().applied == 1
    assert len(hf.index.stack("actor/other")) == 1


def test_what_can_never_be_done_to_a_frame_is_dead_at_once(hf: holdfast.Holdfast) -> None:
    ended = hf.index.push_frame("over", scope="actor/main")
    hf.index.pop_frame(ended)
    unknown = "01JZZZZZZZZZZZZZZZZZZZZZZZ"
    for frame in (ended, unknown):
        for effect in (Delegate("other", "a part", frame), Handoff("other", "now", frame), RequestApproval("?", frame)):
            (id,) = declare(hf, effect)
            assert hf.effects.dispatch().dead == 1
            hf.effects.discard(id)
    assert hf.index.stack("actor/other") == []


def test_effects_may_go_to_the_stream_that_declares_them(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("all of it", scope="actor/main")
    ids = declare(
        hf,
        Signal("actor/main", "note"),
        PushFrame("main", "more"),
        Delegate("main", "a part", frame),
        RequestApproval("ok?"),
        WriteState("actor/main", "n", 1, needs_approval=True),
        Handoff("main", "again", hf.index.push_frame("short", scope="actor/main")),
        scope="actor/main",
    )
    hf.effects.approve(ids[4])
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=len(ids))
    assert hf.state("actor/main").read("n") == 1
    assert {frame.id for frame in hf.index.stack("actor/main")} == {frame, ids[1], ids[2], ids[3], ids[5]}


def test_a_question_suspends_its_frame(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("publish", scope="actor/main")
    (done,) = answers(hf, RequestApproval("Publish?", frame, options=["yes", "no"], recommended="yes"))
    assert done.answer["frame"] == frame
    question = hf.index.question(done.answer["question"])
    assert (question.kind, question.reason, question.options) == ("approval", "Publish?", ["yes", "no"])
    assert hf.index.get_frame(frame).status == "suspended"
    hf.answer(question.id, approve=True)


def test_a_question_without_a_frame_gets_one(hf: holdfast.Holdfast) -> None:
    (done,) = answers(hf, RequestApproval("Spend 100?", actor="treasurer", payload={"sum": 100}))
    (open_,) = hf.questions()
    assert done.answer == {"question": open_.id, "frame": done.effect}
    assert (open_.scope, open_.reason, open_.payload) == ("actor/treasurer", "Spend 100?", {"sum": 100})


def test_a_signal_is_an_event_in_the_stream_of_whom_it_is_for(hf: holdfast.Holdfast) -> None:
    heard = []
    hf.on("app.signal.*", lambda event: heard.append(event.type))
    (done,) = answers(hf, Signal("actor/helper", "hurry-up", {"by": 3}))
    assert done.answer == {"version": 1}
    (event,) = hf.journal.events("actor/helper")
    assert (event.type, event.content.data) == ("app.signal.hurry-up", {"by": 3})
    assert event.facts.data == {"effect": done.effect, "from": "operator/x"}
    assert heard == ["app.signal.hurry-up"]


def test_state_that_needs_approval_is_changed_once_it_is_given(hf: holdfast.Holdfast) -> None:
    state = hf.state("user/1")
    state.write("old", 1)
    state.write("n", 40)
    ids = declare(
        hf,
        WriteState("user/1", "n", 2, reducer="sum", needs_approval=True),
        DeleteState("user/1", "old", needs_approval=True),
        LinkState("user/1", "n", "next", "m", needs_approval=True),
        UnlinkState("user/1", "n", "next", "m", needs_approval=True),
    )
    state.write("n", "over it", lifetime="transient")
    assert hf.effects.dispatch().attempts == 0
    for id in ids[:3]:
        hf.effects.approve(id)
    assert hf.effects.dispatch().applied == 3
    assert (state.read("n"), state.read("old")) == (42, None)
    assert [edge.target for edge in state.neighbours("n")] == ["m"]
    hf.effects.approve(ids[3])
    hf.effects.dispatch()
    assert state.neighbours("n") == []


def test_an_approved_write_that_expects_what_is_gone_is_dead(hf: holdfast.Holdfast) -> None:
    (id,) = declare(hf, WriteState("user/1", "n", 1, expected_version=0, needs_approval=True))
    hf.state("user/1").write("n", 7)
    hf.effects.approve(id)
    assert hf.effects.dispatch().dead == 1
    assert hf.state("user/1").read("n") == 7


EVERY: list[Callable[[str], Any]] = [
    lambda frame: PushFrame("main", "look"),
    lambda frame: Delegate("helper", "a part", frame),
    lambda frame: Handoff("other", "yours", frame),
    lambda frame: RequestApproval("ok?", frame),
    lambda frame: RequestApproval("ok?"),
    lambda frame: Signal("actor/helper", "hurry"),
    lambda frame: WriteState("user/1", "n", 2, reducer="sum", needs_approval=True),
    lambda frame: DeleteState("user/1", "n", needs_approval=True),
    lambda frame: LinkState("user/1", "n", "next", "m", needs_approval=True),
]


@pytest.mark.parametrize("number", range(len(EVERY)))
def test_each_happens_once_even_if_its_outcome_is_lost(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    frame = hf.index.push_frame("all of it", scope="actor/main")
    hf.state("user/1").write("n", 1)
    (id,) = declare(hf, EVERY[number](frame))
    if hf.effects.get(id).status == "approval":
        hf.effects.approve(id)

    def lost(*given: Any, **named: Any) -> None:
        raise holdfast.errors.Busy("the outcome is not noted")

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "settle_effect", lost)
        with pytest.raises(holdfast.errors.Busy):
            hf.effects.dispatch()
    before = [event.id for event in hf.journal.events() if not event.type.startswith(("lease.", "effect."))]
    assert hf.effects.dispatch().applied == 1
    after = [event.id for event in hf.journal.events() if not event.type.startswith(("lease.", "effect."))]
    assert after == before
    assert settling.find_effect_row(hf.env, id) is None


def test_an_actor_that_another_process_works_on_is_waited_for(tmp_path: Path, clock: FrozenClock) -> None:
    path = tmp_path / "a.db"
    settings = holdfast.Settings(effect_attempts=2)
    with holdfast.open(path, clock=clock) as owner, holdfast.open(path, clock=clock, settings=settings) as hf:
        with owner.frame("long work", actor="busy"):
            (id,) = declare(hf, PushFrame("busy", "more work"))
            for _ in range(5):
                assert hf.effects.dispatch().failed == 1
                clock.advance(400_000)
            assert hf.effects.get(id).attempts == 5
        assert hf.effects.dispatch().applied == 1
        assert hf.index.get_frame(id).status == "active"


def test_what_a_sink_does_for_a_user_is_theirs(hf: holdfast.Holdfast) -> None:
    alice = hf.as_user("alice")
    (id,) = declare(alice, PushFrame("main", "for alice"))
    hf.effects.dispatch()
    hf.journal.erase("alice")
    assert hf.index.get_frame(id).goal is holdfast.types.ERASED
