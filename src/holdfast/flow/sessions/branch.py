"""Rewind a thread to one of its messages, fork a new thread from a message, pin and unpin messages.

Nothing is removed and no body is copied. A fork keeps its shared messages as they were when it was forked,
whatever is appended, retracted or reset in the parent later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice, takewhile

from msgspec.structs import replace

from holdfast.errors import InvalidValue, Refused, SessionClosed, Unsupported
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal.append import States, decide_and_append
from holdfast.flow.sessions import summaries
from holdfast.flow.sessions.read import (
    MessageLocation,
    find_place,
    iter_places,
    iter_places_after,
    load_messages,
    message_facts,
    session_stream,
    thread_segments,
    thread_state,
)
from holdfast.flow.sessions.sessions import new_thread_drafts
from holdfast.ports import Env
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import ReasonContent
from holdfast.records.events.sessions import (
    CallRef,
    MessagePinned,
    MessageRetracted,
    MessageSpan,
    SharedSegment,
    ThreadAdded,
    ThreadForked,
)
from holdfast.records.frames import StreamState
from holdfast.records.ids import check_id
from holdfast.records.messages import Message
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.sessions import ThreadState

CALL_SEARCH_MESSAGES = 256
"""Messages before a branching point that are searched for calls without results."""


def rewind(env: Env, stream: str, to: Message | str | None, *, cause: str = "rewind", reason: str | None = None) -> int:
    """Make a message the newest of its thread, or empty the thread; return the number of retracted messages."""
    content = None if reason is None else ReasonContent(reason=reason)
    counted = 0
    thread_state(env, stream)  # Refresh: a cached state must not decide that there is nothing to do.

    def decide(states: States) -> dict[str, list[Draft]]:
        nonlocal counted
        state = states[stream]
        thread = _require_open_thread(state, stream)
        # Look it up inside the decision: another process may retract it in between.
        place = None if to is None else find_place(env, stream, to)
        counted = thread.messages - _position(place)
        if not counted:
            return {}
        after = place.version if place is not None and place.stream == stream else thread.floor
        newest_first = takewhile(lambda one: one.stream == stream and one.version > after, iter_places(env, stream))
        own = [one.version for one in newest_first][::-1]
        facts = _retraction_facts(env, stream, thread, state.version, place, own, cause)
        drafts = {stream: [Draft(type="message.retracted", facts=facts, content=content)]}
        distance = _rank_streams(stream, thread)
        for scope, compaction, end in summaries.list_flushed(env, stream):
            if scope in states and _is_retracted(distance, end, place):
                drafts.setdefault(scope, []).extend(summaries.delete_passages(env, scope, compaction))
        return drafts

    def scopes(states: States) -> list[str]:
        flushed = summaries.list_flushed(env, stream) if states[stream].thread is not None else ()
        return list(dict.fromkeys(scope for scope, _, _ in flushed))

    decide_and_append(env, (stream,), decide, needs=scopes)
    return counted


def _require_open_thread(state: StreamState, stream: str) -> ThreadState:
    if state.thread is None or state.thread.ended:
        raise SessionClosed(f"{stream} has ended and cannot be changed. Its messages are kept.")
    return state.thread


def _position(place: MessageLocation | None) -> int:
    return 0 if place is None else int(place.row["position"] or 0)


def _retraction_facts(
    env: Env,
    stream: str,
    thread: ThreadState,
    version: int,
    place: MessageLocation | None,
    own: Sequence[int],
    cause: str,
) -> MessageRetracted:
    left = _open_calls_at(env, stream, place, stream)
    own_place = place if place is not None and place.stream == stream else None
    shared = None if own_place else _segments_until(thread_segments(stream, thread)[1:], place)
    return MessageRetracted(
        first=own[0] if own else version,
        last=version,
        spans=tuple(_group_spans(own)),
        position=_position(place),
        shared=shared if shared != thread.shared else None,
        newest=own_place.version if own_place else 0,
        cause=cause,
        voided=tuple(_find_voided_summaries(env, stream, thread, place)),
        dropped=tuple(id for id in thread.calls if id not in {call.id for call in left}),
        opened=tuple(left),
    )


def _group_spans(versions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Group versions into (first, last) spans: a long conversation is mostly one span."""
    for _, group in groupby(enumerate(versions), key=lambda pair: pair[1] - pair[0]):
        run = [version for _, version in group]
        yield run[0], run[-1]


def _segments_until(found: Sequence[SharedSegment], place: MessageLocation | None) -> tuple[SharedSegment, ...]:
    """Return the shared segments cut off at a place; empty if there is no place."""
    for number, segment in enumerate(found):
        if place is not None and segment.stream == place.stream:
            cut = SharedSegment(segment.stream, segment.after, place.version, segment.at)
            return (cut, *found[number + 1 :])
    return ()


def _rank_streams(stream: str, thread: ThreadState) -> dict[str, int]:
    """Return the distance of each stream that a thread's messages are in: 0 for its own, most for the oldest."""
    return {segment.stream: number for number, segment in enumerate(thread_segments(stream, thread))}


