"""Checks that a message is not empty and can be stored: the same for read messages and for a given `Message`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.core.checks import MAX_AMOUNT
from holdfast.core.journal.codec import check_plain
from holdfast.core.wire.calls import is_json
from holdfast.core.wire.parts import is_parts, message_extras
from holdfast.core.wire.plain_data import MAX_MESSAGE_NESTING, ReadNotes, clean_text
from holdfast.errors import InvalidMessage, InvalidValue
from holdfast.records.messages import ROLES, Message, Part, ToolCallRequest, ToolCallResult
from holdfast.records.usage import Usage

PART_TYPES = frozenset({"text", "image", "file", "reasoning", "refusal", "call", "other"})
EMPTY_MESSAGE = (
    "The message is empty: no text, no parts, no calls and no results. "
    "Append only what was said; if a model replied nothing, call it again or raise its token limit."
)

_COUNT_FIELDS = ("input", "cached_input", "cache_write", "output", "reasoning", "unpriced", "estimated")


def is_empty_message(message: Message) -> bool:
    """Return True if there is no text, part, call or result. Blank text counts as text, and audio as content."""
    if message.tool_calls or message.tool_results or message.erased:
        return False
    if message.metadata and message_extras(message, "openai", "message").get("audio"):
        return False
    if isinstance(message.content, list):
        return all(part.get("type") in ("text", "refusal") and not part.get("text") for part in message.content)
    return not message.content


def accept_message(message: Message, notes: ReadNotes) -> Message | None:
    """Return a message that was read if it is not empty and can be stored; else report it and return None."""
    if is_empty_message(message):
        notes.report("empty_message", EMPTY_MESSAGE, "left out an empty message")
        return None
    try:
        check_plain(list(_iterate_stored_data(message)), MAX_MESSAGE_NESTING + 8)
    except InvalidValue as error:
        notes.report("malformed", str(error), f"left out a message that cannot be stored: {error}")
        return None
    return message


def check_message(message: Message) -> Message:
    """Return a `Message` constructed by the caller after checking its fields, which records do not do."""
    notes = ReadNotes(strict=True)
    if not isinstance(message.role, str) or message.role not in ROLES:
        raise InvalidMessage(f"{message.role!r} is not a role. Use one of {', '.join(sorted(ROLES))}.")
    _check_content(message, notes)
    _check_calls_and_results(message)
    for call in message.tool_calls:
        _check_call(call, notes)
    for result in message.tool_results:
        if not isinstance(result, ToolCallResult):
            raise InvalidMessage(f"tool_results holds a {type(result).__name__}. Use ToolCallResult.")
        _check_text(result.tool_call_id, "tool_call_id", notes)
        _check_text(result.provider_id, "provider_id", notes)
    _check_usage(message.usage)
    if message.metadata is not None and not isinstance(message.metadata, dict):
        raise InvalidMessage(f"metadata is a {type(message.metadata).__name__}. Use a mapping of plain data.")
    for name in ("name", "provider", "model", "provider_id"):
        _check_text(getattr(message, name), name, notes)
    for text in _iterate_texts(list(_iterate_stored_data(message))):
        clean_text(text, notes)
    accept_message(message, notes)
    return message


def _check_usage(usage: Any) -> None:
    """Check the counts: they are added up over a session, so one wrong count would spoil the sum."""
    if usage is None:
        return
    counts = [getattr(usage, name, None) for name in _COUNT_FIELDS]
    counts.append(getattr(usage, "cost", None) or 0)
    whole = all(type(count) is int and 0 <= count <= MAX_AMOUNT for count in counts)
    if not isinstance(usage, Usage) or not whole:
        raise InvalidMessage(f"usage is {usage!r:.80}. Use holdfast.Usage with whole numbers of 0 or more.")


def _check_content(message: Message, notes: ReadNotes) -> None:
    content = message.content
    if isinstance(content, str):
        clean_text(content, notes)
    elif isinstance(content, list):
        for part in content:
            _check_part(part, message)
    elif content is not None:
        raise InvalidMessage(f"content is a {type(content).__name__}. Use text, or a list of parts.")


def _check_part(part: Any, message: Message) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in PART_TYPES:
        raise InvalidMessage(
            f"A part of the content is {part!r:.60}. A part is a dict with a type: {', '.join(sorted(PART_TYPES))}."
        )
    if kind == "call":
        index = part.get("call")
        if not isinstance(index, int) or not 0 <= index < len(message.tool_calls):
            raise InvalidMessage(f"A part names call {index!r}, but there are {len(message.tool_calls)} calls, from 0.")
    elif kind in ("reasoning", "other") and not isinstance(part.get("item"), dict):
        raise InvalidMessage(f"A part of type {kind} has no item. Give the provider's own item, a mapping.")
    elif not all(_is_extras(part.get(name)) for name in ("openai", "responses", "anthropic")):
        raise InvalidMessage(f"A part of type {kind} has extras that are no mapping. Leave them out.")
    elif kind == "text" and ({"artifact", "whole"} & part.keys() or not isinstance(part.get("text"), str)):
        raise InvalidMessage("A part of type text has its text, and no artifact. Use a file for what is stored apart.")
    elif not is_parts([part]):
        raise InvalidMessage(f"A part of type {kind} lacks what it is about. It has only {', '.join(sorted(part))}.")


def _is_extras(extras: Any) -> bool:
    """Return True if a provider's own fields beside a part have the shape that reading produces."""
    return extras is None or (
        isinstance(extras, dict) and all(isinstance(extras.get(name), dict | None) for name in ("image_url", "file"))
    )


