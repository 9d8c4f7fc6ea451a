"""Decide what a frame may see: its thread, its ancestry, and the evidence it may read.

A root frame within a session sees the session's thread. Any other frame sees only its own messages and nothing
from above it: frames are isolated by design.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from holdfast.core.frames import stack
from holdfast.core.wire.parts import ERASED_TEXT
from holdfast.errors import FrameNotFound, InvalidValue
from holdfast.flow.frames.lifecycle import check_live
from holdfast.flow.frames.read import (
    content_field,
    describe_frame,
    find_frame_row,
    find_frame_stream,
    load_current_state,
    parse_id,
    read_event,
    read_handle,
)
from holdfast.flow.journal.append import load_state
from holdfast.flow.sessions.read import session_stream
from holdfast.ports import Env
from holdfast.records.batches import Row
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import GoalContent
from holdfast.records.frames import FrameState, StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.packs import FrameBreadcrumb, Origin
from holdfast.records.recovery import FrameInfo, HandleInfo
from holdfast.records.scope import MAIN_THREAD, Address, Scope, parse_scope

Crumb = tuple[FrameBreadcrumb, Origin]
"""A frame of the ancestry, and the origin of its goal."""


class Visibility(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that a model call may be shown content from."""

    thread: str
    """The thread: a session's, or the frame's private one."""
    session: str | None
    """The session that the work is for, even if its conversation is not visible."""
    actor: str | None
    """The stream of the frame."""
    frame: FrameInfo | None
    scopes: tuple[str, ...]
    """The scopes where briefs are looked up, nearest first."""


class FramePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A frame among its ancestors, live or ended, without its texts."""

    frame_id: str
    stream: str
    parent: str | None
    depth: int
    status: str
    goal: int
    """The version of the event that holds its goal."""
    live: FrameState | None = None

    @property
    def thread(self) -> str:
        """The frame's thread: the session's for a root frame within one, else its private one."""
        session = parse_scope(self.stream).get("session")
        if self.parent is not None or session is None:
            return Scope.frame(self.frame_id).text
        return Scope.thread(session, parse_scope(self.stream).get("thread") or MAIN_THREAD).text


def frame_visibility(env: Env, frame_id: str, *, turn: int | None = None) -> Visibility:
    """Return the visibility of a live frame; refuse one that has ended or does not exist.

    `turn` is the version of the message that began it, if the caller knows that the frame is a turn.
    """
    parse_id(frame_id)
    stream = find_frame_stream(env, frame_id)
    state = load_current_state(env, stream)
    check_live(env, state, frame_id)
    frame = state.frames[frame_id]
    session = parse_scope(stream).get("session")
    return Visibility(
        thread=_live_place(stream, frame).thread,
        session=None if session is None else Scope.session(session).text,
        actor=stream,
        frame=_frame_info(env, stream, frame, turn),
        scopes=brief_scopes(stream),
    )


def _frame_info(env: Env, stream: str, frame: FrameState, turn: int | None) -> FrameInfo:
    if turn is None or frame.goal != frame.pushed:
        return describe_frame(env, stream, frame)
    # A turn's goal is in its conversation, and a turn has no inputs: its first event need not be read.
    return replace(describe_frame(env, stream, frame, goal=GoalContent()), turn=turn)


def thread_visibility(thread: str) -> Visibility:
    """Return the visibility of a session's thread without any frame."""
    return Visibility(
        thread=thread, session=session_stream(thread), actor=None, frame=None, scopes=brief_scopes(thread)
    )


@lru_cache(maxsize=1024)
def brief_scopes(stream: str) -> tuple[str, ...]:
    """Return the scopes where a scope's briefs are looked up, nearest first: itself, its actor, its session, global.

    Threads have no briefs of their own, and a frame uses its actor's.
    """
    scope = parse_scope(stream)
    actor, session = scope.get("actor"), scope.get("session")
    own = () if is_thread(scope) else (stream,)
    found = (
        *own,
        *(() if actor is None else (Scope.actor(actor).text,)),
        *(() if session is None else (Scope.session(session).text,)),
        Scope.GLOBAL.text,
    )
    return tuple(dict.fromkeys(found))


def is_thread(scope: Scope) -> bool:
    """Return True if the scope is a thread of a session."""
    return [kind for kind, _ in scope.parts] == ["session", "thread"]


