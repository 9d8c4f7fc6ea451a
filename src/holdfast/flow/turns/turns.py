"""Turns: from a user's message to the final reply, as a root frame that survives its process.

Beginning a turn is a single append: the message, the frame and its lease. A message to a session whose turn has no
worker joins that turn. The next step is read from the journal, so that starting and resuming are the same. A key
stands for exactly the messages that were sent with it.

"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.frames import lifecycle, stack
from holdfast.core.frames.next_step import Said, TurnStep, turn_step
from holdfast.core.journal.codec import decode_event, encode
from holdfast.errors import Conflict, FrameNotFound, InvalidValue, KeyReused, Refused
from holdfast.flow.frames import takeover
from holdfast.flow.frames.read import current, event_at, field
from holdfast.flow.journal import artifacts
from holdfast.flow.journal.append import States, change
from holdfast.flow.journal.redact import clean
from holdfast.flow.sessions import read
from holdfast.flow.turns.append import ConversationOver, Place, Speech, is_gone, write
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import ERASED, Draft, Event, StoredEvent
from holdfast.records.events.frames import CancelRequested, FramePushed, GoalContent, TurnJoined
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import Frame, FrameLimits, StreamState
from holdfast.records.ids import ulid_bytes, ulid_text
from holdfast.records.messages import Message
from holdfast.records.reports import Query
from holdfast.records.scope import Scope, parse_scope

ACTOR = "main"
"""The actor of all turns of a thread: they share one lease, so that two turns never run in parallel."""
GOAL_CHARS = 200
STOPPED = "stopped"
OVER = "The conversation was ended."


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A request to begin or join a turn."""

    messages: tuple[Message, ...]
    key: str | None = None
    tokens: int | None = None
    limits: FrameLimits
    agent: str | None = None


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that was begun just now, joined, or found under its key."""

    place: Place
    new: bool = False
    messages: tuple[Message, ...] = ()
    """The messages appended by this call, if any."""


def place_of_turns(line: str) -> Place:
    """Return the place where the turns of a thread live."""
    scope = parse_scope(line)
    session, thread = scope.get("session"), scope.get("thread")
    if session is None or thread is None:
        raise InvalidValue(f"{line} is not a session's conversation, so no turns are taken in it.")
    return Place(actor=Scope.actor(ACTOR, session=session, thread=thread).text, line=line)


def live_turn(ports: Ports, acting: Acting, place: Place) -> Place | None:
    """Return the live turn of a thread, or None."""
    for frame in stack.in_order(current(ports, acting, place.actor).frames):
        if frame.parent is None and frame.outer is None:
            found = turn_place(ports, acting, place, frame)
            if found is not None:
                return found
    return None


def turn_place(ports: Ports, acting: Acting, place: Place, frame: Frame) -> Place | None:
    """Return a root frame's turn, or None if it is not one."""
    pushed = event_at(ports, acting, place.actor, frame.pushed)
    return None if pushed is None else _placed(place, pushed.facts)


def agent_of(ports: Ports, acting: Acting, actor: str, frame: Frame) -> str | None:
    """Return the agent that answers in a turn."""
    pushed = event_at(ports, acting, actor, frame.pushed)
    return None if pushed is None else pushed.facts.agent


def _placed(place: Place, facts: FramePushed) -> Place | None:
    if facts.conversation is None or facts.visible_from is None:
        return None
    return Place(actor=place.actor, line=facts.conversation, frame=facts.frame, started=facts.visible_from)


def by_key(ports: Ports, acting: Acting, place: Place, wanted: Wanted) -> Taken | None:
    """Return the turn begun or joined under a key; refuse a key that was used for other messages."""
    if wanted.key is None:
        return None
    stored = ports.journal.by_key(acting.tenant, place.actor, wanted.key)
    events = [decode_event(event) for event in stored]
    if not events:
        return None
    found = next((event for event in events if event.type in ("frame.pushed", "turn.joined")), None)
    at = None if found is None else _turn_named(ports, acting, place, found)
    if found is None or at is None:
        raise KeyReused(f"Key {wanted.key!r} already stands for {events[0].type}. Use another key for this turn.")
    said = found.facts.message if found.type == "turn.joined" else at.started
    check_said(ports, acting, at.line, said, wanted.messages, wanted.key)
    return Taken(place=at)


