"""The life of frames: statuses, depth, settlement, cascade, idempotence, several leaves, other scopes."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Limits
from holdfast.connect import assemble_env
from holdfast.errors import FrameEnded, FrameNotFound, HasLiveChildren, InvalidTransition, MaxDepthExceeded
from holdfast.testing.clock import FrozenClock
from holdfast.types import FrameLimits
from tests.frames.conftest import ACTOR


def test_a_new_frame_is_active_empty_and_at_depth_zero(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    frame = hf.index.get_frame(hf.index.push_frame("Plan", scope=ACTOR, inputs={"n": 1}, metadata={"m": 2}))
    assert (frame.status, frame.depth, frame.parent, frame.goal) == ("active", 0, None, "Plan")
    assert (frame.inputs, frame.metadata, frame.scope) == ({"n": 1}, {"m": 2}, ACTOR)
    assert (frame.handles, frame.results, frame.completed_at, frame.context_hash) == ((), (), None, None)
    assert frame.created_at == clock.now_ms()
    assert frame.limits == FrameLimits(context_tokens=4000, tool_calls=10, depth=3, timeout_ms=120_000)
    assert frame.tokens == holdfast.types.TokenBudget(granted=None)


def test_a_push_makes_the_parent_wait_and_the_last_pop_wakes_it(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR)
    first = hf.index.push_frame("first", parent=root)
    second = hf.index.push_frame("second", parent=root)
    assert hf.index.get_frame(root).status == "waiting"
    hf.index.pop_frame(first)
    assert hf.index.get_frame(root).status == "waiting"
    hf.index.pop_frame(second, "failed", error="broke")
    assert hf.index.get_frame(root).status == "active"
    assert hf.index.get_frame(second).error == "broke"


def test_a_waiting_root_does_not_hide_its_active_child(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR)
    child = hf.index.push_frame("child", parent=root)
    assert [(frame.id, frame.status) for frame in hf.index.stack(ACTOR)] == [(root, "waiting"), (child, "active")]
    found = hf.index.resume_actor(ACTOR)
    assert [frame.id for frame in found.stack] == [root, child]
    assert found.current is not None
    assert found.current.id == child
    top = hf.index.top_of_stack(ACTOR)
    assert top is not None
    assert top.id == child
    assert [frame.id for frame in hf.index.ancestry(child)] == [root, child]


def test_every_live_leaf_is_reported(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR)
    children = [hf.index.push_frame(f"child {number}", parent=root) for number in range(3)]
    grandchild = hf.index.push_frame("grandchild", parent=children[0])
    other = hf.index.push_frame("another root", scope=ACTOR)
    leaves = {*children[1:], grandchild, other}
    assert {frame.id for frame in hf.index.leaves(ACTOR)} == leaves
    found = hf.index.resume_actor(ACTOR)
    assert {frame.id for frame in found.leaves} == leaves
    assert found.current is not None
    assert found.current.id == grandchild
    assert found.recovery.frames_recovered == len(found.frames) == 6
    newest = hf.index.push_frame("deepest and newest", parent=children[1])
    assert hf.index.top_of_stack(ACTOR) == hf.index.get_frame(newest)


def test_nothing_there_is_an_empty_stack_and_no_error(hf: holdfast.Holdfast) -> None:
    found = hf.index.resume_actor("actor/nobody")
    assert (found.current, found.stack, found.pending) == (None, (), ())
    assert hf.index.top_of_stack("actor/nobody") is None
    assert list(hf.index.stacks()) == []


def test_a_frame_at_its_depth_limit_takes_no_child(hf: holdfast.Holdfast) -> None:
    line = [hf.index.push_frame("depth 0", scope=ACTOR)]
    for depth in (1, 2, 3):
        line.append(hf.index.push_frame(f"depth {depth}", parent=line[-1]))
    assert hf.index.get_frame(line[-1]).depth == 3
    before = hf.journal.position()
    with pytest.raises(MaxDepthExceeded, match="depth 3"):
        hf.index.push_frame("too deep", parent=line[-1])
    assert hf.journal.position() == before
    lonely = hf.index.push_frame("no children", scope=ACTOR, limits=Limits(depth=0))
    with pytest.raises(MaxDepthExceeded):
        hf.index.push_frame("child", parent=lonely)


def test_a_child_has_no_larger_limits_than_its_ancestors(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    small = FrameLimits(context_tokens=1000, tool_calls=2, depth=1, timeout_ms=5_000)
    root = hf.index.push_frame("root", scope=ACTOR, limits=small)
    clock.advance(1_000)
    child = hf.index.push_frame("child", parent=root, limits=Limits(context_tokens=9_000, tool_calls=99, depth=9))
    found = hf.index.get_frame(child)
    assert found.limits == small
    assert found.deadline == hf.index.get_frame(root).deadline
    with pytest.raises(MaxDepthExceeded):
        hf.index.push_frame("grandchild", parent=child)


def test_limits_lowered_later_hold_below_as_well(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR)
    child = hf.index.push_frame("child", parent=root)
    hf.index.update_frame(root, limits=Limits(depth=1))
    with pytest.raises(MaxDepthExceeded):
        hf.index.push_frame("grandchild", parent=child)
    with pytest.raises(holdfast.Refused, match="ancestors"):
        hf.index.update_frame(child, limits=Limits(depth=3))


def test_completing_needs_the_children_to_have_ended(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR)
    child = hf.index.push_frame("child", parent=root)
    before = hf.journal.position()
    with pytest.raises(HasLiveChildren, match=child):
        hf.index.pop_frame(root)
    assert hf.journal.position() == before
    hf.index.pop_frame(child)
    assert hf.index.pop_frame(root, summary="fine", value={"answer": 42}).status == "completed"
    found = hf.index.get_frame(root)
    assert (found.summary, found.value, found.live) == ("fine", {"answer": 42}, False)
    assert found.completed_at is not None


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_failing_or_cancelling_cancels_everything_below_leaf_first(hf: holdfast.Holdfast, status: str) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    left = hf.index.push_frame("left", parent=root, tokens=500)
    below = hf.index.push_frame("below", parent=left, tokens=200)
    right = hf.index.push_frame("right", parent=root, tokens=300)
    hf.index.record_usage(below, 50)
    hf.index.record_usage(right, 30)
    assert hf.index.pop_frame(root, status, error="enough") == hf.index.get_frame(root)
    popped = [event.facts for event in hf.journal.events(ACTOR, types=["frame.popped"])]
    assert [facts.frame for facts in popped] == [right, below, left, root]
    assert [facts.status for facts in popped] == ["cancelled", "cancelled", "cancelled", status]
    assert [facts.cascade for facts in popped] == [True, True, True, False]
    assert hf.index.get_frame(root).tokens == holdfast.types.TokenBudget(granted=1000, used=80)
    assert hf.index.stack(ACTOR) == []


def test_popping_twice_in_the_same_way_is_done_once(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("once", scope=ACTOR)
    ended = hf.index.pop_frame(frame, summary="done")
    assert ended == hf.index.get_frame(frame)
    before = hf.journal.position()
    assert hf.index.pop_frame(frame, summary="done") == ended
    for status, summary in (("completed", "otherwise"), ("failed", "done")):
        with pytest.raises(FrameEnded, match="final"):
            hf.index.pop_frame(frame, status, summary=summary)
    assert hf.journal.position() == before


@pytest.mark.parametrize("status", ["active", "waiting", "suspended", "done", ""])
def test_a_frame_ends_in_one_of_three_ways(hf: holdfast.Holdfast, status: str) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    with pytest.raises(holdfast.errors.InvalidValue, match="completed, failed or cancelled"):
        hf.index.pop_frame(frame, status)


def test_the_transition_table(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    assert hf.index.update_frame(frame, status="waiting").status == "waiting"
    assert hf.index.update_frame(frame, status="active").status == "active"
    for status in ("completed", "failed", "cancelled", "suspended"):
        with pytest.raises(InvalidTransition):
            hf.index.update_frame(frame, status=status)
    with pytest.raises(holdfast.errors.InvalidValue):
        hf.index.update_frame(frame, status="sleeping")
    question = hf.index.suspend_frame(frame, "?").question
    for status in ("active", "waiting"):
        with pytest.raises(InvalidTransition):
            hf.index.update_frame(frame, status=status)
    hf.index.resume_frame(question, approve=True)
    hf.index.update_frame(frame, status="waiting")
    hf.index.resume_frame(hf.index.suspend_frame(frame, "?").question, approve=True)
    assert hf.index.get_frame(frame).status == "waiting"
    child = hf.index.push_frame("child", parent=frame)
    with pytest.raises(HasLiveChildren):
        hf.index.update_frame(frame, status="active")
    hf.index.pop_frame(child)
    hf.index.pop_frame(frame)
    for act in (
        lambda: hf.index.update_frame(frame, goal="other"),
        lambda: hf.index.suspend_frame(frame, "?"),
        lambda: hf.index.record_usage(frame, 1),
        lambda: hf.index.begin_tool_call(frame, "t"),
    ):
        with pytest.raises(FrameEnded):
            act()


def test_texts_can_be_changed_and_an_expected_version_is_kept_to(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("before", scope=ACTOR, inputs={"n": 1})
    version = hf.index.get_frame(frame).version
    changed = hf.index.update_frame(frame, goal="after", expected_version=version)
    assert (changed.goal, changed.inputs) == ("after", {"n": 1})
    before = hf.journal.position()
    with pytest.raises(holdfast.errors.VersionConflict):
        hf.index.update_frame(frame, goal="late", expected_version=version)
    with pytest.raises(holdfast.errors.VersionConflict):
        hf.index.pop_frame(frame, expected_version=version)
    assert hf.journal.position() == before
    assert hf.index.pop_frame(frame, expected_version=changed.version).status == "completed"


def test_a_push_with_a_key_happens_once_whatever_became_of_the_parent(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=100)
    child = hf.index.push_frame("child", parent=root, tokens=0.5, key="c")
    before = hf.journal.position()
    assert hf.index.push_frame("child", parent=root, tokens=0.5, key="c") == child
    hf.index.pop_frame(root, "cancelled")
    assert hf.index.push_frame("child", parent=root, tokens=0.5, key="c") == child
    with pytest.raises(holdfast.errors.KeyReused):
        hf.index.push_frame("another", parent=root, tokens=0.5, key="c")
    assert hf.journal.position() == before + 2


def test_a_push_with_an_id_of_the_callers_happens_once(hf: holdfast.Holdfast) -> None:
    mine = hf.index.push_frame("made to have an id", scope=ACTOR)[:-3] + "ZZZ"
    assert hf.index.push_frame("mine", scope=ACTOR, frame_id=mine) == mine
    before = hf.journal.position()
    assert hf.index.push_frame("mine", scope=ACTOR, frame_id=mine) == mine
    with pytest.raises(holdfast.errors.DuplicateFrame):
        hf.index.push_frame("not mine", scope=ACTOR, frame_id=mine)
    assert hf.journal.position() == before


def test_a_child_may_live_in_another_scope(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    child = hf.index.push_frame("helper", parent=root, scope="actor/helper", tokens=400, key="k")
    assert hf.index.push_frame("helper", parent=root, scope="actor/helper", tokens=400, key="k") == child
    assert hf.index.get_frame(child).parent == root
    assert hf.index.get_frame(child).depth == 1
    assert hf.index.get_frame(root).tokens == holdfast.types.TokenBudget(granted=1000, lent=400)
    assert hf.index.get_frame(root).children_elsewhere == {child: "actor/helper"}
    assert [frame.id for frame in hf.index.ancestry(child)] == [root, child]
    with pytest.raises(HasLiveChildren):
        hf.index.pop_frame(root)
    hf.index.record_usage(child, 150)
    hf.index.pop_frame(child)
    after = hf.index.get_frame(root)
    assert (after.status, after.tokens) == ("active", holdfast.types.TokenBudget(granted=1000, used=150))
    (settled,) = hf.journal.events(ACTOR, types=["child.settled"])
    assert (settled.facts.child, settled.facts.used, settled.facts.wakes_parent) == (child, 150, True)


def test_cancelling_reaches_into_other_scopes(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    here = hf.index.push_frame("here", parent=root, tokens=900)
    away = hf.index.push_frame("away", parent=here, scope="actor/away", tokens=500)
    further = hf.index.push_frame("further", parent=away, scope="actor/further", tokens=300)
    hf.index.record_usage(further, 70)
    assert hf.index.pop_frame(root, "failed", error="x") == hf.index.get_frame(root)
    for frame in (further, away, here):
        assert hf.index.get_frame(frame).status == "cancelled"
    assert hf.index.get_frame(root).tokens == holdfast.types.TokenBudget(granted=1000, used=70)
    assert list(hf.index.stacks()) == []


def test_a_parent_that_waits_for_two_scopes_wakes_with_the_last(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR)
    here = hf.index.push_frame("here", parent=root)
    away = hf.index.push_frame("away", parent=root, scope="actor/away")
    hf.index.pop_frame(away)
    assert hf.index.get_frame(root).status == "waiting"
    hf.index.pop_frame(here)
    assert hf.index.get_frame(root).status == "active"


def test_frames_of_other_tenants_do_not_exist(hf: holdfast.Holdfast) -> None:
    theirs = hf.tenant("acme").index.push_frame("theirs", scope=ACTOR)
    with pytest.raises(FrameNotFound):
        hf.index.get_frame(theirs)
    with pytest.raises(holdfast.errors.ParentNotFound):
        hf.index.push_frame("mine", parent=theirs)
    assert hf.index.stack(ACTOR) == []


def test_an_erased_goal_leaves_the_frame_whole(hf: holdfast.Holdfast) -> None:
    frame = hf.as_user("alice").index.push_frame("about Alice", scope=ACTOR, tokens=10)
    hf.journal.erase("alice")
    found = hf.index.get_frame(frame)
    assert found.goal is holdfast.types.ERASED
    assert found.tokens.granted == 10
    assert hf.index.resume_actor(ACTOR).frames == (found,)
    assert hf.index.update_frame(frame, inputs={"n": 2}).goal is None
    assert hf.index.pop_frame(frame).status == "completed"


def test_falsy_inputs_stay(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, inputs=0)
    assert hf.index.update_frame(frame, goal="g").inputs == 0


def test_a_child_elsewhere_ends_also_after_the_lease_of_its_parents_scope_was_lost(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, limits=Limits(timeout_ms=1000))
    hf.index.suspend_frame(hf.index.push_frame("asks", parent=root), "?")
    away = hf.index.push_frame("away", parent=root, scope="actor/away")
    hf.index.resume_actor(ACTOR, incarnation="1")
    env: Any = hf.env
    other = holdfast.Holdfast(assemble_env(env.journal, env.settings, env.clock), owner=False)
    other.index.resume_actor(ACTOR, incarnation="2")
    other.index.release_actor(ACTOR)
    with pytest.raises(holdfast.errors.StaleEpoch):
        hf.index.record_usage(root, 1)
    assert hf.index.pop_frame(away).status == "completed"
