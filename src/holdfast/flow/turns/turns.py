"""Turns: from a user's message to the final reply, as a root frame that survives its process.

Beginning a turn is a single append: the message, the frame and its lease. A message to a session whose turn has no
worker joins that turn. The next step is read from the journal, so that starting and resuming are the same. A key
stands for exactly the messages that were sent with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.frames import lifecycle, stack
from holdfast.core.frames.next_step import TurnStep, next_turn_step
from holdfast.core.frames.questions import is_resumable
from holdfast.core.journal.codec import decode_event, encode
from holdfast.core.journal.load import row_usage
from holdfast.errors import Conflict, FrameNotFound, InvalidValue, KeyReused, Refused
from holdfast.flow.frames import read as frame_read
from holdfast.flow.frames.lifecycle import default_limits
from holdfast.flow.frames.read import content_field, find_frame_row, load_current_state, read_event
from holdfast.flow.journal import artifacts
from holdfast.flow.journal.append import States, decide_and_append, redact_as_configured
from holdfast.flow.journal.read import iterate_stored
from holdfast.flow.sessions import read
from holdfast.flow.turns.append import (
    ConversationOver,
    MessageBatch,
    TurnPlace,
    add_facts,
    append_to_turn,
    is_conversation_over,
)
from holdfast.ports import Env
from holdfast.records.events.envelope import ERASED, Draft, StoredEvent
from holdfast.records.events.frames import CancelRequested, FramePushed, GoalContent, TurnJoined
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import FrameState, Limits, StreamState
from holdfast.records.ids import own_key, ulid_bytes, ulid_text
from holdfast.records.messages import Message
from holdfast.records.recovery import StopCode
from holdfast.records.reports import EventQuery
from holdfast.records.scope import SCOPES_CACHED, Scope, parse_scope
from holdfast.records.usage import Usage

TURN_ACTOR = "main"
"""The actor of all turns of a thread: they share one lease, so that two turns never run in parallel."""
GOAL_CHARS = 200
STOPPED = "stopped"
REPLY = "message"
"""The kind of result under which a turn names its final reply."""
CONVERSATION_ENDED = "The conversation was ended."


class TurnTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a turn. Without messages: continue the live one."""

    messages: tuple[Message, ...] = ()
    key: str | None = None
    if_busy: str = "queue"
    wait: float | None = None
    """The most seconds to wait for others."""
    tokens: int | None = None
    limits: Limits | None = None
    agent: str | None = None
    loops: int | None = None
    """The limit of model calls, to be checked before a message joins the turn."""
    cost: int | None = None
    """The limit of its cost in billionths of a US dollar, checked likewise."""


class TurnEnd(msgspec.Struct, frozen=True):
    """The end of a turn: done or stopped."""

    status: str
    message: Message | None = None
    """The final reply; for a stopped turn, the model's last message."""
    reason: str | None = None
    """The reason it was stopped."""
    code: StopCode | None = None
    """The same in one word."""


Admission = tuple[TurnPlace, tuple[Message, ...]]
"""A turn that was begun, joined, or found under its key, and the messages that this call appended, if any."""


@lru_cache(maxsize=SCOPES_CACHED)
def turns_place(line: str) -> TurnPlace:
    """Return the place where the turns of a thread live."""
    scope = parse_scope(line)
    session, thread = scope.get("session"), scope.get("thread")
    if session is None or thread is None:
        raise InvalidValue(f"{line} is not a session's conversation, so no turns are taken in it.")
    return TurnPlace(actor=Scope.actor(TURN_ACTOR, session=session, thread=thread).text, thread=line)


def find_live_turn(env: Env, place: TurnPlace) -> TurnPlace | None:
    """Return the live turn of a thread, or None."""
    live = stack.walk_root_first(load_current_state(env, place.actor).frames)
    found = (find_frame_turn(env, place, frame) for frame in live if frame.parent is None and frame.outer is None)
    return next((turn for turn in found if turn is not None), None)


def find_frame_turn(env: Env, place: TurnPlace, frame: FrameState) -> TurnPlace | None:
    """Return a root frame's turn, or None if it is not one."""
    pushed = read_event(env, place.actor, frame.pushed)
    return None if pushed is None else _place_from_facts(place, pushed.facts)


def is_at_work(env: Env, thread: str) -> bool:
    """Return True if a thread's turn is at work, or will be without a person: then silence does not mean idle."""
    now = env.clock.now_ms()
    for frame in load_current_state(env, turns_place(thread).actor).frames.values():
        asked = frame.question
        if frame.status == "active" or (asked is not None and (asked.until is not None or is_resumable(asked, now))):
            return True
    return False


def find_turn_agent(env: Env, actor: str, frame: FrameState) -> str | None:
    """Return the agent that answers in a turn."""
    pushed = read_event(env, actor, frame.pushed)
    return None if pushed is None else pushed.facts.agent


