"""A frame among its ancestors, live or ended, and the thread that it sees.

A root frame within a session sees the session's thread. Any other frame sees only its own messages and nothing
from above it: frames are isolated by design.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.flow.frames.read import find_frame_row, find_frame_stream, load_current_state, parse_id, row_ulid
from holdfast.flow.journal.append import load_state
from holdfast.ports import Env
from holdfast.records.frames import FrameState, StreamState
from holdfast.records.scope import MAIN_THREAD, Scope, parse_scope


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


def frame_thread(env: Env, frame_id: str) -> str:
    """Return the thread of a frame, live or ended. It never changes, so cached state will do."""
    parse_id(frame_id)
    stream = find_frame_stream(env, frame_id)
    return frame_place(env, stream, load_state(env, stream), frame_id).thread


def frame_place(env: Env, stream: str, state: StreamState, frame_id: str) -> FramePlace:
    """Return the place of a frame: from the state of its stream while it is live, else from its row."""
    frame = state.frames.get(frame_id)
    if frame is not None:
        return FramePlace(
            frame_id=frame_id,
            stream=stream,
            parent=frame.parent or frame.outer,
            depth=frame.depth,
            status=frame.status,
            goal=frame.goal,
            live=frame,
        )
    row = find_frame_row(env, frame_id)[1]
    return FramePlace(
        frame_id=frame_id,
        stream=stream,
        parent=row_ulid(row, "parent_frame_id") or row_ulid(row, "outer_frame_id") or None,
        depth=int(row["depth"] or 0),
        status=str(row["status"]),
        goal=int(row["goal_version"] or 0),
    )


def iter_ancestors(env: Env, frame_id: str) -> Iterator[FramePlace]:
    """Iterate over the frame, its parent, and so on to the root, across streams. Each stream is loaded once."""
    parse_id(frame_id)
    states: dict[str, StreamState] = {}
    at: str | None = frame_id
    while at is not None:
        stream = find_frame_stream(env, at)
        if stream not in states:
            states[stream] = load_current_state(env, stream)
        place = frame_place(env, stream, states[stream], at)
        yield place
        at = place.parent
