"""session or line + event → session or line. Reads facts only; the same that loading their rows gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.records.events import conversations as said
from holdfast.records.events.calls import ContextPacked
from holdfast.records.lines import Handover, Line, SessionState

_SETTINGS = ("model", "tokenizer", "tools", "idle_timeout_ms", "memory")


def _settings(facts: said.SessionOpened, version: int) -> dict[str, Any]:
    changes = {name: value for name in _SETTINGS if (value := getattr(facts, name)) is not None}
    if facts.own is not None:
        changes["system"] = facts.own or None
    return {**changes, **{name: version for name in said.SESSION_TEXTS if name in facts.texts}}


def _opened(session: SessionState | None, facts: said.SessionOpened, version: int, at: int) -> SessionState | None:
    changes = _settings(facts, version)
    if facts.generation:
        return session and replace(session, status="open", generation=facts.generation, **changes)
    return SessionState(**{"opened_at": at, **changes})


def _changed(session: SessionState | None, facts: said.SessionOpened, version: int, at: int) -> SessionState | None:
    return session and replace(session, **_settings(facts, version))


def _closing(session: SessionState | None, facts: said.SessionClosing, version: int, at: int) -> SessionState | None:
    if session is None:
        return None
    pending = session.handovers
    if facts.handover is not None:
        pending = {**pending, facts.handover: Handover(id=facts.handover, version=version)}
    return replace(session, status="closing", handovers=pending)


def _offered(session: SessionState | None, facts: said.SessionOffered, version: int, at: int) -> SessionState | None:
    if session is None or facts.handover not in session.handovers:
        return session
    pending = {id: handover for id, handover in session.handovers.items() if id != facts.handover}
    if not facts.taken and not facts.given_up:
        pending[facts.handover] = replace(session.handovers[facts.handover], attempts=facts.attempts)
    return replace(session, handovers=pending)


def _closed(session: SessionState | None, facts: said.SessionClosed, version: int, at: int) -> SessionState | None:
    return session and replace(session, status="ended" if facts.reset else "closed")


def _added(session: SessionState | None, facts: said.ThreadAdded, version: int, at: int) -> SessionState | None:
    return session and replace(session, threads=tuple(sorted({*session.threads, facts.thread})))


def _thread_opened(line: Line | None, facts: said.ThreadOpened, version: int, at: int) -> Line | None:
    if facts.generation:
        return line and replace(line, generation=facts.generation, ended=False, fresh=False, newest_at=at)
    return Line(newest_at=at)


def _forked(line: Line | None, facts: said.ThreadForked, version: int, at: int) -> Line:
    return Line(
        messages=facts.position,
        newest_at=at,
        generation=facts.generation,
        shared=facts.shared,
        calls={call.id: call for call in facts.opened},
    )


def _ended(line: Line | None, facts: said.ThreadEnded, version: int, at: int) -> Line | None:
    if line is None:
        return None
    calls = _without(line, facts.dropped)
    changes: dict[str, Any] = {"ended": True, "fresh": facts.reset, "edited": version, "calls": calls}
    if facts.reset:
        changes.update(floor=version, messages=0, newest=0, shared=())
    return replace(line, **changes)


def _without(line: Line, calls: tuple[str, ...]) -> dict[str, said.CallRef]:
    return {id: call for id, call in line.calls.items() if id not in calls}


def _appended(line: Line | None, facts: said.MessageAppended, version: int, at: int) -> Line | None:
    if line is None:
        return None
    changes: dict[str, Any] = {"messages": facts.position, "newest": version, "newest_at": at}
    if facts.calls or facts.answers:
        opened = {id: said.CallRef(id, version, provider) for id, provider in facts.calls}
        changes["calls"] = {**_without(line, facts.answers), **opened}
    if facts.usage is not None:
        changes["usage"] = replace(line.usage + facts.usage, model=None)
    return replace(line, **changes)


def _retracted(line: Line | None, facts: said.MessageRetracted, version: int, at: int) -> Line | None:
    if line is None:
        return None
    calls = {**_without(line, facts.dropped), **{call.id: call for call in facts.opened}}
    shared = line.shared if facts.shared is None else facts.shared
    return replace(line, messages=facts.position, newest=facts.newest, edited=version, shared=shared, calls=calls)


def _edited(line: Line | None, facts: Any, version: int, at: int) -> Line | None:
    return line and replace(line, edited=version)


def _packed(line: Line | None, facts: ContextPacked, version: int, at: int) -> Line | None:
    return line and replace(line, packed=version)


SESSION_RULES: dict[str, Callable[[SessionState | None, Any, int, int], SessionState | None]] = {
    "session.opened": _opened,
    "session.changed": _changed,
    "session.closing": _closing,
    "session.offered": _offered,
    "session.closed": _closed,
    "thread.added": _added,
}

LINE_RULES: dict[str, Callable[[Line | None, Any, int, int], Line | None]] = {
    "thread.opened": _thread_opened,
    "thread.forked": _forked,
    "thread.ended": _ended,
    "message.appended": _appended,
    "message.retracted": _retracted,
    "summary.made": _edited,
    "context.packed": _packed,
}
