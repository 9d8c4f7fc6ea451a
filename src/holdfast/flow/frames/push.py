"""Push a frame, as a root or below another, with the evidence it inherits. One append, over one stream or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core.frames import evidence, lifecycle
from holdfast.core.frames.budgets import check_limits
from holdfast.core.frames.stack import with_clocks
from holdfast.errors import Draining, DuplicateFrame, FrameNotFound, InvalidValue, ParentNotActive, ParentNotFound
from holdfast.flow.frames.lifecycle import check_goal, equal, like
from holdfast.flow.frames.read import event_at, raw_id, row_of, stream_of
from holdfast.flow.journal.append import Changed, Drafts, States, change
from holdfast.flow.journal.redact import clean
from holdfast.ports import Acting, Ports
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.frames import FrameLimits, Limits
from holdfast.records.ids import ulid_text


def default_limits(ports: Ports) -> FrameLimits:
    """Return the limits of a bare frame."""
    return FrameLimits(context_tokens=ports.settings.default_context_tokens)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A frame to push, and where."""

    home: str
    frame: str
    above: tuple[str, str] | None
    """The stream and the id of the parent."""
    content: frames.GoalContent
    tokens: object
    limits: Limits | None
    default: FrameLimits
    inherit: tuple[str, ...]
    lease: bool


def push(
    ports: Ports,
    acting: Acting,
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
    if ports.leases.draining:
        raise Draining
    check_goal(content)
    if limits is not None:
        check_limits(limits)
    if content.goal is None:
        raise InvalidValue("A frame's goal must be a text that says what it is for.")
    content = clean(ports, content)
    above = None if parent is None else (_parent_stream(ports, acting, parent), parent)
    home = _home(stream, above)
    if frame_id is not None and _known(ports, acting, frame_id, content, parent):
        return frame_id
    wanted = Wanted(
        home=home,
        frame=frame_id or ulid_text(ports.ids.ulid()),
        above=above,
        content=content,
        tokens=tokens,
        limits=limits,
        default=default or default_limits(ports),
        inherit=_inherit(inherit, parent),
        lease=lease,
    )
    changed = _push(ports, acting, wanted, key)
    made: str = changed.last("frame.pushed").frame
    ports.states.note_place(acting.tenant, made, home)
    if not changed.repeated:
        ports.states.note_goal(acting.tenant, home, changed.version_of("frame.pushed"), content)
    return made


def _inherit(given: Sequence[str], parent: str | None) -> tuple[str, ...]:
    names = evidence.handle_names(given)
    if names and parent is None:
        raise InvalidValue("Only a child inherits evidence. Name its parent, or attach it to the new frame.")
    return names


def _push(ports: Ports, acting: Acting, wanted: Wanted, key: str | None) -> Changed:
    above, home = wanted.above, wanted.home
    streams = (home,) if above is None or above[0] == home else (home, above[0])
    try:
        return change(
            ports,
            acting,
            streams,
            lambda states: _pushed(ports, acting, states, wanted),
            key=key,
            same=_same_push(wanted),
        )
    except ParentNotFound:
        assert above is not None
        raise _parent_problem(ports, acting, above[1]) from None


def _pushed(ports: Ports, acting: Acting, states: States, wanted: Wanted) -> Drafts:
    home, now = wanted.home, ports.clock.now_ms()
    drafts = lifecycle.push(
        states,
        home,
        wanted.frame,
        parent=wanted.above,
        tokens=wanted.tokens,
        limits=wanted.limits,
        default=wanted.default,
        content=wanted.content,
        now=now,
    )
    if wanted.inherit and wanted.above is not None:
        drafts[home].extend(_inherited(ports, acting, states, wanted.above, wanted))
    drafts = {name: with_clocks(states[name], events, now) for name, events in drafts.items()}
    if wanted.lease:
        drafts[home] = [*ports.leases.wanted(acting.tenant, home, states[home]), *drafts[home]]
    return drafts


def _inherited(ports: Ports, acting: Acting, states: States, above: tuple[str, str], wanted: Wanted) -> list[Draft]:
    """Return the handles that a child inherits; the content that they point to is not copied."""
    stream, parent = above
    handles = evidence.handed_down(states[stream].frames[parent], wanted.inherit)
    events = {}
    for handle in handles:
        event = event_at(ports, acting, stream, handle.version)
        assert event is not None, "a handle names the event that attached it"
        events[handle.id] = event
    return evidence.inherited(wanted.frame, handles, events)


def _home(stream: str | None, above: tuple[str, str] | None) -> str:
    """Return the stream of a new frame: the given one, or the parent's."""
    if stream is not None:
        return stream
    if above is None:
        raise InvalidValue("A frame needs a scope to live in, or a parent.")
    return above[0]


def _same_push(wanted: Wanted) -> Callable[[list[Event]], bool]:
    """Return a predicate: a key stands for this push, apart from amounts that depend on the parent's state then."""
    parent = None if wanted.above is None else wanted.above[1]
    facts: dict[str, Any] = {"granted": wanted.tokens} if isinstance(wanted.tokens, int) else {}

    def same(events: list[Event]) -> bool:
        if not like("frame.pushed", wanted.content, **facts)(events):
            return False
        pushed = next(event.facts for event in events if event.type == "frame.pushed")
        if wanted.limits is not None and parent is None and wanted.limits.over(pushed.limits) != pushed.limits:
            return False
        taken = tuple(event.facts.handle for event in events if event.type == "frame.handle_added")
        return bool((pushed.parent or pushed.outer) == parent) and taken == wanted.inherit

    return same


def _parent_stream(ports: Ports, acting: Acting, parent: str) -> str:
    raw_id(parent, "parent frame")
    try:
        return stream_of(ports, acting, parent)
    except FrameNotFound:
        raise ParentNotFound(f"There is no frame {parent} to push below. Check its id and the tenant.") from None


def _parent_problem(ports: Ports, acting: Acting, parent: str) -> ParentNotActive:
    status = str(row_of(ports, acting, parent)[1]["status"])
    return ParentNotActive(
        f"Frame {parent} is {status}, so nothing can be pushed below it. Push below a live frame, or a new root.",
        before=status,
        after="waiting",
    )


def _known(ports: Ports, acting: Acting, frame_id: str, content: frames.GoalContent, parent: str | None) -> bool:
    """Return True if this very frame exists; refuse another frame with its id."""
    raw_id(frame_id)
    try:
        stream, row = row_of(ports, acting, frame_id)
    except FrameNotFound:
        return False
    pushed = event_at(ports, acting, stream, int(row["pushed_version"]))  # type: ignore[arg-type]
    if pushed is not None and (pushed.facts.parent or pushed.facts.outer) == parent and equal(pushed, content):
        return True
    raise DuplicateFrame(f"Frame {frame_id} exists and is not the same. Use a new id, or none.")
