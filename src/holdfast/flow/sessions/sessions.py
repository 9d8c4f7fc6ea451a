"""Open, change, list and end sessions, and hand ended ones over to memory.

A session's settings and its end are events of the session's own stream; each thread has a stream of its own.
Ending a session ends all its threads in the same commit, so no message can follow the end.

An ended conversation is handed over to memory: offered from the journal until taken, by one process at a time. The
handover is journaled with the end of the session; after a crash it is offered again under the same key. A memory that
fails is tried again a limited number of times, and each attempt is journaled: after a process that died at it, before
the attempt as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.entries import MAX_PAGE
from holdfast.core.journal.codec import encode
from holdfast.core.lazy import decoder
from holdfast.core.numbers import is_number
from holdfast.core.values import discard_awaitable, exception_text
from holdfast.core.wire.tools import read_tool_defs
from holdfast.errors import ActorBusy, InvalidValue, NotFound, SessionClosed, SessionNotFound, StaleEpoch
from holdfast.flow.frames.read import content_field, load_current_state, read_event
from holdfast.flow.frames.takeover import release_stream, take_stream
from holdfast.flow.journal import artifacts, redact
from holdfast.flow.journal.append import States, decide_and_append
from holdfast.flow.sessions.append import SessionWrite
from holdfast.flow.sessions.read import iter_segment_messages, load_shared_at
from holdfast.flow.sessions.summaries import delete_passages, list_flushed, list_keys
from holdfast.ports import EndedConversation, Env
from holdfast.records.batches import Artifact, HeadQuery, RowQuery, SessionQuery
from holdfast.records.entries import EntryPageQuery
from holdfast.records.events import sessions as said
from holdfast.records.events.envelope import ERASED, Draft
from holdfast.records.events.journal import ReasonContent
from holdfast.records.events.state import StateDeleted
from holdfast.records.frames import StreamState
from holdfast.records.ids import SessionId, check_id, ulid_text
from holdfast.records.messages import Message, ToolDef
from holdfast.records.reports import EventQuery
from holdfast.records.scope import SCOPES_CACHED, Scope, parse_scope
from holdfast.records.sessions import Handover, SessionInfo, SessionState
from holdfast.records.usage import Usage

PAGE = 100
USAGE_PAGE = 1_000
"""Rows per page when they are only added up."""
ORDERS = ("activity", "cost", "title")
STATUSES = ("open", "closing", "ended", "closed")
UNKNOWN_REASON = "The process that offered it ended before the outcome was known."
HEAD_PAGE = 256
"""Heads of streams per page when a session's are listed."""


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Session settings as given by a caller; None means not given."""

    system: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None
    tools: Sequence[Any] | None = None
    model: str | None = None
    tokenizer: str | None = None
    idle_timeout: float | None = None
    encoded: bytes | None = None
    """The tools in the form in which they are kept, if the caller has that at hand."""
    agent: bool = False
    """True if an agent gives them while it runs. Without `system`, the application's own prompt then applies again."""
    own: int | None = None
    """For an agent's settings: the version of the application's own system prompt; 0 if it gave none."""


def streams_of(id: str, thread: str) -> tuple[str, str]:
    """Return a session's own stream and the stream of one of its threads."""
    return _build_streams(check_id(id, "session id"), check_id(thread, "thread id"))


@lru_cache(maxsize=SCOPES_CACHED)
def _build_streams(id: str, thread: str) -> tuple[str, str]:
    return Scope.session(id).text, Scope.thread(id, thread).text


def open_session(env: Env, id: str, thread: str, given: SessionSettings, *, create: bool = True) -> SessionState:
    """Open a session and one of its threads, creating both if missing, and journal changed settings."""
    session, line = streams_of(id, thread)
    given = _check_settings(env, given)
    known = load_current_state(env, session).session
    if not create and (known is None or thread not in known.threads):
        what = f"session {id!r}" if known is None else f"thread {thread!r} of session {id!r}"
        raise SessionNotFound(f"There is no {what}. Check the id and the tenant, or leave out create=False.")
    body = given.encoded if given.encoded or given.tools is None else encode_tools(given.tools)
    name = None if body is None else artifacts.artifact_name(env.journal.secret, env.tenant, body).hex()
    if known is not None and thread in known.threads and not _diff_settings(env, session, known, given, name):
        return known
    tools = None if body is None else artifacts.prepare_artifact(env, body)

    def decide(states: States) -> dict[str, list[Draft]]:
        now = states[session].session
        own: list[Draft] = []
        if now is None:
            first = replace(given, own=0) if given.agent and given.system is not None else given
            own.append(_settings_draft("session.opened", first, tools, env))
        elif changed := _diff_settings(env, session, now, given, name):
            own.append(_settings_draft("session.changed", changed, tools, env))
        if now is not None and thread in now.threads:
            return {session: own}
        if now is not None and now.status in ("closing", "closed") and not is_reset(env, session, now):
            raise SessionClosed(f"Session {id!r} was closed and takes no new threads.")
        own.append(Draft(type="thread.added", facts=said.ThreadAdded(thread=thread)))
        return {session: own, line: [Draft(type="thread.opened", facts=said.ThreadOpened()), *new_thread_drafts(now)]}

    decide_and_append(env, (session, line), decide, artifacts=() if tools is None else (tools,))
    found = load_current_state(env, session).session
    assert found is not None
    return found


