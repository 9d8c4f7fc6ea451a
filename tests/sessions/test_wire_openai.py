"""Chat completions: what is read comes back, what is sent is valid, and what is broken is repaired and reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from pydantic import TypeAdapter

from holdfast.core.sessions.rounds import repair_messages
from holdfast.core.sessions.tokens import OPENAI as CHAT_FRAMING
from holdfast.core.sessions.tokens import message_tokens
from holdfast.core.wire import calls as wire_calls
from holdfast.core.wire import openai_chat, openai_responses
from holdfast.core.wire.parts import ERASED_TEXT
from holdfast.core.wire.tools import read_tool_defs
from holdfast.records.messages import INTERRUPTED_RESULT, Message, ToolCallRequest, ToolCallResult
from tests.scale import seeded, volume
from tests.sessions.garbage import JSON, OPENAI, kept_as_they_are
from tests.sessions.generated import conversation
from tests.sessions.provider_rules import openai_problems
from tests.sessions.sdk_types import checked_against
from tests.sessions.wire_forms import airline_conversations, openai_form


def back(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read and written again, as an export does."""
    reading = openai_chat.read_messages(messages)
    assert reading.repairs == []
    written: list[dict[str, Any]] = openai_chat.render_request(reading.messages, ids="provider")["messages"]
    return written


def asks(*calls: ToolCallRequest, **fields: Any) -> Message:
    return Message(role="assistant", tool_calls=calls, **fields)


def test_the_airline_conversations_come_back_equal_and_nothing_is_repaired() -> None:
    for wire in airline_conversations(seeded("airline")):
        assert back(wire) == wire


def test_the_airline_conversations_can_be_sent_though_they_use_ids_again() -> None:
    for wire in airline_conversations(seeded("airline")):
        assert openai_problems(openai_chat.render_request(openai_chat.read_messages(wire).messages)["messages"]) == []


def test_every_valid_conversation_comes_back_equal() -> None:
    rng = seeded("openai")
    for _ in range(volume(150, 20_000)):
        wire = openai_form(rng)
        assert back(wire) == wire


def test_a_reader_that_tidies_arguments_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_calls, "_read_arguments", lambda name, given, notes: given.replace(" ", ""))
    with pytest.raises(AssertionError):
        test_every_valid_conversation_comes_back_equal()


def test_what_is_sent_is_valid_whatever_was_read() -> None:
    rng = seeded("openai sent")
    for nth in range(volume(150, 20_000)):
        messages = (
            conversation(rng, own_ids=nth % 2 == 0) if nth % 3 else openai_chat.read_messages(openai_form(rng)).messages
        )
        assert openai_problems(openai_chat.render_request(repair_messages(messages).messages)["messages"]) == []


def test_sending_with_providers_ids_as_they_were_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_calls, "_unique_ids", lambda messages, valid, longest: wire_calls._provider_ids(messages))
    with pytest.raises(AssertionError):
        test_what_is_sent_is_valid_whatever_was_read()


def test_messages_and_tools_have_the_sdks_types() -> None:
    rng = seeded("openai types")
    messages_type = TypeAdapter(list[ChatCompletionMessageParam])
    for nth in range(volume(60, 2_000)):
        messages = conversation(rng) if nth % 2 else openai_chat.read_messages(openai_form(rng)).messages
        checked_against(messages_type, openai_chat.render_request(repair_messages(messages).messages)["messages"])
    given = [{"name": "find", "input_schema": {"type": "object"}}, {"type": "custom", "name": "shell"}]
    told = openai_chat.render_request([], tools=read_tool_defs(given))["tools"]
    assert len(checked_against(TypeAdapter(list[ChatCompletionToolUnionParam]), told)) == 2