def act_for_session(env: Env, thread: str) -> Env:
    """Return an environment that acts for the user who opened a session, if the given one acts for nobody."""
    if env.user is not None:
        return env
    session = read.session_stream(thread)
    user = env.states.session_openers.get((env.tenant, session))
    if user is None:
        query = EventQuery(tenant=env.tenant, stream=session, types=("session.opened",), limit=1)
        opened = env.journal.read(query)
        user = (opened[0].user or 0) if opened else 0
        if opened:
            env.states.session_openers.put((env.tenant, session), user)
    return _act_for(env, user)


def act_for_turn(env: Env, place: TurnPlace) -> Env:
    """Return an environment that acts for the user who began a turn: they own all of it, whoever finishes it."""
    frame = load_current_state(env, place.actor).frames.get(place.frame)
    pushed = None if frame is None else read_event(env, place.actor, frame.pushed)
    return _act_for(env, None if pushed is None else pushed.user)


def _act_for(env: Env, user: int | None) -> Env:
    known = env.journal.subjects(env.tenant, user) if user else []
    name = known[0].name if known else None  # An erased user has no name, and must not get one again.
    return env if name is None else replace(env, user=name)


def _place_from_facts(place: TurnPlace, facts: FramePushed) -> TurnPlace | None:
    if facts.conversation is None or facts.visible_from is None:
        return None
    return TurnPlace(actor=place.actor, thread=facts.conversation, frame=facts.frame, started=facts.visible_from)


def find_turn_by_key(env: Env, place: TurnPlace, wanted: TurnTerms) -> TurnPlace | None:
    """Return the turn begun or joined under a key; refuse a key that was used for other messages."""
    if wanted.key is None:
        return None
    stored = env.journal.events_by_key(env.tenant, place.actor, wanted.key)
    events = [decode_event(event) for event in stored]
    if not events:
        return None
    found = pushed = next((event for event in events if event.type in ("frame.pushed", "turn.joined")), None)
    if found is not None and found.type == "turn.joined":
        row = find_frame_row(env, found.facts.frame)[1]
        pushed = read_event(env, place.actor, int(row["pushed_version"] or 0))
    at = None if pushed is None else _place_from_facts(place, pushed.facts)
    if found is None or at is None:
        raise KeyReused(f"Key {wanted.key!r} already stands for {events[0].type}. Use another key for this turn.")
    first = found.facts.message if found.type == "turn.joined" else at.started
    if wanted.messages and not _matches_messages(env, _read_append(env, at.thread, first), wanted.messages):
        raise KeyReused(
            f"Key {wanted.key!r} stands for a turn that began with other words. Use a new key for a new message."
        )
    return at


def begin_turn(env: Env, place: TurnPlace, wanted: TurnTerms) -> Admission:
    """Begin a turn: message, frame and lease in one append. Call it once nothing else works on the thread."""
    frame = ulid_text(env.ids.ulid())
    content = redact_as_configured(env, GoalContent(goal=turn_goal(wanted.messages)))
    default = default_limits(env, place.actor)  # Journaled with the turn, so that later defaults do not change it.

    def decide(state: StreamState, speech: MessageBatch) -> list[Draft]:
        roots = [one for one in state.frames.values() if one.parent is None]
        if any(find_frame_turn(env, place, one) is not None for one in roots):
            raise Conflict("Another turn of this conversation is live. Take it up first.")
        if roots:
            raise Refused(
                f"Frame {roots[0].id} lives in {place.actor}, which is reserved for turns, and is not a turn. "
                "End it first."
            )
        pushed = lifecycle.push(
            {place.actor: state},
            place.actor,
            frame,
            tokens=wanted.tokens,
            limits=wanted.limits,
            default=default,
            content=content,
            now=env.clock.now_ms(),
        )[place.actor][0]
        facts = {"conversation": place.thread, "visible_from": speech.versions[0], "agent": wanted.agent}
        return [*env.leases.draft_take(env.tenant, place.actor, state), add_facts(pushed, **facts)]

    at = replace(place, frame=frame)
    said, changed = append_to_turn(env, at, wanted.messages, decide, key=wanted.key)
    if changed.repeated:
        found = find_turn_by_key(env, place, wanted)
        assert found is not None, "a key that was used names what it was used for"
        return found, ()
    env.states.frame_streams.put((env.tenant, frame), place.actor)
    return replace(at, started=said[0].version), tuple(said)


def turn_goal(messages: Sequence[Message]) -> str:
    """Return a turn's goal in one line: the beginning of its first message."""
    text = " ".join((messages[0].text if messages else "").split())
    return text[:GOAL_CHARS] or "Answer."


