"""Keep calls and results together in every list of messages that is shown.

Windows, summaries, imports, resumes, branches and exports all go through `repair_messages`. After it each call has
exactly one result, directly behind its assistant message; nothing is empty; and what was valid already is the same
objects in the same order. Texts and arguments are never altered. Every repair is reported, so that a strict caller can
refuse instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from holdfast.core.wire.calls import CallMatches, ItemIndex, match_results
from holdfast.core.wire.parts import is_empty_message
from holdfast.records.messages import INTERRUPTED_RESULT, ROLES, Message, Repair, ToolCallRequest, ToolCallResult

OpenCalls = Literal["interrupted", "keep"]

_TEXT_ROLES = ROLES - {"tool"}
MessageProblem = tuple[str, str]
"""A problem's name, and the repair that was made."""


class Round(msgspec.Struct, frozen=True):
    """Messages that are kept or dropped together, by index: one message, or a call with its results."""

    indexes: tuple[int, ...]


class RepairResult(msgspec.Struct, frozen=True):
    """A valid list of messages, and the repairs that were made."""

    messages: list[Message]
    repairs: list[Repair]


def group_rounds(messages: Sequence[Message]) -> list[Round]:
    """Put every message into exactly one round; a tool message goes with the call that its first result answers."""
    calls = match_results(messages).calls()
    members: dict[int, list[int]] = {}
    for index, message in enumerate(messages):
        owner = index
        if message.role == "tool":
            places = (calls.get((index, position)) for position in range(len(message.tool_results)))
            owner = next((place[0] for place in places if place is not None), index)
        members.setdefault(owner, []).append(index)
    # Order by the oldest message: a misplaced result may stand before its call.
    return sorted((Round(tuple(sorted(found))) for found in members.values()), key=lambda each: each.indexes)


def repair_messages(messages: Sequence[Message], *, open_calls: OpenCalls = "interrupted") -> RepairResult:
    """Return a valid list. `open_calls="keep"` leaves calls open that a running conversation still waits for."""
    if all(map(is_plain_text, messages)):
        return RepairResult([*messages], [])
    repairs: list[Repair] = []
    given, whole = _repair_each(messages, repairs)
    found = match_results(whole)
    for (index, position), problem in found.refused.items():
        result = whole[index].tool_results[position]
        which = result.provider_id or result.tool_call_id or "without an id"
        why = "its call has another" if problem == "duplicate_result" else "no call before it has this id"
        repairs.append(Repair(index=given[index], problem=problem, done=f"dropped the result {which}: {why}"))
    live = _find_open_message(whole) if open_calls == "keep" else -1
    kept: list[Message] = []
    for index, message in enumerate(whole):
        if message.role != "tool":
            kept.append(message)
            if message.tool_calls:
                kept += _place_results(whole, index, found, given, repairs, fill=index != live)
    repairs.sort(key=lambda repair: repair.index)
    return RepairResult(kept, repairs)


def make_interrupted_result(call: ToolCallRequest) -> Message:
    """Return the message that stands for the result of an interrupted call."""
    result = ToolCallResult(
        tool_call_id=call.id, provider_id=call.provider_id, result=INTERRUPTED_RESULT, is_error=True, interrupted=True
    )
    return Message(role="tool", tool_results=(result,), synthetic=True)


def _repair_each(messages: Sequence[Message], repairs: list[Repair]) -> tuple[list[int], list[Message]]:
    """Make each message valid in itself; return the index each had in the given list, and the messages."""
    given: list[int] = []
    whole: list[Message] = []
    for index, message in enumerate(messages):
        left, wrong = repair_message(message)
        if wrong:
            repairs += [Repair(index=index, problem=problem, done=done) for problem, done in wrong]
        if left is not None:
            given.append(index)
            whole.append(left)
    return given, whole


