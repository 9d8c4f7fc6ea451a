"""Tool calls, their results and their ids, as providers write them.

Arguments stay the JSON text that the model wrote. A call that cannot be made (no name, arguments that are not JSON)
is refused, or repaired, or, in a partial message, left out and noted.

Providers' ids repeat within a conversation, so results are matched to calls first and ids are assigned after. For
sending, every call gets an id that is valid for the provider and unique in the request: its own if possible, else one
derived from it. For export, ids are the provider's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.wire.match import ItemIndex, match_results
from holdfast.core.wire.parts import ERASED_TEXT, is_parts
from holdfast.core.wire.plain_data import ReadNotes
from holdfast.core.wire.tools import sendable_tool_name
from holdfast.records.messages import INTERRUPTED_RESULT, Message, Part, ToolCallRequest, ToolCallResult

INVALID_JSON_KEY = "INVALID_JSON"
"""The key under which unparseable arguments are kept as text."""
UNEXPLAINED_FAILURE = "The tool failed without saying why."
_MAX_NOTE_CHARS = 2_000

IdStyle = Literal["unique", "provider"]
_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]+")


def read_call(name: Any, arguments: Any, provider_id: Any, notes: ReadNotes) -> ToolCallRequest | None:
    """Read a call; None if it cannot be made."""
    if not isinstance(name, str) or not name.strip():
        if notes.partial:
            _leave_out(None, arguments, notes)
        else:
            notes.report(
                "nameless_call",
                "A tool call has no name, so no tool can be called. Ask the model again, or append with partial=True.",
                "left out a call without a name",
            )
        return None
    text = _read_arguments(name, arguments, notes)
    if text is None:
        return None
    return ToolCallRequest(name=name, arguments=text, provider_id=read_provider_id(provider_id))


def read_provider_id(value: Any) -> str | None:
    """Return a provider's id; None for anything but text."""
    return value if isinstance(value, str) and value else None


def is_json(text: str) -> bool:
    """Return True if text is one standard JSON value: no NaN, no lone surrogates."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def json_text(value: Any) -> str:
    """Return data as compact JSON."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return msgspec.json.encode(str(value).encode("utf-8", "replace").decode()).decode()


def arguments_object(call: ToolCallRequest) -> dict[str, Any]:
    """Return the arguments as an object, for providers that accept nothing else."""
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {INVALID_JSON_KEY: call.arguments}
    return value if isinstance(value, dict) else {"value": value}


def custom_arguments(text: Any) -> str:
    """Return the free text of a custom tool's call as JSON arguments."""
    return json_text({"input": text if isinstance(text, str) else ""})


def custom_input(call: ToolCallRequest) -> str:
    """Return the free text of a custom tool's call."""
    given = arguments_object(call).get("input")
    return given if isinstance(given, str) else call.arguments


def result_content(message: Message, result: ToolCallResult) -> str | list[Part]:
    """Return a result as the model sees it: text, parts, or other data as JSON text."""
    value = result.result
    if _is_blank(value):
        if result.interrupted:
            return INTERRUPTED_RESULT
        if value is None and message.erased:
            return ERASED_TEXT
        if result.is_error:
            return UNEXPLAINED_FAILURE
    if isinstance(value, str):
        return value
    return list(value) if is_parts(value) else json_text(value)


def _is_blank(value: Any) -> bool:
    """Return True if a result has no text. A blank failure gets a text, because providers require one."""
    if isinstance(value, str):
        return not value or value.isspace()
    if is_parts(value):
        return all(part["type"] in ("text", "refusal") and not part["text"].strip() for part in value)
    return value is None


def _read_arguments(name: str, arguments: Any, notes: ReadNotes) -> str | None:
    if arguments is None:
        return "{}"
    if not isinstance(arguments, str):
        return json_text(arguments)
    if is_json(arguments):
        return arguments
    if not arguments.strip():
        # Some models write nothing for a tool without parameters.
        return "{}"
    if notes.partial:
        _leave_out(name, arguments, notes)
        return None
    notes.report(
        "invalid_arguments",
        f"The arguments of {name} are not JSON: {arguments[:80]!r}. The reply may have been cut off: "
        "ask the model again, or append with partial=True to keep what was said without this call.",
        f"kept the arguments of {name} as text under {INVALID_JSON_KEY}",
    )
    return json_text({INVALID_JSON_KEY: arguments})


