"""Conversations made valid and cut into rounds: calls and results stay together in every list that is shown.

Windows, summaries, imports, resumes, branches and exports all go through `repair_messages`. After it each call has
exactly one result, directly behind its assistant message; nothing is empty; and what was valid already is the same
objects in the same order. Texts and arguments are never altered. Every repair is reported, so that a strict caller can
refuse instead.

Rounds are measured only when they are looked at: tokens are counted for the part of a long history that is shown and
one round more, not for all of it. A conversation that only grew is repaired from its newest round on, if that part can
be repaired without the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final, Literal

import msgspec

from holdfast.core.numbers import is_number
from holdfast.core.sessions.tokens import CountMessage
from holdfast.core.values import exception_text
from holdfast.core.wire.calls import CallMatches, match_results
from holdfast.core.wire.parts import is_empty_message
from holdfast.errors import HoldfastError, InvalidValue
from holdfast.records.messages import INTERRUPTED_RESULT, ROLES, Message, Repair, ToolCallRequest, ToolCallResult

OpenCalls = Literal["interrupted", "keep"]
_REACHING: Final = frozenset({"orphan_result", "duplicate_result"})
"""Repairs of results that calls to come may have."""

_TEXT_ROLES = ROLES - {"tool"}
SUMMARY_LABEL = "Summary of previous context:"
SUMMARY_PREFIX = f"{SUMMARY_LABEL} "
UNLIMITED = 1 << 62

Size = tuple[int, int]
"""Messages and tokens."""


class RepairResult(msgspec.Struct, frozen=True):
    """A valid list of messages, and the repairs that were made."""

    messages: list[Message]
    repairs: list[Repair]


def group_rounds(messages: Sequence[Message]) -> list[tuple[int, ...]]:
    """Return rounds of messages that are kept or dropped together, by index: one message, or a call with its results.

    Every message is in exactly one; a tool message goes with the call that its first result answers.
    """
    calls = match_results(messages).calls()
    members: dict[int, list[int]] = {}
    for index, message in enumerate(messages):
        owner = index
        if message.role == "tool":
            places = (calls.get((index, position)) for position in range(len(message.tool_results)))
            owner = next((place[0] for place in places if place is not None), index)
        members.setdefault(owner, []).append(index)
    # Order by the oldest message: a misplaced result may stand before its call.
    return sorted(tuple(sorted(found)) for found in members.values())


def repair_messages(messages: Sequence[Message], *, open_calls: OpenCalls = "interrupted") -> RepairResult:
    """Return a valid list. `open_calls="keep"` leaves calls open that a running conversation still waits for."""
    if all(map(is_plain_text, messages)):
        return RepairResult([*messages], [])
    repairs: list[Repair] = []
    given: list[int] = []  # The index that each message had in the list as given.
    whole: list[Message] = []
    for index, message in enumerate(messages):
        left, wrong = repair_message(message)
        for problem, done in wrong:
            repairs.append(Repair(index=index, problem=problem, done=done))
        if left is not None:
            given.append(index)
            whole.append(left)
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


def stand_alone(messages: Sequence[Message]) -> bool:
    """Return True if messages begin with a round, and each of their results names a call among them by its own id."""
    if not messages or messages[0].role == "tool":
        return False
    wanted = {one.tool_call_id for message in messages if message.tool_results for one in message.tool_results}
    return not wanted or wanted <= {one.id for message in messages if message.tool_calls for one in message.tool_calls}


def make_interrupted_result(call: ToolCallRequest) -> Message:
    """Return the message that stands for the result of an interrupted call."""
    result = ToolCallResult(
        tool_call_id=call.id, provider_id=call.provider_id, result=INTERRUPTED_RESULT, is_error=True, interrupted=True
    )
    return Message(role="tool", tool_results=(result,), synthetic=True)


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
    pairs = [*zip(calls, places, strict=True)]
    if not fill or None not in places:
        # All results are there: the order in which they came is as good as the order of the calls. It does not depend
        # on what stands between them, so a round alone is shown as it is among others.
        pairs = sorted((pair for pair in pairs if pair[1] is not None), key=itemgetter(1))
    shown: list[Message] = []
    for owner, run in groupby(pairs, key=lambda pair: None if pair[1] is None else pair[1][0]):
        if owner is None:
            shown += [make_interrupted_result(call) for call, _ in run]
        else:
            # Results stay in their original messages as far as possible.
            shown.append(keep_results(messages[owner], [place[1] for _, place in run if place is not None]))
    return shown


def repair_message(message: Message) -> tuple[Message | None, list[tuple[str, str]]]:
    """Return the message as it can be shown, the same object if it is valid, or None if nothing is left of it.

    Each problem is returned by its name, with the repair that was made.
    """
    if is_plain_text(message):
        return message, []
    wrong: list[tuple[str, str]] = []
    if message.role not in ROLES:
        wrong.append(("unknown_role", f"shown as a user's: there is no role {message.role[:40]!r}"))
        message = msgspec.structs.replace(message, role="user")
    if message.tool_calls and message.role != "assistant":
        wrong.append(("malformed", f"dropped the calls: a {message.role} message has none"))
        message = keep_calls(message, ())
    if message.tool_results and message.role != "tool":
        wrong.append(("malformed", f"dropped the results: a message of role {message.role} has none"))
        message = keep_results(message, ())
    if message.tool_calls and not all(call.name.strip() for call in message.tool_calls):
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


class WindowBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The size that a window may have, and the function that counts its tokens."""

    messages: int = UNLIMITED
    tokens: int = UNLIMITED
    reserve: int = 0
    """Tokens of the limit that are not for the messages."""
    count: CountMessage | None = None

    @property
    def size(self) -> Size:
        """The room for messages within both limits."""
        return self.messages, self.tokens - self.reserve


