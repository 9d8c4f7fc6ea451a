"""The life of frames: push, update, pop, and the tokens that they reserve and spend.

Each is one append, over as many streams as it takes. With a key, a second call changes nothing if it asks for the same,
and is refused if it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast import errors
from holdfast.core.frames import budgets, evidence, lifecycle
from holdfast.core.frames.stack import add_clock_events
from holdfast.core.numbers import is_number
from holdfast.flow.frames.read import (
    content_field,
    find_frame_row,
    find_frame_stream,
    load_current_state,
    parse_id,
    read_event,
    read_frame,
)
from holdfast.flow.journal.append import ChangeResult, Drafts, States, decide_and_append, redact_as_configured
from holdfast.ports import Env
from holdfast.records.events import frames
from holdfast.records.events.envelope import ERASED, Content, Draft, Event
from holdfast.records.events.journal import LeaseReleased, LeaseTaken
from holdfast.records.frames import LIVE_STATUSES, FrameLimits, FrameState, Limits, StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.usage import Usage

Decide = Callable[[StreamState], Sequence[Draft]]
BLOCK_LIMITS = FrameLimits(context_tokens=128_000, tool_calls=50, depth=3, timeout_ms=None)
"""The limits of a frame if none are given and no model is named."""


def check_goal(content: frames.GoalContent, *, required: bool = False) -> None:
    """Refuse an empty goal, a missing one if it is required, and invalid metadata."""
    given = content.goal is not None or required
    if given and (not isinstance(content.goal, str) or not content.goal.strip()):
        raise errors.InvalidValue("A frame's goal must be a text that says what it is for.")
    if content.metadata is not None and not isinstance(content.metadata, dict):
        raise errors.InvalidValue("metadata must be an object with names.")


def match_event(type_name: str, content: Content | None = None, **facts: Any) -> Callable[[list[Event]], bool]:
    """Return a predicate: a key stands for an event of this type with these facts and this content."""

    def same(events: list[Event]) -> bool:
        return any(
            event.type == type_name
            and all(getattr(event.facts, name) == value for name, value in facts.items())
            and has_content(event, content)
            for event in events
        )

    return same


def has_content(event: Event, content: Content | None) -> bool:
    """Return True if an event holds this content, as far as it is not erased."""
    return event.content is ERASED or event.content == content


def change_frame(
    env: Env,
    frame_id: str,
    decide: Decide,
    *,
    key: str | None = None,
    same: Callable[[list[Event]], bool] | None = None,
    expected: int | None = None,
) -> ChangeResult:
    """Decide about one live frame and append the result."""
    stream = find_frame_stream(env, frame_id)

    def run(states: States) -> Drafts:
        check_live(env, states[stream], frame_id, expected)
        return {stream: add_clock_events(states[stream], decide(states[stream]), env.clock.now_ms())}

    return decide_and_append(env, (stream,), run, key=key, same=same)


def check_live(env: Env, state: StreamState, frame_id: str, expected: int | None = None) -> FrameState:
    """Return a live frame; refuse one that has ended, or that is not at the expected version."""
    if expected is not None and not is_number(expected):
        raise errors.InvalidValue(f"expected_version must be a version, not {expected!r}.")
    frame = state.frames.get(frame_id)
    if frame is None:
        status = str(find_frame_row(env, frame_id)[1]["status"])
        if status in LIVE_STATUSES:
            raise errors.FrameNotFound(f"Frame {frame_id} is not in the state of its stream. Try again.")
        raise errors.FrameEnded(f"Frame {frame_id} is {status}, and that is final. Push a new one.", before=status)
    if expected is not None and frame.version != expected:
        raise errors.VersionConflict(f"Frame {frame_id}", expected, frame.version)
    return frame


def default_limits(env: Env, stream: str) -> FrameLimits:
    """Return the default limits of a block: within a session, as much context as its model accepts."""
    session = parse_scope(stream).get("session")
    known = None if session is None else load_current_state(env, Scope.session(session).text).session
    if known is None or known.model is None:
        return BLOCK_LIMITS
    return replace(BLOCK_LIMITS, context_tokens=env.models.info(known.model).input_budget)


def push_frame(
    env: Env,
    stream: str | None,
    content: frames.GoalContent,
    *,
    parent: str | None = None,
    tokens: object = None,
    limits: Limits | None = None,
    default: FrameLimits | None = None,
    inherit: Sequence[str] = (),
    frame_id: str | None = None,
    key: str | None = None,
    lease: bool = False,
) -> str:
    """Push a new frame and return its id. With a key or an id of the caller's, a second call returns the first id."""
    if env.leases.draining:
        raise errors.Draining
    check_goal(content, required=True)
    if limits is not None:
        budgets.check_limits(limits)
    content = redact_as_configured(env, content)
    above = None if parent is None else (_parent_stream(env, parent), parent)
    home = _home_stream(stream, above)
    if frame_id is not None and _is_pushed(env, frame_id, content, parent):
        return frame_id
    frame, names = frame_id or ulid_text(env.ids.ulid()), _check_inherit(inherit, parent)

    def decide(states: States) -> Drafts:
        now = env.clock.now_ms()
        drafts = lifecycle.push(
            states,
            home,
            frame,
            parent=above,
            tokens=tokens,
            limits=limits,
            default=default or FrameLimits(context_tokens=env.settings.default_context_tokens),
            content=content,
            now=now,
        )
        if names and above is not None:
            drafts[home].extend(_inherit_handles(env, states, above, frame, names))
        drafts = {name: add_clock_events(states[name], events, now) for name, events in drafts.items()}
        if lease:
            drafts[home] = [*env.leases.draft_take(env.tenant, home, states[home]), *drafts[home]]
        return drafts

    streams = (home,) if above is None or above[0] == home else (home, above[0])
    same = _match_push(content, parent, tokens, limits, names)
    try:
        changed = decide_and_append(env, streams, decide, key=key, same=same)
    except errors.ParentNotFound:
        raise _explain_parent(env, str(parent)) from None
    made = str(changed.last_facts("frame.pushed").frame)
    env.states.frame_streams.put((env.tenant, made), home)
    if not changed.repeated:
        env.states.goals.put((env.tenant, home, changed.version_of("frame.pushed")), content)
    return made


