"""What may be wrong with one message by itself, whatever stands around it.

A message that says nothing is refused by providers, and so is a call without a name; fields that a
role does not have would be shown to nobody. Texts and arguments are never altered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.wire.checking import says_nothing
from holdfast.core.wire.order import kept_for
from holdfast.records.messages import ROLES, Message

_SPOKEN = ROLES - {"tool"}

Wrong = tuple[str, str]
"""A problem's name, and what was done about it."""


def sound(message: Message) -> tuple[Message | None, list[Wrong]]:
    """The message as it can be shown, the same object if nothing is wrong; None if nothing is left of it."""
    if is_plain(message):
        return message, []
    wrong: list[Wrong] = []
    if message.role not in ROLES:
        wrong.append(("unknown_role", f"shown as a user's: there is no role {message.role[:40]!r}"))
        message = msgspec.structs.replace(message, role="user")
    if message.tool_calls and message.role != "assistant":
        wrong.append(("malformed", f"dropped the calls: a {message.role} message has none"))
        message = with_calls(message, ())
    if message.tool_results and message.role != "tool":
        wrong.append(("malformed", f"dropped the results: a message of role {message.role} has none"))
        message = with_results(message, ())
    if not all(call.name.strip() for call in message.tool_calls):
        wrong.append(("nameless_call", "dropped the calls that name no tool"))
        named = [position for position, call in enumerate(message.tool_calls) if call.name.strip()]
        message = with_calls(message, named)
    if message.role == "tool":
        if not message.tool_results:
            wrong.append(("empty_message", "dropped: it holds no result"))
            return None, wrong
    elif is_empty(message):
        wrong.append(("empty_message", "dropped: it says nothing"))
        return None, wrong
    return message, wrong


def is_plain(message: Message) -> bool:
    """Whether somebody said something and nothing else, as in most messages: there is nothing to look at."""
    said = message.content and isinstance(message.content, str) and message.role in _SPOKEN
    return bool(said) and not message.tool_calls and not message.tool_results


def is_empty(message: Message) -> bool:
    """Whether a message says nothing to anybody; a spoken answer is in what is kept for its provider."""
    return says_nothing(message) and not kept_for(message, "openai", "message").get("audio")


def with_calls(message: Message, positions: Sequence[int]) -> Message:
    """The message with only the calls at these positions, also where its parts and notes name them."""
    moved = {old: new for new, old in enumerate(positions)}
    content = message.content
    if isinstance(content, list):
        kept = (part for part in content if part.get("type") != "call" or part.get("call") in moved)
        content = [{**part, "call": moved[part["call"]]} if part.get("type") == "call" else part for part in kept]
    calls = tuple(message.tool_calls[position] for position in positions)
    metadata = _renumbered(message.metadata, "calls", moved)
    return changed(message, tool_calls=calls, content=content, metadata=metadata)


def with_results(message: Message, positions: Sequence[int]) -> Message:
    """The message with only the results at these positions; the same object if those are all it has."""
    if [*positions] == [*range(len(message.tool_results))]:
        return message
    results = tuple(message.tool_results[position] for position in positions)
    metadata = _renumbered(message.metadata, "results", {old: new for new, old in enumerate(positions)})
    return changed(message, tool_results=results, metadata=metadata)


def changed(message: Message, **fields: Any) -> Message:
    """The message with other fields. What was counted is no longer what it says."""
    return msgspec.structs.replace(message, **fields, tokens=None, tokenizer=None)


def _renumbered(metadata: dict[str, Any] | None, kind: str, moved: dict[int, int]) -> dict[str, Any] | None:
    """What a message keeps for providers beside its calls or results, by the new positions of those."""
    if not metadata:
        return metadata
    shown = dict(metadata)
    for provider, kept in metadata.items():
        if isinstance(kept, dict) and isinstance(kept.get(kind), dict):
            extras = {str(new): kept[kind][str(old)] for old, new in moved.items() if str(old) in kept[kind]}
            shown[provider] = {**kept, kind: extras}
    return shown
