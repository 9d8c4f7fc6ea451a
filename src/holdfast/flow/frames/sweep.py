"""The sweep: timers that rang, questions that expired, frames past their deadline, work of the dead.

It does what was agreed beforehand and nothing else, and only where nobody else is at work:
a live owner acts for itself. Suspended frames are never late.
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
    """Do what is due in every stream with live frames. Who is not patient waits for nobody and comes again."""
    done: dict[str, list[str]] = {"resumed": [], "expired": [], "overdue": [], "failed": [], "skipped": []}
    for stream in streams_with_work(ports, acting):
        for what, frame in settle(ports, acting, stream, fail_orphans=fail_orphans, patient=patient).done:
            done[what].append(frame)
    return Swept(**{name: tuple(ids) for name, ids in done.items()})


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What was due in a stream, and done or skipped, by frame."""

    done: tuple[tuple[str, str], ...] = ()
    calm_at: int | None = None
    """The version at which nothing was to be done; None if something was, or if it changed meanwhile."""

    @property
    def acted(self) -> bool:
        """Whether anything was done."""
        return any(what != SKIPPED for what, _ in self.done)


def settle(ports: Ports, acting: Acting, stream: str, *, fail_orphans: bool = False, patient: bool = True) -> Settled:
    """Do what is due in one stream."""
    done: list[tuple[str, str]] = []
    first = state = current(ports, acting, stream)
    for seen in stack.in_order(first.frames):
        state = current(ports, acting, stream)
        frame = state.frames.get(seen.id)
        act = None if frame is None else _due(ports, acting, stream, state, frame, fail_orphans)
        if act is None:
            continue  # Nothing is due, or it ended with an ancestor just now.
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
    """Act, and where somebody else holds the stream take it over first, if that one is gone."""
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
    """What is to be done about a frame now, if anything."""
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
    """Whether a tool of a turn waits here: whoever takes the turn up runs the tool again, and not only its frame.

    The frame of a call has the call's id. Only its turn ends it, because the model has to be told. What a tool began
    below it may end for lack of an answer; a timer there wakes the tool.
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
    """End a frame. With a turn its calls get results, as whenever a turn ends without a reply."""
    turn = turns.turn_place(ports, acting, Place(actor=stream, line=""), frame) if frame.parent is None else None
    if turn is None:
        pop(ports, acting, frame.id, status, frames.OutcomeContent(error=why))
    else:
        stop.stop(ports, acting, turn, reason=why, status=status)
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
        epoch = takeover.take(ports, acting, stream)
    except HoldfastError:
        return _flag(ports, acting, stream, frame)
    try:
        return _ended(ports, acting, stream, frame, "failed", ORPHAN, "failed")
    finally:
        takeover.let_go(ports, acting, stream, epoch)