def encode_tools(tools: Iterable[Any]) -> bytes:
    """Return tool definitions, in any provider's format, in the form in which a session keeps them."""
    return encode(msgspec.to_builtins(read_tool_defs(tools)))


def new_thread_drafts(known: SessionState | None) -> list[Draft]:
    """Return the events after a new thread's first one: its generation, and its end if the session has ended."""
    if known is None:
        return []
    drafts: list[Draft] = []
    if known.generation:
        drafts.append(Draft(type="thread.opened", facts=said.ThreadOpened(generation=known.generation)))
    if known.status != "open":
        # All other threads were reset in the same way: the first message in any of them restarts the session.
        drafts.append(Draft(type="thread.ended", facts=said.ThreadEnded(reset=True)))
    return drafts


def is_reset(env: Env, session: str, known: SessionState) -> bool:
    """Return True if an ended session restarts with the next message. All threads agree, so one is read."""
    id = str(parse_scope(session).get("session"))
    thread = load_current_state(env, Scope.thread(id, known.threads[0]).text).thread
    return thread is not None and thread.fresh


def _check_settings(env: Env, given: SessionSettings) -> SessionSettings:
    for name in ("system", "title", "model", "tokenizer"):
        value = getattr(given, name)
        if value is not None and not isinstance(value, str):
            raise InvalidValue(f"{name} must be text, not {type(value).__name__}.")
    if given.model is not None:
        check_id(given.model, "model", limit=256)
    timeout = given.idle_timeout
    if timeout is not None and (not is_number(timeout, whole=False) or not 0 <= timeout < 1e9):
        raise InvalidValue(f"idle_timeout must be a number of seconds, or 0 for none, not {timeout!r:.40}.")
    if given.metadata is not None and not isinstance(given.metadata, dict):
        raise InvalidValue("metadata must be a mapping of plain data.")
    if env.redact is None:
        return given
    texts = {name: redact.redact_value(env.redact, getattr(given, name)) for name in said.SESSION_TEXTS}
    return replace(given, **texts)


def _diff_settings(
    env: Env, stream: str, known: SessionState, given: SessionSettings, tools: str | None
) -> SessionSettings | None:
    """Return the given settings that differ from the stored ones; None if none does. `tools` is the tools' name."""
    wanted = {name: value for name in said.SESSION_TEXTS[1:] if (value := getattr(given, name)) is not None}
    texts = session_texts(env, stream, known, tuple(wanted))
    different: dict[str, Any] = {name: value for name, value in wanted.items() if texts.get(name) != value}
    different.update(_diff_prompt(env, stream, known, given))
    if given.model not in (None, known.model):
        different["model"] = given.model
    # If none was requested, each count derives it from the model.
    tokenizer = None if given.tokenizer is None else env.models.tokenizer(given.tokenizer).name
    if tokenizer not in (None, known.tokenizer):
        different["tokenizer"] = tokenizer
    if given.idle_timeout is not None and round(given.idle_timeout * 1000) != (known.idle_timeout_ms or 0):
        different["idle_timeout"] = given.idle_timeout
    if tools not in (None, known.tools):
        different["tools"] = given.tools
    return SessionSettings(**different) if different else None


def _diff_prompt(env: Env, stream: str, known: SessionState, given: SessionSettings) -> dict[str, Any]:
    """Return the changes to the system prompt, telling the application's own prompt from an agent's temporary one."""
    if known.system is None or (given.system is None and not given.agent):
        return {} if given.system is None else {"system": given.system, "own": 0 if given.agent else None}
    event = read_event(env, stream, known.system)
    lent: int | None = None if event is None else event.facts.own
    same = content_field(event, "system") == given.system
    if not given.agent:
        return {} if same and lent is None else {"system": given.system}
    if given.system is None:
        return {} if lent is None else {"own": lent}
    return {} if same else {"system": given.system, "own": known.system if lent is None else lent}


