"""Tool calls, their results and their ids, as providers write them.

Arguments stay the JSON text that the model wrote. A call that cannot be made (no name, arguments that are not JSON)
is refused, or repaired, or, in a partial message, left out and noted.

Results are matched to calls first. Holdfast's own ids decide, wherever the result stands. Providers reuse their ids
within one conversation, even within one message, so these decide together with the position: a result belongs to the
nearest message before it that has such a call open, and there to the first one.

Ids are assigned after that. For sending, every call gets an id that is valid for the provider and unique in the
request: its own if possible, else one derived from it. For export, ids are the provider's own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.core.wire.parts import ERASED_TEXT, is_parts
from holdfast.core.wire.plain_data import ReadNotes, is_json
from holdfast.core.wire.tools import sendable_tool_name
from holdfast.records.messages import INTERRUPTED_RESULT, Message, Part, ToolCallRequest, ToolCallResult

INVALID_JSON_KEY = "INVALID_JSON"
"""The key under which unparseable arguments are kept as text."""
UNEXPLAINED_FAILURE = "The tool failed without saying why."
_MAX_NOTE_CHARS = 2_000

IdStyle = Literal["unique", "provider"]
_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]+")

ItemIndex = tuple[int, int]
"""The index of a message in a list, and of a call or result in it."""
_PlacedResults = list[tuple[ItemIndex, ToolCallResult]]


def read_call(name: Any, arguments: Any, provider_id: Any, notes: ReadNotes) -> ToolCallRequest | None:
    """Read a call; None if it cannot be made."""
    if not isinstance(name, str) or not name.strip():
        if notes.partial:
            _leave_out(None, arguments, notes)
        else:
            notes.report(
                "A tool call has no name, so no tool can be called. Ask the model again, or append with partial=True.",
                "left out a call without a name",
                "nameless_call",
            )
        return None
    text = _read_arguments(name, arguments, notes)
    if text is None:
        return None
    return ToolCallRequest(name=name, arguments=text, provider_id=read_provider_id(provider_id))


def read_provider_id(value: Any) -> str | None:
    """Return a provider's id; None for anything but text."""
    return value if isinstance(value, str) and value else None


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


def result_content(message: Message, result: ToolCallResult, *, has_flag: bool = False) -> str | list[Part]:
    """Return a result as the model sees it: text, parts, or other data as JSON text.

    Unless the format `has_flag` for failures, the text of a failed result begins with `Error: `.
    """
    value = result.result
    if is_parts(value):
        blank = all(part["type"] in ("text", "refusal") and not part["text"].strip() for part in value)
    else:
        blank = value is None or (isinstance(value, str) and not value.strip())
    if blank:  # A blank failure gets a text, because providers require one.
        if result.interrupted:
            value = INTERRUPTED_RESULT
        elif value is None and message.erased:
            value = ERASED_TEXT
        elif result.is_error:
            value = UNEXPLAINED_FAILURE
    shown = value if isinstance(value, str) else list(value) if is_parts(value) else json_text(value)
    return shown if has_flag or not (result.is_error or result.interrupted) else _mark_failure(shown)


def _mark_failure(shown: str | list[Part]) -> str | list[Part]:
    first = shown if isinstance(shown, str) else str(shown[0].get("text"))
    if first.startswith("Error: "):
        return shown
    return f"Error: {shown}" if isinstance(shown, str) else [{"type": "text", "text": "Error:"}, *shown]


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
        f"The arguments of {name} are not JSON: {arguments[:80]!r}. The reply may have been cut off: "
        "ask the model again, or append with partial=True to keep what was said without this call.",
        f"kept the arguments of {name} as text under {INVALID_JSON_KEY}",
        "invalid_arguments",
    )
    return json_text({INVALID_JSON_KEY: arguments})


def _leave_out(name: str | None, arguments: Any, notes: ReadNotes) -> None:
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    notes.left_out.append({"name": name, "arguments": text[:_MAX_NOTE_CHARS]})


class CallMatches(msgspec.Struct):
    """Calls with their results, and results without a call."""

    answers: dict[ItemIndex, ItemIndex] = {}
    """The result of each call that has one."""
    refused: dict[ItemIndex, str] = {}
    """Results without a call, with the problem: orphan_result or duplicate_result."""

    def calls(self) -> dict[ItemIndex, ItemIndex]:
        """Return the call of each result that has one."""
        return {result: call for call, result in self.answers.items()}


class _CallQueue(msgspec.Struct):
    """The calls that share an id, to find the next one to be answered."""

    groups: list[list[ItemIndex]] = []
    """The calls of each message that may be open, oldest first."""
    answered: list[ItemIndex] = []


_QueueById = defaultdict[str, _CallQueue]


def match_results(messages: Sequence[Message]) -> CallMatches:
    """Match every result to its call, first by holdfast's own ids, then by providers' ids and positions."""
    found = CallMatches()
    known = {call.id for message in messages if message.role == "assistant" for call in message.tool_calls if call.id}
    exact: _PlacedResults = []
    by_position: _PlacedResults = []
    for index, message in enumerate(messages):
        for position, result in enumerate(message.tool_results if message.role == "tool" else ()):
            (exact if result.tool_call_id in known else by_position).append(((index, position), result))
    if early := _match_in_order(messages, exact, found, own=True):
        # An own id identifies the call even if the list has it after its result.
        everywhere: _QueueById = defaultdict(_CallQueue)
        _add_calls(messages, range(len(messages)), everywhere, own=True)
        for place, result in early:
            _assign_result(messages, found, place, result, everywhere[result.tool_call_id])
    orphans = _match_in_order(messages, by_position, found, own=False)
    found.refused |= {place: "orphan_result" for place, _ in orphans}
    return found


