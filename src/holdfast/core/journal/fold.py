"""Folding: state + event → state. Pure, and total over the catalogue, unknown types and erased content.

Only facts are read. Folding a stream from its first event gives exactly the state that loading its rows gives. Ended
frames leave the state, because only live work is needed to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from holdfast.records.events import calls as event_calls
from holdfast.records.events import frames
from holdfast.records.events import sessions as said
from holdfast.records.events.envelope import Event
from holdfast.records.frames import ENDED_STATUSES, Call, FrameState, Handle, Question, ResultRef, StreamState
from holdfast.records.sessions import Handover, SessionState, ThreadState
from holdfast.records.usage import Usage

Frames = dict[str, FrameState]
Session = SessionState | None
Thread = ThreadState | None

CALL_KINDS: dict[Any, str] = {
    event_calls.ModelRequested: "model",
    event_calls.ToolRequested: "tool",
    event_calls.RunRequested: "run",
}
_NO_USAGE = Usage()


def fold_event(state: StreamState, event: Event) -> StreamState:
    """Return the state after one more event."""
    return fold_facts(state, event.type, event.facts, event.version, event.at)


def fold_events(events: Iterable[Event], state: StreamState | None = None) -> StreamState:
    """Return the state after more events."""
    state = state or StreamState()
    for event in events:
        state = fold_event(state, event)
    return state


def fold_facts(state: StreamState, type_name: str, facts: Any, version: int, at: int) -> StreamState:
    """Return the state after an event with these facts at this version and time."""
    if (rule := _FRAME_RULES.get(type_name)) is not None:
        live = dict(state.frames)
        frame = live.get(facts.frame)
        if frame is not None or type_name in ("frame.pushed", "frame.popped"):
            rule(live, frame, facts, version, at)
        return replace(state, version=version, frames=live)
    if (thread := THREAD_RULES.get(type_name)) is not None:
        if state.thread is None and type_name not in ("thread.opened", "thread.forked"):
            return replace(state, version=version)
        return replace(state, version=version, thread=thread(state.thread, facts, version, at))
    if (session := SESSION_RULES.get(type_name)) is not None:
        if state.session is None and type_name != "session.opened":
            return replace(state, version=version)
        return replace(state, version=version, session=session(state.session, facts, version, at))
    if type_name == "lease.taken":
        return replace(state, version=version, epoch=facts.epoch, holder=facts.owner, lease_ms=facts.lease_ms)
    if type_name == "lease.released":
        return replace(state, version=version, holder=None)
    if type_name == "stream.closed":
        return replace(state, version=version, closed=True)
    return replace(state, version=version)


def _update_frame(
    live: Frames, id: str, version: int, *, lent: int = 0, usage: Usage | None = None, used: int = 0, **changes: Any
) -> None:
    """Replace one live frame, adding to its sums; events about ended or unknown frames change nothing."""
    frame = live.get(id)
    if frame is None:
        return
    if usage is not None:
        changes.update(used=frame.used + used, usage=replace(frame.usage + usage, model=None))
    live[id] = replace(frame, version=version, lent=frame.lent + lent, **changes)


def _fold_frame_pushed(live: Frames, frame: None, facts: frames.FramePushed, version: int, at: int) -> None:
    names = ("parent", "depth", "granted", "limits", "deadline", "outer", "outer_stream")
    known: dict[str, Any] = {name: getattr(facts, name) for name in names}
    live[facts.frame] = FrameState(
        id=facts.frame, status="active", pushed=version, goal=version, version=version, created_at=at, **known
    )
    if facts.parent is not None:
        _update_frame(live, facts.parent, version, lent=facts.granted or 0, status="waiting")


def _fold_frame_updated(live: Frames, frame: FrameState, facts: frames.FrameUpdated, version: int, at: int) -> None:
    named = ("status", "limits", "deadline", "granted", "context_hash")
    changes = {name: value for name in named if (value := getattr(facts, name)) is not None}
    if facts.texts:
        changes["goal"] = version
    if facts.runs or facts.stopped_at is not None:
        changes["stopped_at"] = facts.stopped_at
    _update_frame(live, facts.frame, version, **changes)
    if facts.status in ENDED_STATUSES:
        live.pop(facts.frame, None)


def _reservation_changes(frame: FrameState, purpose: str, amount: int) -> dict[str, Any]:
    """Return the changes to a frame made by a reservation, or by its return if `amount` is negative."""
    left = frame.reservations.get(purpose, 0) + amount
    reservations = {name: held for name, held in frame.reservations.items() if name != purpose}
    if left:
        reservations[purpose] = left
    return {"reservations": reservations, "reserved": frame.reserved + amount}


def _fold_frame_reserved(live: Frames, frame: FrameState, facts: frames.FrameReserved, version: int, at: int) -> None:
    _update_frame(live, frame.id, version, **_reservation_changes(frame, facts.purpose, facts.amount))


def _fold_frame_spent(live: Frames, frame: FrameState, facts: frames.FrameSpent, version: int, at: int) -> None:
    changes: dict[str, Any] = {}
    if facts.purpose is not None and facts.from_reserved:
        changes = _reservation_changes(frame, facts.purpose, -facts.from_reserved)
    _update_frame(live, facts.frame, version, usage=facts.usage, used=facts.usage.spent, **changes)


def _fold_frame_popped(live: Frames, frame: Any, facts: frames.FramePopped, version: int, at: int) -> None:
    live.pop(facts.frame, None)
    if facts.parent is not None:
        _settle_child(live, facts.parent, facts, version)


def _settle_child(live: Frames, parent: str, facts: frames.FramePopped | frames.ChildSettled, version: int) -> None:
    changes: dict[str, Any] = {"status": "active"} if facts.wakes_parent else {}
    _update_frame(live, parent, version, lent=-facts.granted, usage=facts.usage, used=facts.used, **changes)


def _fold_child_pushed(live: Frames, frame: FrameState, facts: frames.ChildPushed, version: int, at: int) -> None:
    away = {**frame.away, facts.child: facts.child_stream}
    _update_frame(live, frame.id, version, lent=facts.granted, status="waiting", away=away)


def _fold_child_settled(live: Frames, frame: FrameState, facts: frames.ChildSettled, version: int, at: int) -> None:
    away = {child: stream for child, stream in frame.away.items() if child != facts.child}
    _update_frame(live, frame.id, version, away=away)
    _settle_child(live, frame.id, facts, version)


def _fold_suspended(live: Frames, frame: FrameState, facts: frames.FrameSuspendedFacts, version: int, at: int) -> None:
    names = ("kind", "prior", "released", "expires_at", "on_expiry", "until", "token", "within", "call")
    known: dict[str, Any] = {name: getattr(facts, name) for name in names}
    question = Question(id=facts.question, version=version, suspended_at=at, **known)
    _update_frame(live, facts.frame, version, status="suspended", question=question)
    if facts.parent is not None and facts.released:
        _update_frame(live, facts.parent, version, lent=-facts.released)


def _fold_frame_resumed(live: Frames, frame: FrameState, facts: frames.FrameResumed, version: int, at: int) -> None:
    changes: dict[str, Any] = {} if facts.deadline is None else {"deadline": facts.deadline}
    _update_frame(live, facts.frame, version, status=facts.status, question=None, **changes)
    if facts.parent is not None and facts.reserved_again:
        _update_frame(live, facts.parent, version, lent=facts.reserved_again)


def _update_question(live: Frames, frame: FrameState, **changes: Any) -> None:
    """Change a question without touching its frame's version: an answer may arrive while the owner works."""
    if frame.question is not None:
        live[frame.id] = replace(frame, question=replace(frame.question, **changes))