def _settings_draft(type_name: str, given: SessionSettings, tools: Artifact | None, env: Env) -> Draft:
    name = None if tools is None or given.tools is None else tools.name.hex()
    texts = {text: getattr(given, text) for text in said.SESSION_TEXTS if getattr(given, text) is not None}
    facts = said.SessionOpened(
        model=given.model,
        tokenizer=None if given.tokenizer is None else env.models.tokenizer(given.tokenizer).name,
        tools=name,
        idle_timeout_ms=None if given.idle_timeout is None else round(given.idle_timeout * 1000),
        texts=tuple(texts),
        own=given.own,
        artifacts=() if name is None else (name,),
    )
    return Draft(type=type_name, facts=facts, content=said.SessionContent(**texts) if texts else None)


def settings_write(env: Env, stream: str, given: SessionSettings) -> SessionWrite:
    """Return new settings as a write that goes into the same commit as messages."""
    given = _check_settings(env, given)
    tools = None if given.tools is None else artifacts.prepare_artifact(env, encode_tools(given.tools))
    name = None if tools is None else tools.name.hex()

    def drafts(state: StreamState) -> list[Draft]:
        known = state.session or SessionState()
        changed = _diff_settings(env, stream, known, given, name)
        return [] if changed is None else [_settings_draft("session.changed", changed, tools, env)]

    return SessionWrite(drafts=drafts, artifacts=() if tools is None else (tools,), model=given.model)


def session_texts(
    env: Env, stream: str, known: SessionState, names: Sequence[str] = said.SESSION_TEXTS
) -> dict[str, Any]:
    """Return the system prompt, title and metadata of a session, leaving out erased ones."""
    versions = {name: version for name in names if (version := getattr(known, name)) is not None}
    events = {version: read_event(env, stream, version) for version in set(versions.values())}
    found = {name: content_field(events[version], name) for name, version in versions.items()}
    return {name: value for name, value in found.items() if value is not None and value is not ERASED}


def session_tools(env: Env, known: SessionState) -> tuple[ToolDef, ...]:
    """Return the tools that the session's model is offered."""
    if known.tools is None:
        return ()
    body = artifacts.read_artifact(env, known.tools)
    return decoder(tuple[ToolDef, ...]).decode(body) if isinstance(body, bytes) else ()


def session_state(env: Env, id: str) -> SessionState:
    """Return the current state of a session; refuse an unknown id."""
    found = load_current_state(env, Scope.session(check_id(id, "session id")).text).session
    if found is None:
        raise SessionNotFound(f"There is no session {id!r}. Check the id and the tenant.")
    return found


# ending


def end_session(
    env: Env,
    id: str,
    *,
    cause: str,
    reset: bool,
    quiet_at: int | None = None,
    is_at_work: Callable[[str], bool] = lambda thread: False,
) -> bool:
    """End a session in one commit; return False if there was nothing to end.

    With `quiet_at`, end it only if it has been idle for its timeout at that time and none of its threads is at work.
    """
    session = Scope.session(check_id(id, "session id")).text
    load_current_state(env, session)  # Refresh: a cached status must not prevent the end.

    def threads(states: States) -> list[str]:
        known = states[session].session
        return [] if known is None else [Scope.thread(id, thread).text for thread in known.threads]

    def decide(states: States) -> dict[str, list[Draft]]:
        known = states[session].session
        if known is None:
            raise SessionNotFound(f"There is no session {id!r}. Check the id and the tenant.")
        found = {name: states[name] for name in threads(states)}
        again = any(state.thread is not None and state.thread.fresh for state in found.values())
        over = known.status == "closed" or (known.status == "closing" and not again)
        if over and not (reset and cause == "reset"):
            raise SessionClosed(f"Session {id!r} was closed already.")
        if quiet_at is not None and (_is_busy(known, found, quiet_at) or any(map(is_at_work, found))):
            return {}
        ended = known.status == "ended" and reset
        drafts = {} if ended else _end_drafts(env, known, session, found, cause, reset)
        written = flushed(states)
        for stream in states:
            if gone := _delete_entries(env, session, stream, written, reset=reset):
                drafts[stream] = [*gone, *drafts.get(stream, ())]
        return drafts

    def flushed(states: States) -> list[tuple[str, str]]:
        found = [one for name in threads(states) for one in list_flushed(env, name)] if reset else []
        return [(scope, compaction) for scope, compaction, _ in found]

    def within(states: States) -> list[str]:
        scopes = [scope for scope, _ in flushed(states)]
        return list(dict.fromkeys((*threads(states), *_list_streams_below(env, session), *scopes)))

    changed = decide_and_append(env, (session,), decide, needs=within)
    env.transients.clear_below((env.tenant, session))
    return changed.appended is not None