def test_bytes_of_images_and_files_are_bytes_in_between() -> None:
    url = "data:image/png;base64,AAEC"
    content = [
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://x.y/z.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAEC", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": "AAEC", "format": "wav"}},
    ]
    wire = [{"role": "user", "content": content}]
    (message,) = openai_chat.read_messages(wire).messages
    assert message.content == [
        {"type": "image", "data": b"\0\1\2", "media_type": "image/png", "detail": "low"},
        {"type": "image", "url": "https://x.y/z.png"},
        {"type": "file", "data": b"\0\1\2", "media_type": "application/pdf", "name": "a.pdf"},
        {"type": "file", "file_id": "file-1", "provider": "openai"},
        {"type": "other", "provider": "openai", "item": content[4]},
    ]
    assert back(wire) == wire


def test_what_is_not_understood_is_kept_and_comes_back() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"x": 1}}
    wire = [{"role": "assistant", "content": "a", "tool_calls": [call], "provider_specific": {"y": [2]}}]
    (message,) = openai_chat.read_messages(wire).messages
    assert message.metadata == {
        "openai": {"message": {"provider_specific": {"y": [2]}}, "calls": {"0": {"extra_content": {"x": 1}}}}
    }
    assert back(wire) == wire


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (
            {"role": "assistant", "tool_calls": [], "content": "a", "refusal": None},
            {"role": "assistant", "content": "a"},
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        ),
        (
            {"role": "assistant", "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        ),
        (
            {"role": "tool", "tool_call_id": "c", "content": {"rows": [1, None]}},
            {"role": "tool", "tool_call_id": "c", "content": '{"rows":[1,null]}'},
        ),
    ],
)
def test_what_is_normalised_is_what_the_module_says(given: dict[str, Any], normal: dict[str, Any]) -> None:
    assert back([given]) == [normal]
    assert back([normal]) == [normal]


def test_a_function_of_old_and_its_answer_belong_together() -> None:
    wire = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "done"},
    ]
    messages = openai_chat.read_messages(wire).messages
    assert repair_messages(messages).repairs == []
    assert openai_problems(openai_chat.render_request(messages)["messages"]) == []


@pytest.mark.parametrize(
    ("wire", "problem", "left"),
    [
        ("not a mapping", "malformed", 0),
        ({"content": "no role"}, "malformed", 0),
        ({"role": "critic", "content": "hm"}, "unknown_role", 1),
        ({"role": "ai", "content": "hm"}, "unknown_role", 1),
        ({"role": "user", "content": ""}, "empty_message", 0),
        ({"role": "user", "content": [{"type": "text", "text": ""}]}, "empty_message", 0),
        ({"role": "assistant", "content": None}, "empty_message", 0),
        ({"role": "user", "content": 7}, "malformed", 0),
        ({"role": "user", "content": "a\0b"}, "malformed", 1),
        ({"role": "user", "content": "a\ud800b"}, "malformed", 1),
        ({"role": "user", "content": "a", "name": 3}, "malformed", 1),
        ({"role": "user", "content": ["a", 3]}, "malformed", 1),
        ({"role": "user", "content": "a", "x": 10**30}, "malformed", 0),
        ({"role": "user", "content": "a", "x": float("nan")}, "malformed", 1),
        ({"role": "user", "content": b"a"}, "malformed", 0),
        ({"role": "assistant", "content": "a", "tool_calls": 3}, "malformed", 1),
        ({"role": "assistant", "content": "a", "tool_calls": [3]}, "malformed", 1),
        ({"role": "assistant", "content": "a", "tool_calls": [{"id": "c", "function": {}}]}, "nameless_call", 1),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{nope"}}]},
            "invalid_arguments",
            1,
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}]},
            "malformed",
            0,
        ),
    ],
)
def test_what_is_broken_is_repaired_or_left_out_and_reported(wire: Any, problem: str, left: int) -> None:
    fine = {"role": "user", "content": "fine"}
    reading = openai_chat.read_messages([fine, wire, fine])
    assert {(repair.index, repair.problem) for repair in reading.repairs} >= {(1, problem)}
    assert all(repair.index == 1 and repair.done for repair in reading.repairs)
    assert len(reading.messages) == 2 + left
    assert openai_problems(openai_chat.render_request(repair_messages(reading.messages).messages)["messages"]) == []


