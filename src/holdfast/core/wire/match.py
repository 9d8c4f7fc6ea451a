"""Match tool results to their calls.

Holdfast's own ids decide, wherever the result stands. Providers reuse their ids within one
conversation, even within one message, so these decide together with the position: a result belongs
to the nearest message before it that has such a call open, and there to the first one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult

ItemIndex = tuple[int, int]
"""The index of a message in a list, and of a call or result in it."""

_CallIds = Callable[[ToolCallRequest], Iterator[str]]
_Results = Iterable[tuple[ItemIndex, ToolCallResult]]


class CallMatches:
    """Calls with their results, and results without a call."""

    __slots__ = ("answers", "refused")

    def __init__(self) -> None:
        self.answers: dict[ItemIndex, ItemIndex] = {}
        """The result of each call that has one."""
        self.refused: dict[ItemIndex, str] = {}
        """Results without a call, with the problem: orphan_result or duplicate_result."""

    def calls(self) -> dict[ItemIndex, ItemIndex]:
        """Return the call of each result that has one."""
        return {result: call for call, result in self.answers.items()}


class _CallQueue:
    """The calls that share an id, to find the next one to be answered."""

    __slots__ = ("answered", "groups")

    def __init__(self) -> None:
        self.groups: list[list[ItemIndex]] = []
        """The calls of each message that may be open, oldest first."""
        self.answered: list[ItemIndex] = []

    def add(self, call: ItemIndex) -> None:
        if self.groups and self.groups[-1][0][0] == call[0]:
            self.groups[-1].append(call)
        else:
            self.groups.append([call])

    def find_nearest(self, answers: Container[ItemIndex]) -> ItemIndex | None:
        """Return the first open call of the newest message that has one. Calls found answered are not checked again."""
        while self.groups:
            group = self.groups[-1]
            for at, call in enumerate(group):
                if call not in answers:
                    self.answered += group[:at]
                    del group[:at]
                    return call
            self.answered += group
            self.groups.pop()
        return None


_QueueById = defaultdict[str, _CallQueue]


def match_results(messages: Sequence[Message]) -> CallMatches:
    """Match every result to its call, first by holdfast's own ids, then by providers' ids and positions."""
    found = CallMatches()
    own = {call.id for message in messages if message.role == "assistant" for call in message.tool_calls if call.id}
    exact: list[tuple[ItemIndex, ToolCallResult]] = []
    by_position: list[tuple[ItemIndex, ToolCallResult]] = []
    for index, message in enumerate(messages):
        for position, result in enumerate(message.tool_results if message.role == "tool" else ()):
            (exact if result.tool_call_id in own else by_position).append(((index, position), result))
    if early := _match_in_order(messages, exact, found, _own_call_ids, lambda result: result.tool_call_id):
        # An own id identifies the call even if the list has it after its result.
        everywhere: _QueueById = defaultdict(_CallQueue)
        _add_calls(messages, range(len(messages)), everywhere, _own_call_ids)
        for place, result in early:
            _assign_result(messages, found, place, result, everywhere[result.tool_call_id])
    orphans = _match_in_order(
        messages, by_position, found, _all_call_ids, lambda result: result.provider_id or result.tool_call_id
    )
    found.refused |= {place: "orphan_result" for place, _ in orphans}
    return found


def _match_in_order(
    messages: Sequence[Message],
    results: _Results,
    found: CallMatches,
    names: _CallIds,
    name_of: Callable[[ToolCallResult], str],
) -> list[tuple[ItemIndex, ToolCallResult]]:
    """Match results in order; return those whose id no earlier call has."""
    waiting: _QueueById = defaultdict(_CallQueue)
    unknown: list[tuple[ItemIndex, ToolCallResult]] = []
    at = 0
    for place, result in results:
        _add_calls(messages, range(at, place[0]), waiting, names)
        at = place[0]
        under = waiting.get(name_of(result))
        if under is None:
            unknown.append((place, result))
        else:
            _assign_result(messages, found, place, result, under)
    return unknown


def _add_calls(messages: Sequence[Message], indexes: range, waiting: _QueueById, names: _CallIds) -> None:
    for index in indexes:
        if messages[index].role == "assistant":
            for position, call in enumerate(messages[index].tool_calls):
                for name in names(call):
                    waiting[name].add((index, position))


def _assign_result(
    messages: Sequence[Message], found: CallMatches, place: ItemIndex, result: ToolCallResult, under: _CallQueue
) -> None:
    """Give one result to the next open call with its id. A real result replaces a stand-in."""
    call = under.find_nearest(found.answers)
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


def _own_call_ids(call: ToolCallRequest) -> Iterator[str]:
    yield call.id


def _all_call_ids(call: ToolCallRequest) -> Iterator[str]:
    yield call.provider_id or ""
    if call.id and call.id != call.provider_id:
        yield call.id