def _home_stream(stream: str | None, above: tuple[str, str] | None) -> str:
    """Return the stream of a new frame: the given one, or the parent's."""
    if stream is not None:
        return stream
    if above is None:
        raise errors.InvalidValue("A frame needs a scope to live in, or a parent.")
    return above[0]


def _check_inherit(given: Sequence[str], parent: str | None) -> tuple[str, ...]:
    names = evidence.check_handle_names(given)
    if names and parent is None:
        raise errors.InvalidValue("Only a child inherits evidence. Name its parent, or attach it to the new frame.")
    return names


def _inherit_handles(env: Env, states: States, above: tuple[str, str], frame: str, names: Sequence[str]) -> list[Draft]:
    """Return the handles that a child inherits; the content that they point to is not copied."""
    stream, parent = above
    drafts = []
    for position, handle in enumerate(evidence.select_handles(states[stream].frames[parent], names), 1):
        event = read_event(env, stream, handle.version)
        assert event is not None, "a handle names the event that attached it"
        drafts.append(evidence.inherit_handle(frame, position, event))
    return drafts


def _match_push(
    content: frames.GoalContent, parent: str | None, tokens: object, limits: Limits | None, names: tuple[str, ...]
) -> Callable[[list[Event]], bool]:
    """Return a predicate: a key stands for this push, apart from amounts that depend on the parent's state then."""
    facts: dict[str, Any] = {"granted": tokens} if isinstance(tokens, int) else {}

    def same(events: list[Event]) -> bool:
        if not match_event("frame.pushed", content, **facts)(events):
            return False
        pushed = next(event.facts for event in events if event.type == "frame.pushed")
        if limits is not None and parent is None and limits.apply_to(pushed.limits) != pushed.limits:
            return False
        taken = tuple(event.facts.handle for event in events if event.type == "frame.handle_added")
        return bool((pushed.parent or pushed.outer) == parent) and taken == names

    return same


