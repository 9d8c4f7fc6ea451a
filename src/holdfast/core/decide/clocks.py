"""Clocks of ancestors: a frame's deadline stands still while all live work below it waits for answers.

The frame that waits notes when it stopped in its question. For those above it the moment is
noted here, whatever brought it about: a suspension, or the end of the last one at work. As
soon as anything below works again, the deadline moves by exactly as long as it stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.fold import fold_facts
from holdfast.core.stack import all_suspended, earliest, in_order
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import FrameUpdated
from holdfast.records.frames import Frame, StreamState


def with_clocks(state: StreamState, drafts: Sequence[Draft], now: int) -> list[Draft]:
    """Drafts for a stream, and after them the clocks that they stop or start."""
    if not drafts or not _matters(state, drafts):
        return list(drafts)
    after = state
    for draft in drafts:
        after = fold_facts(after, draft.type, draft.facts, after.version + 1, now)
    moved: dict[str, int] = {}
    marks: list[Draft] = []
    for frame in in_order(after.frames):
        if frame.deadline is None:
            continue
        still = frame.question is None and all_suspended(after.frames, frame.id)
        if still and frame.stopped_at is None:
            marks.append(_mark(FrameUpdated(frame=frame.id, stopped_at=now)))
        elif not still and frame.stopped_at is not None:
            above = None if frame.parent is None else after.frames[frame.parent]
            bound = None if above is None else moved.get(above.id, running_deadline(above, now))
            moved[frame.id] = earliest(running_deadline(frame, now), bound) or 0
            marks.append(_mark(FrameUpdated(frame=frame.id, deadline=moved[frame.id], runs=True)))
    return [*drafts, *marks]


def running_deadline(frame: Frame, now: int) -> int | None:
    """A frame's deadline once its clock runs again."""
    if frame.deadline is None or frame.stopped_at is None:
        return frame.deadline
    return frame.deadline + max(0, now - frame.stopped_at)


def _matters(state: StreamState, drafts: Iterable[Draft]) -> bool:
    """Whether anything waits, or begins to: otherwise every clock runs, as nearly always."""
    waits = any(frame.question is not None for frame in state.frames.values())
    return waits or any(draft.type == "frame.suspended" for draft in drafts)


def _mark(facts: FrameUpdated) -> Draft:
    return Draft(type="frame.updated", facts=facts)
