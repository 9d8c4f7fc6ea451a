"""Handles: the short names of what a pack shows or left out, which a model gives back to read more.

`m57` is the message at version 57 of the thread's own stream, `m3-m9` a stretch of them, `s12` the summary at version
12. A message that the thread shares with another one is named by its id; any other text may be a handle's id.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from holdfast.core.lazy import lazy_pattern
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message
from holdfast.records.sessions import Summary

HandleRefKind = Literal["message", "messages", "summary", "id"]

_WRAPPING_CHARS: Final = " \t\r\n\"'`[]()<>{}.,:;#"
"""Characters that models put around a name when they repeat it."""
_SHORT_HANDLE: Final = lazy_pattern(r"([ms])([1-9][0-9]{0,14})", re.ASCII | re.IGNORECASE)
_STRETCH_HANDLE: Final = lazy_pattern(
    r"m([1-9][0-9]{0,14})\s*(?:-|\u2013|\u2014|\.\.\.?|\u2026|\bto\b)\s*m?([1-9][0-9]{0,14})", re.ASCII | re.IGNORECASE
)
_MAX_HANDLE_CHARS: Final = 256
_RESERVED_WORDS: Final = frozenset({"brief", "breadcrumbs", "earlier", "memory"})
_NOTE_HANDLE: Final = lazy_pattern(r"note[0-9]+", re.IGNORECASE)


class HandleRef(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed handle: versions `first` to `last` of the thread's own stream, or an id."""

    kind: HandleRefKind
    first: int = 0
    last: int = 0
    id: str = ""

    def __str__(self) -> str:
        if self.kind == "id":
            return self.id
        return f"s{self.first}" if self.kind == "summary" else stretch_handle(self.first, self.last)


def is_reserved_name(text: str) -> bool:
    """Return True if a pack uses this text for one of its own pieces, so that nothing else may have that name."""
    plain = text.strip(_WRAPPING_CHARS)
    return plain.lower() in _RESERVED_WORDS or any(
        one.fullmatch(plain) for one in (_NOTE_HANDLE, _SHORT_HANDLE, _STRETCH_HANDLE)
    )


def message_handle(message: Message, thread: str) -> str:
    """Return the handle of a stored message in a thread: short if it is in the thread's own stream, else its id."""
    return f"m{message.version}" if message.stream == thread and message.version > 0 else message.id


def summary_handle(summary: Summary, thread: str) -> str:
    """Return the handle of a summary in a thread: short if it is in the thread's own stream, else its id."""
    return f"s{summary.version}" if summary.stream == thread else summary.id


def stretch_handle(first: int, last: int) -> str:
    """Return the handle of the messages from one version of the thread's own stream to another."""
    return f"m{first}" if first == last else f"m{first}-m{last}"


def parse_handle(text: object) -> HandleRef:
    """Parse a handle as leniently as models write; refuse a text that cannot be one."""
    if not isinstance(text, str):
        raise InvalidValue(f"A handle is text such as m57 or s12, not {type(text).__name__}.")
    plain = text[: _MAX_HANDLE_CHARS + 1].strip(_WRAPPING_CHARS)
    if not plain or len(plain) > _MAX_HANDLE_CHARS:
        raise InvalidValue("A handle is a short text such as m57, m3-m9 or s12.")
    if (short := _SHORT_HANDLE.fullmatch(plain)) is not None:
        version = int(short[2])
        return HandleRef(kind="message" if short[1] in "mM" else "summary", first=version, last=version)
    if (stretch := _STRETCH_HANDLE.fullmatch(plain)) is not None:
        first, last = sorted((int(stretch[1]), int(stretch[2])))
        return HandleRef(kind="messages" if first < last else "message", first=first, last=last)
    return HandleRef(kind="id", id=plain)