def _match_in_order(
    messages: Sequence[Message], results: _PlacedResults, found: CallMatches, *, own: bool
) -> _PlacedResults:
    """Match results in order, by holdfast's `own` ids or by any; return those whose id no earlier call has."""
    waiting: _QueueById = defaultdict(_CallQueue)
    unknown: _PlacedResults = []
    at = 0
    for place, result in results:
        _add_calls(messages, range(at, place[0]), waiting, own=own)
        at = place[0]
        under = waiting.get(result.tool_call_id if own else result.provider_id or result.tool_call_id)
        if under is None:
            unknown.append((place, result))
        else:
            _assign_result(messages, found, place, result, under)
    return unknown


def _add_calls(messages: Sequence[Message], indexes: range, waiting: _QueueById, *, own: bool) -> None:
    for index in indexes:
        if messages[index].role == "assistant":
            for position, call in enumerate(messages[index].tool_calls):
                for name in {call.id} if own else {call.provider_id or "", call.id or call.provider_id or ""}:
                    groups = waiting[name].groups
                    if not groups or groups[-1][0][0] != index:
                        groups.append([])
                    groups[-1].append((index, position))


def _assign_result(
    messages: Sequence[Message], found: CallMatches, place: ItemIndex, result: ToolCallResult, under: _CallQueue
) -> None:
    """Give one result to the first open call of the newest message that has one. A real result replaces a stand-in."""
    call = None
    while under.groups and call is None:  # Calls found answered are not checked again.
        group = under.groups[-1]
        while group and group[0] in found.answers:
            under.answered.append(group.pop(0))
        if group:
            call = group[0]
        else:
            under.groups.pop()
    while call is None and under.answered and not result.interrupted:
        answered = under.answered.pop()
        earlier = found.answers[answered]
        if messages[earlier[0]].tool_results[earlier[1]].interrupted:
            found.refused[earlier] = "duplicate_result"
            call = answered
    if call is None:
        found.refused[place] = "duplicate_result"
    else:
        found.answers[call] = place


class KnownIds(msgspec.Struct, frozen=True):
    """The ids in the messages that a request begins with. They stay the same if what follows has no part in them."""

    sent: frozenset[str] = frozenset()
    """Ids of calls that providers gave."""
    made: frozenset[str] = frozenset()
    """Ids of calls that were derived because the providers' could not be sent."""
    own: frozenset[str] = frozenset()
    """Holdfast's own ids of calls."""

    def is_apart_from(self, messages: Sequence[Message]) -> bool:
        """Return True if messages can follow without changing an id of these, or being matched with their calls."""
        found = [call for message in messages for call in message.tool_calls]
        own = {call.id for call in found}
        results = [result for message in messages for result in message.tool_results]
        return (
            "" not in own
            and own.isdisjoint(self.own)
            and self.made.isdisjoint([call.provider_id for call in found if call.provider_id])
            and own.issuperset([result.tool_call_id for result in results])
        )


NO_IDS: Final = KnownIds()


class WireIds:
    """The ids of all calls and results of a request, and the names of its tools."""

    __slots__ = ("_calls", "_exact", "_results", "_unmatched", "known")

    def __init__(
        self,
        messages: Sequence[Message],
        ids: IdStyle,
        valid: re.Pattern[str],
        longest: int,
        before: KnownIds | None = None,
    ) -> None:
        """Match results and choose ids; `before` are those of the messages before these, which are apart from them."""
        self._exact = ids == "provider"
        self._unmatched: dict[ItemIndex, str] = {}
        self._results = match_results(messages).calls()
        others = () if before is None else (before,)
        self._calls = _provider_ids(messages) if ids == "provider" else _unique_ids(messages, valid, longest, *others)
        before = before or NO_IDS
        used = {*before.sent, *before.made, *self._calls.values()}
        for index, message in enumerate(messages):
            for position, result in enumerate(message.tool_results):
                if (index, position) not in self._results:
                    given = result.provider_id or result.tool_call_id or "unknown"
                    self._unmatched[index, position] = (
                        given if ids == "provider" else _make_free_id(given, valid, longest, used)
                    )
        calls = dict(_list_calls(messages))
        sent = {id for place, id in self._calls.items() if id == calls[place].provider_id}
        self.known = KnownIds(
            before.sent | sent,
            before.made.union(self._calls.values()) - before.sent - sent,
            before.own.union([call.id for call in calls.values()]),
        )
        """The ids of these messages and those before them."""

    def is_complete(self) -> bool:
        """Return True if every result has a call, and every call a result."""
        return not self._unmatched and len(self._results) == len(self._calls)

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


def _unique_ids(
    messages: Sequence[Message], valid: re.Pattern[str], longest: int, before: KnownIds = NO_IDS
) -> dict[ItemIndex, str]:
    """Return unique ids: the provider's id for the first call that has it, new ids for the others."""
    calls = _list_calls(messages)
    found: dict[ItemIndex, str] = {}
    used = set(before.sent)
    for place, call in calls:
        given = call.provider_id
        if given and given not in used and len(given) <= longest and valid.fullmatch(given):
            found[place] = given
            used.add(given)
    used |= before.made
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
