"""Which tool result answers which call.

Ids of holdfast's own decide, wherever the result stands. Providers use their ids again inside one
conversation, even inside one message, so theirs decide together with the position: a result belongs
to the nearest message before it that has such a call open, and there to the first one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult

Place = tuple[int, int]
"""Which message of a list, and which call or result in it."""


class Matching:
    """Calls with their results, and results that belong to none."""

    __slots__ = ("answers", "refused")

    def __init__(self) -> None:
        self.answers: dict[Place, Place] = {}
        """The result of each call that has one."""
        self.refused: dict[Place, str] = {}
        """Results that answer nothing: orphan_result or duplicate_result."""

    def calls(self) -> dict[Place, Place]:
        """The call of each result that has one."""
        return {result: call for call, result in self.answers.items()}


class _Waiting:
    """Calls by a name they go by: which is the next to be answered under that name."""

    __slots__ = ("answered", "groups")

    def __init__(self) -> None:
        self.groups: list[list[Place]] = []
        """Of each message the calls that may be open, oldest first."""
        self.answered: list[Place] = []

    def add(self, call: Place) -> None:
        if self.groups and self.groups[-1][0][0] == call[0]:
            self.groups[-1].append(call)
        else:
            self.groups.append([call])

    def nearest(self, answers: Container[Place]) -> Place | None:
        """The first open call of the newest message that has one. Those found answered are not looked at again."""
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


_Names = Callable[[ToolCallRequest], Iterator[str]]
_Results = Iterable[tuple[Place, ToolCallResult]]
_ByName = defaultdict[str, _Waiting]


def matched(messages: Sequence[Message]) -> Matching:
    """Every result's call. What holdfast's own ids say comes first, then what providers' ids and positions say."""
    found = Matching()
    own = {call.id for message in messages if message.role == "assistant" for call in message.tool_calls if call.id}
    exact: list[tuple[Place, ToolCallResult]] = []
    by_position: list[tuple[Place, ToolCallResult]] = []
    for place, result in _results(messages):
        (exact if result.tool_call_id in own else by_position).append((place, result))
    if early := _walk(messages, exact, found, _own_names, _own_name):
        # With an own id the call is known even if the list has it after its result.
        everywhere: _ByName = defaultdict(_Waiting)
        _enter(messages, range(len(messages)), everywhere, _own_names)
        for place, result in early:
            _settle(messages, found, place, result, everywhere[result.tool_call_id])
    for place, _ in _walk(messages, by_position, found, _all_names, _provider_name):
        found.refused[place] = "orphan_result"
    return found


def _walk(
    messages: Sequence[Message],
    results: _Results,
    found: Matching,
    names: _Names,
    name_of: Callable[[ToolCallResult], str],
) -> list[tuple[Place, ToolCallResult]]:
    """Match results in their order; returns those whose name no earlier call goes by."""
    waiting: _ByName = defaultdict(_Waiting)
    unknown: list[tuple[Place, ToolCallResult]] = []
    at = 0
    for place, result in results:
        _enter(messages, range(at, place[0]), waiting, names)
        at = place[0]
        under = waiting.get(name_of(result))
        if under is None:
            unknown.append((place, result))
        else:
            _settle(messages, found, place, result, under)
    return unknown


def _enter(messages: Sequence[Message], indexes: range, waiting: _ByName, names: _Names) -> None:
    for index in indexes:
        if messages[index].role == "assistant":
            for position, call in enumerate(messages[index].tool_calls):
                for name in names(call):
                    waiting[name].add((index, position))


def _settle(
    messages: Sequence[Message], found: Matching, place: Place, result: ToolCallResult, under: _Waiting
) -> None:
    """Give one result to the next call that waits under its name. A real result takes the place of a stand-in."""
    call = under.nearest(found.answers)
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


def _results(messages: Sequence[Message]) -> Iterator[tuple[Place, ToolCallResult]]:
    for index, message in enumerate(messages):
        if message.role == "tool":
            for position, result in enumerate(message.tool_results):
                yield (index, position), result


def _own_names(call: ToolCallRequest) -> Iterator[str]:
    yield call.id


def _own_name(result: ToolCallResult) -> str:
    return result.tool_call_id


def _all_names(call: ToolCallRequest) -> Iterator[str]:
    yield call.provider_id or ""
    if call.id and call.id != call.provider_id:
        yield call.id


def _provider_name(result: ToolCallResult) -> str:
    return result.provider_id or result.tool_call_id
