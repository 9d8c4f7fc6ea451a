"""Push, update and pop frames: statuses, limits, grants, settlement and cascading cancellation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from holdfast import errors
from holdfast.core.frames.budgets import check_limits, compute_grant, outstanding_loan
from holdfast.core.frames.stack import (
    ancestry,
    check_awake,
    children,
    clamp_limits,
    earliest_deadline,
    has_live_children,
    late_frames,
    live_frame,
    running_deadline,
    tightest_limits,
    walk_leaf_first,
)
from holdfast.core.numbers import MAX_AMOUNT, check_number
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import ENDED_STATUSES, FrameLimits, FrameState, Limits, StreamState
from holdfast.records.usage import Usage

Drafts = dict[str, list[Draft]]
"""Events by the stream that they are for."""
States = Mapping[str, StreamState]


def push(
    states: States,
    stream: str,
    frame_id: str,
    *,
    parent: tuple[str, str] | None = None,
    tokens: object,
    limits: Limits | None = None,
    default: FrameLimits,
    content: frames.GoalContent,
    now: int,
) -> Drafts:
    """Push a new frame in `stream`, below `parent` (its stream and id) if one is given."""
    if limits is not None:
        check_limits(limits)
    if parent is None:
        root = default if limits is None else limits.apply_to(default)
        facts = frames.FramePushed(
            frame=frame_id,
            granted=compute_grant(tokens, None),
            limits=root,
            deadline=None if root.timeout_ms is None else now + root.timeout_ms,
        )
        return {stream: [Draft(type="frame.pushed", facts=facts, content=content)]}
    parent_stream, parent_id = parent
    line = _active_ancestry(states[parent_stream], parent_id)
    lender = line[-1]
    inherited = tightest_limits(line)
    if lender.depth >= inherited.depth:
        raise errors.MaxDepthExceeded(
            f"Frame {lender.id} is at depth {lender.depth} and the limit is {inherited.depth}. "
            "Do the work in it, or push its root with a larger limits.depth."
        )
    if late := late_frames(line, now):
        raise errors.DeadlineExceeded(
            f"The deadline of frame {late[0].id} has passed, so nothing can be pushed below it. End it, or push a root."
        )
    granted = compute_grant(tokens, lender)
    own = inherited if limits is None else clamp_limits(limits.apply_to(inherited), inherited)
    until = None if own.timeout_ms is None else now + own.timeout_ms
    here = parent_stream == stream
    facts = frames.FramePushed(
        frame=frame_id,
        depth=lender.depth + 1,
        parent=lender.id if here else None,
        outer=None if here else lender.id,
        outer_stream=None if here else parent_stream,
        granted=granted,
        limits=own,
        deadline=earliest_deadline(until, *(running_deadline(frame, now) for frame in line)),
    )
    pushed = Draft(type="frame.pushed", facts=facts, content=content)
    if here:
        return {stream: [pushed]}
    lent = frames.ChildPushed(frame=lender.id, child=frame_id, child_stream=stream, granted=granted or 0)
    return {parent_stream: [Draft(type="child.pushed", facts=lent)], stream: [pushed]}


def _active_ancestry(state: StreamState, parent_id: str) -> list[FrameState]:
    parent = state.frames.get(parent_id)
    if parent is None:
        raise errors.ParentNotFound(
            f"There is no live frame {parent_id} to push below. It has ended, or the id is wrong."
        )
    if parent.status == "suspended":
        raise errors.ParentNotActive(
            f"Frame {parent_id} is suspended, so nothing can be pushed below it. Resume it first.",
            before="suspended",
            after="waiting",
        )
    return ancestry(state.frames, parent_id)


def update(
    state: StreamState,
    frame_id: str,
    *,
    status: str | None = None,
    limits: Limits | None = None,
    tokens: int | None = None,
    content: frames.GoalContent | None = None,
) -> list[Draft]:
    """Change a frame's texts, limits or status, or the tokens of a root."""
    frame = live_frame(state, frame_id)
    check_awake(frame)
    if status is not None:
        _check_transition(state, frame, status)
    bounds, deadline = (None, None) if limits is None else _resolve_limits(state, frame, check_limits(limits))
    if tokens is not None:
        check_number("tokens", tokens, least=0, most=MAX_AMOUNT)
        if frame.parent is not None or frame.outer is not None:
            raise errors.Refused("Only a root's tokens can be changed: a child's are lent by its parent.")
        if frame.granted is None:
            raise errors.Refused(f"Frame {frame_id} has no token limit, so there is nothing to raise.")
        if tokens < frame.used + frame.reserved + frame.lent:
            held = f"{frame.used} used, {frame.reserved} reserved and {frame.lent} lent"
            raise errors.Refused(f"Frame {frame_id} needs more than {tokens} tokens: it has {held}.")
    facts = frames.FrameUpdated(
        frame=frame_id, status=status, limits=bounds, deadline=deadline, granted=tokens, texts=content is not None
    )
    return [Draft(type="frame.updated", facts=facts, content=content)]