def test_arguments_that_are_not_json_are_kept_as_text() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    (message,) = openai_chat.read_messages([{"role": "assistant", "content": None, "tool_calls": [call]}]).messages
    assert message.tool_calls[0].args == {"INVALID_JSON": '{"a": '}


def test_an_object_that_cannot_be_read_is_left_out() -> None:
    class Odd:
        def model_dump(self) -> dict[str, Any]:
            raise RuntimeError("broken")

    reading = openai_chat.read_messages([Odd(), {"role": "user", "content": "fine"}])
    assert [message.text for message in reading.messages] == ["fine"]
    assert {repair.problem for repair in reading.repairs} == {"malformed"}


@given(JSON)
@settings(max_examples=volume(60, 5_000), deadline=None)
def test_no_data_at_all_makes_reading_raise(items: Any) -> None:
    openai_chat.render_request(openai_chat.read_messages(items).messages)


@given(st.lists(OPENAI, max_size=4))
@settings(max_examples=volume(100, 10_000), deadline=None)
def test_nothing_that_looks_like_messages_makes_reading_raise(items: list[Any]) -> None:
    valid = repair_messages(openai_chat.read_messages(items).messages).messages
    shown = openai_chat.render_request(valid)["messages"]
    # Parts of a type that is not known are sent as they are: they may be newer than this code.
    assert openai_problems(shown) == [] or kept_as_they_are(valid)


def test_results_are_shown_as_text_and_say_what_happened() -> None:
    given = [
        ToolCallResult(provider_id="c", result={"a": [1]}),
        ToolCallResult(provider_id="c", result=None),
        ToolCallResult(provider_id="c", result=None, interrupted=True),
        ToolCallResult(provider_id="c", result=None, is_error=True),
        ToolCallResult(provider_id="c", result=[]),
    ]
    shown = openai_chat.render_request([Message(role="tool", tool_results=tuple(given))])["messages"]
    assert [each["content"] for each in shown] == [
        '{"a":[1]}',
        "null",
        f"Error: {INTERRUPTED_RESULT}",
        f"Error: {wire_calls.UNEXPLAINED_FAILURE}",
        "[]",
    ]


FAILURES = (
    ToolCallResult(provider_id="c", result="no such city", is_error=True),
    ToolCallResult(provider_id="c", result="Error: no such city", is_error=True),
    ToolCallResult(provider_id="c", result={"code": 404}, is_error=True),
    ToolCallResult(provider_id="c", result=[{"type": "text", "text": "no such city"}], is_error=True),
    ToolCallResult(provider_id="c", result=INTERRUPTED_RESULT, is_error=True, interrupted=True),
    ToolCallResult(provider_id="c", result="error: no such city", is_error=True),
    ToolCallResult(provider_id="c", result="Error:no such city", is_error=True),
    ToolCallResult(provider_id="c", result="no such city"),
)
"""Failed results, and one at the end that did not fail."""


def test_a_failed_result_says_so_in_formats_without_a_flag() -> None:
    message = Message(role="tool", tool_results=FAILURES)
    chat = [one["content"] for one in openai_chat.render_request([message])["messages"]]
    responses = [one["output"] for one in openai_responses.render_request([message])["input"]]
    assert chat == [
        "Error: no such city",
        "Error: no such city",
        'Error: {"code":404}',
        [{"type": "text", "text": "Error:"}, {"type": "text", "text": "no such city"}],
        f"Error: {INTERRUPTED_RESULT}",
        "Error: error: no such city",
        "Error: Error:no such city",
        "no such city",
    ]
    assert responses[3] == [{"type": "input_text", "text": "Error:"}, {"type": "input_text", "text": "no such city"}]
    assert responses[:3] + responses[4:] == chat[:3] + chat[4:]


def test_the_mark_of_a_failed_result_is_counted() -> None:
    for failed in FAILURES[:4]:
        message = Message(role="tool", tool_results=(failed,))
        (sent,) = openai_chat.render_request([message], ids="provider")["messages"]
        read = openai_chat.read_messages([sent]).messages[0]
        assert message_tokens(message, len, CHAT_FRAMING) == message_tokens(read, len, CHAT_FRAMING)


