"""Parts of a message's content, and checks that a whole message is not empty and can be stored.

Nearly always a message is content followed by calls. Otherwise, parts that name a call mark the call's position.
Fields that only a provider understands are kept in the part or the message under the provider's name, and returned to
it. The checks are the same for messages that were read and for a `Message` that the caller constructed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.journal.codec import check_plain
from holdfast.core.numbers import MAX_AMOUNT
from holdfast.core.wire import plain_data
from holdfast.core.wire.plain_data import ReadNotes
from holdfast.errors import InvalidMessage, InvalidValue
from holdfast.records.messages import ROLES, Message, Part, ToolCallRequest, ToolCallResult
from holdfast.records.usage import Usage

ERASED_TEXT = "[erased]"
FILE_ID_OWNERS = {"openai": "openai", "responses": "openai", "anthropic": "anthropic"}
"""The provider whose file ids each wire format understands."""

_SDK_FIELDS = ("parsed", "parsed_arguments", "parsed_output")
"""Fields that SDKs add to a reply when they parse it for the caller; providers refuse to receive them."""
_DATA_URL = re.compile(r"data:([^,]*?);base64,(.*)", re.DOTALL | re.IGNORECASE)
_REQUIRED_KEYS = {
    "text": ("text",),
    "refusal": ("text",),
    "image": ("data", "artifact", "url", "file_id"),
    "file": ("data", "artifact", "url", "file_id"),
    "reasoning": ("item",),
    "other": ("item",),
}
PART_TYPES = frozenset({*_REQUIRED_KEYS, "call"})
EMPTY_MESSAGE = (
    "The message is empty: no text, no parts, no calls and no results. "
    "Append only what was said; if a model replied nothing, call it again or raise its token limit."
)

_COUNT_FIELDS = ("input", "cached_input", "cache_write", "output", "reasoning", "unpriced", "estimated")

Extras = dict[str, dict[str, Any]]
"""A provider's fields beside calls or results, by their index as text."""


def text_part(text: str, provider: str = "", extras: Mapping[str, Any] | None = None) -> Part:
    """Return a text part, with the provider's other fields beside it."""
    return {"type": "text", "text": text, **({provider: dict(extras)} if extras else {})}


