"""Events of a stream as they come: mappings, or an SDK's objects, of which only what is needed is looked at.

Objects of SDKs may carry all that came before (a `snapshot`), so an event is never taken apart as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.wire.given import plain
from holdfast.core.wire.notes import Notes
from holdfast.records.calling import Delta


class Words(list[str]):
    """A text in pieces: putting a long one together anew for each piece would take for ever."""

    __slots__ = ()


class Pieces:
    """What the pieces of one reply come to so far. Each form of provider has its own."""

    __slots__ = ("ended", "error", "said", "usage")

    def __init__(self) -> None:
        self.said: list[str] = []
        """The words that a person would have been shown."""
        self.ended = False
        """Whether the reply is whole."""
        self.error: dict[str, Any] | None = None
        """What the provider said in place of going on."""
        self.usage: dict[str, Any] | None = None
        """What it used, as far as that was reported."""

    def add(self, event: Any) -> list[Delta]:
        """Take one event; gives what is new in it for a person."""
        raise NotImplementedError

    def whole(self) -> dict[str, Any]:
        """The response, as it would have come in one piece."""
        raise NotImplementedError

    def text(self, words: Any) -> list[Delta]:
        """Words that were said."""
        if not isinstance(words, str) or not words:
            return []
        self.said.append(words)
        return [Delta(text=words)]

    def note_usage(self, usage: Any) -> None:
        """A report of usage. Counts only grow; what a later report leaves out stays."""
        told = taken(usage)
        if told:
            self.usage = {**(self.usage or {}), **{key: value for key, value in told.items() if value is not None}}


def field(thing: Any, name: str) -> Any:
    """A field of a mapping or of an object; None if it is not there."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def taken(thing: Any) -> dict[str, Any]:
    """A mapping or an object as plain data; empty if it is neither."""
    found = plain(thing, Notes()) if thing is not None else None
    return found if isinstance(found, dict) else {}


def error_in(event: Any) -> dict[str, Any] | None:
    """What an event says that went wrong, in whichever form; None if it is no error."""
    error = field(event, "error")
    if error:
        return taken(error) or {"message": str(error)}
    if field(event, "type") != "error":
        return None
    told = {name: value for name in ("code", "message") if isinstance(value := field(event, name), str)}
    return told or {"message": "nothing more"}


def each(value: Any) -> list[Any]:
    """The items of a list; none if it is no list."""
    return list(value) if isinstance(value, list | tuple) else []


def number(value: Any) -> int | None:
    """A place in a list, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def reasoned(words: Any) -> list[Delta]:
    """Words that were thought."""
    return [Delta(kind="reasoning", text=words)] if isinstance(words, str) and words else []


def called(name: Any) -> list[Delta]:
    """A tool that is being called."""
    return [Delta(kind="tool", text=name)] if isinstance(name, str) and name else []


def joined(held: dict[str, Any], more: dict[str, Any]) -> None:
    """Pieces of the same name put together: texts and lists behind one another, mappings by name."""
    for name, value in more.items():
        before = held.get(name)
        if value is None or (before and name in ("id", "type")):
            continue
        if isinstance(value, str) and name not in ("id", "type"):
            if not isinstance(before, Words):
                held[name] = before = Words([before] if isinstance(before, str) else [])
            before.append(value)
        elif isinstance(before, Words):
            continue
        elif isinstance(before, list) and isinstance(value, list):
            before.extend(value)
        elif isinstance(before, dict) and isinstance(value, dict):
            joined(before, value)
        else:
            held[name] = value


def settled(value: Any) -> Any:
    """The same with every text whole."""
    if isinstance(value, Words):
        return "".join(value)
    if isinstance(value, dict):
        return {name: settled(item) for name, item in value.items()}
    return [settled(item) for item in value] if isinstance(value, list) else value