def _is_retracted(distance: dict[str, int], end: MessageSpan, place: MessageLocation | None) -> bool:
    """Return True if a span reaches beyond the place that a thread is rewound to."""
    here = (len(distance), 0) if place is None else (distance[place.stream], -place.version)
    return (distance.get(end.stream, 0), -end.last) < here


def _find_voided_summaries(env: Env, stream: str, thread: ThreadState, place: MessageLocation | None) -> list[int]:
    """Return the thread's summaries that cover retracted messages, or that follow a voided summary."""
    distance = _rank_streams(stream, thread)
    shared = len(distance) if place is None else distance[place.stream]
    voided: list[int] = []
    gap = False
    for summary in summaries.list_summaries(env, stream):
        # A summary made in a thread that is no longer shared is voided too, and no summary may follow a gap.
        gap = gap or _is_retracted(distance, summary.covers[-1], place) or 0 < distance[summary.stream] < shared
        if gap and summary.stream == stream:
            voided.append(summary.version)
    return voided


def _open_calls_at(env: Env, stream: str, place: MessageLocation | None, into: str) -> list[CallRef]:
    """Return the calls without a result at a place, oldest first: the thread continuing from there awaits them."""
    if place is None:
        return []
    near = [place, *islice(iter_places(env, stream, before=place), CALL_SEARCH_MESSAGES - 1)]
    waiting: dict[str, tuple[tuple[str, int], str | None]] = {}
    for call in _open_calls_before(env, stream, place):
        waiting[call.id] = ((stream if call.version > 0 else "", call.version), call.provider)
    for one in reversed(near):
        if not one.row["calls"] and one.row["role"] != "tool":
            continue
        facts = message_facts(env, one)
        for id, provider in facts.calls:
            waiting.pop(id, None)
            waiting[id] = (one.key, provider)
        for id in facts.answers:
            waiting.pop(id, None)
    shared = list(dict.fromkeys(made for made, _ in waiting.values() if made[0] != into))
    numbers = {made: index - len(shared) for index, made in enumerate(shared)}
    return [CallRef(id, numbers.get(made, made[1]), provider) for id, (made, provider) in waiting.items()]


def _open_calls_before(env: Env, stream: str, place: MessageLocation) -> list[CallRef]:
    """Return the calls that are open now and were made at a place or before it, oldest first."""
    calls = thread_state(env, stream).calls.values()
    if place.stream == stream:
        found = [call for call in calls if call.version <= place.version]
    else:
        found = [call for call in calls if call.version < 0]
        later = iter_places_after(env, stream, place) if found else ()
        made = {id for one in later if one.row["calls"] for id, _ in message_facts(env, one).calls}
        found = [call for call in found if call.id not in made]
    return sorted(found, key=lambda call: (call.version, call.id))


def fork(env: Env, stream: str, at: Message | str | None, thread: str) -> str:
    """Fork a new thread after a message, or after the newest one, and return its stream."""
    session = session_stream(stream)
    name = Scope.thread(str(parse_scope(session).get("session")), check_id(thread, "thread id")).text
    if name == stream:
        raise InvalidValue(f"A fork is another thread: give a name other than {thread!r}.")

    def decide(states: States) -> dict[str, list[Draft]]:
        known = states[session].session
        # Nothing is written to the parent, so its version is not compared. Read it in one snapshot instead.
        with env.journal.snapshot():
            parent = load_current_state(env, stream)
            if known is None or parent.thread is None:
                raise Refused(f"There is no conversation {stream} to fork.")
            if known.status in ("closed", "closing") and not parent.thread.fresh:
                raise SessionClosed(f"{session} was closed and takes no new threads.")
            if states[name].version:
                raise InvalidValue(f"There is a thread {thread!r} already. Give the fork another name.")
            place = next(iter_places(env, stream), None) if at is None else find_place(env, stream, at)
            # A fork shares the parent's own messages as they are now, then those the parent shares.
            own, *others = thread_segments(stream, parent.thread)
            forked = ThreadForked(
                parent=stream,
                version=0 if place is None else place.version,
                shared=_segments_until([replace(own, at=parent.version), *others], place),
                position=_position(place),
                opened=tuple(_open_calls_at(env, stream, place, name)),
                generation=known.generation,
            )
        added = Draft(type="thread.added", facts=ThreadAdded(thread=thread))
        first = Draft(type="thread.forked", facts=forked)
        return {name: [first, *new_thread_drafts(known)], session: [added]}

    decide_and_append(env, (name, session), decide)
    return name


def pin(env: Env, stream: str, message: Message | str, *, pinned: bool = True) -> Message:
    """Pin a message so that every window keeps it, or unpin it."""
    place = find_place(env, stream, message)
    if place.stream != stream:
        raise Unsupported(f"This message belongs to {place.stream}, which this thread was forked from. Pin it there.")

    def decide(states: States) -> dict[str, list[Draft]]:
        nonlocal place
        _require_open_thread(states[stream], stream)
        place = find_place(env, stream, message)
        if bool(place.row["pinned"]) == pinned:
            return {}
        return {stream: [Draft(type="message.pinned", facts=MessagePinned(version=place.version, pinned=pinned))]}

    decide_and_append(env, (stream,), decide)
    return load_messages(env, [MessageLocation(stream, {**place.row, "pinned": int(pinned)})])[0]