def join_turn(env: Env, turn: TurnPlace, wanted: TurnTerms) -> Admission | None:
    """Append messages to a turn under way; return None if it has ended meanwhile or is about to stop."""

    def decide(state: StreamState, speech: MessageBatch) -> list[Draft]:
        if turn.frame not in state.frames or find_stop_request(env, turn) is not None:
            raise _TurnOver
        facts = TurnJoined(frame=turn.frame, stream=turn.thread, message=speech.versions[0])
        return [Draft(type="turn.joined", facts=facts)]

    try:
        said, changed = append_to_turn(env, turn, wanted.messages, decide, key=wanted.key)
    except (_TurnOver, ConversationOver):
        return None
    return (find_turn_by_key(env, turn, wanted) or turn) if changed.repeated else turn, tuple(said)


class _TurnOver(Conflict):
    """The turn has ended."""


# Next step


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a turn: its next step, and the messages since its last pack."""

    step: TurnStep
    frame: FrameState
    tail: tuple[Message, ...]
    versions: tuple[int, int]
    """The versions of its two streams, so that the writer can tell that nothing was added."""
    unwanted: tuple[str, ...] = ()
    """Begun tools whose calls no longer wait for a result: rewound, or answered elsewhere."""


KnownTail = tuple[int, tuple[Message, ...]]
"""The version of a thread, and its messages since the last pack at that version."""


def read_turn(env: Env, turn: TurnPlace, known: KnownTail | None = None) -> TurnView | None:
    """Return a turn's state and next step; None once it has ended. `known` is the caller's copy of the tail."""
    state, line_state = load_current_state(env, turn.actor), load_current_state(env, turn.thread)
    frame, thread = state.frames.get(turn.frame), line_state.thread
    if frame is None:
        return None
    versions = (state.version, line_state.version)
    after = max(thread.packed if thread is not None else 0, turn.started - 1)
    same = known is not None and known[0] == versions[1]
    tail = known[1] if known is not None and same else _read_tail(env, turn.thread, after)
    calls = {} if thread is None else thread.calls
    children = {child.id: child for child in stack.children(state.frames, frame.id)}
    refs = sorted((ref.version, ref.id) for ref in calls.values() if ref.version >= turn.started)
    # While nothing was written after the turn began, no stop can have been requested.
    over = is_conversation_over(thread, turn.started)
    stopping = over or (state.version > frame.pushed and find_stop_request(env, turn) is not None)
    step = next_turn_step(
        frame,
        children=children,
        waiting=[id for _, id in refs],
        said=tail,
        stopping=stopping,
        now=env.clock.now_ms(),
        frames=state.frames,
    )
    orphans = (child for child in children.values() if child.id not in calls)
    unwanted = tuple(one.id for one in orphans if one.id in frame.calls or _is_tool_frame(env, turn, one))
    return TurnView(step=step, frame=frame, tail=tail, versions=versions, unwanted=unwanted)


def _is_tool_frame(env: Env, turn: TurnPlace, frame: FrameState) -> bool:
    """Return True if a child frame works for a tool call, and is not the turn's own work."""
    pushed = read_event(env, turn.actor, frame.pushed)
    return pushed is not None and pushed.facts.tool_call


def _read_tail(env: Env, thread: str, after: int) -> tuple[Message, ...]:
    """Return the messages after a version, oldest first: a few, however long the conversation is."""
    found = []
    for place in read.iter_places(env, thread, page=8):
        if place.stream != thread or place.version <= after:
            break
        found.append(place)
    return tuple(read.load_messages(env, found[::-1]))


def find_call_message(env: Env, turn: TurnPlace, call: str, tail: Sequence[Message]) -> Message:
    """Return the message that asked for a tool call."""
    for message in tail:
        if any(one.id == call for one in message.tool_calls):
            return message
    ref = read.thread_state(env, turn.thread).calls[call]
    event = read_event(env, turn.thread, ref.version)
    assert event is not None, "an open call names the message that made it"
    return read.decode_messages(env, [event])[0]


# Stopping


def request_stop(env: Env, turn: TurnPlace, reason: str | None = None) -> bool:
    """Ask the worker of a turn to stop it; return False if it has ended. By their key, repeated requests count once."""
    content = None if reason is None else redact_as_configured(env, ReasonContent(reason=reason))
    draft = Draft(type="cancel.requested", facts=CancelRequested(frame=turn.frame), content=content)

    def decide(states: States) -> dict[str, list[Draft]]:
        stack.live_frame(states[turn.actor], turn.frame)
        return {turn.actor: [draft]}

    try:
        decide_and_append(env, (turn.actor,), decide, key=own_key(turn.frame, "stop"), same=lambda events: True)
    except FrameNotFound:
        return False
    return True


