"""Read threads: message rows by place, newest or oldest first, and the bodies of selected rows.

The cost follows the answer: rows are read in pages, then bodies with one read per run of nearby versions.
A fork is read through the segments it shares with other threads, as those were when it was forked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.journal.codec import decode_event
from holdfast.core.sessions.message_events import large_texts, message_content_of, message_of, stored_message
from holdfast.errors import MessageNotFound, Refused, SessionNotFound
from holdfast.flow.frames.read import current, event_at
from holdfast.flow.journal import artifacts
from holdfast.ports import Acting, Ports
from holdfast.records.batches import Row, Span
from holdfast.records.events.envelope import Event, StoredEvent
from holdfast.records.events.sessions import MessageAppended, Segment
from holdfast.records.ids import ulid_bytes
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.reports import Query
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.sessions import Line

PAGE = 64
NEAR = 32
APPENDED = ("message.appended",)
NOW = 2**62
_SHAPING = ("thread.forked", "message.retracted", "thread.ended")


class Place(msgspec.Struct, frozen=True):
    """A message's row and the stream it is stored in."""

    stream: str
    row: Row

    @property
    def version(self) -> int:
        """The message's version in its stream."""
        return int(self.row["version"] or 0)

    @property
    def round(self) -> int:
        """The version at which the message's round begins."""
        return int(self.row["round"] or 0)


@lru_cache(maxsize=1024)
def session_of(stream: str) -> str:
    """Return the session stream that a thread's stream belongs to."""
    session = parse_scope(stream).get("session")
    return stream if session is None else Scope.session(session).text


def line_of(ports: Ports, acting: Acting, stream: str) -> Line:
    """Return the current state of a thread; refuse an unknown one."""
    state = current(ports, acting, stream)
    if state.line is None:
        raise SessionNotFound(f"There is no conversation {stream}. Open it with hf.session(…), or check its id.")
    return state.line


def segments(stream: str, line: Line) -> list[Segment]:
    """Return the segments of a thread, nearest first: its own, then the shared ones."""
    return [Segment(stream, line.floor, line.newest, NOW), *line.shared]


def shared_at(ports: Ports, acting: Acting, stream: str, version: int) -> tuple[Segment, ...]:
    """Load the segments that a thread shared with others at one of its versions, nearest first, from its events."""
    shared: tuple[Segment, ...] = ()
    query = Query(tenant=acting.tenant, stream=stream, until=version, types=_SHAPING, limit=256)
    while page := ports.journal.read(query):
        for event in map(decode_event, page):
            if event.type == "thread.ended":
                shared = () if event.facts.reset else shared
            elif event.facts.shared is not None:
                shared = event.facts.shared
        query = msgspec.structs.replace(query, after=page[-1].version)
    return shared


def places(
    ports: Ports, acting: Acting, stream: str, *, before: Place | None = None, page: int = PAGE
) -> Iterator[Place]:
    """Iterate over a thread's messages, newest first, or over those before one of them. Reads rows only, in pages."""
    found = segments(stream, line_of(ports, acting, stream))
    if before is not None:
        found = _from(found, before)
        found[0] = Segment(before.stream, found[0].after, before.version - 1, found[0].at)
    for segment in found:
        yield from _walk(ports, acting, segment, backwards=True, page=page)


def places_after(
    ports: Ports, acting: Acting, stream: str, after: Place | None = None, page: int = PAGE
) -> Iterator[Place]:
    """Iterate over a thread's messages, oldest first, or over those after one of them."""
    found = segments(stream, line_of(ports, acting, stream))
    if after is not None:
        rest = len(_from(found, after))
        found = found[: len(found) - rest + 1]
        found[-1] = Segment(after.stream, max(after.version, found[-1].after), found[-1].until, found[-1].at)
    for segment in reversed(found):
        yield from _walk(ports, acting, segment, backwards=False, page=page)


def _from(found: list[Segment], place: Place) -> list[Segment]:
    for number, segment in enumerate(found):
        if segment.stream == place.stream:
            return found[number:]
    raise MessageNotFound("The message that the page begins at is no longer part of this line. Begin again.")


def _walk(ports: Ports, acting: Acting, segment: Segment, *, backwards: bool, page: int = PAGE) -> Iterator[Place]:
    after, until, over = segment.after, segment.until, NOW
    while after < until:
        span = Span(table="messages", after=after, until=until, limit=page, backwards=backwards)
        rows = ports.journal.span(acting.tenant, segment.stream, span)
        for row in rows:
            if stands(row, segment):
                over = NOW if row["before"] is None else int(row["before"])
                yield Place(segment.stream, row)
        if len(rows) < page:
            return
        last = int(rows[-1]["version"] or 0)
        # Going backwards, skip all messages that were retracted before this one, however many there are.
        after, until = (after, min(last - 1, over)) if backwards else (last, until)


def stands(row: Row, segment: Segment) -> bool:
    """Return True if a message was part of the thread at the segment's version: not yet retracted then."""
    retracted = row["retracted"]
    return retracted is None or int(retracted) > segment.at


def facts_of(ports: Ports, acting: Acting, place: Place) -> MessageAppended:
    """Load the facts of a message: the calls it makes and the calls it answers."""
    event = event_at(ports, acting, place.stream, place.version)
    assert event is not None, "a row names its event"
    facts: MessageAppended = event.facts
    return facts


