"""JSON lines in holdfast's own format: one message per line, all its fields, lossless.

The first line may be a header, `{"holdfast": 1, "system": …, "tools": […], "model": …}`. Bytes of images and files
are stored beside the message, as base64 with their path in it:

    {"role": "user", "content": [{"type": "image", …}], "bytes": [{"at": ["content", 0, "data"], "base64": "…"}]}

Reading is strict: a line that is not such a message, or could not be appended, is refused by its number.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from holdfast.core.lazy import convert
from holdfast.core.wire.parts import check_message, encode_base64
from holdfast.core.wire.plain_data import ParsedConversation
from holdfast.core.wire.tools import read_tool_defs
from holdfast.errors import InvalidMessage, InvalidValue
from holdfast.records.messages import Message, ToolDef

JSONL_VERSION = 1
_MESSAGE_FIELDS = {field.name for field in msgspec.structs.fields(Message)}
_HEADER_FIELDS = {"holdfast", "system", "tools", "model"}


def write_lines(
    messages: Iterable[Message], *, system: str | None = None, tools: Sequence[ToolDef] = (), model: str | None = None
) -> Iterator[str]:
    """Yield a conversation line by line, without line ends; the header only if it is not empty."""
    if system is not None or tools or model is not None:
        said = {"system": system, "tools": [msgspec.to_builtins(tool) for tool in tools] or None, "model": model}
        header = {"holdfast": JSONL_VERSION} | {key: value for key, value in said.items() if value is not None}
        yield msgspec.json.encode(header).decode()
    for message in messages:
        yield write_line(message)


def write_line(message: Message) -> str:
    """Return one message as one line."""
    found: list[dict[str, Any]] = []
    try:
        # Extract bytes first: once encoded, they would be indistinguishable from text.
        plain = _extract_bytes(msgspec.to_builtins(message, builtin_types=(bytes, bytearray, memoryview)), [], found)
        return msgspec.json.encode({**plain, "bytes": found} if found else plain).decode()
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"A message cannot be written: {error}. Use plain JSON data in it.") from None


def read_messages(lines: Iterable[str | bytes]) -> ParsedConversation:
    """Read a whole conversation. Blank lines are skipped."""
    header = ParsedConversation(messages=[])
    messages: list[Message] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = read_line(line, number)
        if isinstance(found, Message):
            messages.append(found)
        elif number > 1:
            raise InvalidMessage(f"Line {number} is a header, which can only be the first line. Split the file there.")
        else:
            header = found
    return msgspec.structs.replace(header, messages=messages)


def read_line(line: str | bytes, number: int) -> Message | ParsedConversation:
    """Read one line: a message, or a header as a conversation without messages."""
    try:
        given = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidMessage(f"Line {number} is not JSON: {error}. Each line is one message.") from None
    if not isinstance(given, dict):
        raise InvalidMessage(f"Line {number} is not an object. Each line is one message.")
    try:
        if "holdfast" in given:
            return _read_header(given)
        _refuse_unknown(given, _MESSAGE_FIELDS | {"bytes"})
        for place in convert(given.pop("bytes", []), list[dict[str, Any]]):
            _restore_bytes(given, place)
        return check_message(convert(given, Message))
    except (msgspec.ValidationError, InvalidValue) as error:
        raise InvalidMessage(f"Line {number} is not a message of holdfast's: {error}") from None


def _read_header(given: dict[str, Any]) -> ParsedConversation:
    if given["holdfast"] != JSONL_VERSION:
        raise InvalidValue(
            f"its form is {given['holdfast']!r:.20}, this release reads {JSONL_VERSION}. Upgrade holdfast."
        )
    _refuse_unknown(given, _HEADER_FIELDS)
    tools = convert(given.get("tools") or [], list[ToolDef])
    header = convert({**given, "messages": [], "tools": read_tool_defs(tools)}, ParsedConversation)
    return cast(ParsedConversation, header)


def _refuse_unknown(given: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise InvalidValue(f"it has fields that are not known: {', '.join(unknown)[:80]}. Remove them.")


def _extract_bytes(value: Any, at: list[str | int], found: list[dict[str, Any]]) -> Any:
    """Return the data with null in place of bytes, which are added to `found` with their path."""
    if isinstance(value, bytes | bytearray | memoryview):
        found.append({"at": at, "base64": encode_base64(bytes(value))})
        return None
    if isinstance(value, dict):
        return {key: _extract_bytes(item, [*at, key], found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_extract_bytes(item, [*at, index], found) for index, item in enumerate(value)]
    return value


def _restore_bytes(given: dict[str, Any], place: dict[str, Any]) -> None:
    at: Any = place.get("at")
    try:
        *path, last = at
        target: Any = given
        for key in path:
            target = target[key]
        target[last] = base64.b64decode(place["base64"], validate=True)
    except (KeyError, IndexError, TypeError, ValueError, binascii.Error):
        raise InvalidValue(f"its bytes at {at!r:.60} have no such place, or are not base64.") from None
