"""Own a stream: its lease, blocks of code that work on its frames, and the takeover of an actor with its pending work.

A frame is worked on by one block at a time; two would run the same steps in parallel.

Reading pending work changes nothing and can be done by anyone, any number of times. With an incarnation the caller
becomes the owner, and `actor.resumed` is written once for it. Unreadable state is an error: only an empty stream
starts afresh.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast import errors
from holdfast.core.frames import stack
from holdfast.core.frames.next_step import FrameStep, interruption_policy, next_steps
from holdfast.core.frames.questions import ANSWER_REQUIRED
from holdfast.core.frames.stack import leaves
from holdfast.flow.frames.read import content_field, describe_frame, load_current_state, read_event, read_frame
from holdfast.flow.journal.append import Drafts, States, decide_and_append, load_state
from holdfast.ports import Env
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import ActorResumed
from holdfast.records.frames import Call, FrameState, StreamState
from holdfast.records.ids import MAX_ID_CHARS, check_id, check_key, own_key
from holdfast.records.recovery import ActorResumeState, PendingWork, RecoverySummary

ON_ERROR = ("fail", "leave")


def take_stream(env: Env, stream: str) -> int:
    """Take a stream, or become one more user of its lease; return the epoch. Waits while its owner may be alive."""
    await_free_stream(env, stream)
    return take_free_stream(env, stream)


def take_free_stream(env: Env, stream: str) -> int:
    """Take a stream after `await_free_stream`: watching a silent owner twice would take twice as long."""
    leases, place = env.leases, (env.tenant, stream)
    with env.observers.defer(), leases.lock(*place):
        decide_and_append(env, (stream,), lambda states: {stream: leases.draft_take(*place, states[stream])})
        return join_lease(env, stream)


def await_free_stream(env: Env, stream: str) -> None:
    """Wait until no other process works on a stream, as far as can be seen."""
    if not env.leases.holds(env.tenant, stream):
        env.leases.await_free(env.tenant, stream, load_current_state(env, stream))


def join_lease(env: Env, stream: str) -> int:
    """Become a user of a lease that was just written or is already held; return its epoch."""
    state = load_state(env, stream)
    if state.holder != env.leases.process.name:
        state = load_current_state(env, stream)
    if state.holder != env.leases.process.name:
        raise errors.ActorBusy  # Another process with the same key was faster.
    env.leases.add_user(env.tenant, stream, state.epoch)
    return state.epoch


def release_stream(env: Env, stream: str, epoch: int) -> None:
    """Remove one user of a lease; the last one releases it. The lock keeps other threads from using it meanwhile."""
    leases, place = env.leases, (env.tenant, stream)
    with env.observers.defer(), leases.lock(*place):
        try:
            if leases.draft_release(*place, epoch):
                decide_and_append(env, (stream,), lambda states: {stream: leases.draft_release(*place, epoch)})
        finally:
            leases.remove_user(*place, epoch)


def check_on_error(on_error: str) -> str:
    """Refuse an unknown policy for errors that leave a block."""
    if on_error not in ON_ERROR:
        raise errors.InvalidValue(f"on_error must be one of {', '.join(ON_ERROR)}, not {on_error!r}.")
    return on_error


def read_status(env: Env, stream: str, frame: str) -> str:
    """Return a frame's current status, live or ended."""
    live = load_current_state(env, stream).frames.get(frame)
    return live.status if live is not None else read_frame(env, frame).status


def claim_block(env: Env, frame: str) -> None:
    """Claim a frame for one block of this process."""
    if not env.leases.enter_block(env.tenant, frame):
        raise errors.ActorBusy(
            f"Frame {frame} is at work in another block of this process. Wait for it, or use another key."
        )


def release_lease(env: Env, stream: str, epoch: int, error: BaseException | None) -> None:
    """Release a block's lease. If an error leaves the block, a failure becomes a note on it."""
    try:
        release_stream(env, stream, epoch)
    except Exception as second:
        if error is None:
            raise
        error.add_note(f"The lease of {stream} could not be given back: {second}")


def is_interruption(error: Exception, status: str) -> bool:
    """Return True if the work itself did not fail: it waits, the client shuts down, or the write failed for now."""
    if isinstance(error, ExceptionGroup):  # A task group wraps the errors of its tasks.
        return all(is_interruption(part, status) for part in error.exceptions)
    if isinstance(error, errors.Unavailable | errors.OutcomeUnknown | errors.StaleEpoch | errors.NotOwner):
        return True
    waits = isinstance(error, errors.Waiting) or (
        isinstance(error, errors.InvalidTransition) and error.before == "suspended"
    )
    return waits and status in ("suspended", "waiting")


def frame_key(frame: str, key: str | None) -> str | None:
    """Prefix a key with the frame's id, so that other frames may use the same key."""
    return None if key is None else own_key(frame, "do", check_key(key, limit=MAX_ID_CHARS))


def check_not_suspended(env: Env, stream: str, frame: str, key: str | None) -> None:
    """Refuse changes while the frame waits for an answer, even if the code caught `Waiting` and went on.

    A change that was made before the question is allowed: the same code may repeat it with its key.
    """
    live = load_current_state(env, stream).frames.get(frame)
    if live is None or live.question is None:
        return
    own = frame_key(frame, key)
    if own is None or not env.journal.events_by_key(env.tenant, stream, own):
        raise errors.FrameSuspended(
            f"Frame {frame} waits for an answer to question {live.question.id}. Leave its block, and run it "
            "again once there is one.",
            question=live.question.id,
        )