def top_frame(env: Env, scope: Address) -> str:
    """Return the deepest live frame of a scope, the newest of several."""
    stream = Scope.of(scope).text
    top = stack.top_frame(load_current_state(env, stream).frames)
    if top is None:
        raise FrameNotFound(f"No active frame in {stream}. Push one, or name a frame by its id.")
    return top.id


def resolve_frame(env: Env, scope: Address | None, frame_id: str | None) -> str:
    """Return a frame by its id, checked against the scope if given; else the top of the scope's stack."""
    if frame_id is None:
        if scope is None:
            raise InvalidValue("Say what to pack for: a frame by its id, or a scope.")
        return top_frame(env, scope)
    if scope is not None and find_frame_stream(env, frame_id) != Scope.of(scope).text:
        raise FrameNotFound(f"Frame {frame_id} is not in {Scope.of(scope).text}. Leave the scope out, or name its own.")
    return frame_id


def frame_thread(env: Env, frame_id: str) -> str:
    """Return the thread of a frame, live or ended. It never changes, so cached state will do."""
    parse_id(frame_id)
    stream = find_frame_stream(env, frame_id)
    frame = load_state(env, stream).frames.get(frame_id)
    return (_load_place(env, frame_id) if frame is None else _live_place(stream, frame)).thread


def frame_place(env: Env, frame_id: str) -> FramePlace:
    """Return the place of a frame, live or ended, at the cost of one stream head."""
    return next(iter_ancestors(env, frame_id))


def iter_ancestors(env: Env, frame_id: str) -> Iterator[FramePlace]:
    """Iterate over the frame, its parent, and so on to the root, across streams. Each stream is loaded once."""
    parse_id(frame_id)
    states: dict[str, StreamState] = {}
    at: str | None = frame_id
    while at is not None:
        stream = find_frame_stream(env, at)
        if stream not in states:
            states[stream] = load_current_state(env, stream)
        frame = states[stream].frames.get(at)
        place = _load_place(env, at) if frame is None else _live_place(stream, frame)
        yield place
        at = place.parent


def _live_place(stream: str, frame: FrameState) -> FramePlace:
    return FramePlace(
        frame_id=frame.id,
        stream=stream,
        parent=frame.parent or frame.outer,
        depth=frame.depth,
        status=frame.status,
        goal=frame.goal,
        live=frame,
    )


def _load_place(env: Env, frame_id: str) -> FramePlace:
    stream, row = find_frame_row(env, frame_id)
    return FramePlace(
        frame_id=frame_id,
        stream=stream,
        parent=_parent_id(row),
        depth=int(row["depth"] or 0),
        status=str(row["status"]),
        goal=int(row["goal_version"] or 0),
    )


def _parent_id(row: Row) -> str | None:
    raw = row["parent_frame_id"] or row["outer_frame_id"]
    return ulid_text(raw) if isinstance(raw, bytes) else None


def load_breadcrumbs(env: Env, frame_id: str) -> list[Crumb]:
    """Return the frame's ancestry, root first and the frame itself last, each with the origin of its goal."""
    found = []
    for place in iter_ancestors(env, frame_id):
        origin = Origin(kind="breadcrumb", stream=place.stream, first=place.goal)
        goal, _ = reload_breadcrumb(env, origin)
        crumb = FrameBreadcrumb(frame_id=place.frame_id, depth=place.depth, goal=goal, status=place.status)
        found.append((crumb, origin))
    return found[::-1]


def reload_breadcrumb(env: Env, origin: Origin) -> tuple[str, bool]:
    """Load the goal at an origin, and return True with it if it was erased."""
    event = None
    if origin.stream is not None and origin.first is not None:
        event = read_event(env, origin.stream, origin.first)
    goal = content_field(event, "goal")
    gone = event is None or goal is ERASED
    return (goal if isinstance(goal, str) else ERASED_TEXT if gone else ""), gone


def find_handle(env: Env, frame_id: str, handle_id: str) -> tuple[HandleInfo, str] | None:
    """Find a handle of a frame or of its nearest ancestor that has one, with the stream it is in.

    Detached handles are not found.
    """
    for place in iter_ancestors(env, frame_id):
        handle = None if place.live is None else place.live.handles.get(handle_id)
        if handle is not None and handle.removed is None:
            return read_handle(env, place.stream, handle), place.stream
    return None
