"""Edit and branch: rewinding, forking and pinning change what is shown, and lose nothing."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.errors import MessageNotFound
from tests.sessions.generated import calls

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}],
}


def texts(chat: Session) -> list[str]:
    return [message.text for message in chat]


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def test_rewinding_takes_the_newest_messages_out_of_the_line_and_keeps_them_in_the_journal(hf: Holdfast) -> None:
    chat = hf.session("alice")
    found = chat.append(["one", reply("two"), "three", reply("four")])
    assert chat.rewind(to=found[1], reason="typo") == 2
    assert texts(chat) == ["one", "two"]
    assert len(chat) == 2
    chat.append("five")
    assert texts(chat) == ["one", "two", "five"]
    kept = [event.content.text for event in hf.journal.events(chat._thread_stream, types=["message.appended"])]
    assert kept == ["one", "two", "three", "four", "five"]
    with pytest.raises(MessageNotFound):
        chat.rewind(to=found[2])


def test_a_message_is_edited_by_rewinding_before_it(hf: Holdfast) -> None:
    chat = hf.session("alice")
    question = chat.append("Whats 2+2?")
    chat.append(reply("4"))
    assert chat.rewind(before=question) == 2
    chat.append("What is 2+3?")
    assert texts(chat) == ["What is 2+3?"]
    assert chat.rewind(to=chat.messages()[0]) == 0
    for wrong in ({}, {"to": question, "before": question}):
        with pytest.raises(holdfast.errors.InvalidValue, match="where to go back"):
            chat.rewind(**wrong)


def test_rewinding_behind_a_result_lets_its_call_wait_again(hf: Holdfast) -> None:
    chat = hf.session("alice")
    asked = chat.append(CALL)
    chat.append_result(asked.tool_calls[0], "first")
    chat.rewind(to=asked)
    chat.append_result(asked.tool_calls[0], "second")
    assert [message.tool_results[0].result for message in chat.messages(1)] == ["second"]


def test_rewinding_behind_a_call_forgets_it(hf: Holdfast) -> None:
    chat = hf.session("alice")
    first = chat.append("one")
    call = chat.append(CALL).tool_calls[0]
    chat.rewind(to=first)
    with pytest.raises(holdfast.errors.ToolPairingError):
        chat.append_result(call, "late")


def test_a_fork_goes_on_from_any_message_and_neither_line_sees_the_other(hf: Holdfast) -> None:
    chat = hf.session("alice")
    found = chat.append(["one", reply("two"), "three", reply("four")])
    before = hf.journal.position()
    side = chat.fork(at=found[1], thread="side")
    assert hf.journal.position() == before + 2, "no body is copied"
    side.append("else")
    chat.append("five")
    assert texts(side) == ["one", "two", "else"]
    assert texts(chat) == ["one", "two", "three", "four", "five"]
    assert side.messages()[0] == found[0]
    assert chat.details.threads == ("main", "side")
    assert texts(hf.session("alice", thread="side", create=False)) == ["one", "two", "else"]


def test_a_fork_keeps_what_it_shares_whatever_happens_there(hf: Holdfast) -> None:
    chat = hf.session("alice")
    found = chat.append(["one", reply("two"), "three"])
    side = chat.fork(thread="side")
    deeper = side.fork(at=found[1], thread="deeper")
    chat.rewind(to=found[0])
    chat.append("new")
    chat.compact(keep=0)
    assert texts(side) == ["one", "two", "three"]
    assert texts(deeper) == ["one", "two"]
    side.append("own")
    side.rewind(to=found[0])
    assert texts(side) == ["one"]
    assert texts(deeper) == ["one", "two"]
    side.append("again")
    assert [message["content"] for message in side.pack().to_openai()["messages"]] == ["one", "again"]


def test_a_fork_inside_a_round_waits_for_its_result_itself(hf: Holdfast) -> None:
    chat = hf.session("alice")
    asked = chat.append(CALL)
    chat.append_result(asked.tool_calls[0], "in main")
    side = chat.fork(at=asked)
    side.append_result(asked.tool_calls[0], "in the fork")
    assert side.messages()[-1].tool_results[0].result == "in the fork"
    assert chat.messages()[-1].tool_results[0].result == "in main"


def test_forks_and_rewinds_to_messages_that_do_not_exist_are_refused(hf: Holdfast) -> None:
    chat, other = hf.session("alice"), hf.session("bob")
    stranger = other.append("mine")
    chat.append("yours")
    before = hf.journal.position()
    for wrong in (stranger, "01ARZ3NDEKTSV4RRFFQ69G5FAV", "nonsense", ""):
        with pytest.raises(MessageNotFound):
            chat.fork(at=wrong)
        with pytest.raises(MessageNotFound):
            chat.rewind(to=wrong)
        with pytest.raises(MessageNotFound):
            chat.pin(wrong)
    assert hf.journal.position() == before
    chat.fork(thread="side")
    with pytest.raises(holdfast.errors.InvalidValue, match="already"):
        chat.fork(thread="side")


def test_a_pinned_message_stays_in_every_pack(hf: Holdfast) -> None:
    chat = hf.session("alice")
    fact = chat.append("I am allergic to nuts.")
    chat.append([text for number in range(100) for text in (f"question {number}", reply(f"answer {number}"))])
    assert fact.text not in [message.text for message in chat.pack(200).messages]
    assert chat.pin(fact).pinned
    assert chat.pack(200).messages[0].text == fact.text
    chat.unpin(fact)
    assert fact.text not in [message.text for message in chat.pack(200).messages]
    assert chat.append("kept", policy="pinned").pinned


def test_an_empty_session_can_be_forked_and_packed(hf: Holdfast) -> None:
    chat = hf.session("alice", system="Be terse.")
    side = chat.fork()
    side.append("hello")
    assert texts(side) == ["hello"]
    assert chat.pack().to_openai() == {"messages": [{"role": "system", "content": "Be terse."}]}


def test_a_call_far_back_waits_again_in_a_fork(hf: Holdfast) -> None:
    chat = hf.session("a")
    call = chat.append(calls("Rome")).tool_calls[0]
    far = chat.append([f"message {number}" for number in range(70)])[-1]
    chat.append_result(call, "sun")
    side = chat.fork(at=far)
    assert [one.id for one in side.details.open_calls()] == [call.id]
    side.append_result(call, "rain")