def test_a_failed_result_comes_back_as_text_and_is_marked_once() -> None:
    sent = openai_chat.render_request([Message(role="tool", tool_results=FAILURES)], ids="provider")["messages"]
    assert back(sent) == sent
    # Another tool's words may begin so: what was no failure does not become one.
    assert not any(one.tool_results[0].is_error for one in openai_chat.read_messages(sent).messages)


def test_a_renderer_that_loses_failures_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_calls, "_mark_failure", lambda shown: shown)
    with pytest.raises(AssertionError):
        test_a_failed_result_says_so_in_formats_without_a_flag()


def test_what_was_erased_says_so() -> None:
    image = {"type": "image", "artifact": "abc", "media_type": "image/png"}
    messages = [
        Message(role="user", content=[image]),
        Message(role="user", erased=True),
        Message(role="tool", tool_results=(ToolCallResult(provider_id="c"),), erased=True),
    ]
    shown = openai_chat.render_request(messages)["messages"]
    text = [{"type": "text", "text": ERASED_TEXT}]
    assert [each["content"] for each in shown] == [text, text, ERASED_TEXT]


def test_what_is_for_another_provider_is_left_out_or_named() -> None:
    thought = {"type": "reasoning", "provider": "anthropic", "item": {"type": "thinking", "thinking": "x"}}
    other = {"type": "other", "provider": "anthropic", "item": {"type": "search_result"}}
    messages = [
        Message(role="assistant", content=[thought]),
        Message(role="assistant", content=[thought, other, {"type": "text", "text": "a"}]),
        Message(role="user", content=[other, {"type": "file", "file_id": "f", "provider": "anthropic", "name": "n"}]),
    ]
    assert [each["content"] for each in openai_chat.render_request(messages)["messages"]] == [
        [{"type": "text", "text": "a"}],
        [{"type": "text", "text": "[search_result not shown]"}, {"type": "text", "text": "[file n not shown]"}],
    ]


def test_ids_that_are_too_long_or_missing_or_used_again_become_unique_ones() -> None:
    made = [("x" * 50, ""), ("x" * 50, ""), (None, ""), ("same", ""), ("same", "01ABC"), ("same", "01ABC")]
    messages: list[Message] = []
    for nth, (provider_id, own) in enumerate(made):
        call = ToolCallRequest(name="f", provider_id=provider_id, id=f"{own}{nth}" if own else "")
        messages.append(asks(call))
        result = ToolCallResult(provider_id=provider_id, tool_call_id=call.id, result=str(nth))
        messages.append(Message(role="tool", tool_results=(result,)))
    shown = openai_chat.render_request(messages)["messages"]
    assert openai_problems(shown) == []
    named = [each["tool_calls"][0]["id"] for each in shown[::2]]
    assert named[3:] == ["same", "01ABC4", "01ABC5"]
    assert [each["tool_call_id"] for each in shown[1::2]] == named


def test_a_made_id_never_takes_one_that_comes_later() -> None:
    messages = [asks(ToolCallRequest(name="f", provider_id=given)) for given in ("a", "a", "a_2", "a")]
    shown = openai_chat.render_request(messages)["messages"]
    assert [each["tool_calls"][0]["id"] for each in shown] == ["a", "a_3", "a_2", "a_4"]


def test_the_system_prompt_comes_first_and_tools_only_if_there_are_any() -> None:
    assert openai_chat.render_request([Message(role="user", content="hi")], system="Be brief.") == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    }


def test_a_name_is_sent_in_a_form_that_is_accepted_and_exported_as_it_was() -> None:
    message = Message(role="user", content="hi", name="Ann <of> Bath")
    assert openai_chat.render_request([message])["messages"][0]["name"] == "Ann_of_Bath"
    assert openai_chat.render_request([message], ids="provider")["messages"][0]["name"] == "Ann <of> Bath"


def test_messages_that_lose_their_results_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_chat, "_render_results", lambda message, index, wire, exact: [])
    with pytest.raises(AssertionError):
        test_what_is_sent_is_valid_whatever_was_read()
