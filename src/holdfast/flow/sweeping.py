"""The sweep: timers that rang, questions that expired, frames past their deadline, work of the dead.

It does what was agreed beforehand and nothing else, and only where nobody else is at work:
a live owner acts for itself. Suspended frames are never late.
"""

from __future__ import annotations

from holdfast.core import stack
from holdfast.core.decide import questions as rules
from holdfast.errors import Conflict, HoldfastError, Refused, Unavailable
from holdfast.flow import owning
from holdfast.flow.asking import resume
from holdfast.flow.change import Drafts, States, change
from holdfast.flow.frames import pop
from holdfast.flow.showing import current, streams_with_work
from holdfast.ports import Acting, Ports
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import Frame, StreamState
from holdfast.records.resume import Swept

NOBODY = "Nobody answered in time."
ORPHAN = "Its deadline passed and whoever worked on it is gone."


def sweep(ports: Ports, acting: Acting, *, fail_orphans: bool = False) -> Swept:
    """Do what is due in every stream with live frames."""
    done: dict[str, list[str]] = {"resumed": [], "expired": [], "overdue": [], "failed": [], "skipped": []}
    for stream in streams_with_work(ports, acting):
        state = current(ports, acting, stream)
        for frame in stack.in_order(state.frames):
            try:
                what = _due(ports, acting, stream, state, frame, fail_orphans)
            except (Conflict, Refused, Unavailable):
                what = "skipped"
            if what is not None:
                done[what].append(frame.id)
    return Swept(**{name: tuple(ids) for name, ids in done.items()})


def _due(ports: Ports, acting: Acting, stream: str, state: StreamState, frame: Frame, fail_orphans: bool) -> str | None:
    now = ports.clock.now_ms()
    question = frame.question
    if question is not None:
        if question.within is None and question.until is not None and rules.due(question, now):
            resume(ports, acting, frame.id)
            return "resumed"
        if rules.expired(question, now) and question.on_expiry in ("fail", "cancel"):
            status = "failed" if question.on_expiry == "fail" else "cancelled"
            pop(ports, acting, frame.id, status, frames.OutcomeContent(error=NOBODY))
            return "expired"
        return None
    if frame.deadline is None or now <= frame.deadline or stack.all_suspended(state.frames, frame.id):
        return None
    if fail_orphans and frame.parent is None:
        return _fail_orphan(ports, acting, stream, state, frame)
    return _flag(ports, acting, stream, frame)


def _flag(ports: Ports, acting: Acting, stream: str, frame: Frame) -> str | None:
    """Say once that a frame is late."""
    assert frame.deadline is not None
    facts = frames.FrameOverdue(frame=frame.id, deadline=frame.deadline)
    key = f"{frame.id}/overdue/{frame.deadline}"
    if ports.journal.by_key(acting.tenant, stream, key):
        return None

    def decide(states: States) -> Drafts:
        # It may have ended since it was looked at, even by this sweep.
        return {stream: [Draft(type="frame.overdue", facts=facts)] if frame.id in states[stream].frames else []}

    return "overdue" if change(ports, acting, (stream,), decide, key=key).appended else None


def _fail_orphan(ports: Ports, acting: Acting, stream: str, state: StreamState, frame: Frame) -> str | None:
    """Past its time and nobody alive: take over first, then fail it."""
    if ports.leases.holds(acting.tenant, stream):
        return _flag(ports, acting, stream, frame)
    try:
        epoch = owning.take(ports, acting, stream)
    except HoldfastError:
        return _flag(ports, acting, stream, frame)
    try:
        pop(ports, acting, frame.id, "failed", frames.OutcomeContent(error=ORPHAN))
    finally:
        owning.let_go(ports, acting, stream, epoch)
    return "failed"