def _check_calls_and_results(message: Message) -> None:
    if not isinstance(message.tool_calls, tuple) or not isinstance(message.tool_results, tuple):
        raise InvalidMessage("tool_calls and tool_results are tuples. Turn the lists into tuples.")
    if message.tool_calls and message.role != "assistant":
        raise InvalidMessage(f"A {message.role} message has tool calls. Only an assistant makes calls.")
    if message.tool_results and message.role != "tool":
        raise InvalidMessage(f"A {message.role} message has tool results. Put them into a message of role tool.")
    if message.role == "tool" and not message.tool_results and not message.erased:
        raise InvalidMessage("A message of role tool has no result. Give tool_results=(ToolCallResult(…),).")


def _check_call(call: Any, notes: ReadNotes) -> None:
    if not isinstance(call, ToolCallRequest):
        raise InvalidMessage(f"tool_calls holds a {type(call).__name__}. Use ToolCallRequest.")
    if not isinstance(call.name, str) or not call.name.strip():
        raise InvalidMessage("A tool call has no name. Give the name of the tool.")
    clean_text(call.name, notes)
    _check_text(call.provider_id, "provider_id", notes)
    _check_text(call.id, "id", notes)
    if not isinstance(call.arguments, str) or not is_json(call.arguments):
        raise InvalidMessage(f"The arguments of {call.name} are not JSON text: {call.arguments!r:.80}.")
    clean_text(call.arguments, notes)


def _check_text(value: Any, name: str, notes: ReadNotes) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidMessage(f"{name} is a {type(value).__name__}. Use text or None.")
    clean_text(value, notes)


def _iterate_stored_data(message: Message) -> Iterator[Any]:
    """Yield the data to be stored, without the bytes of images and files, which are stored separately."""
    if isinstance(message.content, list):
        yield [_drop_bytes(part) for part in message.content]
    for result in message.tool_results:
        value = result.result
        yield [_drop_bytes(part) for part in value] if is_parts(value) else value
    yield message.metadata


def _drop_bytes(part: Part) -> Part:
    if part.get("type") in ("image", "file") and isinstance(part.get("data"), bytes):
        return {key: value for key, value in part.items() if key != "data"}
    return part


def _iterate_texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and depth <= MAX_MESSAGE_NESTING:
        yield from (key for key in value if isinstance(key, str))
        for item in value.values():
            yield from _iterate_texts(item, depth + 1)
    elif isinstance(value, list | tuple) and depth <= MAX_MESSAGE_NESTING:
        for item in value:
            yield from _iterate_texts(item, depth + 1)
