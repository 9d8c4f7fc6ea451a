"""Handles: the short names of what a pack shows or left out, which a model gives back to read more.

`m57` is the message at version 57 of the thread's own stream, `m3-m9` a stretch of them, `s12` the summary at version
12. A message that the thread shares with another one is named by its id; any other text may be a handle's id.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from holdfast.core.lazy_regex import late
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message

NameKind = Literal["message", "messages", "summary", "id"]

_AROUND: Final = " \t\r\n\"'`[]()<>{}.,:;#"
"""Characters that models put around a name when they repeat it."""
_SHORT: Final = late(r"([ms])([1-9][0-9]{0,14})", re.ASCII | re.IGNORECASE)
_STRETCH: Final = late(
    r"m([1-9][0-9]{0,14})\s*(?:-|\u2013|\u2014|\.\.\.?|\u2026|\bto\b)\s*m?([1-9][0-9]{0,14})", re.ASCII | re.IGNORECASE
)
_LONGEST: Final = 256
_WORDS: Final = frozenset({"brief", "breadcrumbs", "earlier", "memory"})
_NOTE: Final = late(r"note[0-9]+", re.IGNORECASE)


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed handle: versions `first` to `last` of the thread's own stream, or an id."""

    kind: NameKind
    first: int = 0
    last: int = 0
    id: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "message":
                return f"m{self.first}"
            case "messages":
                return f"m{self.first}-m{self.last}"
            case "summary":
                return f"s{self.first}"
        return self.id


def is_taken(text: str) -> bool:
    """Return True if a pack uses this text for one of its own pieces, so that nothing else may have that name."""
    plain = text.strip(_AROUND)
    return plain.lower() in _WORDS or any(one.fullmatch(plain) for one in (_NOTE, _SHORT, _STRETCH))


def handle_of(message: Message, line: str) -> str:
    """Return the handle of a stored message in a thread: short if it is in the thread's own stream, else its id."""
    return f"m{message.version}" if message.stream == line and message.version > 0 else message.id


def summary_handle(version: int) -> str:
    """Return the handle of the summary at a version of the thread's own stream."""
    return f"s{version}"


def stretch_handle(first: int, last: int) -> str:
    """Return the handle of the messages from one version of the thread's own stream to another."""
    return f"m{first}" if first == last else f"m{first}-m{last}"


def parse_handle(text: object) -> Name:
    """Parse a handle as leniently as models write; refuse a text that cannot be one."""
    if not isinstance(text, str):
        raise InvalidValue(f"A handle is text such as m57 or s12, not {type(text).__name__}.")
    plain = text[: _LONGEST + 1].strip(_AROUND)
    if not plain or len(plain) > _LONGEST:
        raise InvalidValue("A handle is a short text such as m57, m3-m9 or s12.")
    if (short := _SHORT.fullmatch(plain)) is not None:
        version = int(short[2])
        return Name(kind="message" if short[1] in "mM" else "summary", first=version, last=version)
    if (stretch := _STRETCH.fullmatch(plain)) is not None:
        return _stretch(int(stretch[1]), int(stretch[2]))
    return Name(kind="id", id=plain)


def _stretch(one: int, other: int) -> Name:
    """Return the reference to a stretch, also of one message or with its ends swapped."""
    first, last = min(one, other), max(one, other)
    return Name(kind="messages" if first < last else "message", first=first, last=last)