def bodies(ports: Ports, acting: Acting, found: Sequence[Place]) -> list[Message]:
    """Load the messages at some places, in the same order, with one read per run of nearby versions."""
    wanted: dict[str, set[int]] = {}
    for place in found:
        wanted.setdefault(place.stream, set()).add(place.version)
    events: dict[tuple[str, int], StoredEvent] = {}
    for stream, versions in wanted.items():
        for run in runs(sorted(versions)):
            events.update(_events(ports, acting, stream, run))
    return [
        read_message(ports, acting, events[place.stream, place.version], pinned=bool(place.row["pinned"]))
        for place in found
    ]


def runs(versions: list[int]) -> list[set[int]]:
    """Group nearby versions to be read together, without reading across wide gaps."""
    found: list[set[int]] = []
    last = -NEAR
    for version in versions:
        if version - last > NEAR:
            found.append(set())
        found[-1].add(version)
        last = version
    return found


def _events(ports: Ports, acting: Acting, stream: str, wanted: set[int]) -> dict[tuple[str, int], StoredEvent]:
    first, last = min(wanted), max(wanted)
    found: dict[tuple[str, int], StoredEvent] = {}
    while first <= last:
        query = Query(tenant=acting.tenant, stream=stream, after=first - 1, until=last, types=APPENDED, limit=256)
        page = ports.journal.read(query)
        found.update({(stream, one.version): one for one in page if one.version in wanted})
        if len(page) < query.limit:
            break
        first = page[-1].version + 1
    return found


def decoded(
    ports: Ports, acting: Acting, events: Sequence[Event], pinned: set[tuple[str, int]] | None = None
) -> list[Message]:
    """Decode message events, with large texts loaded from their artifacts."""
    found = []
    for event in events:
        if event.type in APPENDED:
            texts = _large_texts(ports, acting, event.content)
            found.append(stored_message(event, texts, (event.stream, event.version) in (pinned or ())))
    return found


def read_message(ports: Ports, acting: Acting, stored: StoredEvent, *, pinned: bool) -> Message:
    """Decode one stored message, with its large texts loaded."""
    content = message_content_of(stored)
    return message_of(stored, content, _large_texts(ports, acting, content), pinned)


def _large_texts(ports: Ports, acting: Acting, content: Any) -> dict[str, str]:
    texts = {}
    for name in large_texts(content):
        body = artifacts.read(ports, acting, name)
        if isinstance(body, bytes):
            texts[name] = body.decode("utf-8", "replace")
    return texts


def messages(
    ports: Ports,
    acting: Acting,
    stream: str,
    *,
    limit: int | None = None,
    before: Place | None = None,
    after: Place | None = None,
) -> list[Message]:
    """Read a page of a thread, oldest first: the newest `limit`, or those before or after a message."""
    forwards = after is not None
    walk = places_after(ports, acting, stream, after) if forwards else places(ports, acting, stream, before=before)
    found: list[Place] = []
    for place in walk:
        if limit is not None and len(found) >= limit:
            break
        found.append(place)
    return bodies(ports, acting, found if forwards else found[::-1])


def open_calls(ports: Ports, acting: Acting, stream: str) -> list[ToolCallRequest]:
    """Return a thread's tool calls that have no result yet, oldest first."""
    waiting = set(line_of(ports, acting, stream).calls)
    found: list[ToolCallRequest] = []
    for place in places(ports, acting, stream) if waiting else ():
        if place.row["calls"]:
            made = [call for call in bodies(ports, acting, [place])[0].tool_calls if call.id in waiting]
            waiting -= {call.id for call in made}
            found = made + found
        if not waiting:
            break
    return found


def history(ports: Ports, acting: Acting, stream: str) -> Iterator[Message]:
    """Iterate over a whole thread, oldest first, loading a page at a time."""
    yield from paged(ports, acting, places_after(ports, acting, stream))


def paged(ports: Ports, acting: Acting, found: Iterator[Place]) -> Iterator[Message]:
    """Iterate over the messages at some places, loading a page at a time."""
    page: list[Place] = []
    for place in found:
        page.append(place)
        if len(page) == PAGE:
            yield from bodies(ports, acting, page)
            page = []
    if page:
        yield from bodies(ports, acting, page)


def span_of(ports: Ports, acting: Acting, segment: Segment) -> Iterator[Message]:
    """Iterate over the messages of one segment, oldest first, loading a page at a time."""
    yield from paged(ports, acting, _walk(ports, acting, segment, backwards=False))


def place_of(ports: Ports, acting: Acting, stream: str, message: Message | str) -> Place:
    """Find a message of this thread; refuse one that is not, or no longer, part of it."""
    id = message.id if isinstance(message, Message) else message
    if not isinstance(id, str) or not id:
        raise MessageNotFound("Name a stored message: a Message that append or messages gave, or its id.")
    try:
        stored = ports.journal.event(acting.tenant, ulid_bytes(id))
    except Refused:
        stored = None
    if stored is not None and stored.type in APPENDED:
        for segment in segments(stream, line_of(ports, acting, stream)):
            if segment.stream == stored.stream and segment.after < stored.version <= segment.until:
                span = Span(table="messages", after=stored.version - 1, until=stored.version, limit=1)
                for row in ports.journal.span(acting.tenant, segment.stream, span):
                    if stands(row, segment):
                        return Place(segment.stream, row)
    raise MessageNotFound(f"There is no message {id!r:.40} in {stream}. It was retracted, or belongs elsewhere.")
