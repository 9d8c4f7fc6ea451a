"""Data that is not a conversation, from any JSON at all to what nearly is one. For hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from holdfast.core.wire.parts import is_parts
from holdfast.records.messages import Message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_SCALAR = st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["{}", "[1", "call_1", "\0", "\ud800"])
_ANY = st.recursive(
    _SCALAR,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "url", "id", "data"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def kept_as_they_are(messages: list[Message]) -> bool:
    """Whether messages hold what only its provider understands."""
    contents = [message.content for message in messages]
    contents += [result.result for message in messages for result in message.tool_results]
    return any(is_parts(each) and any(part["type"] == "other" for part in each) for each in contents)


def _like(types: list[str], keys: list[str], inside: st.SearchStrategy[Any] = _ANY) -> st.SearchStrategy[Any]:
    """A mapping with a type that is known, and whatever under keys that are known."""
    value = st.sampled_from(["call_1", "{}", "find", "hello", "data:image/png;base64,AA=="]) | inside
    fields = dict.fromkeys(keys, value)
    return st.fixed_dictionaries({"type": st.sampled_from(types) | _SCALAR}, optional=fields) | _ANY


def _messages(parts: st.SearchStrategy[Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    roles = st.sampled_from(["user", "assistant", "tool", "system", "developer", "function", "critic"])
    content = st.lists(parts, max_size=3) | st.text(max_size=3) | _ANY
    return st.fixed_dictionaries({"role": roles | _SCALAR}, optional={"content": content, **more}) | _ANY


_FUNCTION = st.fixed_dictionaries({}, optional={"name": st.just("find") | _ANY, "arguments": _ANY, "input": _ANY})
_MEDIA = st.fixed_dictionaries({}, optional={"url": _ANY, "file_id": _ANY, "file_data": _ANY, "filename": _ANY})
_SOURCE = st.fixed_dictionaries(
    {"type": st.sampled_from(["base64", "text", "url", "file", "content"])},
    optional={"data": _ANY, "media_type": st.just("image/png") | _ANY, "url": _ANY, "file_id": _ANY},
)
OPENAI = _messages(
    _like(["text", "refusal", "image_url", "file", "input_audio"], ["text", "refusal", "image_url", "file"], _MEDIA),
    tool_calls=st.lists(_like(["function", "custom"], ["id", "function", "custom"], _FUNCTION), max_size=3) | _ANY,
    function_call=_FUNCTION | _ANY,
    tool_call_id=_ANY,
    name=_ANY,
    refusal=_ANY,
    audio=_ANY,
)
RESPONSES = _messages(
    _like(["input_text", "output_text", "refusal", "input_image", "input_file"], ["text", "image_url", "file_data"]),
    type=st.just("message") | _ANY,
    id=_ANY,
    status=_ANY,
) | _like(
    ["function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning", "x_output"],
    ["call_id", "id", "name", "arguments", "output", "input", "summary"],
)
ANTHROPIC = _messages(
    _like(
        ["text", "thinking", "tool_use", "tool_result", "image", "document", "server_tool_use"],
        ["text", "id", "name", "input", "tool_use_id", "content", "is_error", "source", "title"],
        _SOURCE,
    )
)
