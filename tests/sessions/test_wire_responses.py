"""Responses: items come back in their order, an assistant's items are one message, what is sent is valid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam, ToolParam
from pydantic import TypeAdapter

from holdfast.core.sessions.rounds import repair_messages
from holdfast.core.wire import openai_responses, parts
from holdfast.core.wire.tools import read_tool_defs
from holdfast.records.messages import Message, ToolCallRequest
from tests.scale import seeded, volume
from tests.sessions.garbage import JSON, RESPONSES, kept_as_they_are
from tests.sessions.generated import conversation
from tests.sessions.provider_rules import responses_problems
from tests.sessions.sdk_types import checked_against
from tests.sessions.wire_forms import responses_form

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "zz=="}
CALL = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{ "a": 1}', "id": "fc_1"}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hm.", "annotations": []}],
}


def back(items: Any) -> list[dict[str, Any]]:
    """Read and written again, as an export does."""
    reading = openai_responses.read_messages(items)
    assert reading.repairs == []
    written: list[dict[str, Any]] = openai_responses.render_request(reading.messages, ids="provider")["input"]
    return written


def test_every_valid_conversation_comes_back_equal() -> None:
    rng = seeded("responses")
    for _ in range(volume(150, 20_000)):
        items = responses_form(rng)
        assert back(items) == items


def test_losing_the_order_of_texts_and_calls_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def calls_last(self: parts.MessageBuilder) -> list[dict[str, Any]]:
        return [part for part in self.parts if part["type"] != "call"]

    monkeypatch.setattr(parts.MessageBuilder, "content", calls_last)
    with pytest.raises(AssertionError):
        test_every_valid_conversation_comes_back_equal()


def test_what_is_sent_is_valid_whatever_was_read() -> None:
    rng = seeded("responses sent")
    for nth in range(volume(150, 20_000)):
        messages = conversation(rng) if nth % 2 else openai_responses.read_messages(responses_form(rng)).messages
        assert responses_problems(openai_responses.render_request(repair_messages(messages).messages)) == []


def test_answering_a_custom_call_as_a_functions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def custom_calls_only(message: Message, index: int) -> bool:
        return message.role == "assistant" and index == 0

    monkeypatch.setattr(openai_responses, "is_custom_call", custom_calls_only)
    monkeypatch.setattr(openai_responses.WireIds, "call_position", lambda self, index, at: None)
    with pytest.raises(AssertionError):
        test_what_is_sent_is_valid_whatever_was_read()


def test_items_and_tools_have_the_sdks_types() -> None:
    rng = seeded("responses types")
    items_type = TypeAdapter(list[ResponseInputItemParam])
    for nth in range(volume(60, 2_000)):
        messages = conversation(rng) if nth % 2 else openai_responses.read_messages(responses_form(rng)).messages
        checked_against(items_type, openai_responses.render_request(repair_messages(messages).messages)["input"])
    given = [
        {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}},
        {"type": "web_search"},
        {"type": "custom", "custom": {"name": "shell"}},
    ]
    told = openai_responses.render_request([], tools=read_tool_defs(given))["tools"]
    assert len(checked_against(TypeAdapter(list[ToolParam]), told)) == 3


def test_what_an_assistant_did_between_two_inputs_is_one_message_in_its_order() -> None:
    items = [THOUGHT, SAID, CALL, THOUGHT, {**CALL, "call_id": "c2"}]
    (message,) = openai_responses.read_messages(items).messages
    assert [part["type"] for part in message.content or ()] == ["reasoning", "text", "call", "reasoning"]
    assert [(call.name, call.arguments, call.provider_id) for call in message.tool_calls] == [
        ("find", '{ "a": 1}', "c1"),
        ("find", '{ "a": 1}', "c2"),
    ]
    assert back(items) == items


def test_simple_messages_are_simple() -> None:
    items = [{"role": "assistant", "content": "Hm."}, {k: v for k, v in CALL.items() if k != "id"}]
    assert openai_responses.read_messages(items).messages == [
        Message(
            role="assistant",
            content="Hm.",
            tool_calls=(ToolCallRequest(name="find", arguments='{ "a": 1}', provider_id="c1"),),
        )
    ]


def test_reasoning_goes_back_to_where_it_came_from_and_nowhere_else() -> None:
    foreign = {"type": "reasoning", "provider": "anthropic", "item": {"type": "thinking"}}
    own = {"type": "reasoning", "provider": "responses", "item": THOUGHT}
    message = Message(role="assistant", content=[foreign, own, {"type": "text", "text": "a"}])
    assert openai_responses.render_request([message])["input"] == [THOUGHT, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        ([{"type": "message", "role": "user", "content": "a"}], [{"role": "user", "content": "a"}]),
        (
            [{"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "text", "text": "b"}]}],
            [{"role": "assistant", "content": "ab"}],
        ),
        (
            [{**SAID, "content": [{"type": "output_text", "text": "Hm.", "logprobs": []}]}],
            [SAID],
        ),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x.y"}]}],
            [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x.y", "detail": "auto"}]}],
        ),
        (
            [{"type": "function_call_output", "call_id": "c", "output": {"a": 1}}],
            [{"type": "function_call_output", "call_id": "c", "output": '{"a":1}'}],
        ),
    ],
)
def test_what_is_normalised_is_what_the_module_says(given: Any, normal: list[dict[str, Any]]) -> None:
    assert back(given) == normal
    assert back(normal) == normal


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (3, "malformed"),
        ({"type": 3}, "malformed"),
        ({}, "malformed"),
        ({"role": "critic", "content": "hm"}, "unknown_role"),
        ({"role": "user", "content": ""}, "empty_message"),
        ({"role": "assistant", "content": []}, "empty_message"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "malformed"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "malformed"),
        ({**CALL, "name": ""}, "nameless_call"),
        ({**CALL, "arguments": "{nope"}, "invalid_arguments"),
    ],
)
def test_what_is_broken_is_repaired_or_left_out_and_reported(item: Any, problem: str) -> None:
    fine = {"role": "user", "content": "fine"}
    reading = openai_responses.read_messages([fine, item, fine])
    assert (1, problem) in {(repair.index, repair.problem) for repair in reading.repairs}
    assert {repair.index for repair in reading.repairs} == {1}
    assert responses_problems(openai_responses.render_request(repair_messages(reading.messages).messages)) == []


@given(JSON)
@settings(max_examples=volume(60, 5_000), deadline=None)
def test_no_data_at_all_makes_reading_raise(items: Any) -> None:
    openai_responses.render_request(openai_responses.read_messages(items, instructions=items).messages)


@given(st.lists(RESPONSES, max_size=4))
@settings(max_examples=volume(100, 10_000), deadline=None)
def test_nothing_that_looks_like_items_makes_reading_raise(items: list[Any]) -> None:
    valid = repair_messages(openai_responses.read_messages(items).messages).messages
    shown = openai_responses.render_request(valid)
    assert responses_problems(shown) == [] or kept_as_they_are(valid)


def test_instructions_are_beside_the_items() -> None:
    reading = openai_responses.read_messages([{"role": "user", "content": "hi"}], instructions="Be brief.")
    assert reading.system == "Be brief."
    assert openai_responses.render_request(reading.messages, system=reading.system) == {
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "hi"}],
    }
