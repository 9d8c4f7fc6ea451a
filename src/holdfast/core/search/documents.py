"""The searches of a text index: their places, rows and hits, and the bounds of what is indexed."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.records.events.envelope import StoredEvent
from holdfast.records.events.sessions import SharedSegment

MESSAGE_APPENDED: Final = "message.appended"
STATE_WRITTEN: Final = "state.written"
STATE_DELETED: Final = "state.deleted"
PIECE_CHARS: Final = 300
"""Characters that are embedded together, roughly: a few sentences."""
MAX_PIECES: Final = 32
INDEXED_CHARS: Final = 20_000
"""Characters of one message or entry that are indexed, to bound the cost of an append."""
INDEXED_BYTES: Final = 4 * INDEXED_CHARS
"""Bytes that hold as many characters in any script."""


class TextSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A text search in the journal of one tenant.

    `threads` are the stretches of threads to search, and `scopes` the scopes of entries; without either, everything
    of the tenant is searched, as it stands now.
    """

    terms: tuple[str, ...]
    now: int
    threads: tuple[SharedSegment, ...] = ()
    scopes: tuple[str, ...] = ()
    limit: int = 400

    @property
    def everywhere(self) -> bool:
        """True if no place was named."""
        return not self.threads and not self.scopes

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that are searched."""
        return tuple(dict.fromkeys((*(thread.stream for thread in self.threads), *self.scopes)))


class TextRow(msgspec.Struct, frozen=True):
    """A row of a text index: its text, the end of the text before it, its date in words, and its place.

    `place` is one token of letters and digits, or several separated by spaces: one for each group to search by.
    """

    rowid: int
    text: str
    prev: str = ""
    date: str = ""
    place: str = ""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the index found, and its current validity."""

    event: StoredEvent
    score: float
    retracted: int | None = None
    """For a message: the version at which it was retracted."""
    floor: int = 0
    """For a message: the version up to which its thread belongs to an earlier conversation."""
    current: bool = True
    """For an entry: True if the key still has this value."""
    expires_at: int | None = None


def is_match(search: TextSearch, hit: Hit) -> bool:
    """Return True if a hit is in one of the places, current, and not expired."""
    event = hit.event
    if event.content is None:
        return False
    if event.type == STATE_WRITTEN:
        live = hit.expires_at is None or hit.expires_at > search.now
        return hit.current and live and (search.everywhere or event.stream in search.scopes)
    if search.everywhere:
        return hit.retracted is None and event.version > hit.floor
    standing = (one for one in search.threads if hit.retracted is None or hit.retracted > one.at)
    return any(event.stream == one.stream and one.after < event.version <= one.until for one in standing)


def split_pieces(text: str) -> list[str]:
    """Split a text into the pieces that are embedded: one vector of a long text would blur its topics.

    Pieces end between words and are about the same length; a very long text has longer ones.
    """
    if len(text) <= PIECE_CHARS + PIECE_CHARS // 2:
        return [text]
    count = min(MAX_PIECES, -(-len(text) // PIECE_CHARS))
    size = -(-len(text) // count)
    found, start = [], 0
    while start < len(text):
        end = min(len(text), start + size)
        gap = text.rfind(" ", start + size // 2, end) if end < len(text) else -1
        end = end if gap < 0 else gap
        found.append(text[start:end].strip())
        start = end
    return [piece for piece in found if piece] or [text]


def read_nothing(name: str) -> str:
    """Return nothing, for callers that want only the text in the event itself."""
    return ""


def artifact_id(name: object) -> bytes:
    """Return an artifact's id as it is stored; empty if the name is invalid: the text is then left out."""
    try:
        return bytes.fromhex(name) if isinstance(name, str) else b""
    except ValueError:
        return b""


def decode_beginning(body: bytes | None) -> str:
    """Return the indexed beginning of a large text; empty if it was erased."""
    return "" if body is None else body[:INDEXED_BYTES].decode("utf-8", "ignore")[:INDEXED_CHARS]
