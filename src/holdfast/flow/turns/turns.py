"""Turns: from a user's message to the final reply, as a root frame that survives its process.

Beginning one is a single append: the message, the frame and its lease. A message to a session whose turn nobody works
on joins that turn. What comes next is read off the journal, so that starting and resuming are the same.

What the key of a turn stands for: all the messages that were said with it, in their order, and no others.

Who sends again with a key gets what came of it. Who uses it for something else is told so, and nothing is written.
What was erased since, or redacted on its way in, cannot be compared: then how many there were and who said them counts.
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
"""Whoever answers in a session works under one lease, so that two turns never run beside each other."""
GOAL_CHARS = 200
STOPPED = "stopped"
OVER = "The conversation was ended."


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that somebody wants begun."""

    messages: tuple[Message, ...]
    key: str | None = None
    tokens: int | None = None
    limits: FrameLimits
    agent: str | None = None


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is there: begun just now, joined, or found under its key."""

    place: Place
    new: bool = False
    messages: tuple[Message, ...] = ()
    """What was said with it, if it was said just now."""


def place_of_turns(line: str) -> Place:
    """Where the turns of a line of conversation live."""
    scope = parse_scope(line)
    session, thread = scope.get("session"), scope.get("thread")
    if session is None or thread is None:
        raise InvalidValue(f"{line} is not a session's conversation, so no turns are taken in it.")
    return Place(actor=Scope.actor(ACTOR, session=session, thread=thread).text, line=line)


def live_turn(ports: Ports, acting: Acting, place: Place) -> Place | None:
    """The turn of a line that has not ended, if there is one."""
    for frame in stack.in_order(current(ports, acting, place.actor).frames):
        if frame.parent is None and frame.outer is None:
            found = turn_place(ports, acting, place, frame)
            if found is not None:
                return found
    return None


def turn_place(ports: Ports, acting: Acting, place: Place, frame: Frame) -> Place | None:
    """Where a root frame's turn is, if it is one."""
    pushed = event_at(ports, acting, place.actor, frame.pushed)
    return None if pushed is None else _placed(place, pushed.facts)


def agent_of(ports: Ports, acting: Acting, actor: str, frame: Frame) -> str | None:
    """Who answers in a turn."""
    pushed = event_at(ports, acting, actor, frame.pushed)
    return None if pushed is None else pushed.facts.agent


def _placed(place: Place, facts: FramePushed) -> Place | None:
    if facts.conversation is None or facts.visible_from is None:
        return None
    return Place(actor=place.actor, line=facts.conversation, frame=facts.frame, started=facts.visible_from)


def by_key(ports: Ports, acting: Acting, place: Place, wanted: Wanted) -> Taken | None:
    """The turn that a key stands for, begun or joined under it; refuses a key that was used for other words."""
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
    """A new turn: the message, its frame and the lease in one append. Call it once nobody else works on the line."""
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
    """One turn at a time. Another one can be taken up; any other frame is in the way until somebody ends it."""
    roots = [one for one in state.frames.values() if one.parent is None]
    if any(turn_place(ports, acting, place, one) is not None for one in roots):
        raise Conflict("Another turn of this conversation is live. Take it up first.")
    if roots:
        raise Refused(f"Frame {roots[0].id} lives in {place.actor}, where turns are taken, and is none. End it first.")


def goal_of(messages: Sequence[Message]) -> str:
    """What a turn is for, in one line: the beginning of what was said."""
    text = " ".join((messages[0].text if messages else "").split())
    return text[:GOAL_CHARS] or "Answer."


def join(ports: Ports, acting: Acting, turn: Place, wanted: Wanted) -> Taken | None:
    """Say something in a turn that is under way; None if it has ended meanwhile, or is about to."""

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
    """Own a live turn that nobody works on; gives the epoch."""
    return takeover.take_free(ports, acting, turn.actor)


# what comes next


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as it stands now: what comes next, and what was said since its last pack."""

    step: TurnStep
    frame: Frame
    tail: tuple[Message, ...]
    versions: tuple[int, int]
    """Of its two streams, so that who wrote them knows that nothing was added."""
    unwanted: tuple[str, ...] = ()
    """Tools that were begun and whose calls wait no more: rewound, or answered by somebody else."""


Known = tuple[int, tuple[Message, ...]]
"""What was said since the last pack, as of a version of the line."""


def look(ports: Ports, acting: Acting, turn: Place, known: Known | None = None) -> View | None:
    """What a turn needs next; None once it has ended. `known` is what the caller knows to have been said."""
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
    """Whether a child works for a tool call, and is not the turn's own work."""
    pushed = event_at(ports, acting, turn.actor, frame.pushed)
    return pushed is not None and pushed.facts.tool_call