def _delete_entries(
    env: Env, session: str, stream: str, flushed: Sequence[tuple[str, str]], *, reset: bool
) -> list[Draft]:
    """Return the deletions of the entries of a stream that end with the session: its own, and flushed passages."""
    if stream != session and not stream.startswith(f"{session}/"):
        return [one for scope, id in flushed if scope == stream for one in delete_passages(env, scope, id)]
    # `now=0` makes expired entries visible, so they are deleted too.
    keys = list_keys(env, stream, EntryPageQuery(now=0, lifetime="session", limit=MAX_PAGE))
    drafts = [Draft(type="state.deleted", facts=StateDeleted(key=key, cause="session")) for key in keys]
    return [*drafts, *delete_passages(env, stream)] if reset else drafts


def _list_streams_below(env: Env, session: str) -> list[str]:
    """List the streams below a session, also those without messages, at the cost of their number."""
    found: list[str] = []
    below, after = f"{session}/", f"{session}/"
    while heads := env.journal.heads(env.tenant, HeadQuery(after=after, limit=HEAD_PAGE)):
        names = [head.stream for head in heads if head.stream.startswith(below)]
        found += names
        if len(names) < HEAD_PAGE:
            break
        after = names[-1]
    return found


def _is_busy(known: SessionState, threads: States, now: int) -> bool:
    """Return True if the session is not idle after all: a message arrived, or its status or timeout changed."""
    newest = max((state.thread.newest_at for state in threads.values() if state.thread is not None), default=0)
    return known.status != "open" or known.idle_timeout_ms is None or newest + known.idle_timeout_ms > now


def _end_drafts(
    env: Env, known: SessionState, session: str, threads: States, cause: str, reset: bool
) -> dict[str, list[Draft]]:
    spans = {
        str(parse_scope(name).get("thread")): (state.thread.floor, state.thread.newest)
        for name, state in threads.items()
        if state.thread is not None and state.thread.messages
    }
    again = known.status in ("closed", "closing")
    handover = ulid_text(env.ids.ulid()) if spans and env.memory is not None and not again else None
    closing = said.SessionClosing(
        cause=cause, generation=known.generation, reset=reset, handover=handover, spans={} if again else spans
    )
    own = [Draft(type="session.closing", facts=closing)]
    if handover is None and not known.handovers:
        own.append(close_draft(known, reset=reset))
    drafts = {session: own}
    for name, state in threads.items():
        dropped = () if state.thread is None else tuple(state.thread.calls)
        drafts[name] = [Draft(type="thread.ended", facts=said.ThreadEnded(reset=reset, dropped=dropped))]
    return drafts


def close_draft(known: SessionState, *, reset: bool) -> Draft:
    """Return the event that completes the end of a session."""
    return Draft(type="session.closed", facts=said.SessionClosedFacts(reset=reset, generation=known.generation))


def session_usage(env: Env, id: str) -> Usage:
    """Return the usage of all threads of a session, as reported by their providers."""
    total = Usage(cost=0)
    for thread in session_state(env, id).threads:
        line = load_current_state(env, Scope.thread(id, thread).text).thread
        if line is None:
            raise NotFound(f"The thread {thread!r} of session {id!r} cannot be read.")
        total = total + line.usage
    return total


def list_sessions(
    env: Env,
    *,
    user: str | None = None,
    title: str | None = None,
    status: str | None = None,
    order: str = "activity",
    limit: int | None = None,
) -> Iterator[SessionInfo]:
    """List sessions by last activity, cost or title; `title` selects those whose title contains it."""
    if order not in ORDERS:
        raise InvalidValue(f"order must be one of {', '.join(ORDERS)}, not {order!r}.")
    if status is not None and status not in STATUSES:
        raise InvalidValue(f"status must be one of {', '.join(STATUSES)}, not {status!r}.")
    if user is not None:
        check_id(user, "user")
    if title is not None and not isinstance(title, str):
        raise InvalidValue(f"title must be text to look for, not {title!r}.")
    if limit is not None and not is_number(limit, least=0):
        raise InvalidValue(f"limit must be a number of sessions, not {limit!r}.")
    page = PAGE if limit is None or order != "activity" or title is not None else min(max(limit, 1), PAGE)
    found = _iter_sessions(env, SessionQuery(user=user, status=status, limit=page), title)
    if order == "cost":
        found = iter(sorted(found, key=lambda one: (-(one.usage.cost or 0), -one.usage.spent, one.id)))
    elif order == "title":
        found = iter(sorted(found, key=lambda one: ((one.title or "").casefold(), one.id)))
    return islice(found, limit)


