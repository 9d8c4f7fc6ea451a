"""Push a frame, as a root or below another, with the evidence it inherits. One append, over one stream or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.frames import calls, lifecycle
from holdfast.core.frames.budgets import check_limits
from holdfast.core.frames.stack import add_clock_events
from holdfast.errors import Draining, DuplicateFrame, FrameNotFound, InvalidValue, ParentNotActive, ParentNotFound
from holdfast.flow.frames.lifecycle import check_goal, has_content, match_event
from holdfast.flow.frames.read import find_frame_row, find_frame_stream, parse_id, read_event
from holdfast.flow.journal.append import Drafts, States, decide_and_append, redact_as_configured
from holdfast.ports import Env
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.frames import FrameLimits, Limits
from holdfast.records.ids import ulid_text


def default_limits(env: Env) -> FrameLimits:
    """Return the limits of a bare frame."""
    return FrameLimits(context_tokens=env.settings.default_context_tokens)


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
        raise Draining
    check_goal(content)
    if limits is not None:
        check_limits(limits)
    if content.goal is None:
        raise InvalidValue("A frame's goal must be a text that says what it is for.")
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
            default=default or default_limits(env),
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
    except ParentNotFound:
        raise _explain_parent(env, str(parent)) from None
    made = str(changed.last_facts("frame.pushed").frame)
    env.states.note_frame_stream(env.tenant, made, home)
    if not changed.repeated:
        env.states.note_goal(env.tenant, home, changed.version_of("frame.pushed"), content)
    return made


def _home_stream(stream: str | None, above: tuple[str, str] | None) -> str:
    """Return the stream of a new frame: the given one, or the parent's."""
    if stream is not None:
        return stream
    if above is None:
        raise InvalidValue("A frame needs a scope to live in, or a parent.")
    return above[0]


def _check_inherit(given: Sequence[str], parent: str | None) -> tuple[str, ...]:
    names = calls.check_handle_names(given)
    if names and parent is None:
        raise InvalidValue("Only a child inherits evidence. Name its parent, or attach it to the new frame.")
    return names


def _inherit_handles(
    env: Env, states: States, above: tuple[str, str], frame: str, names: tuple[str, ...]
) -> list[Draft]:
    """Return the handles that a child inherits; the content that they point to is not copied."""
    stream, parent = above
    drafts = []
    for position, handle in enumerate(calls.select_handles(states[stream].frames[parent], names), 1):
        event = read_event(env, stream, handle.version)
        assert event is not None, "a handle names the event that attached it"
        drafts.append(calls.inherit_handle(frame, position, event))
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
    except FrameNotFound:
        raise ParentNotFound(f"There is no frame {parent} to push below. Check its id and the tenant.") from None


def _explain_parent(env: Env, parent: str) -> ParentNotActive:
    status = str(find_frame_row(env, parent)[1]["status"])
    return ParentNotActive(
        f"Frame {parent} is {status}, so nothing can be pushed below it. Push below a live frame, or a new root.",
        before=status,
        after="waiting",
    )


def _is_pushed(env: Env, frame_id: str, content: frames.GoalContent, parent: str | None) -> bool:
    """Return True if this very frame exists; refuse another frame with its id."""
    parse_id(frame_id)
    try:
        stream, row = find_frame_row(env, frame_id)
    except FrameNotFound:
        return False
    pushed = read_event(env, stream, int(row["pushed_version"]))  # type: ignore[arg-type]
    if pushed is not None and (pushed.facts.parent or pushed.facts.outer) == parent and has_content(pushed, content):
        return True
    raise DuplicateFrame(f"Frame {frame_id} exists and is not the same. Use a new id, or none.")