def _said(message: Message) -> Said:
    return Said(version=message.version, role=message.role, calls=tuple(call.id for call in message.tool_calls))


def _tail(ports: Ports, acting: Acting, line: str, after: int) -> tuple[Message, ...]:
    """What was said after a version, oldest first: a few messages, however long the conversation is."""
    found = []
    for place in read.places(ports, acting, line, page=8):
        if place.stream != line or place.version <= after:
            break
        found.append(place)
    return tuple(read.bodies(ports, acting, found[::-1]))


def call_message(ports: Ports, acting: Acting, turn: Place, call: str, tail: Sequence[Message]) -> Message:
    """The message that asked for a tool call."""
    for message in tail:
        if any(one.id == call for one in message.tool_calls):
            return message
    ref = read.line_of(ports, acting, turn.line).calls[call]
    event = event_at(ports, acting, turn.line, ref.version)
    assert event is not None, "an open call names the message that made it"
    return read.decoded(ports, acting, [event])[0]


# stopping


def request_stop(ports: Ports, acting: Acting, turn: Place, reason: str | None = None) -> bool:
    """Ask whoever works on a turn to stop it; False if it has ended by now. Asking twice is asking once."""
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
    """The key of a request to stop: one turn is stopped once."""
    return f"{frame}/stop"


def why_stopping(ports: Ports, acting: Acting, turn: Place) -> str | None:
    """Why a turn is to end without a reply: somebody wants that, or there is nothing left to answer; else None."""
    asked = stop_requested(ports, acting, turn)
    gone = asked is None and is_gone(current(ports, acting, turn.line).line, turn.started)
    return OVER if gone else asked


def _is_told_to_stop(ports: Ports, acting: Acting, turn: Place, state: StreamState) -> bool:
    """Whether somebody wants a turn to stop. Nobody can as long as nothing came after its beginning."""
    return state.version > state.frames[turn.frame].pushed and stop_requested(ports, acting, turn) is not None


def stop_requested(ports: Ports, acting: Acting, turn: Place) -> str | None:
    """Why somebody wants a turn to stop; None if nobody does."""
    stored = ports.journal.by_key(acting.tenant, turn.actor, stop_key(turn.frame))
    if not stored:
        return None
    reason = field(decode_event(stored[0]), "reason")
    return reason if isinstance(reason, str) else STOPPED


def check_said(
    ports: Ports, acting: Acting, line: str, version: int, messages: Sequence[Message], key: str | None
) -> None:
    """Refuse a key that stands for other messages than these. `version` is that of the first that it stands for."""
    if not messages:
        return
    said = [decode_event(event) for event in _together(ports, acting, line, version)]
    if len(said) != len(messages) or not all(
        _is_alike(ports, acting, event, message) for event, message in zip(said, messages, strict=True)
    ):
        raise KeyReused(f"Key {key!r} stands for a turn that began with other words. Use a new key for a new message.")


def _together(ports: Ports, acting: Acting, line: str, version: int) -> list[StoredEvent]:
    """What was said in one append, from its first message on: nothing follows them there."""
    query = Query(tenant=acting.tenant, stream=line, after=version - 1, until=version, limit=1)
    first = ports.journal.read(query)
    rest = first[0].rest if first else 0
    return ports.journal.read(replace(query, until=version + rest, limit=rest + 1)) if rest else first


def _is_alike(ports: Ports, acting: Acting, event: Event, message: Message) -> bool:
    """Whether a stored message is this one, as far as that can be told."""
    if event.type not in read.APPENDED or event.facts.role != message.role:
        return False
    if event.content is ERASED or ports.redact is not None:
        return True
    (stored,) = read.decoded(ports, acting, [event])
    return _words(ports, acting, stored) == _words(ports, acting, message)


def _words(ports: Ports, acting: Acting, message: Message) -> tuple[Any, ...]:
    """What is compared of a message: its words, what there is beside them, what it calls and what it answers."""
    others = [part for part in message.content or () if not isinstance(part, str) and part.get("type") != "text"]
    return (
        message.text,
        [_part(ports, acting, part) for part in others],
        [(call.name, call.arguments) for call in message.tool_calls],
        [(one.is_error, one.result if isinstance(one.result, str) else None) for one in message.tool_results],
    )


def _part(ports: Ports, acting: Acting, part: Mapping[str, Any]) -> tuple[Any, ...]:
    """An image, a file or the like. Bytes that come now are compared by the name that they would be stored under."""
    data, name = part.get("data"), part.get("artifact")
    if isinstance(data, bytes | bytearray | memoryview):
        name = artifacts.artifact_name(ports.journal.secret, acting.tenant, bytes(data)).hex()
    return name, encode({key: value for key, value in part.items() if key not in ("data", "artifact", "size")})