def check_bounds(
    max_messages: int | None, max_tokens: int | None, count: CountMessage | None = None, reserve: int = 0
) -> WindowBounds:
    """Check the limits that a caller gave."""
    if max_messages is None and max_tokens is None:
        raise InvalidValue("A window needs a limit. Give max_messages, max_tokens or both.")
    for name, value in (("max_messages", max_messages), ("max_tokens", max_tokens), ("reserve", reserve)):
        if value is not None and not is_number(value, least=0):
            raise InvalidValue(f"{name} is {value!r}. Give a whole number, not below zero.")
    if max_tokens is not None and count is None:
        raise InvalidValue("max_tokens needs a way to count. Give count=, a function from a message to its tokens.")
    return WindowBounds(
        messages=UNLIMITED if max_messages is None else max_messages,
        tokens=UNLIMITED if max_tokens is None else max_tokens,
        reserve=reserve,
        count=count,
    )


def is_summary(message: Message) -> bool:
    """Return True if a message stands for others that were summarised."""
    return message.role == "system" and message.text.startswith(SUMMARY_PREFIX)


def subtract_size(room: Size, size: Size) -> Size:
    """Return the room that is left; below zero if there is not enough."""
    return room[0] - size[0], room[1] - size[1]


def fits(size: Size, room: Size) -> bool:
    """Return True if both messages and tokens fit."""
    return size[0] <= room[0] and size[1] <= room[1]


