"""A session that is closed, reset or swept ends and begins anew as the journal has it, whatever a client remembers."""

from __future__ import annotations

import pytest

from holdfast.errors import SessionClosed
from tests.model.session_world import World, texts


@pytest.fixture
def world() -> World:
    return World()


def test_what_was_reset_and_then_closed_takes_no_more_messages(world: World) -> None:
    chat = world.hf.session("a")
    chat.append("one")
    chat.reset()
    chat.close()
    with pytest.raises(SessionClosed):
        chat.append("two")


def test_a_reset_is_not_left_out_because_of_one_that_is_remembered(world: World) -> None:
    chat = world.hf.session("a")
    chat.append("one")
    chat.reset()
    world.other.session("a").append("two")
    chat.reset()
    assert (texts(chat), chat.details.status) == ([], "ended")


def test_a_sweep_ends_what_another_client_began_anew(world: World) -> None:
    chat = world.hf.session("a", idle_timeout=60)
    chat.append("one")
    chat.reset()
    world.other.session("a").append("two")
    world.clock.advance(3_600_000)
    assert world.hf.sweep_sessions().ended == 1


def test_a_thread_that_is_added_after_a_reset_begins_the_session_anew(world: World) -> None:
    chat = world.hf.session("a")
    chat.append("one")
    chat.reset()
    added = world.hf.session("a", thread="added")
    assert added.details.status == "ended"
    added.append("two")
    assert added.details.status == "open"
    chat.reset()
    assert texts(added) == []


def test_threads_can_be_added_after_a_reset_that_memory_has_not_taken(world: World) -> None:
    chat = world.hf.session("a")
    chat.append("one")
    world.engine.fails = True
    chat.reset()
    assert chat.details.status == "closing"
    world.hf.session("a", thread="added").append("two")
    assert chat.details.status == "open"


def test_what_is_reset_and_not_handed_over_yet_can_be_closed(world: World) -> None:
    chat = world.hf.session("a")
    chat.append("one")
    world.engine.fails = True
    chat.reset()
    chat.close()
    with pytest.raises(SessionClosed):
        chat.append("two")


def test_a_reset_after_a_close_counts_once_memory_has_taken_it(world: World) -> None:
    chat = world.hf.session("a")
    chat.append("one")
    world.engine.fails = True
    chat.close()
    chat.reset()
    world.engine.fails = False
    world.other.sweep_sessions()
    assert chat.details.status == "ended"


def test_an_end_is_done_when_an_older_one_is_handed_over(world: World) -> None:
    chat = world.hf.session("a")
    chat.append("one")
    world.engine.fails = True
    chat.reset()
    chat.rewind(before=chat.append("never mind"))
    chat.close()
    world.engine.fails = False
    world.hf.sweep_sessions()
    assert chat.details.status == "closed"


def test_nobody_is_refused_because_of_a_close_that_is_remembered(world: World) -> None:
    world.hf.session("a").append("one")
    world.hf.session("a").close()
    world.other.session("a").reset()
    assert world.hf.session("a").append("two").text == "two"


def test_the_first_message_after_a_reset_opens_the_session_whatever_is_remembered(world: World) -> None:
    chat, branch = world.hf.session("a"), world.hf.session("a", thread="b")
    chat.append("one")
    chat.reset()
    branch.append("two")
    world.other.session("a").reset()
    assert len(chat) == 0  # Of the thread it knows by now, of the session it does not.
    chat.append("three")
    assert (chat.details.status, texts(branch)) == ("open", [])


def test_memory_is_given_what_only_a_branch_still_shows(world: World) -> None:
    chat = world.hf.session("a")
    first, *_ = chat.append(["one", "two", "three"])
    chat.fork(thread="b").append("four")
    chat.rewind(to=first)
    chat.close()
    ((_, _, said),) = world.engine.taken.values()
    assert said == {"main": ["one"], "b": ["one", "two", "three", "four"]}
