"""The sweep: timers that rang, questions that expired, frames past their deadline, work of the dead.

It does what was agreed beforehand and nothing else, and only where nobody else is at work:
a live owner acts for itself. Suspended frames are never late.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import stack
from holdfast.core.decide import questions as rules
from holdfast.errors import Conflict, HoldfastError, NotOwner, Refused, Unavailable
from holdfast.flow import owning
from holdfast.flow.asking import resume
from holdfast.flow.change import change
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
        for seen in stack.in_order(current(ports, acting, stream).frames):
            state = current(ports, acting, stream)
            frame = state.frames.get(seen.id)
            act = None if frame is None else _due(ports, acting, stream, state, frame, fail_orphans)
            if act is None:
                continue  # Nothing is due, or it ended with an ancestor just now.
            try:
                what = _as_owner(ports, acting, stream, act)
            except (Conflict, Refused, Unavailable):
                what = "skipped"
            if what is not None:
                done[what].append(seen.id)
    return Swept(**{name: tuple(ids) for name, ids in done.items()})


Act = Callable[[], str | None]


def _as_owner(ports: Ports, acting: Acting, stream: str, act: Act) -> str | None:
    """Act, and where somebody else holds the stream take it over first, if that one is gone."""
    try:
        return act()
    except NotOwner:
        epoch = owning.take(ports, acting, stream)
    try:
        return act()
    finally:
        owning.let_go(ports, acting, stream, epoch)


def _due(ports: Ports, acting: Acting, stream: str, state: StreamState, frame: Frame, fail_orphans: bool) -> Act | None:
    """What is to be done about a frame now, if anything."""
    now = ports.clock.now_ms()
    question = frame.question
    if question is not None:
        if question.within is None and question.until is not None and rules.due(question, now):
            return lambda: _resumed(ports, acting, frame.id)
        if rules.expired(question, now) and question.on_expiry in ("fail", "cancel"):
            status = "failed" if question.on_expiry == "fail" else "cancelled"
            return lambda: _ended(ports, acting, frame.id, status, NOBODY, "expired")
        return None
    if frame.deadline is None or now <= frame.deadline or stack.all_suspended(state.frames, frame.id):
        return None
    if fail_orphans and frame.parent is None:
        return lambda: _fail_orphan(ports, acting, stream, frame)
    return lambda: _flag(ports, acting, stream, frame)


def _resumed(ports: Ports, acting: Acting, frame_id: str) -> str:
    resume(ports, acting, frame_id)
    return "resumed"


def _ended(ports: Ports, acting: Acting, frame_id: str, status: str, why: str, what: str) -> str:
    pop(ports, acting, frame_id, status, frames.OutcomeContent(error=why))
    return what


def _flag(ports: Ports, acting: Acting, stream: str, frame: Frame) -> str | None:
    """Say once that a frame is late."""
    assert frame.deadline is not None
    facts = frames.FrameOverdue(frame=frame.id, deadline=frame.deadline)
    key = f"{frame.id}/overdue/{frame.deadline}"
    if ports.journal.by_key(acting.tenant, stream, key):
        return None
    change(ports, acting, (stream,), lambda states: {stream: [Draft(type="frame.overdue", facts=facts)]}, key=key)
    return "overdue"


def _fail_orphan(ports: Ports, acting: Acting, stream: str, frame: Frame) -> str | None:
    """Past its time and nobody alive: take over first, then fail it."""
    if ports.leases.holds(acting.tenant, stream):
        return _flag(ports, acting, stream, frame)
    try:
        epoch = owning.take(ports, acting, stream)
    except HoldfastError:
        return _flag(ports, acting, stream, frame)
    try:
        return _ended(ports, acting, frame.id, "failed", ORPHAN, "failed")
    finally:
        owning.let_go(ports, acting, stream, epoch)