def find_stop_reason(env: Env, turn: TurnPlace) -> str | None:
    """Return why a turn must end without a reply: a stop request, or nothing left to answer; else None."""
    asked = find_stop_request(env, turn)
    gone = asked is None and is_conversation_over(load_current_state(env, turn.thread).thread, turn.started)
    return CONVERSATION_ENDED if gone else asked


def find_stop_request(env: Env, turn: TurnPlace) -> str | None:
    """Return the reason of a stop request, or None if there is none."""
    stored = env.journal.events_by_key(env.tenant, turn.actor, own_key(turn.frame, "stop"))
    if not stored:
        return None
    reason = content_field(decode_event(stored[0]), "reason")
    return reason if isinstance(reason, str) else STOPPED


# Outcome


def read_outcome(env: Env, turn: TurnPlace) -> TurnEnd:
    """Return the outcome of an ended turn, whichever process ran it."""
    info = frame_read.read_frame(env, turn.frame)
    named = next((result.ref for result in reversed(info.results) if result.kind == REPLY), None)
    stored = None if named is None else env.journal.event(env.tenant, ulid_bytes(named))
    message = None if stored is None else read.read_message(env, stored, pinned=False)
    return TurnEnd(
        status="done" if info.status == "completed" else "stopped",
        message=find_last_reply(env, turn) if named is None else message,
        reason=info.error if isinstance(info.error, str) else None,
        code=stop_code(info.status, info.code),
    )


def stop_code(status: str, code: StopCode | None) -> StopCode | None:
    """Return the code of a turn that ended with this status, journaled or not; None for a reply."""
    return code or (None if status == "completed" else "stopped" if status == "cancelled" else "failed")


def read_turn_usage(env: Env, turn: TurnPlace) -> Usage:
    """Return the usage of a turn's model calls so far. A turn that has ended has only its row."""
    live = load_current_state(env, turn.actor).frames.get(turn.frame)
    return live.usage if live is not None else row_usage(find_frame_row(env, turn.frame)[1])


def find_last_reply(env: Env, turn: TurnPlace) -> Message | None:
    """Return the model's last message with text in a turn without a final reply, or None."""
    words = [message for message in read_turn_messages(env, turn) if message.role == "assistant" and message.text]
    return words[-1] if words else None


def read_turn_messages(env: Env, turn: TurnPlace) -> list[Message]:
    """Return the messages of a turn, oldest first."""
    found: list[Message] = []
    query = EventQuery(tenant=env.tenant, stream=turn.thread, after=turn.started - 1, types=read.MESSAGE_TYPES)
    for event in map(decode_event, iterate_stored(env.journal, query)):
        (message,) = read.decode_messages(env, [event])
        if message.role == "user" and event.facts.frame not in (None, turn.frame):
            break  # Another turn begins.
        if event.facts.frame == turn.frame or message.role == "user":
            found.append(message)  # Messages that others appended meanwhile are not this turn's.
    return found


# The messages of a key


def _read_append(env: Env, thread: str, version: int) -> list[StoredEvent]:
    """Return the messages of one append, from the first one on; nothing else follows them in it."""
    query = EventQuery(tenant=env.tenant, stream=thread, after=version - 1, until=version, limit=1)
    first = env.journal.read(query)
    rest = first[0].rest if first else 0
    return env.journal.read(replace(query, until=version + rest, limit=rest + 1)) if rest else first


def _matches_messages(env: Env, stored: Sequence[StoredEvent], messages: Sequence[Message]) -> bool:
    """Return True if stored messages equal these, as far as they can be compared."""
    if len(stored) != len(messages):
        return False
    for event, message in zip(map(decode_event, stored), messages, strict=True):
        if event.type not in read.MESSAGE_TYPES or event.facts.role != message.role:
            return False
        if event.content is ERASED or env.redact is not None:
            continue
        (said,) = read.decode_messages(env, [event])
        if _comparable_content(env, said) != _comparable_content(env, message):
            return False
    return True


def _comparable_content(env: Env, message: Message) -> tuple[Any, ...]:
    """Return the parts of a message to compare: text, other parts, calls and results."""
    others = [part for part in message.content or () if not isinstance(part, str) and part.get("type") != "text"]
    return (
        message.text,
        [_comparable_part(env, part) for part in others],
        [(call.name, call.arguments) for call in message.tool_calls],
        [(one.is_error, one.result if isinstance(one.result, str) else None) for one in message.tool_results],
    )


def _comparable_part(env: Env, part: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return an image, file or other part to compare; new bytes by the name they would be stored under."""
    data, name = part.get("data"), part.get("artifact")
    if isinstance(data, bytes | bytearray | memoryview):
        name = artifacts.artifact_name(env.journal.secret, env.tenant, bytes(data)).hex()
    return name, encode({key: value for key, value in part.items() if key not in ("data", "artifact", "size")})