def _fold_handle_added(live: Frames, frame: FrameState, facts: frames.HandleAdded, version: int, at: int) -> None:
    known: dict[str, Any] = {name: getattr(facts, name) for name in ("kind", "priority", "position", "tokens")}
    handle = Handle(id=facts.handle, version=version, **known)
    _update_frame(live, frame.id, version, handles={**frame.handles, facts.handle: handle})


def _mark_handles(live: Frames, frame: FrameState, handles: tuple[str, ...], removed: str | None, version: int) -> None:
    marked = {name: replace(frame.handles[name], removed=removed) for name in handles if name in frame.handles}
    _update_frame(live, frame.id, version, handles={**frame.handles, **marked})


def _fold_result_added(live: Frames, frame: FrameState, facts: frames.ResultAdded, version: int, at: int) -> None:
    result = ResultRef(position=facts.position, kind=facts.kind, ref=facts.ref, version=version)
    ordered = sorted((*frame.results, result), key=attrgetter("position"))
    _update_frame(live, frame.id, version, results=tuple(ordered))


def _fold_call_requested(live: Frames, frame: FrameState, facts: Any, version: int, at: int) -> None:
    kind = CALL_KINDS[type(facts)]
    name = facts.model if kind == "model" else facts.name
    call = Call(id=facts.call, kind=kind, name=name, if_interrupted=facts.if_interrupted, version=version)
    changes: dict[str, Any] = {"tool_calls": frame.tool_calls + (kind == "tool")}
    if getattr(facts, "context_hash", None) is not None:
        changes["context_hash"] = facts.context_hash
    _update_frame(live, frame.id, version, calls={**frame.calls, facts.call: call}, **changes)


