"""A child in the stream of another actor is bound to its parent as any other child is."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    HasLiveChildren,
    Refused,
)
from holdfast.records.frames import Limits
from tests.model.frame_world import A, B, World


@pytest.fixture
def world() -> World:
    return World()


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


def test_a_child_elsewhere_can_end_whoever_owns_the_stream_of_its_parent(world: World) -> None:
    root = world.index.push_frame("root", scope=A)
    world.index.suspend_frame(world.index.push_frame("asks", parent=root))
    child = world.index.push_frame("elsewhere", parent=root, scope=B)
    world.index.resume_actor(A, incarnation="one")
    world.other.resume_actor(B, incarnation="two")
    assert world.other.pop_frame(child).status == "completed"
