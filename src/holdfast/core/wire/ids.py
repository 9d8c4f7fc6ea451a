"""The ids under which a provider is told of calls and results.

Providers' ids come again inside a conversation, so results are matched to calls first and ids are
written after. For sending, every call gets an id that is valid for the provider and that no
other call of the request has: its own if it can be, else one made from it. For export, ids are
the provider's as they were. Names of tools go the same two ways, see `names.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from holdfast.core.matching import Place, matched
from holdfast.core.wire.names import tool_name
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult

Ids = Literal["unique", "provider"]

_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]+")


class WireIds:
    """The id of every call and every result of a request, and the names of tools in it."""

    __slots__ = ("_calls", "_exact", "_results", "_unmatched")

    def __init__(self, messages: Sequence[Message], ids: Ids, valid: re.Pattern[str], longest: int) -> None:
        self._exact = ids == "provider"
        self._unmatched: dict[Place, str] = {}
        self._results = matched(messages).calls()
        self._calls = _as_given(messages) if ids == "provider" else _unique(messages, valid, longest)
        used = set(self._calls.values())
        for index, message in enumerate(messages):
            for position, result in enumerate(message.tool_results):
                if (index, position) not in self._results:
                    given = result.provider_id or result.tool_call_id or "unknown"
                    self._unmatched[index, position] = (
                        given if ids == "provider" else _free(given, valid, longest, used)
                    )

    def of_call(self, index: int, position: int) -> str:
        """The id of a call."""
        return self._calls[index, position]

    def of_result(self, index: int, position: int, result: ToolCallResult, *, exact: bool) -> str:
        """The id of the call that a result answers; for export, the one that the result itself has."""
        if exact and result.provider_id:
            return result.provider_id
        call = self._results.get((index, position))
        return self._unmatched[index, position] if call is None else self._calls[call]

    def tool(self, name: str) -> str:
        """The name of a tool, in a call or where a result repeats it."""
        return name if self._exact else tool_name(name)

    def call_place(self, index: int, position: int) -> Place | None:
        """Where the call of a result stands."""
        return self._results.get((index, position))


def _calls(messages: Sequence[Message]) -> list[tuple[Place, ToolCallRequest]]:
    return [
        ((index, position), call)
        for index, message in enumerate(messages)
        for position, call in enumerate(message.tool_calls)
    ]


def _as_given(messages: Sequence[Message]) -> dict[Place, str]:
    """The provider's ids; calls that never had one are numbered, apart from those."""
    calls = _calls(messages)
    used = {call.provider_id for _, call in calls if call.provider_id}
    return {
        place: call.provider_id or call.id or _numbered("call", number, 64, used)
        for number, (place, call) in enumerate(calls, 1)
    }


def _unique(messages: Sequence[Message], valid: re.Pattern[str], longest: int) -> dict[Place, str]:
    """The provider's id for the first call that has it; the others get one of their own."""
    calls = _calls(messages)
    found: dict[Place, str] = {}
    used: set[str] = set()
    for place, call in calls:
        given = call.provider_id
        if given and given not in used and len(given) <= longest and valid.fullmatch(given):
            found[place] = given
            used.add(given)
    for place, call in calls:
        if place not in found:
            # holdfast's own id does not change when the window moves, so the prompt cache stays warm.
            found[place] = _free(call.id or call.provider_id or "call", valid, longest, used)
    return found


def _free(given: str, valid: re.Pattern[str], longest: int, used: set[str]) -> str:
    """An id made from what is there, which nothing else has; it is used from now on."""
    base = given if valid.fullmatch(given) else _NOT_IN_AN_ID.sub("_", given)
    chosen = base[:longest] or "call"
    number = 1
    while chosen in used:
        number += 1
        chosen = _numbered(base, number, longest, ())
    used.add(chosen)
    return chosen


def _numbered(base: str, number: int, longest: int, used: set[str] | tuple[()]) -> str:
    chosen = f"{base[: longest - 8]}_{number}"
    while chosen in used:
        number += 1
        chosen = f"{base[: longest - 8]}_{number}"
    return chosen
