"""The short names by which a pack says what it shows or left out, and which a model gives back to read on.

`m57` is the message at version 57 of the line's own stream, `m3-m9` a stretch of them, `s12` the summary at version
12. A message that the line shares with another one is named by its id; any other text may be a handle's id.
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
"""What a model likes to put around a name when it repeats one."""
_SHORT: Final = late(r"([ms])([1-9][0-9]{0,14})", re.ASCII | re.IGNORECASE)
_STRETCH: Final = late(
    r"m([1-9][0-9]{0,14})\s*(?:-|\u2013|\u2014|\.\.\.?|\u2026|\bto\b)\s*m?([1-9][0-9]{0,14})", re.ASCII | re.IGNORECASE
)
_LONGEST: Final = 256
_WORDS: Final = frozenset({"brief", "breadcrumbs", "earlier", "memory"})
_NOTE: Final = late(r"note[0-9]+", re.IGNORECASE)


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """A short name, read: versions `first` to `last` of the line's own stream, or an id."""

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
    """Whether a text is what a pack calls one of its own pieces, so that nothing else may be called so."""
    plain = text.strip(_AROUND)
    return plain.lower() in _WORDS or any(one.fullmatch(plain) for one in (_NOTE, _SHORT, _STRETCH))


def handle_of(message: Message, line: str) -> str:
    """The name of a stored message in a line: short if it is in the line's own stream, else its id."""
    return f"m{message.version}" if message.stream == line and message.version > 0 else message.id


def summary_handle(version: int) -> str:
    """The name of the summary at a version of the line's own stream."""
    return f"s{version}"


def stretch_handle(first: int, last: int) -> str:
    """The name of the messages from one version of the line's own stream to another."""
    return f"m{first}" if first == last else f"m{first}-m{last}"


def parse_handle(text: object) -> Name:
    """Read a name, as leniently as models write; refuses what cannot be one."""
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
    """Also the wrong way round, and of one message."""
    first, last = min(one, other), max(one, other)
    return Name(kind="messages" if first < last else "message", first=first, last=last)
