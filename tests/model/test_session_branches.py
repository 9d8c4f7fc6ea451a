"""A branch goes on from its parent as that is now, and its calls, results and summaries are its own."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ToolPairingError
from tests.model.session_world import World, asks, texts


@pytest.fixture
def world() -> World:
    return World()


def short(messages: Any) -> str:
    return "in short"


def test_a_branch_is_made_from_its_parent_as_it_is_now(world: World) -> None:
    chat = world.hf.session("a")
    first, *_ = chat.append(["one", "two"])
    theirs = world.other.session("a").fork(thread="b")
    mine = world.hf.session("a", thread="b")
    assert len(mine) == 2
    theirs.rewind(to=first)
    theirs.append("three")
    assert texts(mine.fork(thread="c")) == ["one", "three"]


def test_calls_of_a_branch_do_not_wait_once_it_is_rewound_behind_them(world: World) -> None:
    chat = world.hf.session("a")
    said = chat.append([f"m{number}" for number in range(8)])
    branch = chat.fork(thread="b")
    asked = branch.append(asks("p"))
    branch.rewind(to=said[-1])
    with pytest.raises(ToolPairingError):
        branch.append_result(asked.tool_calls[0], "too late")


def test_a_result_in_a_branch_is_for_its_own_newest_call(world: World) -> None:
    chat = world.hf.session("a")
    chat.append([f"m{number}" for number in range(8)])
    chat.append(asks("p"))
    branch = chat.fork(thread="b")
    newest = branch.append(asks("p"))
    answer = branch.append_result("p", "done")
    assert answer.tool_results[0].tool_call_id == newest.tool_calls[0].id


def test_a_call_and_its_result_in_a_branch_are_summarised_together(world: World) -> None:
    chat = world.hf.session("a")
    chat.append(["one", "two", asks("p")])
    branch = chat.fork(thread="b")
    branch.append_result("p", "done")
    made = branch.compact(keep=1, summarizer=short)
    assert made is not None
    assert [message.text for message in branch.compaction.expand(made)] == ["one", "two"]
    assert [message.role for message in branch.pack().messages] == ["user", "assistant", "tool"]


def test_a_result_that_answers_calls_of_two_messages_stays_with_both(world: World) -> None:
    chat = world.hf.session("a")
    chat.append([asks("p"), asks("q"), {"role": "user", "content": [_result("q"), _result("p")]}, "three"])
    assert chat.compact(keep=2, summarizer=short) is None


def _result(call: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": "done"}


def test_a_summary_does_not_stand_behind_a_gap(world: World) -> None:
    chat = world.hf.session("a")
    said = chat.append([f"m{number}" for number in range(7)])
    first = chat.fork(thread="first")
    first.append("here")
    first.compact(keep=6, summarizer=short)
    second = first.fork(thread="second")
    second.append("there")
    second.compact(keep=5, summarizer=short)
    second.rewind(to=said[5])
    assert [message.text for message in second.pack().messages] == [f"m{number}" for number in range(6)]


def test_a_summary_gives_back_what_its_line_no_longer_shares(world: World) -> None:
    chat = world.hf.session("a")
    said = chat.append(["one", "two", "three"])
    branch = chat.fork(thread="b")
    branch.append("four")
    made = branch.compact(keep=1, summarizer=short)
    assert made is not None
    chat.rewind(to=said[0])
    branch.reset()
    assert [message.text for message in branch.compaction.expand(made)] == ["one", "two", "three"]
