"""Hand ended conversations over to memory: each is offered from the journal until taken, by one process at a time.

The handover is journaled with the end of the session. After a crash it is offered again under the same key.
A memory that fails is tried again a limited number of times, and each attempt is journaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from holdfast.core.values import discard_awaitable, exception_text
from holdfast.errors import ActorBusy, InvalidValue, SessionClosed, StaleEpoch
from holdfast.flow.frames.read import load_current_state, read_event
from holdfast.flow.frames.takeover import release_stream, take_stream
from holdfast.flow.journal.append import States, decide_and_append
from holdfast.flow.sessions.read import iter_segment_messages, load_shared_at
from holdfast.flow.sessions.sessions import close_draft, end_session, is_reset
from holdfast.ports import EndedConversation, Env
from holdfast.records.batches import RowQuery
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import ReasonContent
from holdfast.records.events.sessions import SessionClosing, SessionOffered, SharedSegment
from holdfast.records.messages import Message
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.sessions import Handover, SessionSweepReport

PAGE = 100


def offer_handovers(env: Env, stream: str) -> int:
    """Offer a session's pending handovers and return how many were taken; skip it if another process is at it."""
    if env.memory is None or not _session_handovers(env, stream):
        return 0
    # The lease keeps other processes out; this keeps out other threads of this process.
    here = (env.tenant, f"handover of {stream}")
    if not env.leases.enter_block(*here):
        return 0
    try:
        return _offer_leased(env, stream)
    finally:
        env.leases.blocks.discard(here)


def _offer_leased(env: Env, stream: str) -> int:
    try:
        epoch = take_stream(env, stream)
    except ActorBusy:
        return 0
    taken = 0
    with suppress(StaleEpoch):  # This process was presumed dead, and another one has taken over the rest.
        try:
            for handover in _session_handovers(env, stream):
                taken += _offer_one(env, stream, handover)
        finally:
            release_stream(env, stream, epoch)
    return taken


def _session_handovers(env: Env, stream: str) -> list[Handover]:
    session = load_current_state(env, stream).session
    return [] if session is None else list(session.handovers.values())


def _offer_one(env: Env, stream: str, handover: Handover) -> bool:
    event = read_event(env, stream, handover.version)
    assert event is not None, "a hand-over names the event that made it"
    ended = _build_conversation(env, stream, handover.id, event.facts, event.at)
    failure: Exception | None = None
    try:
        _call_memory(env, ended)
    except Exception as error:  # noqa: BLE001  memory is somebody else's code
        failure = error
    attempts = handover.attempts + 1
    given_up = failure is not None and attempts >= env.settings.handover_attempts
    facts = SessionOffered(handover=handover.id, taken=failure is None, attempts=attempts, given_up=given_up)
    content = None if failure is None else ReasonContent(reason=exception_text(failure))

    def decide(states: States) -> dict[str, list[Draft]]:
        known = states[stream].session
        drafts = [Draft(type="session.offered", facts=facts, content=content)]
        if known is None or handover.id not in known.handovers:
            return {}
        last = set(known.handovers) == {handover.id} and (failure is None or given_up)
        if last and known.status == "closing":
            drafts.append(close_draft(known, reset=is_reset(env, stream, known)))
        return {stream: drafts}

    decide_and_append(env, (stream,), decide)
    return failure is None


def _call_memory(env: Env, ended: EndedConversation) -> None:
    """Call the memory's `take`. Refuse an awaitable result: nothing here can await it."""
    assert env.memory is not None
    take: Callable[[EndedConversation], object] = env.memory.take
    answer = take(ended)
    if discard_awaitable(answer):
        raise InvalidValue("take returned an awaitable. Use holdfast.open_async, or a synchronous take.")


def _build_conversation(env: Env, stream: str, key: str, closing: SessionClosing, at: int) -> EndedConversation:
    session = str(parse_scope(stream).get("session"))

    def read(thread: str) -> Iterator[Message]:
        if thread not in closing.spans:
            return  # It has no messages.
        first, last = closing.spans[thread]
        name = Scope.thread(session, thread).text
        ends = EventQuery(tenant=env.tenant, stream=name, after=max(first, last), types=("thread.ended",), limit=1)
        end = env.journal.read(ends)[0].version
        # As of its end: messages retracted or appended later under this id do not belong to it.
        for segment in (*reversed(load_shared_at(env, name, end - 1)), SharedSegment(name, first, last, last)):
            yield from iter_segment_messages(env, segment)

    return EndedConversation(
        key=key,
        tenant=env.tenant,
        session=session,
        generation=closing.generation,
        cause=closing.cause,
        ended_at=at,
        threads=tuple(sorted(closing.spans)),
        read=read,
    )


def sweep_sessions(env: Env) -> SessionSweepReport:
    """End sessions that were idle for too long, and offer pending handovers."""
    now, ended, after = env.clock.now_ms(), 0, ""
    while idle := env.journal.idle_sessions(env.tenant, now, after, PAGE):
        for stream in idle:
            try:
                id = str(parse_scope(stream).get("session"))
                ended += end_session(env, id, cause="timeout", reset=True, quiet_at=now)
            except SessionClosed:
                continue
        after = idle[-1]
    taken = sum(offer_handovers(env, stream) for stream in list(_iter_pending_streams(env)))
    return SessionSweepReport(ended=ended, handed_over=taken)


def _iter_pending_streams(env: Env) -> Iterator[str]:
    after, seen = b"", set()
    while found := env.journal.select(env.tenant, RowQuery(table="session_handovers", after_key=after, limit=PAGE)):
        for stream, _ in found:
            if stream not in seen:
                seen.add(stream)
                yield stream
        after = found[-1][1]["handover_id"]  # type: ignore[assignment]
