"""JSON lines: every field comes back, bytes too; a line that is not a message is refused by its number."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.wire import anthropic, jsonl, openai_chat, openai_responses
from holdfast.errors import InvalidMessage, InvalidValue
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult, ToolDef
from holdfast.records.usage import Usage
from tests.scale import seeded, volume
from tests.sessions.garbage import JSON
from tests.sessions.generated import conversation
from tests.sessions.wire_forms import anthropic_form, openai_form, responses_form

PNG = {"type": "image", "data": b"\0\xff", "media_type": "image/png"}
CALLS = Message(
    role="assistant",
    content=[{"type": "call", "call": 0}, PNG],
    tool_calls=(ToolCallRequest(name="f", arguments='{ "a":1}', id="1", provider_id="p"),),
    name="n",
    partial=True,
    synthetic=True,
    provider="openai",
    model="m",
    provider_id="q",
    usage=Usage(input=3, output=2, cost=7),
    metadata={"openai": {"x": [None, 1.5]}},
)
ANSWERS = Message(
    role="tool",
    tool_results=(ToolCallResult(tool_call_id="1", provider_id="p", result=[PNG], is_error=True, interrupted=True),),
    id="01",
    stream="session/s",
    version=4,
    timestamp=5,
    round=6,
    tokens=7,
    tokenizer="t",
    pinned=True,
    policy="compress_first",
    trust="tool",
    erased=True,
)


def test_messages_with_every_field_come_back_equal() -> None:
    defaults = Message(role="user")
    for name in (field.name for field in msgspec.structs.fields(Message)):
        assert any(getattr(each, name) != getattr(defaults, name) for each in (CALLS, ANSWERS)), f"{name} is not tried"
    assert jsonl.read_messages(jsonl.write_lines([CALLS, ANSWERS])).messages == [CALLS, ANSWERS]


def test_conversations_from_everywhere_come_back_equal_one_line_each() -> None:
    rng = seeded("lines")
    for nth in range(volume(100, 10_000)):
        messages = (
            openai_chat.read_messages(openai_form(rng)).messages,
            openai_responses.read_messages(responses_form(rng)).messages,
            anthropic.read_messages(anthropic_form(rng)).messages,
            conversation(rng, own_ids=True, pinned=True, broken=False),
        )[nth % 4]
        written = list(jsonl.write_lines(messages))
        assert len(written) == len(messages)
        assert not any("\n" in line for line in written)
        assert jsonl.read_messages(written).messages == messages


def test_losing_bytes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_restore_bytes", lambda given, place: None)
    with pytest.raises(AssertionError):
        test_conversations_from_everywhere_come_back_equal_one_line_each()


def test_bytes_are_not_mistaken_for_text_that_looks_like_them() -> None:
    result = [{"type": "image", "base64": "AA=="}, {"type": "image", "bytes": [], "data": "AA=="}]
    message = Message(role="tool", tool_results=(ToolCallResult(result=result),))
    assert jsonl.read_line(jsonl.write_line(message), 1) == message


def test_the_header_comes_first_and_tells_what_the_conversation_is_held_with() -> None:
    tools = (ToolDef(name="find", description="Finds."), ToolDef(name="web", raw={"type": "web_search"}))
    written = list(jsonl.write_lines([Message(role="user", content="hi")], system="Be brief.", tools=tools, model="m"))
    reading = jsonl.read_messages([f"{line}\n" for line in written])
    assert (reading.system, reading.tools, reading.model) == ("Be brief.", tools, "m")
    assert reading.messages == [Message(role="user", content="hi")]
    assert len(list(jsonl.write_lines([]))) == 0


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("{", "not JSON"),
        ('"a"', "not an object"),
        ("[]", "not an object"),
        ('{"content": "a"}', "role"),
        ('{"role": "critic"}', "role"),
        ('{"role": "user", "content": 3}', "content"),
        ('{"role": "user", "colour": "red"}', "colour"),
        ('{"role": "user", "tool_calls": [{"arguments": "{}"}]}', "name"),
        ('{"role": "user", "bytes": [{"at": ["content", 0], "base64": "AA=="}]}', "bytes"),
        ('{"role": "user", "content": [{}], "bytes": [{"at": ["content", 0, "data"], "base64": "!"}]}', "bytes"),
        ('{"role": "user", "bytes": 3}', "bytes|array"),
        ('{"holdfast": 99}', "Upgrade"),
        ('{"holdfast": 1, "tools": [{}]}', "name"),
        ('{"holdfast": 1}', "first line"),
        (b"\xff", "not JSON"),
        ('{"role": "user", "content": ""}', "empty"),
        ('{"role": "user", "content": "\\u0000"}', "NUL"),
        ('{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}', "arguments"),
    ],
)
def test_a_line_that_is_not_a_message_is_refused_by_its_number(line: str | bytes, word: str) -> None:
    fine = jsonl.write_line(Message(role="user", content="hi"))
    with pytest.raises(InvalidMessage, match=rf"Line 3 .*({word})"):
        jsonl.read_messages([fine, "", line])


def test_what_is_no_plain_data_cannot_be_written() -> None:
    with pytest.raises(InvalidValue):
        jsonl.write_line(Message(role="user", metadata={"x": object()}))


@given(st.lists(JSON, max_size=3))
@settings(max_examples=volume(60, 5_000), deadline=None)
def test_reading_anything_gives_messages_or_says_which_line_is_none(items: list[Any]) -> None:
    written = [json.dumps(item) for item in items]
    try:
        assert len(jsonl.read_messages(written).messages) <= len(items)
    except InvalidMessage as error:
        said = str(error)
    else:
        said = "Line 1"
    assert said.startswith("Line ")
