"""Take over an actor: its lease, its pending work, and the event that it came back.

Reading pending work changes nothing and can be done by anyone, any number of times. With an incarnation the caller
becomes the owner, and `actor.resumed` is written once for it. Unreadable state is an error: only an empty stream
starts afresh.

"""

from __future__ import annotations

from holdfast.core.frames import stack
from holdfast.core.frames.next_step import Step, steps, torn_call
from holdfast.core.frames.questions import FOR_PEOPLE
from holdfast.core.frames.stack import leaves
from holdfast.errors import ActorBusy, HoldfastError
from holdfast.flow.frames.read import current, describe, event_at, field
from holdfast.flow.journal.append import Drafts, States, change, state_of
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import ActorResumed
from holdfast.records.frames import Call, Frame, StreamState
from holdfast.records.ids import check_id
from holdfast.records.recovery import ActorResumeState, FrameInfo, PendingWork, RecoverySummary


def take(ports: Ports, acting: Acting, stream: str) -> int:
    """Take a stream, or become one more user of its lease; return the epoch. Waits while its owner may be alive."""
    await_free(ports, acting, stream)
    return take_free(ports, acting, stream)


def take_free(ports: Ports, acting: Acting, stream: str) -> int:
    """Take a stream after `await_free_stream`: watching a silent owner twice would take twice as long."""
    with ports.observers.later(), ports.leases.taking(acting.tenant, stream):
        change(ports, acting, (stream,), lambda states: {stream: _lease(ports, acting, stream, states)})
        return note_taken(ports, acting, stream)


def await_free(ports: Ports, acting: Acting, stream: str) -> None:
    """Wait until no other process works on a stream, as far as can be seen."""
    if not ports.leases.holds(acting.tenant, stream):
        ports.leases.await_free(acting.tenant, stream, current(ports, acting, stream))


def _lease(ports: Ports, acting: Acting, stream: str, states: States) -> list[Draft]:
    return ports.leases.wanted(acting.tenant, stream, states[stream])


def note_taken(ports: Ports, acting: Acting, stream: str) -> int:
    """Become a user of a lease that was just written or is already held; return its epoch."""
    state = state_of(ports, acting, stream)
    if state.holder != ports.leases.name:
        state = current(ports, acting, stream)
    if state.holder != ports.leases.name:
        raise ActorBusy  # Another process with the same key was faster.
    ports.leases.taken(acting.tenant, stream, state.epoch)
    return state.epoch


def let_go(ports: Ports, acting: Acting, stream: str, epoch: int) -> None:
    """Remove one user of a lease; the last one releases it. The lock keeps other threads from using it meanwhile."""
    leases, place = ports.leases, (acting.tenant, stream)
    with ports.observers.later(), leases.taking(*place):
        try:
            if leases.released(*place, epoch):
                change(ports, acting, (stream,), lambda states: {stream: leases.released(*place, epoch)})
        finally:
            leases.left(*place, epoch)


def release_actor(ports: Ports, acting: Acting, stream: str) -> None:
    """Release the claim of `resume_actor`; blocks that use the lease keep it."""
    epoch = ports.leases.claims.pop((acting.tenant, stream), None)
    if epoch is not None:
        let_go(ports, acting, stream, epoch)


def release_claims(ports: Ports) -> None:
    """Release every actor that this client claimed, as far as the journal can be written."""
    for tenant, stream in list(ports.leases.claims):
        try:
            release_actor(ports, Acting(tenant=tenant), stream)
        except HoldfastError:
            continue  # The next owner watches it for the length of a lease.


def resume_actor(ports: Ports, acting: Acting, stream: str, incarnation: str | None = None) -> ActorResumeState:
    """Return an actor's live frames and pending work; with an incarnation, take it over."""
    began = ports.clock.monotonic()
    if incarnation is not None:
        check_id(incarnation, "incarnation")
        await_free(ports, acting, stream)
    found = _found(ports, acting, stream, began)
    if incarnation is None:
        return found

    def decide(states: States) -> Drafts:
        facts = ActorResumed(
            incarnation=incarnation,
            frames=len(found.frames),
            pending=len(found.pending),
            last_seq=found.recovery.last_event_seq,
            took_ms=found.recovery.recovery_time_ms,
        )
        came_back = Draft(type="actor.resumed", facts=facts)
        return {stream: [*_lease(ports, acting, stream, states), came_back]}

    with ports.observers.later(), ports.leases.taking(acting.tenant, stream):
        held = ports.leases.holds(acting.tenant, stream)
        key = f"resumed/{incarnation}"
        changed = change(ports, acting, (stream,), decide, key=key, same=lambda events: True)
        if changed.repeated and not held:
            change(ports, acting, (stream,), lambda states: {stream: _lease(ports, acting, stream, states)})
        place = (acting.tenant, stream)
        if ports.leases.claims.get(place) != current(ports, acting, stream).epoch:
            ports.leases.claims[place] = note_taken(ports, acting, stream)
    return _found(ports, acting, stream, began)