def collect_extras(item: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return an item's fields other than the known ones, without nulls and fields that SDKs add."""
    return {
        key: value for key, value in item.items() if value is not None and key not in known and key not in _SDK_FIELDS
    }


def copy_data(value: Any) -> Any:
    """Return a deep copy of plain data, so that a caller may change a request freely."""
    if isinstance(value, dict):
        return {key: copy_data(inner) for key, inner in value.items()}
    return [copy_data(inner) for inner in value] if isinstance(value, list) else value


def part_extras(part: Part, provider: str) -> dict[str, Any]:
    """Return a copy of the fields of a part that only this provider understands."""
    kept = part.get(provider)
    return copy_data(kept) if isinstance(kept, dict) else {}


def copy_item(part: Part) -> dict[str, Any]:
    """Return a copy of a provider's own item, as it came."""
    return {key: copy_data(value) for key, value in dict(part["item"]).items()}


def report_malformed_part(item: Any, notes: ReadNotes) -> None:
    """Report a part that is not a mapping with a type, or lacks a field of its type."""
    notes.report(
        f"A part of the content is {item!r:.60}. A part is a mapping with a type and what belongs to that type.",
        "left out a part that is malformed",
    )


def is_parts(value: Any) -> bool:
    """Return True if a value is a list of parts, rather than data that happens to be a list."""
    if not isinstance(value, list):
        return False
    for item in value:
        kind = item.get("type") if isinstance(item, dict) else None
        needed = _REQUIRED_KEYS.get(kind) if isinstance(kind, str) else None
        if needed is None or not any(key in item for key in needed):
            return False
        if "text" in needed and not isinstance(item["text"], str):
            return False
    return bool(value)


def has_types(value: Any) -> bool:
    """Return True if a value is a list of mappings that each have a type, as parts in any format do."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and "type" in item for item in value)


def read_content(
    content: Any, read_part: Callable[[Any, ReadNotes], Part | None], notes: ReadNotes
) -> str | list[Part] | None:
    """Read the content of a message or a result: text, or parts in a provider's format."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        return [part for item in content if (part := read_part(item, notes)) is not None]
    notes.report(f"content is {content!r:.40}. Use text or a list of parts.", "left out the content")
    return None


def read_result_content(content: Any, read_part: Callable[[Any, ReadNotes], Part | None], notes: ReadNotes) -> Any:
    """Read the content of a tool's result: parts in a provider's format, or any other data as it is."""
    if has_types(content):
        content = read_content(content, read_part, notes)
    return "" if content is None else content


def read_media_url(url: str, notes: ReadNotes) -> dict[str, Any] | None:
    """Return an address as `url`, or the bytes of a data URL as `data` with their `media_type`."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return {"url": url}
    data = decode_base64(found[2], notes)
    return None if data is None else {"data": data, "media_type": found[1]}


def read_file_data(data: str, notes: ReadNotes) -> dict[str, Any] | None:
    """Return a file's bytes from a data URL, or from base64 without a media type."""
    if data.startswith("data:"):
        return read_media_url(data, notes)
    found = decode_base64(data, notes)
    return None if found is None else {"data": found}


def decode_base64(text: Any, notes: ReadNotes) -> bytes | None:
    """Return the bytes of base64 text; report invalid text and return None."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        notes.report(
            "An image or file is not valid base64. Encode its bytes, or append it as a file.",
            "left out an image or file that is not valid base64",
        )
        return None


def encode_base64(data: bytes) -> str:
    """Return bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")


def part_bytes(part: Part) -> bytes | None:
    """Return the bytes of an image or file, if present."""
    data = part.get("data")
    return bytes(data) if isinstance(data, bytes | bytearray | memoryview) else None


def part_url(part: Part) -> str | None:
    """Return an image or file as one address: its URL, or its bytes as a data URL."""
    data = part_bytes(part)
    if data is not None:
        return f"data:{part.get('media_type') or ''};base64,{encode_base64(data)}"
    url = part.get("url")
    return url if isinstance(url, str) else None


def part_file_id(part: Part, provider: str) -> str | None:
    """Return the id under which this provider stores the file; None if the id is another provider's."""
    kept = part.get("file_id")
    if not isinstance(kept, str) or part.get("provider") not in (None, FILE_ID_OWNERS[provider]):
        return None
    return kept


def render_openai_file(part: Part, provider: str, *, exact: bool, urls: bool = False) -> dict[str, Any] | None:
    """Return a file's id, bytes or, if `urls` are allowed, address, with its name; None if there is none of them."""
    file_id, data, name = part_file_id(part, provider), part_bytes(part), part.get("name")
    if file_id is not None:
        file: dict[str, Any] = {"file_id": file_id}
    elif data is not None:
        file = {"file_data": encode_base64(data) if part.get("media_type") is None else part_url(part)}
        # OpenAI refuses bytes without a file name, so unnamed ones get a default.
        name = name if isinstance(name, str) or exact else "file"
    elif urls and isinstance(part.get("url"), str):
        file = {"file_url": part["url"]}
    else:
        return None
    return {**file, "filename": name} if isinstance(name, str) else file


def placeholder_text(part: Part) -> str:
    """Return the placeholder for an image, a file or another provider's part that cannot be shown."""
    kind = part.get("type")
    if kind == "other":
        item = part.get("item")
        kind = item.get("type") if isinstance(item, dict) else None
        return f"[{kind if isinstance(kind, str) and kind else 'content'} not shown]"
    if not any(part.get(key) is not None for key in ("data", "url", "file_id")):
        return ERASED_TEXT
    names = (part.get("name"), part.get("url"), part.get("media_type"))
    name = next((name for name in names if isinstance(name, str) and name), "")
    return f"[{kind} {name} not shown]" if name else f"[{kind} not shown]"


def message_parts(message: Message) -> list[Part]:
    """Return the content as a list of parts; an erased message gets a placeholder."""
    if isinstance(message.content, list):
        return message.content
    if message.content is not None:
        return [{"type": "text", "text": message.content}]
    return [{"type": "text", "text": ERASED_TEXT}] if message.erased and not message.tool_results else []


class MessageBuilder(msgspec.Struct):
    """A message while it is being read: parts and calls as they come."""

    parts: list[Part] = []
    calls: list[ToolCallRequest] = []
    call_extras: Extras = {}

    def add(self, part: Part | None) -> None:
        """Add a part, unless it is None."""
        if part is not None:
            self.parts.append(part)

    def add_call(self, call: ToolCallRequest | None, extras: dict[str, Any]) -> None:
        """Add a call with its provider's fields, and a part that marks its position, unless it is None."""
        if call is None:
            return
        plain_data.check_count("tool_calls", len(self.calls) + 1)
        if extras:
            self.call_extras[str(len(self.calls))] = extras
        self.parts.append({"type": "call", "call": len(self.calls)})
        self.calls.append(call)

    def content(self) -> list[Part]:
        """Return the parts, without the markers of trailing calls."""
        parts = list(self.parts)
        while parts and parts[-1]["type"] == "call":
            parts.pop()
        return parts


def parts_in_order(message: Message) -> list[Part]:
    """Return every part and every call of a message, in order."""
    parts = message_parts(message)
    named = {part.get("call") for part in parts if part.get("type") == "call"}
    rest = (index for index in range(len(message.tool_calls)) if index not in named)
    return [*parts, *({"type": "call", "call": index} for index in rest)]


def find_call(message: Message, part: Part) -> tuple[int, ToolCallRequest] | None:
    """Return the call that a part names, with its index; None if there is no such call."""
    index = part.get("call")
    if not isinstance(index, int) or not 0 <= index < len(message.tool_calls):
        return None
    return index, message.tool_calls[index]


def build_metadata(provider: str, notes: ReadNotes, **kinds: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the metadata with which a message keeps its provider's fields and the calls left out of it."""
    kept = {kind: dict(extras) for kind, extras in kinds.items() if extras}
    metadata: dict[str, Any] = {provider: kept} if kept else {}
    if notes.left_out:
        metadata["left_out"], notes.left_out = notes.left_out, []
    return metadata or None


def message_extras(message: Message, provider: str, kind: str, index: int | None = None) -> dict[str, Any]:
    """Return a copy of the fields that a message, or one of its calls or results, keeps for a provider."""
    found: Any = (message.metadata or {}).get(provider)
    for key in (kind,) if index is None else (kind, str(index)):
        found = found.get(key) if isinstance(found, dict) else None
    return copy_data(found) if isinstance(found, dict) else {}


def is_custom_call(message: Message, index: int) -> bool:
    """Return True if a call was made to a custom tool of OpenAI's, which takes free text."""
    return any(message_extras(message, provider, "calls", index).get("custom") for provider in ("openai", "responses"))


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
        notes.report(EMPTY_MESSAGE, "left out an empty message", "empty_message")
        return None
    try:
        check_plain(list(_iterate_stored_data(message)), plain_data.MAX_MESSAGE_NESTING + 8)
    except InvalidValue as error:
        notes.report(str(error), f"left out a message that cannot be stored: {error}")
        return None
    return message


def check_message(message: Message) -> Message:
    """Return a `Message` constructed by the caller after checking its fields, which records do not do."""
    notes = ReadNotes(strict=True)
    if not isinstance(message.role, str) or message.role not in ROLES:
        raise InvalidMessage(f"{message.role!r} is not a role. Use one of {', '.join(sorted(ROLES))}.")
    plain_data.check_lengths(message)
    content = message.content
    if isinstance(content, list):
        for part in content:
            _check_part(part, message)
    elif content is not None and not isinstance(content, str):
        raise InvalidMessage(f"content is a {type(content).__name__}. Use text, or a list of parts.")
    else:
        _check_text(content, "content", notes)
    _check_calls_and_results(message, notes)
    usage = message.usage
    if usage is not None:
        # Counts are added up over a session, so one wrong count would spoil the sum.
        counts = (*(getattr(usage, name, None) for name in _COUNT_FIELDS), getattr(usage, "cost", None) or 0)
        whole = all(type(count) is int and 0 <= count <= MAX_AMOUNT for count in counts)
        if not isinstance(usage, Usage) or not whole:
            raise InvalidMessage(f"usage is {usage!r:.80}. Use holdfast.Usage with whole numbers of 0 or more.")
    if message.metadata is not None and not isinstance(message.metadata, dict):
        raise InvalidMessage(f"metadata is a {type(message.metadata).__name__}. Use a mapping of plain data.")
    for name in ("name", "provider", "model", "provider_id"):
        _check_text(getattr(message, name), name, notes)
    for text in _iterate_texts(list(_iterate_stored_data(message))):
        plain_data.clean_text(text, notes)
    accept_message(message, notes)
    return message


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
    elif not all(_is_extras(part.get(name)) for name in FILE_ID_OWNERS):
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


def _check_calls_and_results(message: Message, notes: ReadNotes) -> None:
    if not isinstance(message.tool_calls, tuple) or not isinstance(message.tool_results, tuple):
        raise InvalidMessage("tool_calls and tool_results are tuples. Turn the lists into tuples.")
    if message.tool_calls and message.role != "assistant":
        raise InvalidMessage(f"A {message.role} message has tool calls. Only an assistant makes calls.")
    if message.tool_results and message.role != "tool":
        raise InvalidMessage(f"A {message.role} message has tool results. Put them into a message of role tool.")
    if message.role == "tool" and not message.tool_results and not message.erased:
        raise InvalidMessage("A message of role tool has no result. Give tool_results=(ToolCallResult(…),).")
    for call in message.tool_calls:
        if not isinstance(call, ToolCallRequest):
            raise InvalidMessage(f"tool_calls holds a {type(call).__name__}. Use ToolCallRequest.")
        if not isinstance(call.name, str) or not call.name.strip():
            raise InvalidMessage("A tool call has no name. Give the name of the tool.")
        for name in ("name", "provider_id", "id"):
            _check_text(getattr(call, name), name, notes)
        if not isinstance(call.arguments, str) or not plain_data.is_json(call.arguments):
            raise InvalidMessage(f"The arguments of {call.name} are not JSON text: {call.arguments!r:.80}.")
        plain_data.clean_text(call.arguments, notes)
    for result in message.tool_results:
        if not isinstance(result, ToolCallResult):
            raise InvalidMessage(f"tool_results holds a {type(result).__name__}. Use ToolCallResult.")
        _check_text(result.tool_call_id, "tool_call_id", notes)
        _check_text(result.provider_id, "provider_id", notes)


def _check_text(value: Any, name: str, notes: ReadNotes) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidMessage(f"{name} is a {type(value).__name__}. Use text or None.")
    plain_data.clean_text(value, notes)


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
    elif isinstance(value, dict) and depth <= plain_data.MAX_MESSAGE_NESTING:
        yield from (key for key in value if isinstance(key, str))
        for item in value.values():
            yield from _iterate_texts(item, depth + 1)
    elif isinstance(value, list | tuple) and depth <= plain_data.MAX_MESSAGE_NESTING:
        for item in value:
            yield from _iterate_texts(item, depth + 1)
