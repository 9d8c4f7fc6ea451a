"""The sweep: due timers, expired questions, overdue frames, and work whose owner is gone.

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
from holdfast.errors import Conflict, HoldfastError, NotOwner, Refused, Unavailable
from holdfast.flow.frames import takeover
from holdfast.flow.frames.lifecycle import pop
from holdfast.flow.frames.questions import resume
from holdfast.flow.frames.read import current, streams_with_work
from holdfast.flow.journal.append import change
from holdfast.flow.turns import stop, turns
from holdfast.flow.turns.append import Place
from holdfast.ports import Acting, Ports
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import Frame, StreamState
from holdfast.records.recovery import Swept

NOBODY = "Nobody answered in time."
SKIPPED = "skipped"
ORPHAN = "Its deadline passed and whoever worked on it is gone."


def sweep(ports: Ports, acting: Acting, *, fail_orphans: bool = False, patient: bool = True) -> Swept:
    """Sweep every stream with live frames. With `patient=False`, skip streams that another process owns."""
    done: dict[str, list[str]] = {"resumed": [], "expired": [], "overdue": [], "failed": [], "skipped": []}
    for stream in streams_with_work(ports, acting):
        for what, frame in settle(ports, acting, stream, fail_orphans=fail_orphans, patient=patient).done:
            done[what].append(frame)
    return Swept(**{name: tuple(ids) for name, ids in done.items()})


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The actions done or skipped in one stream, by frame."""

    done: tuple[tuple[str, str], ...] = ()
    calm_at: int | None = None
    """The version at which nothing was due; None if something was, or if the stream changed meanwhile."""

    @property
    def acted(self) -> bool:
        """True if anything was done."""
        return any(what != SKIPPED for what, _ in self.done)


def settle(ports: Ports, acting: Acting, stream: str, *, fail_orphans: bool = False, patient: bool = True) -> Settled:
    """Sweep one stream."""
    done: list[tuple[str, str]] = []
    first = state = current(ports, acting, stream)
    for seen in stack.in_order(first.frames):
        state = current(ports, acting, stream)
        frame = state.frames.get(seen.id)
        act = None if frame is None else _due(ports, acting, stream, state, frame, fail_orphans)
        if act is None:
            continue  # Nothing is due, or the frame just ended with an ancestor.
        try:
            what = _as_owner(ports, acting, stream, act, patient)
        except (Conflict, Refused, Unavailable):
            what = SKIPPED
        if what is not None:
            done.append((what, seen.id))
    calm = not done and state.version == first.version
    return Settled(done=tuple(done), calm_at=first.version if calm else None)


Act = Callable[[], str | None]


def _as_owner(ports: Ports, acting: Acting, stream: str, act: Act, patient: bool) -> str | None:
    """Run an action; if another process owns the stream and is gone, take the stream over first."""
    try:
        return act()
    except NotOwner:
        if not patient and not ports.leases.seems_free(acting.tenant, stream):
            return SKIPPED
        epoch = takeover.take(ports, acting, stream) if patient else takeover.take_free(ports, acting, stream)
    try:
        return act()
    finally:
        takeover.let_go(ports, acting, stream, epoch)


def _due(ports: Ports, acting: Acting, stream: str, state: StreamState, frame: Frame, fail_orphans: bool) -> Act | None:
    now = ports.clock.now_ms()
    question = frame.question
    if question is not None:
        if _is_for_a_turn(state, frame):
            return None
        if question.within is None and question.until is not None and rules.due(question, now):
            return lambda: _resumed(ports, acting, frame.id)
        if is_late(question, now):
            status = "failed" if question.on_expiry == "fail" else "cancelled"
            return lambda: _ended(ports, acting, stream, frame, status, NOBODY, "expired")
        return None
    if frame.deadline is None or now <= frame.deadline or stack.all_suspended(state.frames, frame.id):
        return None
    if fail_orphans and frame.parent is None:
        return lambda: _fail_orphan(ports, acting, stream, frame)
    return lambda: _flag(ports, acting, stream, frame)


def _is_for_a_turn(state: StreamState, frame: Frame) -> bool:
    """Return True if the question belongs to a turn's tool: resuming the turn runs the tool again, not only its frame.

    A call's frame has the call's id. Only its turn may end it, because the model must get a result. Frames that a
    tool pushed below it may expire; a timer there wakes the tool.
    """
    line = stack.ancestry(state.frames, frame.id)
    tool = next((child for parent, child in pairwise(line) if child.id in parent.calls), None)
    if tool is None or frame.question is None:
        return False
    return tool.id == frame.id or frame.question.kind == "timer"


def _resumed(ports: Ports, acting: Acting, frame_id: str) -> str:
    resume(ports, acting, frame_id)
    return "resumed"


def _ended(ports: Ports, acting: Acting, stream: str, frame: Frame, status: str, why: str, what: str) -> str:
    """End a frame. If it is a turn, its calls get results, as whenever a turn ends without a reply."""
    turn = turns.turn_place(ports, acting, Place(actor=stream, line=""), frame) if frame.parent is None else None
    if turn is None:
        pop(ports, acting, frame.id, status, frames.OutcomeContent(error=why))
    else:
        stop.stop(ports, acting, turn, reason=why, status=status)
    return what


def _flag(ports: Ports, acting: Acting, stream: str, frame: Frame) -> str | None:
    """Journal once that a frame is overdue."""
    assert frame.deadline is not None
    facts = frames.FrameOverdue(frame=frame.id, deadline=frame.deadline)
    key = f"{frame.id}/overdue/{frame.deadline}"
    if ports.journal.by_key(acting.tenant, stream, key):
        return None
    change(ports, acting, (stream,), lambda states: {stream: [Draft(type="frame.overdue", facts=facts)]}, key=key)
    return "overdue"


def _fail_orphan(ports: Ports, acting: Acting, stream: str, frame: Frame) -> str | None:
    """Take over an overdue orphan and fail it; flag it if it cannot be taken over."""
    if ports.leases.holds(acting.tenant, stream):
        return _flag(ports, acting, stream, frame)
    try:
        epoch = takeover.take(ports, acting, stream)
    except HoldfastError:
        return _flag(ports, acting, stream, frame)
    try:
        return _ended(ports, acting, stream, frame, "failed", ORPHAN, "failed")
    finally:
        takeover.let_go(ports, acting, stream, epoch)