class ConversationRounds:
    """A valid list of messages: the first instructions, then rounds by number."""

    __slots__ = ("_known", "_reaching", "_starts", "first", "limits", "messages", "repairs", "rounds")

    def __init__(self, messages: Sequence[Message], limits: WindowBounds, leading: int | None = None) -> None:
        """Repair the messages and find the rounds.

        `leading` is the number of first instructions, if the list is only the end of a thread.
        """
        found = repair_messages(messages)
        self.messages = found.messages
        self.repairs = tuple(found.repairs)
        self.limits = limits
        begin = 0
        for message in self.messages:
            if message.role not in ("system", "developer") or is_summary(message) or begin == leading:
                break
            begin += 1
        self.first = self.messages[:begin]
        # Results now follow their calls, so a new round begins with each message that is not a tool's.
        starts = [index for index in range(begin, len(self.messages)) if self.messages[index].role != "tool"]
        self._starts = [*starts, len(self.messages)]
        self.rounds = len(starts)
        self._reaching = not _REACHING.isdisjoint([repair.problem for repair in self.repairs])
        self._known: dict[int, tuple[Message, int]] = {}

    def replace_newest(self, messages: Sequence[Message], limits: WindowBounds) -> ConversationRounds | None:
        """Return the conversation with these messages in place of its newest round; None if all must be repaired.

        Only the repairs of these messages are listed.
        """
        if self._reaching or not self.rounds or not stand_alone(messages):
            return None
        there = {(message.stream, message.version) for message in messages}
        if not there.issuperset([(one.stream, one.version) for one in self.round(-1) if one.version]):
            return None  # An older result has its call in the newest round.
        newest = ConversationRounds(messages, limits, 0)
        if newest._reaching or not newest.rounds:
            return None
        begin = self._starts[-2]
        newest.first = self.first
        newest.messages = self.messages[:begin] + newest.messages
        newest._starts = self._starts[:-2] + [begin + start for start in newest._starts]
        newest.rounds = len(newest._starts) - 1
        return newest

    def list_rounds(self, first: int = 0) -> list[list[Message]]:
        """Return the messages of all rounds from one on."""
        return [self.messages[start:end] for start, end in pairwise(self._starts[first:])]

    def round(self, nth: int) -> list[Message]:
        """Return the messages of a round; negative numbers count from the newest."""
        nth = nth % self.rounds
        return self.messages[self._starts[nth] : self._starts[nth + 1]]

    def size(self, messages: Sequence[Message]) -> Size:
        """Return the size of these messages."""
        return len(messages), sum(map(self.count, messages))

    def fits(self) -> bool:
        """Return True if the whole conversation is within the limits."""
        room = subtract_size(self.limits.size, self.size(self.first))
        for nth in range(self.rounds - 1, -1, -1):
            if min(room) < 0:
                return False
            room = subtract_size(room, self.size(self.round(nth)))
        return min(room) >= 0

    def choose_rounds(self, room: Size, *, most: int = UNLIMITED, keep_summaries: bool) -> list[int]:
        """Choose rounds to show before the newest: pinned ones, then newer ones up to the first that is too large."""
        chosen: set[int] = set()
        older = range(self.rounds - 2, -1, -1)
        for nth in older:
            messages = self.round(nth)
            kept = any(message.pinned for message in messages) or (keep_summaries and is_summary(messages[0]))
            if kept and fits(size := self.size(messages), room):
                room = subtract_size(room, size)
                chosen.add(nth)
        for nth in older[:most]:
            if nth in chosen:
                continue
            if not fits(size := self.size(self.round(nth)), room):
                break
            room = subtract_size(room, size)
            chosen.add(nth)
        return sorted(chosen)

    def count(self, message: Message) -> int:
        """Return the tokens of a message, counted once; 0 if there is no counter."""
        if self.limits.count is None:
            return 0
        known = self._known.get(id(message))
        if known is None:
            # The message is kept with its count, so that its identity is not reused for another object.
            known = self._known[id(message)] = (message, _call_counter(self.limits.count, message))
        return known[1]


def _call_counter(count: CountMessage, message: Message) -> int:
    try:
        tokens = count(message)
    except HoldfastError:
        raise
    except Exception as error:  # The counter is the caller's own code.
        raise InvalidValue(f"The tokens of a message could not be counted: {exception_text(error)}.") from error
    if not is_number(tokens, least=0):
        raise InvalidValue(f"count gave {tokens!r} for a message. It must give a whole number, not below zero.")
    return tokens