def _turn_named(ports: Ports, acting: Acting, place: Place, event: Event) -> Place | None:
    if event.type == "frame.pushed":
        return _placed(place, event.facts)
    found = ports.journal.find(acting.tenant, "frames", "frame_id", ulid_bytes(event.facts.frame), b"", 1)
    if not found:
        raise FrameNotFound(f"There is no frame {event.facts.frame}. Check its id and the tenant.")
    pushed = event_at(ports, acting, place.actor, int(found[0][1]["pushed_version"] or 0))
    return None if pushed is None else _placed(place, pushed.facts)


def begin(ports: Ports, acting: Acting, place: Place, wanted: Wanted) -> Taken:
    """Begin a turn: message, frame and lease in one append. Call it once nothing else works on the thread."""
    frame = ulid_text(ports.ids.ulid())
    content = clean(ports, GoalContent(goal=goal_of(wanted.messages)))

    def decide(state: StreamState, speech: Speech) -> list[Draft]:
        _check_free(ports, acting, place, state)
        pushed = lifecycle.push(
            {place.actor: state},
            place.actor,
            frame,
            parent=None,
            tokens=wanted.tokens,
            limits=wanted.limits,
            default=wanted.limits,
            content=content,
            now=ports.clock.now_ms(),
        )[place.actor]
        facts = msgspec.structs.replace(
            pushed[0].facts, conversation=place.line, visible_from=speech.versions[0], agent=wanted.agent
        )
        own = msgspec.structs.replace(pushed[0], facts=facts)
        return [*ports.leases.wanted(acting.tenant, place.actor, state), own]

    at = msgspec.structs.replace(place, frame=frame)
    said, changed = write(ports, acting, at, wanted.messages, decide, key=wanted.key, same=lambda events: True)
    if changed.repeated:
        found = by_key(ports, acting, place, wanted)
        assert found is not None, "a key that was used names what it was used for"
        return found
    ports.states.note_place(acting.tenant, frame, place.actor)
    return Taken(place=msgspec.structs.replace(at, started=said[0].version), new=True, messages=tuple(said))


def _check_free(ports: Ports, acting: Acting, place: Place, state: StreamState) -> None:
    """Refuse a second turn. A live turn can be resumed; any other root frame must be ended first."""
    roots = [one for one in state.frames.values() if one.parent is None]
    if any(turn_place(ports, acting, place, one) is not None for one in roots):
        raise Conflict("Another turn of this conversation is live. Take it up first.")
    if roots:
        raise Refused(f"Frame {roots[0].id} lives in {place.actor}, where turns are taken, and is none. End it first.")


def goal_of(messages: Sequence[Message]) -> str:
    """Return a turn's goal in one line: the beginning of its first message."""
    text = " ".join((messages[0].text if messages else "").split())
    return text[:GOAL_CHARS] or "Answer."


def join(ports: Ports, acting: Acting, turn: Place, wanted: Wanted) -> Taken | None:
    """Append messages to a turn under way; return None if it has ended meanwhile or is about to stop."""

    def decide(state: StreamState, speech: Speech) -> list[Draft]:
        if turn.frame not in state.frames or stop_requested(ports, acting, turn) is not None:
            raise _Over
        facts = TurnJoined(frame=turn.frame, stream=turn.line, message=speech.versions[0])
        return [Draft(type="turn.joined", facts=facts)]

    try:
        said, changed = write(ports, acting, turn, wanted.messages, decide, key=wanted.key, same=lambda events: True)
    except (_Over, ConversationOver):
        return None
    if changed.repeated:
        return by_key(ports, acting, turn, wanted)
    return Taken(place=turn, messages=tuple(said))


