"""A pack shows the newest round, what is pinned and first instructions, wherever and by whomever they were written."""

from __future__ import annotations

import pytest

from tests.model.session_world import World, asks


@pytest.fixture
def world() -> World:
    return World()


def test_a_pack_in_a_branch_shows_the_newest_round_across_streams(world: World) -> None:
    chat = world.hf.session("a")
    chat.append(["one", asks("p")])
    branch = chat.fork(thread="b")
    branch.append_result("p", "done " * 200)
    shown = branch.pack(200).messages
    assert [message.role for message in shown][-2:] == ["assistant", "tool"]


def test_a_large_late_result_does_not_push_the_newest_round_out(world: World) -> None:
    chat = world.hf.session("a")
    chat.append(asks("p"))
    chat.append([f"m{number}" for number in range(40)])
    chat.append_result("p", "done " * 500)
    assert chat.pack(200).messages[-1].text == "m39"


def test_late_results_do_not_leave_a_gap(world: World) -> None:
    chat = world.hf.session("a")
    chat.append([asks("far"), *(f"m{number}" for number in range(20)), asks("near"), "between"])
    chat.append_result("near", "done")
    chat.append_result("far", "done " * 100)
    chat.append("last")
    shown = [message.text for message in chat.pack(200).messages if message.role != "tool"]
    assert shown[-2:] == ["between", "last"]


def test_a_pinned_call_is_shown_with_the_result_that_a_branch_gave(world: World) -> None:
    chat = world.hf.session("a")
    chat.pin(chat.append(asks("p")))
    branch = chat.fork(thread="b")
    branch.append_result("p", "done")
    branch.append(["talk " * 40 for _ in range(10)])
    results = [result for message in branch.pack(300).messages for result in message.tool_results]
    assert [result.result for result in results] == ["done"]


def test_a_pack_is_for_the_model_that_another_client_chose(world: World) -> None:
    chat = world.hf.session("a")
    chat.append("one")
    chat.pack()
    world.other.session("a", model="gpt-4o")
    assert chat.pack().model == "gpt-4o"


def test_first_instructions_stay_after_what_came_before_them_is_taken_back(world: World) -> None:
    chat = world.hf.session("a")
    chat.rewind(before=chat.append("never mind"))
    chat.append([{"role": "system", "content": "Be kind."}, *("talk " * 40 for _ in range(10))])
    assert chat.pack(300).messages[0].text == "Be kind."
