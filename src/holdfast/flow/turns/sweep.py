"""The sweep: due timers, expired questions, overdue frames, work whose owner is gone, and idle sessions.

It does only what was agreed beforehand, and only where no other process is at work: a live owner acts for itself.
Suspended frames are never overdue.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec

from holdfast.core.frames import questions as rules
from holdfast.core.frames import stack
from holdfast.core.frames.next_step import is_late
from holdfast.errors import Conflict, HoldfastError, NotOwner, Refused, SessionClosed, Unavailable
from holdfast.flow.frames import takeover
from holdfast.flow.frames.lifecycle import pop_frame
from holdfast.flow.frames.questions import resume_frame
from holdfast.flow.frames.read import list_streams_with_work, load_current_state
from holdfast.flow.journal.append import decide_and_append
from holdfast.flow.sessions import sessions
from holdfast.flow.turns import stop, turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.open import end_conversation
from holdfast.ports import Env
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import FrameState, StreamState
from holdfast.records.ids import own_key
from holdfast.records.recovery import StopCode, SweepReport
from holdfast.records.scope import parse_scope
from holdfast.records.sessions import SessionSweepReport

EXPIRY_REASON = "Nobody answered in time."
SKIPPED = "skipped"
ORPHAN_REASON = "Its deadline passed and whoever worked on it is gone."


def sweep(env: Env, *, fail_orphans: bool = False, patient: bool = True) -> SweepReport:
    """Sweep every stream with live frames. With `patient=False`, skip streams that another process owns."""
    done: dict[str, list[str]] = {"resumed": [], "expired": [], "overdue": [], "failed": [], "skipped": []}
    for stream in list_streams_with_work(env):
        for what, frame in sweep_stream(env, stream, fail_orphans=fail_orphans, patient=patient).done:
            done[what].append(frame)
    return SweepReport(**{name: tuple(ids) for name, ids in done.items()})


def sweep_sessions(env: Env) -> SessionSweepReport:
    """End sessions that were idle for too long, and offer pending handovers."""
    now, ended, after = env.clock.now_ms(), 0, ""
    while idle := env.journal.idle_sessions(env.tenant, now, after, sessions.PAGE):
        for stream in idle:
            try:
                id = str(parse_scope(stream).get("session"))
                ended += end_conversation(env, id, cause="timeout", reset=True, quiet_at=now)
            except SessionClosed:
                continue
        after = idle[-1]
    return SessionSweepReport(ended=ended, handed_over=sessions.offer_pending_handovers(env))


class StreamSweep(msgspec.Struct, frozen=True, kw_only=True):
    """The actions done or skipped in one stream, by frame."""

    done: tuple[tuple[str, str], ...] = ()
    calm_at: int | None = None
    """The version at which nothing was due; None if something was, or if the stream changed meanwhile."""


def sweep_stream(env: Env, stream: str, *, fail_orphans: bool = False, patient: bool = True) -> StreamSweep:
    """Sweep one stream."""
    done: list[tuple[str, str]] = []
    first = state = load_current_state(env, stream)
    for seen in stack.walk_root_first(first.frames):
        state = load_current_state(env, stream)
        frame = state.frames.get(seen.id)
        act = None if frame is None else _find_due_action(env, stream, state, frame, fail_orphans)
        if act is None:
            continue  # Nothing is due, or the frame just ended with an ancestor.
        try:
            what = _act_as_owner(env, stream, act, patient)
        except (Conflict, Refused, Unavailable):
            what = SKIPPED
        if what is not None:
            done.append((what, seen.id))
    calm = not done and state.version == first.version
    return StreamSweep(done=tuple(done), calm_at=first.version if calm else None)


def _act_as_owner(env: Env, stream: str, act: Callable[[], str | None], patient: bool) -> str | None:
    """Run an action; if another process owns the stream and is gone, take the stream over first."""
    try:
        return act()
    except NotOwner:
        if not patient and not env.leases.seems_free(env.tenant, stream):
            return SKIPPED
        epoch = takeover.take_stream(env, stream) if patient else takeover.take_free_stream(env, stream)
    try:
        return act()
    finally:
        takeover.release_stream(env, stream, epoch)


def _find_due_action(
    env: Env, stream: str, state: StreamState, frame: FrameState, fail_orphans: bool
) -> Callable[[], str | None] | None:
    now = env.clock.now_ms()
    question = frame.question
    if question is not None:
        if _is_for_turn(state, frame):
            return None
        if question.within is None and question.until is not None and rules.is_resumable(question, now):
            return lambda: _resume_frame(env, frame.id)
        if is_late(question, now):
            status = "failed" if question.on_expiry == "fail" else "cancelled"
            return lambda: _end_frame(env, stream, frame, status, EXPIRY_REASON, "expired")
        return None
    if frame.deadline is None or now <= frame.deadline or stack.is_all_suspended(state.frames, frame.id):
        return None
    if fail_orphans and frame.parent is None:
        return lambda: _fail_orphan(env, stream, frame)
    return lambda: _flag_overdue(env, stream, frame)


def _is_for_turn(state: StreamState, frame: FrameState) -> bool:
    """Return True if the question belongs to a turn's tool: resuming the turn runs the tool again, not only its frame.

    A call's frame has the call's id. Only its turn may end it, because the model must get a result. Frames that a
    tool pushed below it may expire; a timer there wakes the tool.
    """
    thread = stack.ancestry(state.frames, frame.id)
    tool = next((child for parent, child in pairwise(thread) if child.id in parent.calls), None)
    if tool is None or frame.question is None:
        return False
    return tool.id == frame.id or frame.question.kind == "timer"


def _resume_frame(env: Env, frame_id: str) -> str:
    resume_frame(env, frame_id)
    return "resumed"


def _end_frame(env: Env, stream: str, frame: FrameState, status: str, why: str, what: str) -> str:
    """End a frame. If it is a turn, its calls get results, as whenever a turn ends without a reply."""
    turn = turns.find_frame_turn(env, TurnPlace(actor=stream, thread=""), frame) if frame.parent is None else None
    if turn is None:
        pop_frame(env, frame.id, status, frames.OutcomeContent(error=why))
    else:
        code: StopCode | None = "deadline" if why is ORPHAN_REASON else None
        stop.stop_turn(env, turn, reason=why, status=status, code=code)
    return what


def _flag_overdue(env: Env, stream: str, frame: FrameState) -> str | None:
    """Journal once that a frame is overdue."""
    assert frame.deadline is not None
    facts = frames.FrameOverdue(frame=frame.id, deadline=frame.deadline)
    key = own_key(frame.id, "overdue", frame.deadline)
    if env.journal.events_by_key(env.tenant, stream, key):
        return None
    decide_and_append(env, (stream,), lambda states: {stream: [Draft(type="frame.overdue", facts=facts)]}, key=key)
    return "overdue"


def _fail_orphan(env: Env, stream: str, frame: FrameState) -> str | None:
    """Take over an overdue orphan and fail it; flag it if it cannot be taken over."""
    if env.leases.holds(env.tenant, stream):
        return _flag_overdue(env, stream, frame)
    try:
        epoch = takeover.take_stream(env, stream)
    except HoldfastError:
        return _flag_overdue(env, stream, frame)
    try:
        return _end_frame(env, stream, frame, "failed", ORPHAN_REASON, "failed")
    finally:
        takeover.release_stream(env, stream, epoch)