def _parent_stream(env: Env, parent: str) -> str:
    parse_id(parent, "parent frame")
    try:
        return find_frame_stream(env, parent)
    except errors.FrameNotFound:
        raise errors.ParentNotFound(f"There is no frame {parent} to push below. Check its id and the tenant.") from None


def _explain_parent(env: Env, parent: str) -> errors.ParentNotActive:
    status = str(find_frame_row(env, parent)[1]["status"])
    return errors.ParentNotActive(
        f"Frame {parent} is {status}, so nothing can be pushed below it. Push below a live frame, or a new root.",
        before=status,
        after="waiting",
    )


def _is_pushed(env: Env, frame_id: str, content: frames.GoalContent, parent: str | None) -> bool:
    """Return True if this very frame exists; refuse another frame with its id."""
    try:
        stream, row = find_frame_row(env, frame_id)
    except errors.FrameNotFound:
        return False
    pushed = read_event(env, stream, int(row["pushed_version"]))  # type: ignore[arg-type]
    if pushed is not None and (pushed.facts.parent or pushed.facts.outer) == parent and has_content(pushed, content):
        return True
    raise errors.DuplicateFrame(f"Frame {frame_id} exists and is not the same. Use a new id, or none.")


def update_frame(
    env: Env,
    frame_id: str,
    *,
    content: frames.GoalContent | None = None,
    status: str | None = None,
    limits: Limits | None = None,
    tokens: int | None = None,
    key: str | None = None,
    expected: int | None = None,
) -> ChangeResult:
    """Change a frame's goal, limits, tokens or status."""
    if limits is not None:
        budgets.check_limits(limits)
    if content is not None:
        check_goal(content)
    content = redact_as_configured(env, content)
    alike = match_event("frame.updated", content, frame=frame_id, status=status, granted=tokens)

    def same(events: list[Event]) -> bool:
        """Compare the limits that were given: those that were not may have had any value."""
        known = [
            one for one in events if one.type == "frame.updated" and (one.facts.limits is None) == (limits is None)
        ]
        return alike([one for one in known if limits is None or limits.apply_to(one.facts.limits) == one.facts.limits])

    return change_frame(
        env,
        frame_id,
        lambda state: lifecycle.update(state, frame_id, status=status, limits=limits, tokens=tokens, content=content),
        key=key,
        same=same,
        expected=expected,
    )


def reserve_tokens(env: Env, frame: str, purpose: str, amount: int, key: str | None) -> ChangeResult:
    """Reserve tokens for a purpose: until they are released, neither another purpose nor a child can have them."""
    same = match_event("frame.reserved", frame=frame, purpose=purpose, amount=amount)
    return change_frame(env, frame, lambda state: budgets.reserve(state, frame, purpose, amount), key=key, same=same)


def release_reservation(env: Env, frame: str, purpose: str, amount: int | None, key: str | None) -> ChangeResult:
    """Release a reservation: `amount` of it, or all of it if that is None."""

    def same(events: list[Event]) -> bool:
        given = [event.facts for event in events if event.type == "frame.reserved"]
        return any(
            (facts.frame, facts.purpose) == (frame, purpose) and facts.amount < 0 and amount in (None, -facts.amount)
            for facts in given
        )

    return change_frame(env, frame, lambda state: budgets.release(state, frame, purpose, amount), key=key, same=same)


