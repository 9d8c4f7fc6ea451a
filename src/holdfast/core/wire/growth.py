"""Requests of a conversation that grows: the messages that the last request began with are rendered once.

How a message is rendered depends on the ids in the messages before it, and on nothing behind it, as long as results
stay with their calls. Messages that are not apart from those before them are not rendered here at all, and those with
files not before they are sent. What is kept is never handed out: requests are deep copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core.wire.calls import KnownIds, WireIds
from holdfast.records.messages import Message

Item = dict[str, Any]


class ListFormat(msgspec.Struct, frozen=True):
    """A provider's format in which each message becomes items of one list."""

    name: str
    valid: re.Pattern[str]
    """The ids of calls that it accepts."""
    longest: int
    render: Callable[[Sequence[Message], int, WireIds], list[Item]]
    """A function that renders the message at an index."""


class RenderedItems(msgspec.Struct, frozen=True):
    """Messages as items of a request."""

    format: str
    messages: tuple[Message, ...] = ()
    items: tuple[Item, ...] = ()
    ids: KnownIds = KnownIds()

    def extend(self, format: ListFormat, messages: Sequence[Message]) -> RenderedItems | None:
        """Return these and more messages; None if all must be rendered together."""
        if not messages:
            return self
        wire = continue_ids(self.ids, messages, format.valid, format.longest)
        if wire is None:
            return None
        items = [item for index in range(len(messages)) for item in format.render(messages, index, wire)]
        return RenderedItems(self.format, (*self.messages, *messages), (*self.items, *items), wire.known)


def continue_ids(known: KnownIds, messages: Sequence[Message], valid: re.Pattern[str], longest: int) -> WireIds | None:
    """Return the ids of messages that follow others; None if the ids of all must be chosen together."""
    if not known.is_apart_from(messages):
        return None
    wire = WireIds(messages, "unique", valid, longest, known)
    return wire if wire.is_complete() else None


def holds_files(message: Message) -> bool:
    """Return True if a message has parts whose bytes are stored apart from it."""
    values = (message.content, *[result.result for result in message.tool_results])
    lists = [value for value in values if isinstance(value, list)]
    return any("artifact" in part or "data" in part for value in lists for part in value if isinstance(part, dict))


def render_steady(format: ListFormat, known: RenderedItems | None, steady: tuple[Message, ...]) -> RenderedItems | None:
    """Render the messages that the next request begins with as well, up to the first one with files.

    `known` is what the last request began with. None means that all must be rendered together.
    """
    if known is None or known.format != format.name or not begins_with(steady, known.messages):
        known = RenderedItems(format.name)
    return known.extend(format, take_plain(steady, len(known.messages)))


def take_plain(messages: tuple[Message, ...], known: int) -> tuple[Message, ...]:
    """Return the messages behind the first `known`, up to the first one with files."""
    lists = [
        at for at in range(known, len(messages)) if messages[at].content.__class__ is list or messages[at].tool_results
    ]
    end = next((at for at in lists if holds_files(messages[at])), len(messages))
    return messages[known:end]


def begins_with(messages: tuple[Message, ...], known: tuple[Message, ...]) -> bool:
    """Return True if messages begin with known ones; mostly they are the same objects, which costs next to nothing."""
    return messages[: len(known)] == known


def copy_items(items: Sequence[Any]) -> list[Any]:
    """Return a deep copy of plain data."""
    copied: list[Any] = msgspec.to_builtins(list(items), builtin_types=(bytes,))
    return copied