def release_actor(env: Env, stream: str) -> None:
    """Release the claim of `resume_actor`; blocks that use the lease keep it."""
    epoch = env.leases.claims.pop((env.tenant, stream), None)
    if epoch is not None:
        release_stream(env, stream, epoch)


def release_claims(env: Env) -> None:
    """Release every actor that this client claimed, as far as the journal can be written."""
    for tenant, stream in list(env.leases.claims):
        try:
            release_actor(replace(env, tenant=tenant, user=None), stream)
        except errors.HoldfastError:
            continue  # The next owner watches it for the length of a lease.


def resume_actor(env: Env, stream: str, incarnation: str | None = None) -> ActorResumeState:
    """Return an actor's live frames and pending work; with an incarnation, take it over."""
    began = env.clock.monotonic()
    if incarnation is not None:
        check_id(incarnation, "incarnation")
        await_free_stream(env, stream)
    found = _read_resume_state(env, stream, began)
    if incarnation is None:
        return found

    leases, place = env.leases, (env.tenant, stream)

    def decide(states: States) -> Drafts:
        facts = ActorResumed(
            incarnation=incarnation,
            frames=len(found.frames),
            pending=len(found.pending),
            last_seq=found.recovery.last_event_seq,
            took_ms=found.recovery.recovery_time_ms,
        )
        came_back = Draft(type="actor.resumed", facts=facts)
        return {stream: [*leases.draft_take(*place, states[stream]), came_back]}

    with env.observers.defer(), leases.lock(*place):
        held = leases.holds(*place)
        key = f"resumed/{incarnation}"
        changed = decide_and_append(env, (stream,), decide, key=key, same=lambda events: True)
        if changed.repeated and not held:
            decide_and_append(env, (stream,), lambda states: {stream: leases.draft_take(*place, states[stream])})
        if leases.claims.get(place) != load_current_state(env, stream).epoch:
            leases.claims[place] = join_lease(env, stream)
    return _read_resume_state(env, stream, began)


def _read_resume_state(env: Env, stream: str, began: float) -> ActorResumeState:
    last = env.journal.position()
    state = load_current_state(env, stream)
    frames = {frame.id: describe_frame(env, stream, frame) for frame in stack.walk_root_first(state.frames)}
    # Everything that was begun and not finished, parents first.
    pending = [
        work
        for frame in stack.walk_root_first(state.frames)
        for work in _list_frame_work(env, stream, state, frame, str(frames[frame.id].goal or frame.id))
    ]
    top = stack.top_frame(state.frames)
    thread = [] if top is None else [frames[frame.id] for frame in stack.ancestry(state.frames, top.id)]
    summary = RecoverySummary(
        frames_recovered=len(frames),
        pending_work_items=len(pending),
        last_event_seq=last,
        recovery_time_ms=round((env.clock.monotonic() - began) * 1000),
    )
    return ActorResumeState(
        current=thread[-1] if thread else None,
        stack=tuple(thread),
        leaves=tuple(frames[frame.id] for frame in leaves(state.frames)),
        frames=tuple(frames.values()),
        pending=tuple(pending),
        recovery=summary,
        epoch=state.epoch,
        holder=state.holder,
    )


def _list_frame_work(env: Env, stream: str, state: StreamState, frame: FrameState, goal: str) -> list[PendingWork]:
    children = stack.has_live_children(state.frames, frame)
    waiting = _waiting_calls(state, frame)
    found: list[PendingWork] = []
    for step in next_steps(frame, live_children=children, now=env.clock.now_ms()):
        if step.question is not None:
            others = [call for call in frame.calls.values() if call.id != step.question.call]
            return [
                _describe_suspension(env, stream, step, goal),
                *(
                    _describe_interrupted(frame.id, call, interruption_policy(call))
                    for call in sorted(others, key=lambda call: call.version)
                ),
            ]
        if step.call is not None and step.call.id not in waiting:
            found.append(_describe_interrupted(step.frame, step.call, step.next))
    below = stack.children(state.frames, frame.id)
    # A frame that waits only for frames of its interrupted calls, which are listed already, is not listed itself.
    listed = below and not frame.away and all(one.id in frame.calls and one.id not in waiting for one in below)
    if frame.status == "waiting" and not listed:
        words, then = f"Frame '{goal}' waiting", "children" if children else "work"
        found.append(PendingWork(frame=frame.id, kind="waiting_for_subcall", description=words, next=then))
    if frame.error is not None and frame.error == frame.version:
        words = f"Frame '{goal}' stopped at an error"
        found.append(PendingWork(frame=frame.id, kind="unhandled_error", description=words))
    return found


def _waiting_calls(state: StreamState, frame: FrameState) -> set[str]:
    """Return calls whose own frame, or everything below it, is suspended: they are listed there, not as interrupted."""
    live = state.frames
    own = [call for call in frame.calls if call in live and live[call].parent == frame.id]
    return {call for call in own if live[call].question is not None or stack.is_all_suspended(live, call)}


def _describe_suspension(env: Env, stream: str, step: FrameStep, goal: str) -> PendingWork:
    assert step.question is not None
    reason = content_field(read_event(env, stream, step.question.version), "reason") or step.question.kind
    return PendingWork(
        frame=step.frame,
        kind="waiting_for_user" if step.question.kind in ANSWER_REQUIRED else "waiting",
        description=f"Frame '{goal}' suspended: {reason}",
        question=step.question.id,
        next=step.next,
    )


def _describe_interrupted(frame: str, call: Call, then: str) -> PendingWork:
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
