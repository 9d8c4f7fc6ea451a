"""Hand ended conversations over to memory: each is offered from the journal until taken, by one process at a time.

The handover is journaled with the end of the session. After a crash it is offered again under the same key.
A memory that fails is tried again a limited number of times, and each attempt is journaled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress

from holdfast.core.values import exception_text
from holdfast.errors import ActorBusy, InvalidValue, SessionClosed, StaleEpoch
from holdfast.flow.frames.read import load_current_state, read_event
from holdfast.flow.frames.takeover import release_stream, take_stream
from holdfast.flow.journal.append import States, decide_and_append
from holdfast.flow.sessions.read import iter_segment_messages, load_shared_at
from holdfast.flow.sessions.sessions import close_draft, end_session, is_reset
from holdfast.ports import Acting, EndedConversation, Ports
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import ReasonContent
from holdfast.records.events.sessions import SessionClosing, SessionOffered, SharedSegment
from holdfast.records.messages import Message
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.sessions import Handover, SessionSweepReport

PAGE = 100


def offer_handovers(ports: Ports, acting: Acting, stream: str) -> int:
    """Offer a session's pending handovers and return how many were taken; skip it if another process is at it."""
    if ports.memory is None or not _session_handovers(ports, acting, stream):
        return 0
    # The lease keeps other processes out; this keeps out other threads of this process.
    here = (acting.tenant, f"handover of {stream}")
    if not ports.leases.enter_block(*here):
        return 0
    try:
        return _offer_leased(ports, acting, stream)
    finally:
        ports.leases.blocks.discard(here)


def _offer_leased(ports: Ports, acting: Acting, stream: str) -> int:
    try:
        epoch = take_stream(ports, acting, stream)
    except ActorBusy:
        return 0
    taken = 0
    with suppress(StaleEpoch):  # This process was presumed dead, and another one has taken over the rest.
        try:
            for handover in _session_handovers(ports, acting, stream):
                taken += _offer_one(ports, acting, stream, handover)
        finally:
            release_stream(ports, acting, stream, epoch)
    return taken


def _session_handovers(ports: Ports, acting: Acting, stream: str) -> list[Handover]:
    session = load_current_state(ports, acting, stream).session
    return [] if session is None else list(session.handovers.values())


def _offer_one(ports: Ports, acting: Acting, stream: str, handover: Handover) -> bool:
    event = read_event(ports, acting, stream, handover.version)
    assert event is not None, "a hand-over names the event that made it"
    closing: SessionClosing = event.facts
    ended = _build_conversation(ports, acting, stream, handover.id, closing, event.at)
    failure: Exception | None = None
    try:
        _call_memory(ports, ended)
    except Exception as error:  # noqa: BLE001  memory is somebody else's code
        failure = error
    attempts = handover.attempts + 1
    given_up = failure is not None and attempts >= ports.settings.handover_attempts
    facts = SessionOffered(handover=handover.id, taken=failure is None, attempts=attempts, given_up=given_up)
    content = None if failure is None else ReasonContent(reason=exception_text(failure))

    def decide(states: States) -> dict[str, list[Draft]]:
        known = states[stream].session
        drafts = [Draft(type="session.offered", facts=facts, content=content)]
        if known is None or handover.id not in known.handovers:
            return {}
        last = set(known.handovers) == {handover.id} and (failure is None or given_up)
        if last and known.status == "closing":
            drafts.append(close_draft(known, reset=is_reset(ports, acting, stream, known)))
        return {stream: drafts}

    decide_and_append(ports, acting, (stream,), decide)
    return failure is None


def _call_memory(ports: Ports, ended: EndedConversation) -> None:
    """Call the memory's `take`. Refuse an awaitable result: nothing here can await it."""
    assert ports.memory is not None
    take: Callable[[EndedConversation], object] = ports.memory.take
    answer = take(ended)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidValue("take gave something to be awaited. Use holdfast.open_async, or a take that is done.")


def _build_conversation(
    ports: Ports, acting: Acting, stream: str, key: str, closing: SessionClosing, at: int
) -> EndedConversation:
    session = str(parse_scope(stream).get("session"))

    def read(thread: str) -> Iterator[Message]:
        if thread not in closing.spans:
            return  # It has no messages.
        first, last = closing.spans[thread]
        name = Scope.thread(session, thread).text
        end = _end_version(ports, acting, name, max(first, last))
        # As of its end: messages retracted or appended later under this id do not belong to it.
        for segment in (
            *reversed(load_shared_at(ports, acting, name, end - 1)),
            SharedSegment(name, first, last, last),
        ):
            yield from iter_segment_messages(ports, acting, segment)

    return EndedConversation(
        key=key,
        tenant=acting.tenant,
        session=session,
        generation=closing.generation,
        cause=closing.cause,
        ended_at=at,
        threads=tuple(sorted(closing.spans)),
        read=read,
    )


def _end_version(ports: Ports, acting: Acting, stream: str, after: int) -> int:
    """Return the version at which a thread ended, after its newest message."""
    query = EventQuery(tenant=acting.tenant, stream=stream, after=after, types=("thread.ended",), limit=1)
    return ports.journal.read(query)[0].version


def sweep_sessions(ports: Ports, acting: Acting) -> SessionSweepReport:
    """End sessions that were idle for too long, and offer pending handovers."""
    now, ended, after = ports.clock.now_ms(), 0, ""
    while idle := ports.journal.idle_sessions(acting.tenant, now, after, PAGE):
        for stream in idle:
            try:
                id = str(parse_scope(stream).get("session"))
                ended += end_session(ports, acting, id, cause="timeout", reset=True, quiet_at=now)
            except SessionClosed:
                continue
        after = idle[-1]
    taken = sum(offer_handovers(ports, acting, stream) for stream in list(_iter_pending_streams(ports, acting)))
    return SessionSweepReport(ended=ended, handed_over=taken)


def _iter_pending_streams(ports: Ports, acting: Acting) -> Iterator[str]:
    after, seen = b"", set()
    while found := ports.journal.find(acting.tenant, "session_handovers", None, None, after, PAGE):
        for stream, row in found:
            if stream not in seen:
                seen.add(stream)
                yield stream
            key = row["handover_id"]
            assert isinstance(key, bytes)
            after = key
