"""Read threads: message rows by place, newest or oldest first, and the bodies of selected rows.

The cost follows the answer: rows are read in pages, then bodies with one read per run of nearby versions.
A fork is read through the segments it shares with other threads, as those were when it was forked. Leading instructions
and pinned messages, with their calls and results, are found by their rows: they stay in every pack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.codec import decode, decode_event, decode_facts, read_content
from holdfast.core.sessions.message_events import build_message, text_artifacts
from holdfast.errors import Corrupt, MessageNotFound, NotFound, Refused, SessionNotFound
from holdfast.flow.frames.read import load_current_state, read_event
from holdfast.flow.journal import artifacts
from holdfast.flow.journal.read import iterate_stored
from holdfast.ports import Env
from holdfast.records.batches import Row, RowQuery
from holdfast.records.events.envelope import ERASED, Event, StoredEvent
from holdfast.records.events.sessions import MessageAppended, MessageContent, SharedSegment
from holdfast.records.ids import ulid_bytes, ulid_text
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.reports import EventQuery
from holdfast.records.scope import SCOPES_CACHED, Scope, parse_scope
from holdfast.records.sessions import ThreadState

PAGE = 64
EVENT_PAGE = 256
RUN_GAP = 32
MESSAGE_TYPES = ("message.appended",)
LATEST = 2**62
_SHARE_TYPES = ("thread.forked", "message.retracted", "thread.ended")
INSTRUCTIONS = frozenset({"system", "developer"})
MAX_LEADING = 4
"""The number of messages at the beginning of a thread that are checked for instructions."""
ROUND_SEARCH_MESSAGES = 64
"""The number of messages around a pinned one that are searched for its calls and results."""


class MessageLocation(msgspec.Struct, frozen=True):
    """A message's row and the stream it is stored in."""

    stream: str
    row: Row

    @property
    def version(self) -> int:
        """The message's version in its stream."""
        return int(self.row["version"] or 0)

    @property
    def key(self) -> tuple[str, int]:
        """The message's stream and version, which no other message has."""
        return self.stream, int(self.row["version"] or 0)

    @property
    def round(self) -> int:
        """The version at which the message's round begins."""
        return int(self.row["round"] or 0)


@lru_cache(maxsize=SCOPES_CACHED)
def session_stream(stream: str) -> str:
    """Return the session stream that a thread's stream belongs to."""
    session = parse_scope(stream).get("session")
    return stream if session is None else Scope.session(session).text


def thread_state(env: Env, stream: str) -> ThreadState:
    """Return the current state of a thread; refuse an unknown one."""
    state = load_current_state(env, stream)
    if state.thread is None:
        raise SessionNotFound(f"There is no conversation {stream}. Open it with hf.session(…), or check its id.")
    return state.thread


def thread_segments(stream: str, thread: ThreadState) -> list[SharedSegment]:
    """Return the segments of a thread, nearest first: its own, then the shared ones."""
    return [SharedSegment(stream, thread.floor, thread.newest, LATEST), *thread.shared]


def load_shared_at(env: Env, stream: str, version: int) -> tuple[SharedSegment, ...]:
    """Load the segments that a thread shared with others at one of its versions, nearest first, from its events."""
    shared: tuple[SharedSegment, ...] = ()
    query = EventQuery(tenant=env.tenant, stream=stream, until=version, types=_SHARE_TYPES, limit=EVENT_PAGE)
    for event in map(decode_event, iterate_stored(env.journal, query)):
        if event.type == "thread.ended":
            shared = () if event.facts.reset else shared
        elif event.facts.shared is not None:
            shared = event.facts.shared
    return shared


def iter_places(
    env: Env, stream: str, *, before: MessageLocation | None = None, page: int = PAGE
) -> Iterator[MessageLocation]:
    """Iterate over a thread's messages, newest first, or over those before one of them. Reads rows only, in pages."""
    found = thread_segments(stream, thread_state(env, stream))
    if before is not None:
        found = _segments_from(found, before)
        found[0] = SharedSegment(before.stream, found[0].after, before.version - 1, found[0].at)
    for segment in found:
        yield from iter_segment(env, segment, backwards=True, page=page)


