"""What is to be done about calls of tools: who says yes, what fits, what becomes of one that was torn.

These are the rules of a loop that calls tools itself, by their names alone; an agent has its own, which know its tools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import UNSET

from holdfast.core.wire.tools import misfit, unsaid
from holdfast.errors import InvalidValue
from holdfast.records.messages import ToolCallRequest, ToolDef


class ToolRules:
    """What is to be done about calls of tools before they begin and after they were torn."""

    tools_ask = False
    """Whether the code of a tool asks questions itself, so that a no is for it to deal with."""
    knows_tools = False
    """Whether the tools themselves are at hand, so that nobody has to look up what is stored of them."""

    def __init__(
        self,
        if_interrupted: str | Mapping[str, str] = "ask",
        needs_approval: Collection[str] | Callable[[str, Any], bool] = (),
    ) -> None:
        self._policies, self._approval = if_interrupted, needs_approval
        names = isinstance(needs_approval, Collection) and not isinstance(needs_approval, str)
        if not callable(needs_approval) and not names:
            raise InvalidValue("needs_approval must be a list of tools' names, or a function of a name and arguments.")
        given = if_interrupted.values() if isinstance(if_interrupted, Mapping) else [if_interrupted]
        if not all(policy in ("ask", "retry", "fail") for policy in given):
            raise InvalidValue("if_interrupted must be ask, retry or fail, or say that for each tool by its name.")

    def if_interrupted(self, request: ToolCallRequest) -> str:
        """What to do with a call that was torn."""
        policies = self._policies
        return policies.get(request.name, "ask") if isinstance(policies, Mapping) else policies

    def approval(self, request: ToolCallRequest) -> bool:
        """Whether a person has to say yes before a call is made."""
        asks = self._approval
        return _wanted(asks, request) if callable(asks) else request.name in asks

    def unfit(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> str | None:
        """Why a tool does not take what it would be called with, if it does not. `arguments` are a person's, if any.

        `stored` is what the conversation's brief says of the tool: here nothing else is known of it.
        """
        given = _given(request, arguments)
        why = None if stored is None or given is UNSET else misfit(stored.name, stored.parameters, given)
        return None if why is None else in_passing(why)

    def unsaid(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> Mapping[str, Any]:
        """What a tool uses for arguments that nobody gave."""
        given = _given(request, arguments)
        return {} if stored is None or not isinstance(given, dict) else unsaid(stored.parameters, given)

    def tokens(self, request: ToolCallRequest) -> int | None:
        """What the frame of a call is granted."""
        return None


def _wanted(asks: Callable[[str, Any], bool], request: ToolCallRequest) -> bool:
    """What a predicate says; one that fails counts as wanting a yes."""
    try:
        return bool(asks(request.name, request.args))
    except Exception:  # noqa: BLE001  # It is the caller's code, and a person is there to look.
        return True


def in_passing(sentence: str) -> str:
    """A sentence as a part of another one."""
    return sentence[:1].lower() + sentence[1:]


def _given(request: ToolCallRequest, arguments: Any) -> Any:
    """What a call would be made with; unset if that is not even JSON."""
    try:
        return request.args if arguments is None else arguments
    except InvalidValue:
        return UNSET