class _Over(Conflict):
    """The turn has ended."""


def take(ports: Ports, acting: Acting, turn: Place) -> int:
    """Take the lease of a live turn without a worker, and return the epoch."""
    return takeover.take_free(ports, acting, turn.actor)


# Next step


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a turn: its next step, and the messages since its last pack."""

    step: TurnStep
    frame: Frame
    tail: tuple[Message, ...]
    versions: tuple[int, int]
    """The versions of its two streams, so that the writer can tell that nothing was added."""
    unwanted: tuple[str, ...] = ()
    """Begun tools whose calls no longer wait for a result: rewound, or answered elsewhere."""


Known = tuple[int, tuple[Message, ...]]
"""The version of a thread, and its messages since the last pack at that version."""


def look(ports: Ports, acting: Acting, turn: Place, known: Known | None = None) -> View | None:
    """Return a turn's state and next step; None once it has ended. `known` is the caller's copy of the tail."""
    state, line_state = current(ports, acting, turn.actor), current(ports, acting, turn.line)
    frame, line = state.frames.get(turn.frame), line_state.line
    if frame is None:
        return None
    versions = (state.version, line_state.version)
    after = max(line.packed if line is not None else 0, turn.started - 1)
    same = known is not None and known[0] == versions[1]
    tail = known[1] if known is not None and same else _tail(ports, acting, turn.line, after)
    calls = {} if line is None else line.calls
    children = {child.id: child for child in stack.children(state.frames, frame.id)}
    refs = sorted(calls.values(), key=lambda one: (one.version, one.id))
    step = turn_step(
        frame,
        children=children,
        waiting=[ref.id for ref in refs if ref.version >= turn.started],
        said=[_said(message) for message in tail],
        stopping=is_gone(line, turn.started) or _is_told_to_stop(ports, acting, turn, state),
        now=ports.clock.now_ms(),
        frames=state.frames,
    )
    orphans = (child for child in children.values() if child.id not in calls)
    unwanted = tuple(one.id for one in orphans if one.id in frame.calls or _is_of_a_call(ports, acting, turn, one))
    return View(step=step, frame=frame, tail=tail, versions=versions, unwanted=unwanted)


def _is_of_a_call(ports: Ports, acting: Acting, turn: Place, frame: Frame) -> bool:
    """Return True if a child frame works for a tool call, and is not the turn's own work."""
    pushed = event_at(ports, acting, turn.actor, frame.pushed)
    return pushed is not None and pushed.facts.tool_call


def _said(message: Message) -> Said:
    return Said(version=message.version, role=message.role, calls=tuple(call.id for call in message.tool_calls))


def _tail(ports: Ports, acting: Acting, line: str, after: int) -> tuple[Message, ...]:
    """Return the messages after a version, oldest first: a few, however long the conversation is."""
    found = []
    for place in read.places(ports, acting, line, page=8):
        if place.stream != line or place.version <= after:
            break
        found.append(place)
    return tuple(read.bodies(ports, acting, found[::-1]))


def call_message(ports: Ports, acting: Acting, turn: Place, call: str, tail: Sequence[Message]) -> Message:
    """Return the message that asked for a tool call."""
    for message in tail:
        if any(one.id == call for one in message.tool_calls):
            return message
    ref = read.line_of(ports, acting, turn.line).calls[call]
    event = event_at(ports, acting, turn.line, ref.version)
    assert event is not None, "an open call names the message that made it"
    return read.decoded(ports, acting, [event])[0]


# Stopping