def iter_places_after(
    env: Env, stream: str, after: MessageLocation | None = None, page: int = PAGE
) -> Iterator[MessageLocation]:
    """Iterate over a thread's messages, oldest first, or over those after one of them."""
    found = thread_segments(stream, thread_state(env, stream))
    if after is not None:
        rest = len(_segments_from(found, after))
        found = found[: len(found) - rest + 1]
        found[-1] = SharedSegment(after.stream, max(after.version, found[-1].after), found[-1].until, found[-1].at)
    for segment in reversed(found):
        yield from iter_segment(env, segment, backwards=False, page=page)


def _segments_from(found: list[SharedSegment], place: MessageLocation) -> list[SharedSegment]:
    for number, segment in enumerate(found):
        if segment.stream == place.stream:
            return found[number:]
    raise MessageNotFound("The message that the page begins at is no longer part of this thread. Begin again.")


def iter_segment(env: Env, segment: SharedSegment, *, backwards: bool, page: int = PAGE) -> Iterator[MessageLocation]:
    """Iterate over the messages of one segment that stand in it. Reads rows only, in pages."""
    after, until, over = segment.after, segment.until, LATEST
    while after < until:
        query = RowQuery(
            table="messages", stream=segment.stream, after=after, until=until, limit=page, backwards=backwards
        )
        rows = env.journal.select(env.tenant, query)
        for stream, row in rows:
            if row["retracted"] is None or is_standing(row, segment):
                over = LATEST if row["before"] is None else int(row["before"])
                yield MessageLocation(stream, row)
        if len(rows) < page:
            return
        last = int(rows[-1][1]["version"] or 0)
        # Going backwards, skip all messages that were retracted before this one, however many there are.
        after, until = (after, min(last - 1, over)) if backwards else (last, until)


def is_standing(row: Row, segment: SharedSegment) -> bool:
    """Return True if a message was part of the thread at the segment's version: not yet retracted then."""
    retracted = row["retracted"]
    return retracted is None or int(retracted) > segment.at


def message_facts(env: Env, place: MessageLocation) -> MessageAppended:
    """Load the facts of a message: the calls it makes and the calls it answers."""
    event = read_event(env, place.stream, place.version)
    assert event is not None, "a row names its event"
    facts: MessageAppended = event.facts
    return facts


def load_messages(env: Env, found: Sequence[MessageLocation]) -> list[Message]:
    """Load the messages at some places, in the same order, with one read per run of nearby versions."""
    wanted: dict[str, set[int]] = {}
    keys = [(place.stream, int(place.row["version"] or 0)) for place in found]
    for stream, version in keys:
        wanted.setdefault(stream, set()).add(version)
    events: dict[tuple[str, int], StoredEvent] = {}
    for stream, versions in wanted.items():
        for run in group_versions(sorted(versions)):
            events.update({(stream, one.version): one for one in read_stored(env, stream, run[0], run[-1])})
    for key in keys:
        if key not in events:
            raise Corrupt(f"{key[0]} has a message at version {key[1]} without its event. Run `holdfast verify`.")
    pairs = zip(keys, found, strict=True)
    return [read_message(env, events[key], pinned=bool(place.row["pinned"])) for key, place in pairs]


def group_versions(versions: list[int]) -> list[list[int]]:
    """Group nearby versions to be read together, without reading across wide gaps."""
    found: list[list[int]] = []
    for version in versions:
        if not found or version - found[-1][-1] > RUN_GAP:
            found.append([])
        found[-1].append(version)
    return found


