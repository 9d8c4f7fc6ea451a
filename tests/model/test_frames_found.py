"""What the walks found, each as its shortest story, so that it stays found."""

from __future__ import annotations

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.errors import (
    FrameSuspended,
    HasLiveChildren,
    InvalidValue,
    KeyReused,
    OutcomeUnknown,
    Refused,
    TokenNotFound,
)
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.frames import Limits
from holdfast.records.usage import Usage
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.model.frames_walk import Client

A, B = "actor/a", "actor/b"


class World:
    """Two clients on one journal, with time in hand."""

    def __init__(self) -> None:
        self.clock = FrozenClock()
        ids, journal = SeededIds(self.clock), MemoryJournal()
        self.clients = [Client(number, journal, self.clock, ids, 1000) for number in (1, 2)]
        self.hf: Holdfast = self.clients[0].hf
        self.index, self.other = (client.index for client in self.clients)


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_goes_on_below_what_waits_since_its_grant_was_given_back(world: World) -> None:
    index = world.index
    root = index.push_frame("root", scope=A, tokens=100)
    parent = index.push_frame("parent", parent=root, tokens=100)
    child = index.push_frame("child", parent=parent, tokens=50)
    inner, outer = index.suspend_frame(child).question, index.suspend_frame(parent).question
    with pytest.raises(FrameSuspended):
        index.resume_frame(inner, approve=True)
    index.resume_frame(outer, approve=True)
    index.resume_frame(inner, approve=True)
    assert index.get_frame(root).tokens.lent == 100


def test_a_subtree_with_children_elsewhere_cannot_be_suspended_with_it(world: World) -> None:
    index = world.index
    root = index.push_frame("root", scope=A)
    index.push_frame("elsewhere", parent=index.push_frame("parent", parent=root), scope=B)
    with pytest.raises(HasLiveChildren):
        index.suspend_frame(root, subtree=True)


def test_a_child_elsewhere_cannot_raise_the_limits_that_it_was_given(world: World) -> None:
    root = world.index.push_frame("root", scope=A, limits=Limits(depth=1))
    child = world.index.push_frame("child", parent=root, scope=B)
    with pytest.raises(Refused):
        world.index.update_frame(child, limits=Limits(depth=9))


def test_a_cascade_reaches_what_another_client_pushed_elsewhere_meanwhile(world: World) -> None:
    world.other.push_frame("remembered", scope=B)
    root = world.index.push_frame("root", scope=A)
    child = world.index.push_frame("child", parent=root, scope=B)
    world.other.pop_frame(root, "cancelled")
    assert world.other.get_frame(child).status == "cancelled"


def test_a_token_whose_answer_was_committed_in_doubt_was_not_refused(world: World) -> None:
    frame = world.index.push_frame("root", scope=A)
    asked = world.index.suspend_frame(frame, token=True)
    journal = world.clients[0].journal
    journal.times, journal.after = 1, True
    assert world.hf.answer(token=asked.token, approve=True) == asked.question
    with pytest.raises(TokenNotFound):
        world.hf.answer(token=asked.token, approve=True)


def test_a_token_stays_unknown_until_its_commit_can_be_asked_about(world: World) -> None:
    frame = world.index.push_frame("root", scope=A)
    asked = world.index.suspend_frame(frame, token=True)
    journal = world.clients[0].journal
    journal.times, journal.after = 3, False
    with pytest.raises(OutcomeUnknown):
        world.hf.answer(token=asked.token, approve=True)
    assert world.hf.answer(token=asked.token, approve=True) == asked.question


def test_what_a_sweep_has_just_ended_is_not_said_to_be_late(world: World) -> None:
    root = world.index.push_frame("root", scope=A)
    child = world.index.push_frame("child", parent=root)
    world.clock.jump(1_000_000)
    swept = world.index.sweep(fail_orphans=True)
    assert (swept.failed, swept.overdue) == ((root,), ())
    last = [event.type for event in world.hf.journal.events(A)]
    assert "frame.overdue" not in last
    assert world.index.get_frame(child).status == "cancelled"


def test_a_clock_does_not_stand_still_while_a_child_elsewhere_works(world: World) -> None:
    index = world.index
    root = index.push_frame("root", scope=A)
    parent = index.push_frame("parent", parent=root)
    index.push_frame("elsewhere", parent=parent, scope=B)
    index.suspend_frame(index.push_frame("child", parent=parent))
    world.clock.jump(1_000_000)
    assert root in index.sweep().overdue


def test_a_moved_deadline_stays_within_that_of_the_parent(world: World) -> None:
    index = world.index
    root = index.push_frame("root", scope=A, limits=Limits(timeout_ms=100_000))
    parent = index.push_frame("parent", parent=root)
    index.push_frame("at work", parent=root)
    question = index.suspend_frame(index.push_frame("child", parent=parent)).question
    world.clock.advance(50_000)
    index.resume_frame(question, approve=True)
    assert index.get_frame(parent).deadline == index.get_frame(root).deadline


def test_a_key_of_something_else_is_refused_by_removing_handles_too(world: World) -> None:
    frame = world.index.push_frame("root", scope=A)
    world.index.add_handle(frame, "url", handle="h")
    world.index.reserve(frame, "reply", 5, key="k")
    with pytest.raises(KeyReused):
        world.index.remove_handle(frame, "h", key="k")


def test_doubtful_usage_is_not_negative(world: World) -> None:
    frame = world.index.push_frame("root", scope=A, tokens=100)
    call = world.index.begin_model_call(frame)
    with pytest.raises(InvalidValue):
        world.index.end_model_call(frame, call, usage=0, doubtful=Usage(output=-40))


def test_a_child_elsewhere_can_end_whoever_owns_the_stream_of_its_parent(world: World) -> None:
    root = world.index.push_frame("root", scope=A)
    world.index.suspend_frame(world.index.push_frame("asks", parent=root))
    child = world.index.push_frame("elsewhere", parent=root, scope=B)
    world.index.resume_actor(A, incarnation="one")
    world.other.resume_actor(B, incarnation="two")
    assert world.other.pop_frame(child).status == "completed"


def test_a_clock_stops_when_the_last_one_at_work_ends(world: World) -> None:
    index = world.index
    root = index.push_frame("root", scope=A, limits=Limits(timeout_ms=100_000))
    question = index.suspend_frame(index.push_frame("asks", parent=root)).question
    at_work, before = index.push_frame("at work", parent=root), index.get_frame(root).deadline
    world.clock.advance(30_000)
    index.pop_frame(at_work)
    world.clock.advance(50_000)
    index.resume_frame(question, approve=True)
    assert before is not None
    assert index.get_frame(root).deadline == before + 50_000