def _found(ports: Ports, acting: Acting, stream: str, began: float) -> ActorResumeState:
    last = ports.journal.position()
    state = current(ports, acting, stream)
    frames = {frame.id: describe(ports, acting, stream, frame) for frame in stack.in_order(state.frames)}
    pending = pending_work(ports, acting, stream, state, frames)
    top = stack.top(state.frames)
    line = [] if top is None else [frames[frame.id] for frame in stack.ancestry(state.frames, top.id)]
    summary = RecoverySummary(
        frames_recovered=len(frames),
        pending_work_items=len(pending),
        last_event_seq=last,
        recovery_time_ms=round((ports.clock.monotonic() - began) * 1000),
    )
    return ActorResumeState(
        current=line[-1] if line else None,
        stack=tuple(line),
        leaves=tuple(frames[frame.id] for frame in leaves(state.frames)),
        frames=tuple(frames.values()),
        pending=tuple(pending),
        recovery=summary,
        epoch=state.epoch,
        holder=state.holder,
    )


def pending_work(
    ports: Ports, acting: Acting, stream: str, state: StreamState, frames: dict[str, FrameInfo]
) -> list[PendingWork]:
    """List everything that was begun and not finished, frame by frame, parents first."""
    found: list[PendingWork] = []
    for frame in stack.in_order(state.frames):
        goal = frames[frame.id].goal or frame.id
        found.extend(_of_frame(ports, acting, stream, state, frame, str(goal)))
    return found


def _of_frame(
    ports: Ports, acting: Acting, stream: str, state: StreamState, frame: Frame, goal: str
) -> list[PendingWork]:
    children = stack.has_live_children(state.frames, frame)
    waiting = _waiting_calls(state, frame)
    found: list[PendingWork] = []
    for step in steps(frame, live_children=children, now=ports.clock.now_ms()):
        if step.question is not None:
            others = [call for call in frame.calls.values() if call.id != step.question.call]
            return [
                _suspended(ports, acting, stream, step, goal),
                *(_torn(frame.id, call, torn_call(call)) for call in sorted(others, key=lambda call: call.version)),
            ]
        if step.call is not None and step.call.id not in waiting:
            found.append(_torn(step.frame, step.call, step.next))
    if frame.status == "waiting" and not _only_torn(state, frame, waiting):
        words, then = f"Frame '{goal}' waiting", "children" if children else "work"
        found.append(PendingWork(frame=frame.id, kind="waiting_for_subcall", description=words, next=then))
    if frame.error is not None and frame.error == frame.version:
        words = f"Frame '{goal}' stopped at an error"
        found.append(PendingWork(frame=frame.id, kind="unhandled_error", description=words))
    return found


def _waiting_calls(state: StreamState, frame: Frame) -> set[str]:
    """Return calls whose own frame, or everything below it, is suspended: they are listed there, not as interrupted."""
    own = [call for call in frame.calls if call in state.frames and state.frames[call].parent == frame.id]
    return {call for call in own if state.frames[call].question is not None or stack.all_suspended(state.frames, call)}


def _only_torn(state: StreamState, frame: Frame, waiting: set[str]) -> bool:
    """Return True if a frame waits only for frames of its interrupted calls, which are listed already."""
    below = stack.children(state.frames, frame.id)
    return bool(below) and not frame.away and all(one.id in frame.calls and one.id not in waiting for one in below)


def _suspended(ports: Ports, acting: Acting, stream: str, step: Step, goal: str) -> PendingWork:
    assert step.question is not None
    reason = field(event_at(ports, acting, stream, step.question.version), "reason") or step.question.kind
    return PendingWork(
        frame=step.frame,
        kind="waiting_for_user" if step.question.kind in FOR_PEOPLE else "waiting",
        description=f"Frame '{goal}' suspended: {reason}",
        question=step.question.id,
        next=step.next,
    )


def _torn(frame: str, call: Call, then: str) -> PendingWork:
    return PendingWork(
        frame=frame,
        kind=f"{call.kind}_in_progress",
        description=f"{call.kind.capitalize()} '{call.name or call.id}' incomplete",
        call=call.id,
        name=call.name,
        if_interrupted=call.if_interrupted,
        unsafe_to_retry=call.if_interrupted != "retry",
        next=then,
    )