def call_outcome(facts: Any) -> tuple[Usage, bool]:
    """Return the usage of a call that ended, with what an earlier attempt may have used, and True if it failed."""
    usage, doubtful = getattr(facts, "usage", _NO_USAGE), getattr(facts, "doubtful", None)
    failed = isinstance(facts, event_calls.CallFailed) or getattr(facts, "failed", False)
    return usage if doubtful is None else usage + doubtful, failed


def _fold_call_returned(live: Frames, frame: FrameState, facts: Any, version: int, at: int) -> None:
    usage, failed = call_outcome(facts)
    pending = {id: call for id, call in frame.calls.items() if id != facts.call}
    error = version if failed else None
    _update_frame(live, frame.id, version, usage=usage, used=usage.spent, calls=pending, error=error)


_FRAME_RULES: dict[str, Callable[[Frames, Any, Any, int, int], None]] = {
    "frame.pushed": _fold_frame_pushed,
    "frame.updated": _fold_frame_updated,
    "frame.reserved": _fold_frame_reserved,
    "frame.spent": _fold_frame_spent,
    "frame.popped": _fold_frame_popped,
    "frame.suspended": _fold_suspended,
    "frame.resumed": _fold_frame_resumed,
    "frame.overdue": lambda live, frame, facts, version, at: _update_frame(live, frame.id, version),
    "frame.handle_added": _fold_handle_added,
    "frame.handles_removed": lambda live, frame, facts, version, at: _mark_handles(
        live, frame, facts.handles, facts.removal, version
    ),
    "frame.handles_restored": lambda live, frame, facts, version, at: _mark_handles(
        live, frame, facts.handles, None, version
    ),
    "frame.compacted": lambda live, frame, facts, version, at: _mark_handles(
        live, frame, facts.removed, facts.compaction, version
    ),
    "frame.result_added": _fold_result_added,
    "child.pushed": _fold_child_pushed,
    "child.settled": _fold_child_settled,
    "question.answered": lambda live, frame, facts, version, at: _update_question(live, frame, answer=version),
    "question.reissued": lambda live, frame, facts, version, at: _update_question(
        live, frame, token=facts.token, expires_at=facts.expires_at
    ),
    "model.requested": _fold_call_requested,
    "model.responded": _fold_call_returned,
    "model.failed": _fold_call_returned,
    "tool.requested": _fold_call_requested,
    "tool.returned": _fold_call_returned,
    "run.requested": _fold_call_requested,
    "run.returned": _fold_call_returned,
}


def _settings_changes(facts: said.SessionOpened, version: int) -> dict[str, Any]:
    names = ("model", "tokenizer", "tools", "memory")
    changes = {name: value for name in names if (value := getattr(facts, name)) is not None}
    if facts.idle_timeout_ms is not None:
        changes["idle_timeout_ms"] = facts.idle_timeout_ms or None
    if facts.own is not None:
        changes["system"] = facts.own or None
    return {**changes, **{name: version for name in said.SESSION_TEXTS if name in facts.texts}}


def _fold_session_opened(session: Session, facts: said.SessionOpened, version: int, at: int) -> Session:
    changes = _settings_changes(facts, version)
    if facts.generation:
        return session and replace(session, status="open", generation=facts.generation, **changes)
    return SessionState(**{"opened_at": at, **changes})