def read_stored(env: Env, stream: str, first: int, last: int) -> list[StoredEvent]:
    """Read the messages from one version of a stream to another, as they are stored."""
    found: list[StoredEvent] = []
    while first <= last:
        query = EventQuery(
            tenant=env.tenant, stream=stream, after=first - 1, until=last, types=MESSAGE_TYPES, limit=EVENT_PAGE
        )
        page = env.journal.read(query)
        found += page
        if len(page) < EVENT_PAGE:
            break
        first = page[-1].version + 1
    return found


def decode_messages(env: Env, events: Sequence[Event], pinned: set[tuple[str, int]] | None = None) -> list[Message]:
    """Decode message events, with large texts loaded from their artifacts."""
    found = []
    for event in events:
        if event.type in MESSAGE_TYPES:
            texts, kept = _large_texts(env, event.content), (event.stream, event.version) in (pinned or ())
            found.append(build_message(event.id, event, event.facts, event.content, texts, kept))
    return found


def read_message(env: Env, stored: StoredEvent, *, pinned: bool) -> Message:
    """Decode one stored message with its large texts, and nothing else of its event: many are read at a time."""
    body, facts = read_content(stored), decode_facts(stored.type, stored.schema, stored.facts)
    content: Any = decode(body, MessageContent) if body is not None else ERASED if stored.erased else None
    plain = isinstance(content, MessageContent) and content.parts is None and content.tool_results is None
    texts = {} if plain else _large_texts(env, content)
    return build_message(ulid_text(stored.id), stored, facts, content, texts, pinned)


def _large_texts(env: Env, content: Any) -> dict[str, str]:
    texts = {}
    for name in text_artifacts(content):
        body = artifacts.read_artifact(env, name)
        if isinstance(body, bytes):
            texts[name] = body.decode("utf-8", "replace")
    return texts


def read_messages(
    env: Env,
    stream: str,
    *,
    limit: int | None = None,
    before: MessageLocation | None = None,
    after: MessageLocation | None = None,
) -> list[Message]:
    """Read a page of a thread, oldest first: the newest `limit`, or those before or after a message."""
    walk = iter_places(env, stream, before=before) if after is None else iter_places_after(env, stream, after)
    # The thread is looked at even if nothing of it is wanted: an unknown one is refused.
    found = list(walk) if limit is None else [place for place, _ in zip(walk, range(limit), strict=False)]
    return load_messages(env, found[::-1] if after is None else found)


def open_calls(env: Env, stream: str) -> list[ToolCallRequest]:
    """Return a thread's tool calls that have no result yet, oldest first."""
    waiting = set(thread_state(env, stream).calls)
    found: list[ToolCallRequest] = []
    for place in iter_places(env, stream) if waiting else ():
        if place.row["calls"]:
            made = [call for call in load_messages(env, [place])[0].tool_calls if call.id in waiting]
            waiting -= {call.id for call in made}
            found = made + found
        if not waiting:
            break
    return found


def iter_messages(env: Env, stream: str) -> Iterator[Message]:
    """Iterate over a whole thread, oldest first, loading a page at a time."""
    yield from _load_pages(env, iter_places_after(env, stream))


def _load_pages(env: Env, found: Iterator[MessageLocation]) -> Iterator[Message]:
    while page := list(islice(found, PAGE)):
        yield from load_messages(env, page)


def iter_segment_messages(env: Env, segment: SharedSegment) -> Iterator[Message]:
    """Iterate over the messages of one segment, oldest first, loading a page at a time."""
    yield from _load_pages(env, iter_segment(env, segment, backwards=False))


def find_place(env: Env, stream: str, message: Message | str) -> MessageLocation:
    """Find a message of this thread; refuse one that is not, or no longer, part of it."""
    id = message.id if isinstance(message, Message) else message
    if not isinstance(id, str) or not id:
        raise MessageNotFound("Name a stored message: a Message that append or messages gave, or its id.")
    try:
        stored = env.journal.event(env.tenant, ulid_bytes(id))
    except Refused:
        stored = None
    if stored is not None and stored.type in MESSAGE_TYPES:
        for segment in thread_segments(stream, thread_state(env, stream)):
            if segment.stream == stored.stream and segment.after < stored.version <= segment.until:
                query = RowQuery(
                    table="messages", stream=stored.stream, after=stored.version - 1, until=stored.version, limit=1
                )
                for place, row in env.journal.select(env.tenant, query):
                    if is_standing(row, segment):
                        return MessageLocation(place, row)
    raise MessageNotFound(f"There is no message {id!r:.40} in {stream}. It was retracted, or belongs elsewhere.")


