"""Rules for tool calls: which ones need approval, which arguments fit, what happens to an interrupted call.

These are the rules of a loop that calls tools itself and knows only their names; an agent has its own, which know its
tools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import UNSET

from holdfast.core.wire.tools import default_arguments, describe_misfit
from holdfast.errors import InvalidValue
from holdfast.records.messages import ToolCallRequest, ToolDef


class ToolRules:
    """The rules for tool calls before they begin and after an interruption."""

    tools_ask = False
    """True if a tool's code asks questions itself, so that it also handles a no."""
    knows_tools = False
    """True if the tools themselves are at hand, so that their stored definitions need not be read."""

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

    def interruption_policy(self, request: ToolCallRequest) -> str:
        """Return the policy for an interrupted call."""
        policies = self._policies
        return policies.get(request.name, "ask") if isinstance(policies, Mapping) else policies

    def needs_approval(self, request: ToolCallRequest) -> bool:
        """Return True if a person must approve a call before it is made."""
        asks = self._approval
        return _asks_for_approval(asks, request) if callable(asks) else request.name in asks

    def find_misfit(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> str | None:
        """Return why the tool does not take its arguments, or None. `arguments` are a person's, if any.

        `stored` is the tool's definition in the conversation's brief: nothing else is known of it here.
        """
        given = _call_arguments(request, arguments)
        why = None if stored is None or given is UNSET else describe_misfit(stored.name, stored.parameters, given)
        return None if why is None else lower_first_letter(why)

    def default_arguments(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> Mapping[str, Any]:
        """Return the tool's defaults for arguments not given."""
        given = _call_arguments(request, arguments)
        return {} if stored is None or not isinstance(given, dict) else default_arguments(stored.parameters, given)

    def tokens(self, request: ToolCallRequest) -> int | None:
        """Return the tokens granted to a call's frame."""
        return None


def _asks_for_approval(asks: Callable[[str, Any], bool], request: ToolCallRequest) -> bool:
    """Return the predicate's verdict; one that fails counts as requiring approval."""
    try:
        return bool(asks(request.name, request.args))
    except Exception:  # noqa: BLE001  # It is the caller's code, and a person is there to look.
        return True


def lower_first_letter(sentence: str) -> str:
    """Return a sentence as part of another one."""
    return sentence[:1].lower() + sentence[1:]


def _call_arguments(request: ToolCallRequest, arguments: Any) -> Any:
    """Return a call's arguments; UNSET if they are not valid JSON."""
    try:
        return request.args if arguments is None else arguments
    except InvalidValue:
        return UNSET