def _resolve_limits(state: StreamState, frame: FrameState, asked: Limits) -> tuple[FrameLimits, int | None]:
    # A child in another stream cannot see its parent from here: the limits it was pushed with are its bound.
    line = ancestry(state.frames, frame.id)[:-1] or ([] if frame.outer is None else [frame])
    bound = tightest_limits(line) if line else None
    # Limits that were not asked for stay as they are, or at what the ancestors allow by now.
    limits = asked.apply_to(frame.limits if bound is None else clamp_limits(frame.limits, bound))
    if bound is not None and clamp_limits(limits, bound) != limits:
        raise errors.Refused(f"Frame {frame.id} cannot have larger limits than its ancestors: at most {bound}.")
    if limits.timeout_ms == frame.limits.timeout_ms:
        return limits, None
    if limits.timeout_ms is None:
        raise errors.Refused("A deadline that was given cannot be taken away. Give a larger timeout_ms.")
    pauses = 0 if frame.deadline is None else frame.deadline - frame.created_at - (frame.limits.timeout_ms or 0)
    own = frame.created_at + limits.timeout_ms + max(0, pauses)
    return limits, earliest_deadline(own, *(other.deadline for other in line))


def _check_transition(state: StreamState, frame: FrameState, status: str) -> None:
    if status in ("completed", "failed", "cancelled"):
        raise errors.InvalidTransition(f"Use pop_frame to end a frame as {status}.", before=frame.status, after=status)
    if status == "suspended":
        raise errors.InvalidTransition(
            f"Frame {frame.id} is {frame.status}. Use suspend_frame and resume_frame.",
            before=frame.status,
            after=status,
        )
    if status not in ("active", "waiting"):
        raise errors.InvalidValue(f"{status!r} is not a status. A live frame is active, waiting or suspended.")
    if status == "active" and has_live_children(state.frames, frame):
        raise errors.HasLiveChildren(f"Frame {frame.id} waits for its children and cannot be active before they end.")


def pop(states: States, stream: str, frame_id: str, status: str, content: frames.OutcomeContent) -> Drafts:
    """End a frame. Failing or cancelling it cancels everything below it, leaf first, in every stream."""
    if not isinstance(status, str) or status not in ENDED_STATUSES:
        raise errors.InvalidValue(f"A frame ends as completed, failed or cancelled, not as {status!r}.")
    state = states[stream]
    frame = live_frame(state, frame_id)
    if status == "completed":
        _check_completable(state, frame)
    drafts: Drafts = {name: [] for name in (stream, *streams_below(states, stream, frame_id))}
    if frame.outer_stream is not None:
        drafts.setdefault(frame.outer_stream, [])
    usage, used = _cancel_below(states, stream, frame, drafts)
    end = _pop_draft(state, replace(frame, usage=usage, used=used), status, content, drafts)
    drafts[stream].append(end)
    if frame.outer is not None and frame.outer_stream is not None:
        drafts[frame.outer_stream].append(_settlement_draft(states[frame.outer_stream], frame, end.facts, drafts))
    return {name: events for name, events in drafts.items() if events}


