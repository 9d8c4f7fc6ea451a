"""Turns: from a user's message to the final reply, as a root frame that survives its process.

Beginning one is a single append: the message, the frame and its lease. A message to a session whose turn nobody works
on joins that turn. What comes next is read off the journal, so that starting and resuming are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core import stack
from holdfast.core.codec import decode_event
from holdfast.core.decide import lifecycle
from holdfast.core.step import Said, TurnStep, turn_step
from holdfast.errors import Conflict, FrameNotFound, InvalidValue, KeyReused, Refused
from holdfast.flow.change import States, change
from holdfast.flow.conversation import lines
from holdfast.flow.redacting import clean
from holdfast.flow.stack import owning
from holdfast.flow.stack.showing import current, event_at, field
from holdfast.flow.turn.keying import check_said
from holdfast.flow.turn.writing import ConversationOver, Place, Speech, is_gone, write
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.events.frames import CancelRequested, FramePushed, GoalContent, TurnJoined
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import Frame, FrameLimits, StreamState
from holdfast.records.ids import ulid_bytes, ulid_text
from holdfast.records.messages import Message
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
    return owning.take_free(ports, acting, turn.actor)


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
    for place in lines.places(ports, acting, line, page=8):
        if place.stream != line or place.version <= after:
            break
        found.append(place)
    return tuple(lines.bodies(ports, acting, found[::-1]))


def call_message(ports: Ports, acting: Acting, turn: Place, call: str, tail: Sequence[Message]) -> Message:
    """The message that asked for a tool call."""
    for message in tail:
        if any(one.id == call for one in message.tool_calls):
            return message
    ref = lines.line_of(ports, acting, turn.line).calls[call]
    event = event_at(ports, acting, turn.line, ref.version)
    assert event is not None, "an open call names the message that made it"
    return lines.decoded(ports, acting, [event])[0]


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