def tenant_usage(env: Env) -> Usage:
    """Return the usage of all sessions of a tenant: reads each session once, page by page, in one snapshot."""
    query, total = SessionQuery(limit=USAGE_PAGE), Usage(cost=0)
    with env.journal.snapshot():
        while page := env.journal.sessions(env.tenant, query):
            total = sum((row.usage for row in page), total)
            query = replace(query, before=page[-1].place)
    return total


def _iter_sessions(env: Env, query: SessionQuery, title: str | None) -> Iterator[SessionInfo]:
    while page := env.journal.sessions(env.tenant, query):
        for row in page:
            own = None
            if row.title_version is not None:
                own = content_field(read_event(env, row.stream, row.title_version), "title") or None
            if title is not None and title.casefold() not in (own or "").casefold():
                continue
            names = ("status", "model", "user", "opened_at", "active_at", "messages", "threads", "usage")
            known = {name: getattr(row, name) for name in names}
            yield SessionInfo(id=SessionId(str(parse_scope(row.stream).get("session"))), title=own, **known)
        query = replace(query, before=page[-1].place)


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
    most = env.settings.handover_attempts
    if handover.attempts >= most:  # The process that made the last attempt died of it, or the limit was lowered.
        problem = f"It was offered {handover.attempts} times and was not taken."
        _append_offer(env, stream, handover.id, handover.attempts, problem, given_up=True)
        return False
    attempts = handover.attempts + 1
    if env.leases.was_abandoned(env.tenant, stream):
        _append_offer(env, stream, handover.id, attempts, UNKNOWN_REASON)
    failure = _take_conversation(env, ended)
    given_up = failure is not None and attempts >= most
    _append_offer(env, stream, handover.id, attempts, failure, given_up=given_up)
    return failure is None


def _take_conversation(env: Env, ended: EndedConversation) -> str | None:
    """Give an ended conversation to memory; return the reason if it failed."""
    assert env.memory is not None
    take: Callable[[EndedConversation], object] = env.memory.take
    try:
        if discard_awaitable(take(ended)):  # Nothing here can await it.
            raise InvalidValue("take returned an awaitable. Use holdfast.open_async, or a synchronous take.")
    except Exception as error:  # noqa: BLE001  memory is somebody else's code
        return exception_text(error)
    return None


def _append_offer(
    env: Env, stream: str, handover: str, attempts: int, problem: str | None, *, given_up: bool = False
) -> None:
    """Journal an attempt; the last one of a session that is closing closes it."""
    facts = said.SessionOffered(handover=handover, taken=problem is None, attempts=attempts, given_up=given_up)
    content = None if problem is None else ReasonContent(reason=problem)

    def decide(states: States) -> dict[str, list[Draft]]:
        known = states[stream].session
        drafts = [Draft(type="session.offered", facts=facts, content=content)]
        if known is None or handover not in known.handovers:
            return {}
        last = set(known.handovers) == {handover} and (problem is None or given_up)
        if last and known.status == "closing":
            drafts.append(close_draft(known, reset=is_reset(env, stream, known)))
        return {stream: drafts}

    decide_and_append(env, (stream,), decide)


def _build_conversation(env: Env, stream: str, key: str, closing: said.SessionClosing, at: int) -> EndedConversation:
    session = SessionId(str(parse_scope(stream).get("session")))

    def read(thread: str) -> Iterator[Message]:
        if thread not in closing.spans:
            return  # It has no messages.
        first, last = closing.spans[thread]
        name = Scope.thread(session, thread).text
        ends = EventQuery(tenant=env.tenant, stream=name, after=max(first, last), types=("thread.ended",), limit=1)
        end = env.journal.read(ends)[0].version
        # As of its end: messages retracted or appended later under this id do not belong to it.
        for segment in (*reversed(load_shared_at(env, name, end - 1)), said.SharedSegment(name, first, last, last)):
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


def offer_pending_handovers(env: Env) -> int:
    """Offer every pending handover of the tenant; return how many were taken."""
    pending, key = dict[str, None](), b""
    while found := env.journal.select(env.tenant, RowQuery(table="session_handovers", after_key=key, limit=PAGE)):
        pending.update(dict.fromkeys(stream for stream, _ in found))
        key = found[-1][1]["handover_id"]  # type: ignore[assignment]
    return sum(offer_handovers(env, stream) for stream in pending)