def _leave_out(name: str | None, arguments: Any, notes: ReadNotes) -> None:
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    notes.left_out.append({"name": name, "arguments": text[:_MAX_NOTE_CHARS]})


class WireIds:
    """The ids of all calls and results of a request, and the names of its tools."""

    __slots__ = ("_calls", "_exact", "_results", "_unmatched")

    def __init__(self, messages: Sequence[Message], ids: IdStyle, valid: re.Pattern[str], longest: int) -> None:
        self._exact = ids == "provider"
        self._unmatched: dict[ItemIndex, str] = {}
        self._results = match_results(messages).calls()
        self._calls = _provider_ids(messages) if ids == "provider" else _unique_ids(messages, valid, longest)
        used = set(self._calls.values())
        for index, message in enumerate(messages):
            for position, result in enumerate(message.tool_results):
                if (index, position) not in self._results:
                    given = result.provider_id or result.tool_call_id or "unknown"
                    self._unmatched[index, position] = (
                        given if ids == "provider" else _make_free_id(given, valid, longest, used)
                    )

    def call_id(self, index: int, position: int) -> str:
        """Return the id of a call."""
        return self._calls[index, position]

    def result_call_id(self, index: int, position: int, result: ToolCallResult, *, exact: bool) -> str:
        """Return the id of the call that a result answers; for export, the result's own id."""
        if exact and result.provider_id:
            return result.provider_id
        call = self._results.get((index, position))
        return self._unmatched[index, position] if call is None else self._calls[call]

    def tool_name(self, name: str) -> str:
        """Return the name of a tool, in a call or where a result repeats it."""
        return name if self._exact else sendable_tool_name(name)

    def call_position(self, index: int, position: int) -> ItemIndex | None:
        """Return the position of a result's call."""
        return self._results.get((index, position))


def _list_calls(messages: Sequence[Message]) -> list[tuple[ItemIndex, ToolCallRequest]]:
    return [
        ((index, position), call)
        for index, message in enumerate(messages)
        for position, call in enumerate(message.tool_calls)
    ]


def _provider_ids(messages: Sequence[Message]) -> dict[ItemIndex, str]:
    """Return the provider's ids; calls without one are numbered, avoiding those ids."""
    calls = _list_calls(messages)
    used = {call.provider_id for _, call in calls if call.provider_id}
    return {
        place: call.provider_id or call.id or _number_id("call", number, 64, used)
        for number, (place, call) in enumerate(calls, 1)
    }


def _unique_ids(messages: Sequence[Message], valid: re.Pattern[str], longest: int) -> dict[ItemIndex, str]:
    """Return unique ids: the provider's id for the first call that has it, new ids for the others."""
    calls = _list_calls(messages)
    found: dict[ItemIndex, str] = {}
    used: set[str] = set()
    for place, call in calls:
        given = call.provider_id
        if given and given not in used and len(given) <= longest and valid.fullmatch(given):
            found[place] = given
            used.add(given)
    for place, call in calls:
        if place not in found:
            # holdfast's own id does not change when the window moves, which keeps the prompt cache warm.
            found[place] = _make_free_id(call.id or call.provider_id or "call", valid, longest, used)
    return found


def _make_free_id(given: str, valid: re.Pattern[str], longest: int, used: set[str]) -> str:
    """Return an unused id derived from the given one, and add it to `used`."""
    base = given if valid.fullmatch(given) else _NOT_IN_AN_ID.sub("_", given)
    chosen = base[:longest] or "call"
    if chosen in used:
        chosen = _number_id(base, 2, longest, used)
    used.add(chosen)
    return chosen


def _number_id(base: str, number: int, longest: int, used: set[str]) -> str:
    while (chosen := f"{base[: longest - 8]}_{number}") in used:
        number += 1
    return chosen
