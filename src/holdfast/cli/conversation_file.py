"""A conversation as a file or a pipe holds it: JSON of a known shape, or a refusal that says what was expected.

Broken messages are for the import to repair. What is checked here is whether the file is what
it is said to be, since a list read in the wrong format loses its calls without a word.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.cli.opening import stored_path
from holdfast.errors import InvalidMessage, InvalidValue, NotFound, Unavailable
from holdfast.flow.conversation.porting import ALL_FORMATS

STDIN = "-"
BOM = b"\xef\xbb\xbf"
EXPECTED = {
    "openai": 'a JSON array of messages, an object with "messages", or one message a line',
    "responses": 'a JSON array of items, or an object with "input"',
    "anthropic": 'a JSON array of messages, or an object with "messages"',
    "jsonl": "one message a line, as `holdfast export --session … --format jsonl` writes them",
}
_ITEMS = {"openai": "messages", "responses": "input", "anthropic": "messages"}
_ANTHROPIC_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def check_format(format: str) -> str:
    """A format that there is."""
    if format not in ALL_FORMATS:
        raise InvalidValue(f"--format {format!r:.40} is not known. Use one of {', '.join(ALL_FORMATS)}.")
    return format


def read_conversation(source: str, format: str) -> Any:
    """What `import_messages` takes: an object or a list, or bytes of JSON lines."""
    body, name = body_of(source, "a conversation")
    if not body.strip():
        raise InvalidMessage(f"{name} is empty. Expected {EXPECTED[format]}.")
    if format == "jsonl":
        _check_signs(_first_line(body), format, name)
        return body
    given = _decoded(body, format, name)
    _check_signs(given, format, name)
    if isinstance(given, dict) and "role" in given:
        return [given]
    items = given.get(_ITEMS[format]) if isinstance(given, dict) else given
    if not isinstance(items, list) and not (format == "responses" and isinstance(items, str)):
        raise InvalidMessage(f"{name} holds {_kind(given, _ITEMS[format])}. Expected {EXPECTED[format]}.")
    return given


def body_of(source: str, what: str) -> tuple[bytes, str]:
    """All bytes of a file or of standard input, and what to call them in an error."""
    if source == STDIN:
        if sys.stdin is None:  # Closed by whoever started us.
            raise InvalidValue("There is nothing on standard input. Give a file, or pipe one in.")
        return sys.stdin.buffer.read().removeprefix(BOM), "Standard input"
    path = stored_path(source)
    try:
        # Not only plain files: a shell's <(…) is a pipe.
        return path.read_bytes().removeprefix(BOM), str(path)
    except FileNotFoundError:
        raise NotFound(f"There is no file at {path}. Give the path of {what}, or - for standard input.") from None
    except IsADirectoryError:
        raise InvalidValue(f"{path} is a folder. Give the path of a file in it.") from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None


def _decoded(body: bytes, format: str, name: str) -> Any:
    """The whole as JSON; else its lines, if the first one is an object of its own."""
    try:
        return _json(body)
    except ValueError as error:
        first = _first_line(body)
        if not isinstance(first, dict) or len(body.strip().splitlines()) < 2:
            raise InvalidMessage(f"{name} is not JSON ({error}). Expected {EXPECTED[format]}.") from None
    return [_line(line, number, format, name) for number, line in enumerate(body.splitlines(), 1) if line.strip()]


def _line(line: bytes, number: int, format: str, name: str) -> Any:
    try:
        found = _json(line)
    except ValueError as error:
        raise InvalidMessage(f"Line {number} of {name} is not JSON ({error}). Nothing was imported.") from None
    if isinstance(found, dict) and _ITEMS[format] in found:
        raise InvalidMessage(
            f"Line {number} of {name} is a whole conversation. Import one at a time, each into its own session."
        )
    return found


def _json(text: bytes) -> Any:
    """JSON as programs write it, with lone surrogates and NaN, which the import repairs."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # Slower, more lenient, and it says where the mistake is.
        return json.loads(text.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _first_line(body: bytes) -> Any:
    with suppress(ValueError):
        return _json(body.lstrip().split(b"\n", 1)[0])
    return None


def _check_signs(given: Any, format: str, name: str) -> None:
    """Refuse what bears the marks of another format and none of its own."""
    if isinstance(given, dict) and given.get("kind") == "journal":
        raise InvalidMessage(f"{name} is the export of a whole journal. Import it without --session.")
    found = _signs(given)
    if found and format not in found:
        raise InvalidMessage(
            f"{name} looks like {' or '.join(found)}, not {format}: expected {EXPECTED[format]}. "
            f"Use --format {found[0]} if that is what it is."
        )


def _signs(given: Any) -> list[str]:
    """The formats that something bears marks of; none if it could be any."""
    found: dict[str, None] = {}
    items: Any = given
    if isinstance(given, dict):
        items = given.get("messages", given.get("input", [given]))
        beside = {"instructions": "responses", "input": "responses", "system": "anthropic"}
        found.update({format: None for field, format in beside.items() if field in given and "holdfast" not in given})
    for item in items if isinstance(items, list) else ():
        found.update(dict.fromkeys(_marks(item)))
    return list(found)


def _marks(item: Any) -> Sequence[str]:
    if not isinstance(item, dict):
        return ()
    if "holdfast" in item or "tool_results" in item:
        return ("jsonl",)
    if "role" not in item:
        return ("responses",) if str(item.get("type", "")).startswith(("function_call", "custom_tool_call")) else ()
    calls = item.get("tool_calls")
    if isinstance(calls, list) and any(isinstance(call, dict) and "name" in call for call in calls):
        return ("jsonl",)
    if calls or item.get("function_call") or item["role"] in ("tool", "function"):
        return ("openai",)
    blocks = item.get("content")
    if isinstance(blocks, list) and any(
        isinstance(one, dict) and one.get("type") in _ANTHROPIC_BLOCKS for one in blocks
    ):
        return ("anthropic",)
    return ()


def _kind(given: Any, field: str) -> str:
    if isinstance(given, dict):
        if field in given:
            return f'an object whose "{field}" is no list'
        return f'an object without "{field}"'
    return {str: "a text", bool: "true or false", type(None): "null"}.get(type(given), "a number")
