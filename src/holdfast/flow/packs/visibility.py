"""Decide what a pack may show: its options, and what its frame may see, which is a thread, ancestry and evidence.

A root frame within a session sees the session's thread. Any other frame sees only its own messages and nothing
from above it: frames are isolated by design.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.frames import stack
from holdfast.core.numbers import is_number
from holdfast.core.packs.segments import Crumb
from holdfast.core.wire.parts import ERASED_TEXT
from holdfast.errors import FrameNotFound, InvalidValue
from holdfast.flow.frames import read
from holdfast.flow.frames.lifecycle import check_live
from holdfast.flow.sessions.read import session_stream
from holdfast.ports import Env
from holdfast.ports.capabilities import STATE, require
from holdfast.records.entries import EntryPageQuery
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.events.frames import GoalContent
from holdfast.records.ids import RESERVED_PREFIX, check_id
from holdfast.records.packs import LAYOUTS, LEVELS, MAIN_ROLE, CompactionLevel, FrameBreadcrumb, Layout, Origin
from holdfast.records.recovery import FrameInfo, HandleInfo
from holdfast.records.scope import Address, Scope, parse_scope

BRIEF_PREFIX: Final = f"{RESERVED_PREFIX}brief/"
"""The reserved prefix of brief keys in every scope; callers cannot write there by other means."""
MAX_STICKINESS = 0.9
MAX_COUNT = 2**62


class PackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a pack."""

    budget: int | None = None
    role: str = MAIN_ROLE
    query: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    force_exclude: bool = False
    min_compaction: CompactionLevel = CompactionLevel.NONE
    tokenizer: str | None = None
    layout: Layout = "stable"
    stickiness: float = 0.4
    max_messages: int | None = None
    recall: int | None = None


def check_request(asked: PackRequest) -> None:
    """Check the options of a pack; refuse an invalid one by name."""
    for name in ("budget", "max_messages"):
        value = getattr(asked, name)
        if value is not None and not is_number(value, least=1, most=MAX_COUNT):
            raise InvalidValue(f"{name} must be a whole number from 1 to {MAX_COUNT}, not {value!r:.40}.")
    if asked.tokenizer is not None and (not isinstance(asked.tokenizer, str) or not asked.tokenizer):
        raise InvalidValue(f"tokenizer must be the name of one, not {asked.tokenizer!r:.40}.")
    if asked.layout not in LAYOUTS:
        raise InvalidValue(f"layout must be one of {', '.join(LAYOUTS)}, not {asked.layout!r}.")
    if asked.min_compaction not in LEVELS:
        raise InvalidValue(f"min_compaction must be one of {', '.join(LEVELS)}, not {asked.min_compaction!r}.")
    if not is_number(asked.stickiness, least=0, most=MAX_STICKINESS, whole=False):
        raise InvalidValue(f"stickiness must be a number from 0 to {MAX_STICKINESS}, not {asked.stickiness!r}.")
    if asked.query is not None and not isinstance(asked.query, str):
        raise InvalidValue(f"query must be text, not {type(asked.query).__name__}.")
    recall = asked.recall
    if recall is not None and not is_number(recall, least=0):
        raise InvalidValue(f"recall must be a number of memories, 0 or more, not {recall!r}.")
    for name in ("include", "exclude"):
        if not all(isinstance(one, str) for one in getattr(asked, name)):
            raise InvalidValue(f"{name} must name handles, each by its id.")
    check_id(asked.role, "role")


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


def frame_visibility(env: Env, frame_id: str, *, turn: int | None = None) -> Visibility:
    """Return the visibility of a live frame; refuse one that has ended or does not exist.

    `turn` is the version of the message that began it, if the caller knows that the frame is a turn.
    """
    stream = read.find_frame_stream(env, frame_id)
    state = read.load_current_state(env, stream)
    frame = check_live(env, state, frame_id)
    if turn is None or frame.goal != frame.pushed:
        info = read.describe_frame(env, stream, frame)
    else:
        # A turn's goal is in its conversation, and a turn has no inputs: its first event need not be read.
        info = replace(read.describe_frame(env, stream, frame, goal=GoalContent()), turn=turn)
    session = parse_scope(stream).get("session")
    return Visibility(
        thread=read.frame_place(env, stream, state, frame_id).thread,
        session=None if session is None else session_stream(stream),
        actor=stream,
        frame=info,
        scopes=brief_scopes(stream),
    )


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


def has_briefs(env: Env, scope: str) -> bool:
    """Return True if a scope has a brief for any role."""
    query = EntryPageQuery(now=env.clock.now_ms(), prefix=BRIEF_PREFIX, limit=1)
    return bool(require(env.journal, STATE).entries(env.tenant, scope, query))


def is_thread(scope: Scope) -> bool:
    """Return True if the scope is a thread of a session."""
    return [kind for kind, _ in scope.parts] == ["session", "thread"]


def top_frame(env: Env, scope: Address) -> str:
    """Return the deepest live frame of a scope, the newest of several."""
    stream = Scope.of(scope).text
    top = stack.top_frame(read.load_current_state(env, stream).frames)
    if top is None:
        raise FrameNotFound(f"No active frame in {stream}. Push one, or name a frame by its id.")
    return top.id


def resolve_frame(env: Env, scope: Address | None, frame_id: str | None) -> str:
    """Return a frame by its id, checked against the scope if given; else the top of the scope's stack."""
    if frame_id is None:
        if scope is None:
            raise InvalidValue("Say what to pack for: a frame by its id, or a scope.")
        return top_frame(env, scope)
    if scope is not None and read.find_frame_stream(env, frame_id) != Scope.of(scope).text:
        raise FrameNotFound(f"Frame {frame_id} is not in {Scope.of(scope).text}. Leave the scope out, or name its own.")
    return frame_id


def load_breadcrumbs(env: Env, frame_id: str) -> list[Crumb]:
    """Return the frame's ancestry, root first and the frame itself last, each with the origin of its goal."""
    found = []
    for place in read.iter_ancestors(env, frame_id):
        origin = Origin(kind="breadcrumb", stream=place.stream, first=place.goal)
        goal, _ = reload_breadcrumb(env, origin)
        crumb = FrameBreadcrumb(frame_id=place.frame_id, depth=place.depth, goal=goal, status=place.status)
        found.append((crumb, origin))
    return found[::-1]


def reload_breadcrumb(env: Env, origin: Origin) -> tuple[str, bool]:
    """Load the goal at an origin, and return True with it if it was erased."""
    event = read_origin(env, origin)
    goal = read.content_field(event, "goal")
    gone = event is None or goal is ERASED
    return (goal if isinstance(goal, str) else ERASED_TEXT if gone else ""), gone


def read_origin(env: Env, origin: Origin) -> Event | None:
    """Return the event, or the first of several, that an origin names; None if it names none."""
    if origin.stream is None or origin.first is None:
        return None
    return read.read_event(env, origin.stream, origin.first)


def find_handle(env: Env, frame_id: str, handle_id: str) -> tuple[HandleInfo, str] | None:
    """Find an attached handle of a frame or of its nearest ancestor that has one, with the stream it is in."""
    for place in read.iter_ancestors(env, frame_id):
        handle = None if place.live is None else place.live.handles.get(handle_id)
        if handle is not None and handle.removed is None:
            return read.read_handle(env, place.stream, handle), place.stream
    return None