def spend_tokens(env: Env, frame: str, usage: Usage | int, purpose: str | None, key: str | None) -> ChangeResult:
    """Record usage that was paid for, from a purpose's reservation first. What exceeds the budget is an overdraft."""
    same = match_event("frame.spent", frame=frame, usage=budgets.to_usage(usage), purpose=purpose)
    return change_frame(env, frame, lambda state: budgets.spend(state, frame, usage, purpose), key=key, same=same)


def pop_frame(
    env: Env,
    frame_id: str,
    status: str,
    content: frames.OutcomeContent,
    *,
    key: str | None = None,
    expected: int | None = None,
    release: int | None = None,
) -> EndedFrame | None:
    """End a frame. Ending it again in the same way changes nothing; `release` also gives back the lease of that epoch.

    Returns the frame as it ended, or None if it had ended before.
    """
    content = redact_as_configured(env, content)
    stream = find_frame_stream(env, frame_id)
    last: list[FrameState] = []

    def decide(states: States) -> Drafts:
        last[:] = [check_live(env, states[stream], frame_id, expected)]
        ended = lifecycle.pop(states, stream, frame_id, status, content)
        drafts = {name: _add_clocks(env, name, states[name], events) for name, events in ended.items()}
        for name, events in drafts.items():
            if name not in (stream, _outer_stream(states, stream, frame_id)):
                drafts[name] = _revoke_lease(env, name, states[name], events)
        if release is not None:
            drafts[stream].extend(env.leases.draft_release(env.tenant, stream, release))
        return drafts

    def needs(states: States) -> list[str]:
        outer = _outer_stream(states, stream, frame_id)
        return [*([] if outer is None else [outer]), *lifecycle.streams_below(states, stream, frame_id)]

    try:
        same = match_event("frame.popped", content, frame=frame_id, status=status)
        changed = decide_and_append(env, (stream,), decide, key=key, same=same, needs=needs)
    except errors.FrameEnded:
        if _has_ended_as(env, frame_id, status, content):
            return None
        raise
    if changed.repeated:
        return None
    # Built as its rows describe it, without reading them back.
    facts: frames.FramePopped = changed.last_facts("frame.popped")
    ended = replace(last[0], status=facts.status, used=facts.used, usage=facts.usage, lent=0, away={}, question=None)
    frame = replace(ended, version=changed.version_of("frame.popped"))
    return EndedFrame(stream=stream, frame=frame, at=changed.at)


class EndedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame as it ended."""

    stream: str
    frame: FrameState
    at: int


def _add_clocks(env: Env, stream: str, state: StreamState, events: list[Draft]) -> list[Draft]:
    """Add clock events, which only a stream's owner writes: a child that settles in a foreign stream adds none."""
    if all(event.type == "child.settled" for event in events):
        try:
            env.leases.epoch(env.tenant, stream, state)
        except errors.Conflict:
            return events
    return add_clock_events(state, events, env.clock.now_ms())


def _outer_stream(states: States, stream: str, frame_id: str) -> str | None:
    frame = states[stream].frames.get(frame_id)
    return None if frame is None else frame.outer_stream


def _revoke_lease(env: Env, stream: str, state: StreamState, events: list[Draft]) -> list[Draft]:
    """Take the lease from the owner of another actor's stream: cancelling reaches into it in the same append."""
    if state.holder is None or env.leases.holds(env.tenant, stream):
        return events
    epoch, owner = state.epoch + 1, env.leases.process.name
    return [
        Draft(type="lease.taken", facts=LeaseTaken(epoch=epoch, owner=owner)),
        *events,
        Draft(type="lease.released", facts=LeaseReleased(epoch=epoch, owner=owner)),
    ]


def _has_ended_as(env: Env, frame_id: str, status: str, content: frames.OutcomeContent) -> bool:
    info = read_frame(env, frame_id)
    if info.status != status:
        return False
    end = read_event(env, info.scope, info.version)
    said = {name: content_field(end, name) for name in ("summary", "error", "value")}
    return all(value is ERASED or value == getattr(content, name) for name, value in said.items())