def _check_completable(state: StreamState, frame: FrameState) -> None:
    if frame.status == "suspended":
        assert frame.question is not None
        raise errors.FrameSuspended(
            f"Frame {frame.id} waits for an answer to question {frame.question.id}. Resume it with one, or cancel it.",
            question=frame.question.id,
        )
    if has_live_children(state.frames, frame):
        live = [child.id for child in children(state.frames, frame.id)] + list(frame.away)
        raise errors.HasLiveChildren(
            f"Frame {frame.id} has live children ({', '.join(live)}). Complete them first, or fail or cancel the "
            "frame, which cancels them too.",
            before=frame.status,
            after="completed",
        )
    if frame.calls:
        names = ", ".join(f"{call.kind} {call.name or ''}".strip() for call in frame.calls.values())
        raise errors.HasOpenCalls(
            f"Frame {frame.id} has begun calls that were not ended ({names}). End them, or fail or cancel the frame.",
            before=frame.status,
            after="completed",
        )


def streams_below(states: States, stream: str, frame_id: str) -> list[str]:
    """Return the other streams in which frames below this one live, as far as their states are given."""
    found: list[str] = []
    state = states.get(stream)
    if state is None or frame_id not in state.frames:
        return found
    for frame in (*walk_leaf_first(state.frames, frame_id), state.frames[frame_id]):
        for child, other in frame.away.items():
            found.append(other)
            found.extend(streams_below(states, other, child))
    return list(dict.fromkeys(name for name in found if name != stream))


def _cancel_below(states: States, stream: str, frame: FrameState, drafts: Drafts) -> tuple[Usage, int]:
    """Cancel everything below a frame; return the usage and tokens of the frame and everything below it."""
    usage, used = frame.usage, frame.used
    here = [(child.id, stream) for child in reversed(children(states[stream].frames, frame.id))]
    for child_id, other in (*here, *reversed(frame.away.items())):
        child = states[other].frames.get(child_id)
        if child is None:
            # The states of two streams may be of different moments; then they must be loaded again.
            raise errors.Conflict(f"Frame {child_id} began or ended meanwhile, in another process. Try again.")
        below, spent = _cancel_below(states, other, child, drafts)
        end = _pop_draft(states[other], replace(child, usage=below, used=spent), "cancelled", None, drafts)
        drafts[other].append(end)
        if other != stream:
            drafts[stream].append(_settlement_draft(states[stream], child, end.facts, drafts))
        usage, used = usage + below, used + spent
    return usage, used


def _pop_draft(
    state: StreamState, frame: FrameState, status: str, content: frames.OutcomeContent | None, drafts: Drafts
) -> Draft:
    facts = frames.FramePopped(
        frame=frame.id,
        status=status,
        parent=frame.parent,
        granted=outstanding_loan(frame) if frame.parent is not None else 0,
        usage=replace(frame.usage, model=None),
        used=frame.used,
        wakes_parent=frame.parent is not None and should_wake(state, frame.parent, frame.id, drafts),
        cascade=content is None,
        question=None if frame.question is None else frame.question.id,
    )
    return Draft(type="frame.popped", facts=facts, content=content)


def should_wake(state: StreamState, parent_id: str, child: str, drafts: Drafts) -> bool:
    """Return True if a waiting parent has nothing live below it once a child and the frames popped by drafts end."""
    parent = state.frames.get(parent_id)
    if parent is None or parent.status != "waiting":
        return False
    facts = [draft.facts for events in drafts.values() for draft in events]
    ended = {child, *(end.frame for end in facts if isinstance(end, frames.FramePopped))}
    siblings = [frame.id for frame in state.frames.values() if frame.parent == parent_id] + list(parent.away)
    return all(sibling in ended for sibling in siblings)


def _settlement_draft(outer: StreamState, child: FrameState, end: Any, drafts: Drafts) -> Draft:
    assert child.outer is not None
    facts = frames.ChildSettled(
        frame=child.outer,
        child=child.id,
        status=end.status,
        granted=outstanding_loan(child),
        usage=end.usage,
        used=end.used,
        wakes_parent=should_wake(outer, child.outer, child.id, drafts),
    )
    return Draft(type="child.settled", facts=facts)
