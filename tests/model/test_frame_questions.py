"""A question of a frame is answered once, also in doubt, and nothing goes on below one that waits."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    FrameSuspended,
    OutcomeUnknown,
    TokenNotFound,
)
from tests.model.frame_world import A, World


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
