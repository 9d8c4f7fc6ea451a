"""Tool calls and their results as providers write them.

Arguments stay the JSON text that the model wrote. A call that cannot be made (no name, arguments
that are not JSON) is refused, or repaired, or, in a partial message, left out and noted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.wire.notes import Notes
from holdfast.core.wire.parts import ERASED_TEXT, is_parts
from holdfast.records.messages import INTERRUPTED, Message, Part, ToolCallRequest, ToolCallResult

INVALID = "INVALID_JSON"
"""Under this name stand arguments that were not JSON, as text."""
NO_REASON = "The tool failed without saying why."
_LONGEST_NOTE = 2_000


def read_call(name: Any, arguments: Any, provider_id: Any, notes: Notes) -> ToolCallRequest | None:
    """A call, or None if there is none that could be made."""
    if not isinstance(name, str) or not name.strip():
        _note_nameless(arguments, notes)
        return None
    text = _arguments(name, arguments, notes)
    if text is None:
        return None
    return ToolCallRequest(name=name, arguments=text, provider_id=id_text(provider_id))


def id_text(value: Any) -> str | None:
    """A provider's id; anything but text is none."""
    return value if isinstance(value, str) and value else None


def is_json(text: str) -> bool:
    """Whether text is one JSON value, as the standard has it: no NaN, no lone surrogates."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def json_text(value: Any) -> str:
    """Data as compact JSON."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return msgspec.json.encode(str(value).encode("utf-8", "replace").decode()).decode()


def arguments_object(call: ToolCallRequest) -> dict[str, Any]:
    """Arguments for providers that take an object only."""
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {INVALID: call.arguments}
    return value if isinstance(value, dict) else {"value": value}


def custom_arguments(text: Any) -> str:
    """The free text of a custom tool's call as the arguments of a call."""
    return json_text({"input": text if isinstance(text, str) else ""})


def custom_input(call: ToolCallRequest) -> str:
    """The free text that a custom tool's call was made with."""
    given = arguments_object(call).get("input")
    return given if isinstance(given, str) else call.arguments


def shown_result(message: Message, result: ToolCallResult) -> str | list[Part]:
    """What a model is shown of a result: text, parts, or other data as JSON text."""
    value = result.result
    if _is_blank(value):
        if result.interrupted:
            return INTERRUPTED
        if value is None and message.erased:
            return ERASED_TEXT
        if result.is_error:
            return NO_REASON
    if isinstance(value, str):
        return value
    return list(value) if is_parts(value) else json_text(value)


def failed(result: ToolCallResult) -> bool:
    """Whether a provider is told that the call failed."""
    return result.is_error or result.interrupted


def _is_blank(value: Any) -> bool:
    """Whether a result has no word in it. Of a failure, which providers want to be told of, something is said then."""
    if isinstance(value, str):
        return not value or value.isspace()
    if is_parts(value):
        return all(part["type"] in ("text", "refusal") and not part["text"].strip() for part in value)
    return value is None


def _note_nameless(arguments: Any, notes: Notes) -> None:
    if notes.partial:
        notes.left_out.append({"name": None, "arguments": _noted(arguments)})
        return
    notes.wrong(
        "nameless_call",
        "A tool call has no name, so no tool can be called. Ask the model again, or append with partial=True.",
        "left out a call without a name",
    )


def _arguments(name: str, arguments: Any, notes: Notes) -> str | None:
    if arguments is None:
        return "{}"
    if not isinstance(arguments, str):
        return json_text(arguments)
    if is_json(arguments):
        return arguments
    if not arguments.strip():
        # Some models write nothing where a tool takes nothing.
        return "{}"
    if notes.partial:
        notes.left_out.append({"name": name, "arguments": _noted(arguments)})
        return None
    notes.wrong(
        "invalid_arguments",
        f"The arguments of {name} are not JSON: {arguments[:80]!r}. The reply may have been cut off: "
        "ask the model again, or append with partial=True to keep what was said without this call.",
        f"kept the arguments of {name} as text under {INVALID}",
    )
    return json_text({INVALID: arguments})


def _noted(arguments: Any) -> str:
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    return text[:_LONGEST_NOTE]