def _fold_session_closing(session: SessionState, facts: said.SessionClosing, version: int, at: int) -> Session:
    pending = session.handovers
    if facts.handover is not None:
        pending = {**pending, facts.handover: Handover(id=facts.handover, version=version)}
    return replace(session, status="closing", handovers=pending)


def _fold_session_offered(session: SessionState, facts: said.SessionOffered, version: int, at: int) -> Session:
    if facts.handover not in session.handovers:
        return session
    pending = {id: handover for id, handover in session.handovers.items() if id != facts.handover}
    if not facts.taken and not facts.given_up:
        pending[facts.handover] = replace(session.handovers[facts.handover], attempts=facts.attempts)
    return replace(session, handovers=pending)


def _fold_thread_opened(thread: Thread, facts: said.ThreadOpened, version: int, at: int) -> Thread:
    if facts.generation:
        return thread and replace(thread, generation=facts.generation, ended=False, fresh=False, newest_at=at)
    return ThreadState(newest_at=at)


def _fold_thread_forked(thread: Thread, facts: said.ThreadForked, version: int, at: int) -> ThreadState:
    calls = {call.id: call for call in facts.opened}
    return ThreadState(
        messages=facts.position, newest_at=at, generation=facts.generation, shared=facts.shared, calls=calls
    )


def _fold_thread_ended(thread: ThreadState, facts: said.ThreadEnded, version: int, at: int) -> Thread:
    calls = {id: call for id, call in thread.calls.items() if id not in facts.dropped}
    changes: dict[str, Any] = {"ended": True, "fresh": facts.reset, "edited": version, "calls": calls}
    if facts.reset:
        changes.update(floor=version, messages=0, newest=0, shared=())
    return replace(thread, **changes)


def _fold_message_appended(thread: ThreadState, facts: said.MessageAppended, version: int, at: int) -> Thread:
    changes: dict[str, Any] = {"messages": facts.position, "newest": version, "newest_at": at}
    if facts.calls or facts.answers:
        waiting = {id: call for id, call in thread.calls.items() if id not in facts.answers}
        changes["calls"] = {**waiting, **{id: said.CallRef(id, version, provider) for id, provider in facts.calls}}
    if facts.usage is not None:
        changes["usage"] = replace(thread.usage + facts.usage, model=None)
    return replace(thread, **changes)


def _fold_message_retracted(thread: ThreadState, facts: said.MessageRetracted, version: int, at: int) -> Thread:
    calls = {id: call for id, call in thread.calls.items() if id not in facts.dropped}
    calls.update({call.id: call for call in facts.opened})
    shared = thread.shared if facts.shared is None else facts.shared
    return replace(thread, messages=facts.position, newest=facts.newest, edited=version, shared=shared, calls=calls)


def _fold_summary_made(thread: ThreadState, facts: said.SummaryMade, version: int, at: int) -> Thread:
    if facts.window:
        return thread
    usage = thread.usage if facts.usage is None else replace(thread.usage + facts.usage, model=None)
    return replace(thread, edited=version, usage=usage)


SESSION_RULES: dict[str, Callable[[Any, Any, int, int], Session]] = {
    "session.opened": _fold_session_opened,
    "session.changed": lambda session, facts, version, at: replace(session, **_settings_changes(facts, version)),
    "session.closing": _fold_session_closing,
    "session.offered": _fold_session_offered,
    "session.closed": lambda session, facts, *_: replace(session, status="ended" if facts.reset else "closed"),
    "thread.added": lambda session, facts, *_: replace(
        session, threads=tuple(sorted({*session.threads, facts.thread}))
    ),
}

THREAD_RULES: dict[str, Callable[[Any, Any, int, int], Thread]] = {
    "thread.opened": _fold_thread_opened,
    "thread.forked": _fold_thread_forked,
    "thread.ended": _fold_thread_ended,
    "message.appended": _fold_message_appended,
    "message.retracted": _fold_message_retracted,
    "summary.made": _fold_summary_made,
    "context.packed": lambda thread, facts, version, at: replace(thread, packed=version),
}