def _find_open_message(messages: Sequence[Message]) -> int:
    """Return the index of an assistant message followed only by results, whose calls may still be answered; else -1."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role != "tool":
            return index if messages[index].role == "assistant" else -1
    return -1


def _place_results(
    messages: Sequence[Message], index: int, found: CallMatches, given: list[int], repairs: list[Repair], *, fill: bool
) -> list[Message]:
    """Return the results of one assistant message, as the messages that follow it."""
    calls = messages[index].tool_calls
    places = [found.answers.get((index, position)) for position in range(len(calls))]
    behind = index + 1
    while behind < len(messages) and messages[behind].role == "tool":
        behind += 1
    for call, place in zip(calls, places, strict=True):
        if place is None and fill:
            done = f"added an interrupted result for {call.name} {call.id or call.provider_id or ''}".rstrip()
            repairs.append(Repair(index=given[index], problem="missing_result", done=done))
        elif place is not None and not index < place[0] < behind:
            done = f"moved the result of {call.name} behind its call"
            repairs.append(Repair(index=given[place[0]], problem="misplaced_result", done=done))
    if not fill or None not in places:
        # All results are there: the order in which they came is as good as the order of the calls. It does not depend
        # on what stands between them, so a round alone is shown as it is among others.
        return _collect_results(messages, sorted(place for place in places if place is not None))
    shown: list[Message] = []
    for missing, run in groupby(zip(calls, places, strict=True), key=lambda pair: pair[1] is None):
        if missing:
            shown += [make_interrupted_result(call) for call, _ in run]
        else:
            shown += _collect_results(messages, [place for _, place in run if place is not None])
    return shown


def _collect_results(messages: Sequence[Message], places: list[ItemIndex]) -> list[Message]:
    """Return these results in this order, in their original messages as far as possible."""
    runs = groupby(places, key=lambda place: place[0])
    return [keep_results(messages[index], [position for _, position in run]) for index, run in runs]


def repair_message(message: Message) -> tuple[Message | None, list[MessageProblem]]:
    """Return the message as it can be shown, the same object if it is valid; None if nothing is left of it."""
    if is_plain_text(message):
        return message, []
    wrong: list[MessageProblem] = []
    if message.role not in ROLES:
        wrong.append(("unknown_role", f"shown as a user's: there is no role {message.role[:40]!r}"))
        message = msgspec.structs.replace(message, role="user")
    if message.tool_calls and message.role != "assistant":
        wrong.append(("malformed", f"dropped the calls: a {message.role} message has none"))
        message = keep_calls(message, ())
    if message.tool_results and message.role != "tool":
        wrong.append(("malformed", f"dropped the results: a message of role {message.role} has none"))
        message = keep_results(message, ())
    if not all(call.name.strip() for call in message.tool_calls):
        wrong.append(("nameless_call", "dropped the calls that name no tool"))
        named = [position for position, call in enumerate(message.tool_calls) if call.name.strip()]
        message = keep_calls(message, named)
    if message.role == "tool":
        if not message.tool_results:
            wrong.append(("empty_message", "dropped: it holds no result"))
            return None, wrong
    elif is_empty_message(message):
        wrong.append(("empty_message", "dropped: it says nothing"))
        return None, wrong
    return message, wrong


def is_plain_text(message: Message) -> bool:
    """Return True for a text without calls or results, as most messages are: it needs no repair."""
    said = message.content and isinstance(message.content, str) and message.role in _TEXT_ROLES
    return bool(said) and not message.tool_calls and not message.tool_results


def keep_calls(message: Message, positions: Sequence[int]) -> Message:
    """Return the message with only the calls at these positions, also where its parts and notes refer to them."""
    moved = {old: new for new, old in enumerate(positions)}
    content = message.content
    if isinstance(content, list):
        kept = (part for part in content if part.get("type") != "call" or part.get("call") in moved)
        content = [{**part, "call": moved[part["call"]]} if part.get("type") == "call" else part for part in kept]
    calls = tuple(message.tool_calls[position] for position in positions)
    metadata = _renumber_notes(message.metadata, "calls", moved)
    return change_message(message, tool_calls=calls, content=content, metadata=metadata)


def keep_results(message: Message, positions: Sequence[int]) -> Message:
    """Return the message with only the results at these positions; the same object if those are all."""
    if [*positions] == [*range(len(message.tool_results))]:
        return message
    results = tuple(message.tool_results[position] for position in positions)
    metadata = _renumber_notes(message.metadata, "results", {old: new for new, old in enumerate(positions)})
    return change_message(message, tool_results=results, metadata=metadata)


def change_message(message: Message, **fields: Any) -> Message:
    """Return the message with other fields. Its token count no longer applies, so it is dropped."""
    return msgspec.structs.replace(message, **fields, tokens=None, tokenizer=None)


def _renumber_notes(metadata: dict[str, Any] | None, kind: str, moved: dict[int, int]) -> dict[str, Any] | None:
    """Return the metadata with providers' notes on calls or results moved to the new positions."""
    if not metadata:
        return metadata
    shown = dict(metadata)
    for provider, kept in metadata.items():
        if isinstance(kept, dict) and isinstance(kept.get(kind), dict):
            extras = {str(new): kept[kind][str(old)] for old, new in moved.items() if str(old) in kept[kind]}
            shown[provider] = {**kept, kind: extras}
    return shown