def request_stop(ports: Ports, acting: Acting, turn: Place, reason: str | None = None) -> bool:
    """Ask the worker of a turn to stop it; return False if it has ended. Repeated requests count once."""
    content = None if reason is None else clean(ports, ReasonContent(reason=reason))
    draft = Draft(type="cancel.requested", facts=CancelRequested(frame=turn.frame), content=content)

    def decide(states: States) -> dict[str, list[Draft]]:
        stack.live_frame(states[turn.actor], turn.frame)
        return {turn.actor: [draft]}

    try:
        change(ports, acting, (turn.actor,), decide, key=stop_key(turn.frame), same=lambda events: True)
    except FrameNotFound:
        return False
    return True


def stop_key(frame: str) -> str:
    """Return the key of a request to stop: one turn is stopped once."""
    return f"{frame}/stop"


def why_stopping(ports: Ports, acting: Acting, turn: Place) -> str | None:
    """Return why a turn must end without a reply: a stop request, or nothing left to answer; else None."""
    asked = stop_requested(ports, acting, turn)
    gone = asked is None and is_gone(current(ports, acting, turn.line).line, turn.started)
    return OVER if gone else asked


def _is_told_to_stop(ports: Ports, acting: Acting, turn: Place, state: StreamState) -> bool:
    """Return True if a stop was requested. Skips the lookup if nothing was written after the turn began."""
    return state.version > state.frames[turn.frame].pushed and stop_requested(ports, acting, turn) is not None


def stop_requested(ports: Ports, acting: Acting, turn: Place) -> str | None:
    """Return the reason of a stop request, or None if there is none."""
    stored = ports.journal.by_key(acting.tenant, turn.actor, stop_key(turn.frame))
    if not stored:
        return None
    reason = field(decode_event(stored[0]), "reason")
    return reason if isinstance(reason, str) else STOPPED


def check_said(
    ports: Ports, acting: Acting, line: str, version: int, messages: Sequence[Message], key: str | None
) -> None:
    """Refuse a key that stands for other messages. `version` is that of the first message it stands for."""
    if not messages:
        return
    said = [decode_event(event) for event in _together(ports, acting, line, version)]
    if len(said) != len(messages) or not all(
        _is_alike(ports, acting, event, message) for event, message in zip(said, messages, strict=True)
    ):
        raise KeyReused(f"Key {key!r} stands for a turn that began with other words. Use a new key for a new message.")


def _together(ports: Ports, acting: Acting, line: str, version: int) -> list[StoredEvent]:
    """Return the messages of one append, from the first one on; nothing else follows them in it."""
    query = Query(tenant=acting.tenant, stream=line, after=version - 1, until=version, limit=1)
    first = ports.journal.read(query)
    rest = first[0].rest if first else 0
    return ports.journal.read(replace(query, until=version + rest, limit=rest + 1)) if rest else first


def _is_alike(ports: Ports, acting: Acting, event: Event, message: Message) -> bool:
    """Return True if a stored message equals this one, as far as they can be compared."""
    if event.type not in read.APPENDED or event.facts.role != message.role:
        return False
    if event.content is ERASED or ports.redact is not None:
        return True
    (stored,) = read.decoded(ports, acting, [event])
    return _words(ports, acting, stored) == _words(ports, acting, message)


def _words(ports: Ports, acting: Acting, message: Message) -> tuple[Any, ...]:
    """Return the parts of a message to compare: text, other parts, calls and results."""
    others = [part for part in message.content or () if not isinstance(part, str) and part.get("type") != "text"]
    return (
        message.text,
        [_part(ports, acting, part) for part in others],
        [(call.name, call.arguments) for call in message.tool_calls],
        [(one.is_error, one.result if isinstance(one.result, str) else None) for one in message.tool_results],
    )


def _part(ports: Ports, acting: Acting, part: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return an image, file or other part to compare; new bytes by the name they would be stored under."""
    data, name = part.get("data"), part.get("artifact")
    if isinstance(data, bytes | bytearray | memoryview):
        name = artifacts.artifact_name(ports.journal.secret, acting.tenant, bytes(data)).hex()
    return name, encode({key: value for key, value in part.items() if key not in ("data", "artifact", "size")})
