"""The call stack, computed from a stream's live frames: ancestors, children, leaves, top, limits and clocks.

Everything is root first. A waiting parent never hides its active child. A frame's deadline stops while all live work
below it waits for answers, and later moves by exactly the time that its clock was stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import attrgetter

from holdfast.core.journal.fold import fold_facts
from holdfast.errors import FrameNotFound, FrameSuspended
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import FrameUpdated
from holdfast.records.frames import FrameLimits, FrameState, StreamState

Frames = Mapping[str, FrameState]


def live_frame(state: StreamState, frame_id: str) -> FrameState:
    """Return a live frame by id, or raise `FrameNotFound`."""
    frame = state.frames.get(frame_id)
    if frame is None:
        raise FrameNotFound(f"There is no live frame {frame_id}. It has ended, or the id is wrong.")
    return frame


def check_awake(frame: FrameState) -> None:
    """Refuse to change a frame that waits for an answer."""
    if frame.question is not None:
        raise FrameSuspended(
            f"Frame {frame.id} waits for an answer to question {frame.question.id}. Answer and resume it first.",
            question=frame.question.id,
        )


def ancestry(frames: Frames, frame_id: str) -> list[FrameState]:
    """Return the frames from the root to this frame, within one stream."""
    found: list[FrameState] = []
    at: str | None = frame_id
    while at is not None:
        frame = frames[at]
        found.append(frame)
        at = frame.parent
    found.reverse()
    return found


def children(frames: Frames, frame_id: str | None) -> list[FrameState]:
    """Return the live children in the same stream, oldest first; of None, the roots."""
    return sorted([frame for frame in frames.values() if frame.parent == frame_id], key=attrgetter("pushed"))


def has_live_children(frames: Frames, frame: FrameState) -> bool:
    """Return True if anything below this frame is live, in this stream or another."""
    return bool(frame.away) or frame.id in [other.parent for other in frames.values()]


def walk_leaf_first(frames: Frames, frame_id: str) -> Iterator[FrameState]:
    """Yield every frame below this one, each after all that is below it; newest children first."""
    for child in reversed(children(frames, frame_id)):
        yield from walk_leaf_first(frames, child.id)
        yield child


def leaves(frames: Frames) -> list[FrameState]:
    """Return every live frame with nothing live below it in this stream, oldest first."""
    parents = {frame.parent for frame in frames.values()}
    return sorted((frame for frame in frames.values() if frame.id not in parents), key=attrgetter("pushed"))


def top_frame(frames: Frames) -> FrameState | None:
    """Return the deepest live frame; of several, the newest."""
    return max(frames.values(), key=attrgetter("depth", "pushed"), default=None)


def walk_root_first(frames: Frames, parent: str | None = None) -> list[FrameState]:
    """Return every live frame, or those below a parent: parents before children, siblings by age."""
    tops = children(frames, parent)
    return [frame for top in tops for frame in (top, *walk_root_first(frames, top.id))]


def is_all_suspended(frames: Frames, frame_id: str) -> bool:
    """Return True if all live work below a frame waits for answers, so that its clock stops."""
    below = list(walk_leaf_first(frames, frame_id))
    return (
        bool(below)
        and not any(frame.away for frame in (frames[frame_id], *below))
        and all(frame.status == "suspended" or any(other.parent == frame.id for other in below) for frame in below)
    )


def tightest_limits(line: Iterable[FrameState]) -> FrameLimits:
    """Return the limits in force below these frames: the least of each."""
    return reduce(clamp_limits, [frame.limits for frame in line])


def clamp_limits(limits: FrameLimits, bound: FrameLimits) -> FrameLimits:
    """Return the limits, each at most as large as its bound."""
    return FrameLimits(
        context_tokens=min(limits.context_tokens, bound.context_tokens),
        tool_calls=min(limits.tool_calls, bound.tool_calls),
        depth=min(limits.depth, bound.depth),
        timeout_ms=earliest_deadline(limits.timeout_ms, bound.timeout_ms),
    )


def late_frames(line: Iterable[FrameState], now: int) -> list[FrameState]:
    """Return the frames whose deadline has passed."""
    return [frame for frame in line if (until := running_deadline(frame, now)) is not None and now > until]


def earliest_deadline(*deadlines: int | None) -> int | None:
    """Return the earliest of several deadlines, each of which may be None."""
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


def add_clock_events(state: StreamState, drafts: Sequence[Draft], now: int) -> list[Draft]:
    """Return the drafts for a stream, followed by events for the clocks that they stop or start."""
    # Nearly always no frame is suspended or being suspended: then every clock runs.
    waiting = [frame for frame in state.frames.values() if frame.question is not None]
    if not drafts or not (waiting or "frame.suspended" in [draft.type for draft in drafts]):
        return list(drafts)
    after = state
    for draft in drafts:
        after = fold_facts(after, draft.type, draft.facts, after.version + 1, now)
    moved: dict[str, int] = {}
    marks: list[FrameUpdated] = []
    for frame in walk_root_first(after.frames):
        if frame.deadline is None:
            continue
        still = frame.question is None and is_all_suspended(after.frames, frame.id)
        if still and frame.stopped_at is None:
            marks.append(FrameUpdated(frame=frame.id, stopped_at=now))
        elif not still and frame.stopped_at is not None:
            above = None if frame.parent is None else after.frames[frame.parent]
            bound = None if above is None else moved.get(above.id, running_deadline(above, now))
            moved[frame.id] = earliest_deadline(running_deadline(frame, now), bound) or 0
            marks.append(FrameUpdated(frame=frame.id, deadline=moved[frame.id], runs=True))
    return [*drafts, *(Draft(type="frame.updated", facts=facts) for facts in marks)]


def running_deadline(frame: FrameState, now: int) -> int | None:
    """Return a frame's deadline as if its clock ran again from now."""
    if frame.deadline is None or frame.stopped_at is None:
        return frame.deadline
    return frame.deadline + max(0, now - frame.stopped_at)
