"""The rules themselves: each notices what it is about, and nothing else is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sessions.provider_rules import anthropic_problems, openai_problems, responses_problems

USER = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
GIVES = {"role": "tool", "tool_call_id": "a", "content": "1"}
ITEM = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "1"}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "1"}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def called(name: str) -> dict[str, Any]:
    return {**ASKS, "tool_calls": [{**CALL, "function": {"name": name, "arguments": "{}"}}]}


INVALID = ["", "functions.find", "a/b", "two words", "né", "🙂", "a" * 65, "find\n"]


@pytest.mark.parametrize("name", INVALID)
def test_a_name_is_refused_in_the_history_and_in_a_definition(name: str) -> None:
    defined = {"name": name, "parameters": {"type": "object"}}
    assert openai_problems([USER, called(name), GIVES])
    assert openai_problems([USER, ASKS, {**GIVES, "name": name}])
    assert openai_problems([USER], [{"type": "function", "function": defined}])
    assert responses_problems({"input": [USER, {**ITEM, "name": name}, OUTPUT]})
    assert responses_problems({"input": [USER], "tools": [{"type": "function", **defined}]})
    assert anthropic_problems({"messages": [USER, assistant({**USE, "name": name}), user(RESULT)]})
    assert anthropic_problems({"messages": [USER], "tools": [{"name": name, "input_schema": {"type": "object"}}]})


@pytest.mark.parametrize("name", ["f", "a-b_C9", "a" * 64, "9", "_"])
def test_a_valid_name_is_none_of_these(name: str) -> None:
    defined = {"name": name, "parameters": {"type": "object"}}
    hosted = {"type": "custom", "custom": {"name": name, "format": {"type": "text"}}}
    told = [{"type": "function", "function": {**defined, "name": f"{name[:60]}_2"}}, hosted]
    assert openai_problems([USER, called(name), {**GIVES, "name": name}], told) == []
    items = [USER, {**ITEM, "name": name}, OUTPUT]
    assert responses_problems({"input": items, "tools": [{"type": "web_search"}]}) == []
    assert anthropic_problems({"messages": [USER, assistant({**USE, "name": name}), user(RESULT)]}) == []


def test_what_is_valid_is_valid() -> None:
    assert openai_problems([USER, ASKS, GIVES]) == []
    assert responses_problems({"input": [USER, ITEM, OUTPUT]}) == []
    assert anthropic_problems({"messages": [USER, assistant(USE), user(RESULT, text("and?"))]}) == []


@pytest.mark.parametrize(
    "messages",
    [
        [USER, ASKS],
        [ASKS, USER, GIVES],
        [GIVES],
        [ASKS, GIVES, GIVES],
        [ASKS, GIVES, ASKS, GIVES],
        [{"role": "assistant", "content": None}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "critic", "content": "a"}],
        [{"role": "user", "content": "a", "name": "two words"}],
        [{**ASKS, "tool_calls": [{**CALL, "id": "a" * 41}]}, {**GIVES, "tool_call_id": "a" * 41}],
        [{**ASKS, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]}, GIVES],
        [ASKS, {**GIVES, "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    ],
)
def test_chat_completions_would_refuse_it(messages: list[dict[str, Any]]) -> None:
    assert openai_problems(messages) != []


@pytest.mark.parametrize(
    "items",
    [
        [ITEM],
        [OUTPUT],
        [ITEM, OUTPUT, ITEM, OUTPUT],
        [{**ITEM, "call_id": "a b"}, {**OUTPUT, "call_id": "a b"}],
        [ITEM, {**OUTPUT, "type": "custom_tool_call_output"}],
        [{**ITEM, "arguments": "{"}, OUTPUT],
        [{"role": "assistant", "content": [{"type": "input_text", "text": "a"}]}],
        [{"role": "user", "content": []}],
    ],
)
def test_responses_would_refuse_it(items: list[dict[str, Any]]) -> None:
    assert responses_problems({"input": items}) != []


@pytest.mark.parametrize(
    "messages",
    [
        [assistant(text("a"))],
        [USER, USER],
        [USER, assistant(USE)],
        [USER, assistant(USE), user(text("a"), RESULT)],
        [USER, assistant(USE), user(text("a"))],
        [USER, assistant(USE, {**USE, "id": "b"}), user(RESULT)],
        [USER, assistant(USE, USE), user(RESULT, RESULT)],
        [USER, assistant(USE), user(RESULT), assistant(USE), user(RESULT)],
        [USER, assistant({**USE, "id": "a b"}), user({**RESULT, "tool_use_id": "a b"})],
        [user(RESULT)],
        [user(text(" "))],
        [user()],
        [USER, assistant({"type": "image", "source": {"type": "url", "url": "x"}})],
        [user({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": ""}})],
        [USER, assistant(text("ends in a blank "))],
        [USER, assistant(USE), user({"type": "tool_result", "tool_use_id": "a", "is_error": True})],
        [USER, assistant(USE), user({**RESULT, "content": " \n"})],
    ],
)
def test_messages_would_refuse_it(messages: list[dict[str, Any]]) -> None:
    assert anthropic_problems({"messages": messages}) != []


MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def marked(said: str, mark: dict[str, Any] = MARK) -> dict[str, Any]:
    return {**text(said), **mark}


def test_four_marks_are_valid_on_tools_the_system_prompt_and_blocks() -> None:
    request = {
        "tools": [{**TOOL, **HOUR}],
        "system": [marked("s", HOUR)],
        "messages": [user(marked("a")), assistant(USE), user({**RESULT, **MARK})],
    }
    assert anthropic_problems(request) == []


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [user(*[marked("a")] * 5)]},
        {"system": [marked("s")], "tools": [{**TOOL, **MARK}], "messages": [user(*[marked("a")] * 3)]},
        {
            "messages": [
                USER,
                assistant(USE),
                user({**RESULT, **MARK, "content": [marked(each) for each in "abcd"]}),
            ]
        },
        {"messages": [USER, assistant({"type": "thinking", "thinking": "x", "signature": "s", **MARK}, text("a"))]},
        {"messages": [user(marked(" "))]},
        {"messages": [user(marked("a"), marked("b", HOUR))]},
        {"messages": [user({**text("a"), "cache_control": {"type": "for ever"}})]},
        {"system": [], "messages": [USER]},
        {"system": [text(" ")], "messages": [USER]},
        {"system": [{"type": "image"}], "messages": [USER]},
    ],
)
def test_messages_would_refuse_its_marks_or_its_system_prompt(request_: dict[str, Any]) -> None:
    assert anthropic_problems(request_) != []