def inline_artifacts(env: Env, message: Message) -> Message:
    """Return a message with its images and files as bytes again, except erased ones."""
    if not isinstance(message.content, list) and not message.tool_results:
        return message
    return replace(
        message,
        content=_inline_parts(env, message.content),
        tool_results=tuple(replace(one, result=_inline_parts(env, one.result)) for one in message.tool_results),
    )


def _inline_parts(env: Env, parts: Any) -> Any:
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return parts
    found = []
    for part in parts:
        name = part.get("artifact")
        if part.get("type") not in ("image", "file") or not isinstance(name, str):
            found.append(part)
            continue
        rest = {key: value for key, value in part.items() if key != "artifact"}
        try:
            body = artifacts.read_artifact(env, name)
        except NotFound:
            body = None
        found.append({**rest, "data": body} if isinstance(body, bytes) else rest)
    return found


def add_pinned(env: Env, stream: str, instructions: Sequence[MessageLocation]) -> list[MessageLocation]:
    """Return leading instructions together with all pinned rounds of a thread; oldest first, each once."""
    thread = thread_segments(stream, thread_state(env, stream))
    kept = {place.key: place for place in instructions}
    for place in _iter_pinned(env, thread):
        kept.update({one.key: one for one in _load_round(env, stream, place)})
    nearness = {segment.stream: at for at, segment in enumerate(thread)}
    return sorted(kept.values(), key=lambda place: (-nearness[place.stream], place.version))


def leading_instructions(env: Env, stream: str) -> Iterator[MessageLocation]:
    """Iterate over the instructions at the very beginning of a thread, as in lists that include their system prompt."""
    first = islice(iter_places_after(env, stream, page=MAX_LEADING), MAX_LEADING)
    return takewhile(lambda place: place.row["role"] in INSTRUCTIONS, first)


def _iter_pinned(env: Env, thread: Sequence[SharedSegment]) -> Iterator[MessageLocation]:
    for one in thread:
        query = RowQuery(
            table="messages", stream=one.stream, column="pinned", value=1, after=one.after, until=one.until, limit=1_000
        )
        for stream, row in env.journal.select(env.tenant, query):
            if is_standing(row, one):
                yield MessageLocation(stream, row)


def _load_round(env: Env, stream: str, place: MessageLocation) -> list[MessageLocation]:
    """Return a message with the calls it answers, and with the results of all these calls."""
    found = [place]
    if place.row["role"] == "tool":
        wanted = set(message_facts(env, place).answers)
        for one in islice(iter_places(env, stream, before=place), ROUND_SEARCH_MESSAGES if wanted else 0):
            if one.row["calls"] and wanted & (made := _call_ids(env, one)):
                wanted -= made
                found.append(one)
    for head in [one for one in found if one.row["calls"]]:
        found += _iter_results(env, stream, head)
    return found


def _iter_results(env: Env, stream: str, head: MessageLocation) -> Iterator[MessageLocation]:
    """Iterate over the messages near `head` that answer its calls."""
    wanted = _call_ids(env, head)
    for one in islice(iter_places_after(env, stream, head), ROUND_SEARCH_MESSAGES):
        if one.row["role"] == "tool" and wanted & (answers := set(message_facts(env, one).answers)):
            wanted -= answers
            yield one
        if not wanted:
            return


def _call_ids(env: Env, place: MessageLocation) -> set[str]:
    return {id for id, _ in message_facts(env, place).calls}
