"""What can be found: the words of messages and of entries, and which of them a search may give out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from holdfast.core.journal.codec import decode
from holdfast.core.search.words import text_of
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.events.sessions import MessageContent, Segment
from holdfast.records.events.state import ValueContent
from holdfast.records.messages import Message, Part

SAID: Final = "message.appended"
KEPT: Final = "state.written"
FORGOTTEN: Final = "state.deleted"
PIECE: Final = 300
"""Characters that are embedded together, roughly: a few sentences."""
MOST_PIECES: Final = 32
INDEXED_CHARS: Final = 20_000
"""Characters of one message or entry that are indexed: what an append costs is bounded."""
INDEXED_BYTES: Final = 4 * INDEXED_CHARS
"""Bytes of a text that hold as many characters, whatever they are."""

Beginning = Callable[[str], str]
"""The first characters of a text that lies in an artifact, by the artifact's name; empty if there is none to read."""


class TextSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for in the journal of one tenant.

    `lines` are the stretches of conversations and `scopes` those of entries that are searched; without
    either everything of the tenant is, as it stands now.
    """

    terms: tuple[str, ...]
    now: int
    lines: tuple[Segment, ...] = ()
    scopes: tuple[str, ...] = ()
    limit: int = 400

    @property
    def everywhere(self) -> bool:
        """Whether no place was named."""
        return not self.lines and not self.scopes

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that are looked at."""
        return tuple(dict.fromkeys((*(line.stream for line in self.lines), *self.scopes)))


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the index found, and whether what it says still stands."""

    event: StoredEvent
    score: float
    retracted: int | None = None
    """For a message: the version at which it was retracted."""
    floor: int = 0
    """For a message: up to which version its line belongs to an earlier conversation."""
    current: bool = True
    """For an entry: whether the key still has this value."""
    expires_at: int | None = None


def admits(search: TextSearch, hit: Hit) -> bool:
    """Whether a hit is an answer: in one of the places, standing, and in time."""
    event = hit.event
    if event.content is None:
        return False
    if event.type == KEPT:
        live = hit.expires_at is None or hit.expires_at > search.now
        return hit.current and live and (search.everywhere or event.stream in search.scopes)
    if search.everywhere:
        return hit.retracted is None and event.version > hit.floor
    return any(_within(line, hit) for line in search.lines)


def _within(line: Segment, hit: Hit) -> bool:
    event = hit.event
    stands = hit.retracted is None or hit.retracted > line.at
    return event.stream == line.stream and line.after < event.version <= line.until and stands


def pieces(text: str) -> list[str]:
    """A text as the pieces that are embedded: a vector of a long text means a little of everything in it.

    Pieces end between words, and all of them are about the same length; a very long text has longer ones.
    """
    if len(text) <= PIECE + PIECE // 2:
        return [text]
    count = min(MOST_PIECES, -(-len(text) // PIECE))
    size = -(-len(text) // count)
    found, start = [], 0
    while start < len(text):
        end = min(len(text), start + size)
        gap = text.rfind(" ", start + size // 2, end) if end < len(text) else -1
        end = end if gap < 0 else gap
        found.append(text[start:end].strip())
        start = end
    return [piece for piece in found if piece] or [text]


def searchable(type_name: str, facts: Any, content: bytes | None, beginning: Beginning) -> str:
    """The words of an event; none for events that are not looked for."""
    if content is None:
        return ""
    if type_name == SAID:
        return said(decode(content, MessageContent), beginning)
    if type_name == KEPT:
        return f"{facts.key}\n{text_of(decode(content, ValueContent).value, INDEXED_CHARS)}"
    return ""


def unread(name: str) -> str:
    """For whoever asks only for what lies in the event itself."""
    return ""


def artifact_id(name: object) -> bytes:
    """An artifact's name as it is stored. Content that names none that can be is searched without it."""
    try:
        return bytes.fromhex(name) if isinstance(name, str) else b""
    except ValueError:
        return b""


def beginning_of(body: bytes | None) -> str:
    """The first characters of a large text, as far as they are indexed; what was erased has none."""
    return "" if body is None else body[:INDEXED_BYTES].decode("utf-8", "ignore")[:INDEXED_CHARS]


def said(content: MessageContent, beginning: Beginning) -> str:
    """What a message says, with what its tools gave; calls and their arguments are how, not what.

    Texts that lie in artifacts are part of it, and read as long as there is room for more.
    """
    if content.parts is None and content.tool_results is None:
        return (content.text or "")[:INDEXED_CHARS]
    return _first(_stored(content, beginning))


def _stored(content: MessageContent, beginning: Beginning) -> Iterator[Any]:
    yield content.text
    for part in content.parts or ():
        if _is_text(part):
            yield beginning(part["artifact"]) if "artifact" in part else part.get("text")
    for result in content.tool_results or ():
        named = "artifact" in result
        yield beginning(result["artifact"]) if named else text_of(result.get("result"), INDEXED_CHARS)


def _is_text(part: Part) -> bool:
    return part.get("type") in ("text", "refusal")


def told(message: Message) -> str:
    """The same of a message whose large texts were read in."""
    content = message.content
    parts = [content] if not isinstance(content, list) else [part.get("text") for part in content if _is_text(part)]
    return _first((*parts, *(text_of(one.result, INDEXED_CHARS) for one in message.tool_results)))


def _first(texts: Iterable[Any]) -> str:
    """Texts one below the other, up to what is indexed; no more of them are asked for than there is room for."""
    found: list[str] = []
    room = INDEXED_CHARS
    for text in texts:
        if isinstance(text, str) and text:
            found.append(text)
            room -= len(text) + 1
            if room <= 0:
                break
    return "\n".join(found)[:INDEXED_CHARS]
