"""The clock of a frame runs while something below it works, stops when nothing does, and keeps to its parent."""

from __future__ import annotations

import pytest

from holdfast.records.frames import Limits
from tests.model.frame_world import A, B, World


@pytest.fixture
def world() -> World:
    return World()


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
