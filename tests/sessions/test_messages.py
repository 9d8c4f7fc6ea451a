"""Messages: what append takes, what it refuses, and what comes back."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Message, ToolCallRequest, ToolCallResult, Usage
from holdfast.errors import InvalidMessage, ToolPairingError
from tests.backends import IN_MEMORY

CALLS = Message(
    role="assistant",
    content="Looking.",
    tool_calls=(
        ToolCallRequest(name="find", arguments='{"order": 17}', provider_id="c1"),
        ToolCallRequest(name="find", arguments='{"order": 18}', provider_id="c2"),
    ),
)


def test_roles_texts_and_lists_are_stored_in_one_commit_in_order(hf: Holdfast) -> None:
    chat = hf.session("alice")
    before = hf.journal.position()
    roles = ["system", "developer", "user", "assistant"]
    found = chat.append([{"role": role, "content": f"I am {role}"} for role in roles])
    assert [message.role for message in found] == roles
    assert [message.role for message in chat] == roles
    assert hf.journal.position() == before + 4
    assert len({message.id for message in found}) == 4
    assert [message.version for message in chat] == [message.version for message in found]


def test_what_append_gives_is_what_is_read_back(hf: Holdfast) -> None:
    chat = hf.session("alice", model="gpt-4o")
    given = [
        chat.append("hello"),
        chat.append(CALLS),
        chat.append({"role": "tool", "tool_call_id": "c2", "content": "in Lyon"}),
        chat.append(Message(role="user", content=[{"type": "text", "text": "look"}], name="ann")),
        chat.append("cut o", partial=True),
    ]
    assert chat.messages() == given


def test_ids_are_holdfasts_own_and_the_providers_are_kept_aside(hf: Holdfast) -> None:
    chat = hf.session("alice")
    first, second = (chat.append(CALLS).tool_calls for _ in range(2))
    assert {call.provider_id for call in (*first, *second)} == {"c1", "c2"}
    assert len({call.id for call in (*first, *second)}) == 4


def test_parallel_calls_are_answered_in_any_order(hf: Holdfast) -> None:
    chat = hf.session("alice")
    one, two = chat.append(CALLS).tool_calls
    chat.append_result(two, "second", is_error=True)
    chat.append_result(one.id, {"first": 1})
    results = [message.tool_results[0] for message in chat.messages()[1:]]
    assert [(result.tool_call_id, result.result, result.is_error) for result in results] == [
        (two.id, "second", True),
        (one.id, {"first": 1}, False),
    ]


def test_reused_provider_ids_pair_with_the_newest_call(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append(CALLS)
    newer = chat.append(CALLS).tool_calls
    result = chat.append({"role": "tool", "tool_call_id": "c1", "content": "x"})
    assert result.tool_results[0].tool_call_id == newer[0].id
    assert result.round == chat.messages()[1].version


def test_results_for_unknown_or_answered_calls_are_refused_and_nothing_is_written(hf: Holdfast) -> None:
    chat = hf.session("alice")
    one, _ = chat.append(CALLS).tool_calls
    chat.append_result(one, "done")
    before = hf.journal.position()
    for wrong in (one, "nobody", {"role": "tool", "tool_call_id": "c9", "content": "x"}):
        with pytest.raises(ToolPairingError, match="No call"):
            chat.append(wrong) if isinstance(wrong, dict) else chat.append_result(wrong, "again")
    with pytest.raises(ToolPairingError):
        chat.append(["fine", {"role": "tool", "tool_call_id": "c9", "content": "not fine"}])
    assert hf.journal.position() == before


def test_a_result_may_come_late_and_an_open_call_is_shown_as_interrupted(hf: Holdfast) -> None:
    chat = hf.session("alice")
    one, two = chat.append(CALLS).tool_calls
    chat.append_result(one, "in Lyon")
    chat.append("Never mind.")
    shown = chat.pack().messages
    assert [message.role for message in shown] == ["assistant", "tool", "tool", "user"]
    torn = shown[2].tool_results[0]
    assert torn.interrupted
    assert torn.is_error
    assert torn.tool_call_id == two.id
    assert shown[2].synthetic
    chat.append_result(two, "late")
    shown = chat.pack().messages
    assert [message.role for message in shown] == ["assistant", "tool", "tool", "user"]
    assert shown[2].tool_results[0].result == "late"


def test_a_key_stands_for_one_append(hf: Holdfast) -> None:
    chat = hf.session("alice")
    first = chat.append(["hello", CALLS], key="k")
    again = chat.append(["hello", CALLS], key="k")
    assert again == first
    result = chat.append_result(first[1].tool_calls[0], "x", key="r")
    assert chat.append_result(first[1].tool_calls[0], "x", key="r") == result
    with pytest.raises(holdfast.errors.KeyReused):
        chat.append("other", key="k")
    assert len(chat) == 3


def test_files_become_artifacts_and_come_back_in_requests(hf: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG cat")
    chat = hf.session("alice")
    message = chat.append("look", files=[tmp_path / "cat.png", ("notes.txt", b"milk"), b"\x00\x01"])
    kinds = [part["type"] for part in message.content]
    assert kinds == ["text", "image", "file", "file"]
    assert hf.journal.artifact(message.content[1]["artifact"]) == b"\x89PNG cat"
    request = chat.pack().to_openai()["messages"][0]["content"]
    assert request[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert chat.messages() == [message]
    with pytest.raises(holdfast.errors.NotFound, match="cannot be read"):
        chat.append("look", files=[tmp_path / "no.png"])
    with pytest.raises(InvalidMessage, match="A file is"):
        chat.append("look", files=[5])


def test_large_texts_and_results_are_artifacts_and_read_as_what_they_were(hf: Holdfast) -> None:
    chat = hf.session("alice")
    text = "née " * 100_000
    message = chat.append(text)
    call = chat.append(CALLS).tool_calls[0]
    chat.append_result(call, "x" * 300_000)
    event = next(iter(hf.journal.events("session/alice/thread/main", types=["message.appended"])))
    assert event.facts.artifacts
    assert len(str(event.content)) < 1_000
    assert chat.messages()[0].content == message.content == text
    assert chat.messages()[2].tool_results[0].result == "x" * 300_000


def test_a_message_beyond_all_measure_is_refused(hf: Holdfast) -> None:
    chat = hf.session("alice")
    with pytest.raises(holdfast.errors.TooLarge, match="Attach it as a file"):
        chat.append("x" * 50_000_000)
    assert len(chat) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        None,
        5,
        b"bytes",
        {},
        {"role": "user"},
        {"role": "user", "content": ""},
        {"role": "wizard", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{oops"}}]},
        {"role": "user", "content": "NUL \x00"},
        {"role": "user", "content": "\ud800"},
        Message(role="user"),
        Message(role="wizard", content="x"),
        Message(role="assistant", tool_calls=(ToolCallRequest(name=""),)),
        Message(role="tool", tool_results=(ToolCallResult(result=b"raw"),)),
        [],
        ["fine", ""],
    ],
    ids=lambda wrong: repr(wrong)[:40],
)
@IN_MEMORY
def test_what_is_no_message_is_refused_in_words_and_nothing_is_written(hf: Holdfast, wrong: Any) -> None:
    chat = hf.session("alice")
    before = hf.journal.position()
    with pytest.raises(holdfast.Refused) as refused:
        chat.append(wrong)
    assert len(str(refused.value)) > 20
    assert hf.journal.position() == before


def test_a_file_that_nobody_stored_is_refused_and_nothing_is_written(hf: Holdfast) -> None:
    chat = hf.session("alice")
    before = hf.journal.position()
    with pytest.raises(holdfast.Refused) as refused:
        chat.append(Message(role="user", content=[{"type": "image", "artifact": "ab" * 32}]))
    assert len(str(refused.value)) > 20
    assert hf.journal.position() == before


def test_usage_of_responses_adds_up(hf: Holdfast) -> None:
    chat = hf.session("alice")
    for number in (1, 2):
        chat.append(Message(role="assistant", content="x", usage=holdfast.Usage(input=10, output=number, cost=5)))
    assert (chat.usage.input, chat.usage.output, chat.usage.cost) == (20, 3, 10)


def test_pages_go_both_ways_without_gaps(hf: Holdfast) -> None:
    chat = hf.session("alice")
    texts = [f"m{number}" for number in range(150)]
    chat.append(texts)
    assert [message.text for message in chat.messages(3)] == texts[-3:]
    back, seen = None, []
    while page := chat.messages(40, before=back) if back is not None else chat.messages(40):
        seen = [message.text for message in page] + seen
        back = page[0]
    assert seen == texts
    forth, seen = chat.messages()[0], texts[:1]
    while page := chat.messages(40, after=forth):
        seen += [message.text for message in page]
        forth = page[-1]
    assert seen == texts
    assert chat.messages(0) == []
    with pytest.raises(holdfast.errors.InvalidValue):
        chat.messages(-1)
    with pytest.raises(holdfast.errors.InvalidValue):
        chat.messages(before=seen[0], after=seen[0])


def test_erased_content_leaves_a_valid_conversation(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        chat = hf.as_user("ann").session("s", system="hidden prompt", title="hidden title")
        chat.append("my hidden")
        one, two = chat.append(CALLS).tool_calls
        chat.append_result(one, "hidden result")
        chat.append_result(two, "y" * 300_000)
        chat.compact(keep=1)
        hf.journal.erase("ann")
        shown = hf.session("s").pack().to_openai()["messages"]
        assert "hidden" not in str(shown)
        assert "hidden" not in str(hf.session("s").messages())
        assert [message.role for message in chat] == ["user", "assistant", "tool", "tool"]
        assert all(message.erased for message in chat)
        assert (chat.details.system, chat.title) == (None, None)
        assert hf.journal.verify().findings == ()
        assert b"hidden" not in (tmp_path / "a.db").read_bytes()


def test_a_raising_tokenizer_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    def counter(text: str) -> int:
        raise RuntimeError("boom")

    with holdfast.open(tmp_path / "a.db", tokenizer=counter) as hf:
        chat = hf.session("alice")
        with pytest.raises(holdfast.errors.InvalidValue, match="counter"):
            chat.append("hello")
        assert len(chat) == 0


def test_tokens_are_counted_once_and_by_another_tokenizer_remembered(hf: Holdfast) -> None:
    chat = hf.session("alice", model="gpt-4o")
    chat.append(["hello there"] * 20)
    assert {message.tokenizer for message in chat} == {"o200k_base"}
    chat = hf.session("alice", model="gpt-4")
    before = hf.journal.position()
    first = chat.pack(4_000)
    assert first.tokenizer == "cl100k_base"
    assert hf.journal.position() == before, "a pack is a read"
    chat.packs.begin_model_call(first)
    noted = [event.type for event in hf.journal.events(after=before)]
    assert noted == ["tokens.counted", "context.packed"]
    second = chat.pack(4_000)
    chat.packs.begin_model_call(second)
    noted = [event.type for event in hf.journal.events(after=before)]
    assert noted == ["tokens.counted", "context.packed", "context.packed"]
    assert first.tokens == second.tokens


@pytest.mark.parametrize(
    "wrong",
    [
        Message(role="user", content=[{"type": "text", "text": "hello", "artifact": "nope"}]),
        Message(role="user", content=[{"type": "text", "text": "hello", "whole": True}]),
        Message(role="user", content="x", usage={"input": 1}),  # type: ignore[arg-type]
        Message(role="user", content="x", usage=Usage(input=-5)),
        Message(role="user", content="x", usage=Usage(input=2**60)),
        Message(role=[], content="x"),  # type: ignore[arg-type]
        Message(role="user", content="x", metadata=5),  # type: ignore[arg-type]
        Message(role="assistant", tool_calls=(ToolCallRequest(name="f", provider_id=5),)),  # type: ignore[arg-type]
        Message(role="tool", tool_results=(ToolCallResult(provider_id=5),)),  # type: ignore[arg-type]
        Message(role="user", content=[{"type": "other", "provider": "openai", "item": 5}]),
        Message(role="user", content=[{"type": "image", "url": "http://x/y.png", "openai": {"image_url": 5}}]),
    ],
    ids=repr,
)
def test_a_message_of_ones_own_making_is_checked_before_it_is_stored(hf: Holdfast, wrong: Message) -> None:
    chat = hf.session("a")
    with contextlib.suppress(InvalidMessage):
        chat.append(wrong)
    chat.append("fine")
    for shown in (chat.pack().to_openai, chat.pack().to_responses, chat.pack().to_anthropic, chat.export):
        shown()
    assert chat.usage.spent >= 0


def test_many_texts_that_are_large_together_fit_as_one_large_text_does(hf: Holdfast) -> None:
    chat = hf.session("a")
    parts = [{"type": "text", "text": str(number) * 150_000} for number in range(8)]
    message = chat.append(Message(role="user", content=parts))
    odd = chat.append("\x01" * 190_000)
    assert chat.messages() == [message, odd]


def test_files_keep_everything_else_of_their_message(hf: Holdfast) -> None:
    given = Message(role="user", content="look", metadata={"from": "phone"}, pinned=True, name="ann")
    stored = hf.session("a").append(given, files=[("cat.png", b"PNG")])
    assert (stored.metadata, stored.pinned, stored.name) == ({"from": "phone"}, True, "ann")
