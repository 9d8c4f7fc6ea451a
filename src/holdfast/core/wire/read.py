"""Anything a caller passes to append, read as messages: all of it, or an error that says what to do.

- `str`: a user's message; with `partial=True` the assistant's text that a user saw before a stop
- `dict`, or an SDK's object: a message in OpenAI's or Anthropic's format, an item of Responses, or a whole response
- `Message`: as it is, checked
- a list of these: read in order; consecutive items of Responses are read together

With `partial=True`, calls that were cut off are left out and noted in `metadata["left_out"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import msgspec

from holdfast.core.wire import anthropic, openai_chat, openai_responses
from holdfast.core.wire.plain_data import ReadNotes, clean_text, dump_record, get_field, is_record, to_plain_data
from holdfast.core.wire.replies import read_reply, reply_format
from holdfast.core.wire.validate import EMPTY_MESSAGE, check_message
from holdfast.errors import InvalidMessage
from holdfast.records.messages import Message

_ANTHROPIC_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "search_result")
_RESPONSES_PARTS = ("input_text", "output_text", "input_image", "input_file")
_RESPONSES_ITEMS = ("reasoning", "item_reference", "compaction", "program", "mcp_list_tools", "mcp_approval_request")
_ACCEPTED_INPUT = "Pass text, a dict with role and content, a Message or a provider's whole response."


def read_input(item: Any, *, partial: bool = False) -> list[Message]:
    """Return the messages in an item; raise InvalidMessage if it is not a message."""
    messages: list[Message] = []
    if isinstance(item, str):
        messages = _read_item(item, ReadNotes(strict=True, partial=partial))
    else:
        given = list(item) if isinstance(item, list | tuple) else [item]
        for together, run in groupby(given, key=_responses_item_key(given)):
            notes = ReadNotes(strict=True, partial=partial)
            if together:
                messages += openai_responses.read_items(run, notes)
            else:
                messages += [message for each in run for message in _read_item(each, notes)]
    return _mark_partial(messages) if partial else messages


def _read_item(item: Any, notes: ReadNotes) -> list[Message]:
    if isinstance(item, Message):
        return [check_message(item)]
    if isinstance(item, str):
        if not item:
            raise InvalidMessage(EMPTY_MESSAGE)
        return [Message(role="assistant" if notes.partial else "user", content=clean_text(item, notes))]
    if _is_simple(item):
        return [Message(role=item["role"], content=clean_text(item["content"], notes))]
    given = to_plain_data(_to_mapping(item), notes)
    kind = reply_format(given)
    if kind is not None:
        return [read_reply(given, kind, notes)]
    if "role" not in given:
        raise InvalidMessage(
            f"This {type(item).__name__} has no role and is no response that is known. {_ACCEPTED_INPUT}"
        )
    if _detect_format(given) == "anthropic":
        return anthropic.read_message(given, notes)
    message = openai_chat.read_message(given, notes)
    return [] if message is None else [message]


def _is_simple(item: Any) -> bool:
    """Return True for a dict of only a role and text, as most messages are: nothing else has to be checked."""
    if type(item) is not dict or len(item) != 2 or type(item.get("content")) is not str or not item["content"]:
        return False
    return item.get("role") in ("user", "assistant", "system", "developer")


def _to_mapping(item: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, or an object converted to one."""
    found = dump_record(item) if is_record(item) else item
    if isinstance(found, Mapping):
        return found
    if item is None:
        raise InvalidMessage(f"There is nothing to append: None. {_ACCEPTED_INPUT}")
    if isinstance(item, bytes | bytearray | memoryview):
        raise InvalidMessage("Bytes are not a message. Decode them to text, or append them as a file.")
    if isinstance(item, Iterable) or hasattr(item, "__aiter__") or hasattr(item, "__await__"):
        raise InvalidMessage(
            f"{type(item).__name__} is a stream or has not ended yet. Collect or await the whole reply, then append it."
        )
    raise InvalidMessage(f"This {type(item).__name__} is not a message. {_ACCEPTED_INPUT}")


def _responses_item_key(given: list[Any]) -> Callable[[Any], bool]:
    """Return a predicate for items of Responses, which are read together with their neighbours.

    Plain messages look the same in every format, so they count as Responses items only beside other such items.
    """
    shapes = {id(each): _classify_item(each) for each in given}
    taken = ("item", "plain") if "item" in shapes.values() else ("item",)
    return lambda each: shapes[id(each)] in taken


def _classify_item(item: Any) -> str:
    """Classify an item: an item of Responses (`item`), possibly one (`plain`), or something else (`other`)."""
    if isinstance(item, str | Message) or not (isinstance(item, Mapping) or is_record(item)):
        return "other"
    if _is_simple(item):
        return "plain"
    given = item if isinstance(item, Mapping) else dump_record(item)
    if not isinstance(given, Mapping) or reply_format(dict(given)) is not None:
        return "other"
    kind = given.get("type")
    if "role" in given:
        form = _detect_format(given)
        if kind not in (None, "message") or form == "anthropic" or given.get("tool_calls") or given["role"] == "tool":
            return "other"
        return "item" if form == "responses" or kind == "message" or "phase" in given else "plain"
    if not isinstance(kind, str):
        return "other"
    known = kind in _RESPONSES_ITEMS or kind.endswith(("_call", "_call_output", "_output", "_approval_response"))
    return "item" if known else "other"


def _detect_format(given: Mapping[str, Any]) -> str:
    """Return the format of a message according to its content; plain messages are the same in all formats."""
    content = given.get("content")
    for part in content if isinstance(content, list | tuple) else ():
        kind = get_field(part, "type")
        if kind in _ANTHROPIC_BLOCKS or (isinstance(kind, str) and kind.endswith("_tool_result")):
            return "anthropic"
        mark = (
            {"image": "source", "document": "source", "text": "citations"}.get(kind) if isinstance(kind, str) else None
        )
        if mark is not None and get_field(part, mark) is not None:
            return "anthropic"
        if kind in _RESPONSES_PARTS:
            return "responses"
    return "openai"


def _mark_partial(messages: list[Message]) -> list[Message]:
    """Mark the assistant's messages as partial; only they can be cut off."""
    if not any(message.role == "assistant" for message in messages):
        raise InvalidMessage("partial=True is for an assistant's message that was cut off. Append others without it.")
    return [
        msgspec.structs.replace(message, partial=True) if message.role == "assistant" else message
        for message in messages
    ]
