"""What the walks, races and crashes found about sessions, each as its shortest story, so that it stays found."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.errors import SessionClosed, ToolPairingError
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.model.sessions_walk import Engine, count_fours


class World:
    """Two clients on one journal, each with a memory of its own of how things stand, and time in hand."""

    def __init__(self) -> None:
        self.clock, self.engine = FrozenClock(), Engine()
        journal, ids = MemoryJournal(), SeededIds(self.clock)
        beside = ClientExtensions(tokenizer=count_fours, memory=self.engine)
        self.hf, self.other = (Holdfast(assemble_env(journal, Settings(), self.clock, ids, beside)) for _ in range(2))


@pytest.fixture
def world() -> World:
    return World()


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


def asks(*provider: str) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "look_up", "arguments": "{}"}} for id in provider]
    return {"role": "assistant", "content": "a moment", "tool_calls": calls}


def short(messages: Any) -> str:
    return "in short"


# endings


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


# branches


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


# packs


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


# keys


def test_a_pinned_message_that_is_repeated_is_still_pinned(world: World) -> None:
    chat = world.hf.session("a")
    assert [chat.append("one", policy="pinned", key="k").pinned for _ in range(2)] == [True, True]


def test_an_import_with_a_system_prompt_can_be_repeated(world: World) -> None:
    chat = world.hf.session("a")
    given = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "one"}]
    for _ in range(2):
        chat.import_messages(given, key="k")
    assert (chat.details.system, texts(chat)) == ("Be terse.", ["one"])
