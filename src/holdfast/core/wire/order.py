"""The order of what an assistant said and the calls it made, and what a message keeps for its provider.

Nearly always a message is content and then calls. Where it is not, parts that name a call
stand where the call stood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.wire.notes import Notes
from holdfast.core.wire.parts import copied, parts_of
from holdfast.records.messages import Message, Part, ToolCallRequest

Extras = dict[str, dict[str, Any]]
"""What a provider wrote beside calls or results, by their index as text."""


class InOrder:
    """An assistant's message while it is read: parts and calls as they come."""

    __slots__ = ("call_extras", "calls", "parts")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.calls: list[ToolCallRequest] = []
        self.call_extras: Extras = {}

    def add(self, part: Part | None) -> None:
        if part is not None:
            self.parts.append(part)

    def call(self, call: ToolCallRequest | None, extras: dict[str, Any]) -> None:
        if call is None:
            return
        if extras:
            self.call_extras[str(len(self.calls))] = extras
        self.parts.append({"type": "call", "call": len(self.calls)})
        self.calls.append(call)

    def content(self) -> list[Part]:
        """The parts, without the names of calls that come last anyway."""
        parts = list(self.parts)
        while parts and parts[-1]["type"] == "call":
            parts.pop()
        return parts


def in_order(message: Message) -> list[Part]:
    """Every part and every call of a message in its order."""
    parts = parts_of(message)
    named = {part.get("call") for part in parts if part.get("type") == "call"}
    rest = (index for index in range(len(message.tool_calls)) if index not in named)
    return [*parts, *({"type": "call", "call": index} for index in rest)]


def call_of(message: Message, part: Part) -> tuple[int, ToolCallRequest] | None:
    """The call that a part names."""
    index = part.get("call")
    if not isinstance(index, int) or not 0 <= index < len(message.tool_calls):
        return None
    return index, message.tool_calls[index]


def metadata_of(provider: str, notes: Notes, **kinds: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a message keeps for its provider, and the calls that were left out of it."""
    kept = {kind: dict(extras) for kind, extras in kinds.items() if extras}
    metadata: dict[str, Any] = {provider: kept} if kept else {}
    left_out = notes.take_left_out()
    if left_out:
        metadata["left_out"] = left_out
    return metadata or None


def kept_for(message: Message, provider: str, kind: str, index: int | None = None) -> dict[str, Any]:
    """What a message, or one of its calls or results, has kept for a provider; a copy."""
    found: Any = (message.metadata or {}).get(provider)
    for key in (kind,) if index is None else (kind, str(index)):
        found = found.get(key) if isinstance(found, dict) else None
    return copied(found) if isinstance(found, dict) else {}


def is_custom(message: Message, index: int) -> bool:
    """Whether a call was made to a custom tool of OpenAI's, which takes free text."""
    return any(kept_for(message, provider, "calls", index).get("custom") for provider in ("openai", "responses"))
