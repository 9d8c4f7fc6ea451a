"""Read frames, live and ended: goals, handles, questions, outcomes, ancestors and threads. The cost follows the answer.

A root frame within a session sees the session's thread. Any other frame sees only its own messages and nothing from
above it: frames are isolated by design.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.frames import stack
from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.load import build_state
from holdfast.core.trust import lowest_trust
from holdfast.errors import FrameNotFound, InvalidValue, QuestionNotFound
from holdfast.flow.journal.append import load_state
from holdfast.ports import Env
from holdfast.records.batches import Head, HeadQuery, Row, RowQuery
from holdfast.records.events.envelope import ERASED, Content, Erased, Event
from holdfast.records.events.frames import GoalContent
from holdfast.records.frames import FrameState, Handle, StreamState
from holdfast.records.ids import ulid_bytes, ulid_text
from holdfast.records.recovery import FrameInfo, HandleInfo, QuestionInfo, ResultInfo, StopCode
from holdfast.records.reports import EventQuery
from holdfast.records.scope import MAIN_THREAD, SCOPES_CACHED, Scope, parse_scope

PAGE = 256
_GOAL_TEXTS = ("goal", "inputs", "metadata")
_OUTCOME_TEXTS = ("summary", "error", "value")
_PARTS = ("frame_handles", "frame_results", "frame_reservations", "frame_calls", "frame_children", "suspended_frames")
"""The tables with what belongs to a frame."""


def parse_id(text: object, what: str = "frame") -> bytes:
    """Return an id as bytes; refuse anything that cannot be one."""
    if isinstance(text, str):
        try:
            return ulid_bytes(text)
        except InvalidValue:
            pass
    article = "an" if what[0] in "aeiou" else "a"
    raise InvalidValue(f"{text!r} is not the id of {article} {what}: 26 characters, as given when it was made.")


def find_frame_stream(env: Env, frame_id: str) -> str:
    """Return the stream of a frame, live or ended."""
    known = env.states.frame_streams.get((env.tenant, frame_id)) if isinstance(frame_id, str) else None
    if known is not None:
        return known
    stream, _ = find_frame_row(env, frame_id)
    env.states.frame_streams.put((env.tenant, frame_id), stream)
    return stream


def find_frame_row(env: Env, frame_id: str) -> tuple[str, Row]:
    """Return the stream and the row of a frame."""
    query = RowQuery(table="frames", column="frame_id", value=parse_id(frame_id), limit=1)
    found = env.journal.select(env.tenant, query)
    if not found:
        raise FrameNotFound(f"There is no frame {frame_id}. Check its id and the tenant.")
    return found[0]


def has_frame(env: Env, frame_id: str) -> bool:
    """Return True if a frame of this id exists or existed."""
    query = RowQuery(table="frames", column="frame_id", value=parse_id(frame_id), limit=1)
    return bool(env.journal.select(env.tenant, query))


def load_current_state(env: Env, stream: str) -> StreamState:
    """Return a stream's newest state, including other processes' commits."""
    head = env.journal.head(env.tenant, stream)
    if head is None:
        return StreamState()
    cached = env.states.streams.get((env.tenant, stream))
    fresh = cached is not None and cached.version == head.version
    return cached if cached is not None and fresh else load_state(env, stream, fresh=True)


def read_event(env: Env, stream: str, version: int) -> Event | None:
    """Return a stream's event at one version."""
    stored = env.journal.read(EventQuery(tenant=env.tenant, stream=stream, after=version - 1, until=version, limit=1))
    return decode_event(stored[0]) if stored else None


def content_field(event: Event | None, name: str) -> Any:
    """Return a field of an event's content: None if there is none, ERASED if it was erased."""
    content = None if event is None else event.content
    return ERASED if content is ERASED else getattr(content, name, None)


def read_frame(env: Env, frame_id: str) -> FrameInfo:
    """Return a frame with its texts, live or ended."""
    stream = find_frame_stream(env, frame_id)
    frame = load_current_state(env, stream).frames.get(frame_id)
    return _read_ended_frame(env, frame_id) if frame is None else describe_frame(env, stream, frame)


def describe_frame(
    env: Env,
    stream: str,
    frame: FrameState,
    *,
    completed_at: int | None = None,
    outcome: Content | Erased | None = None,
    code: StopCode | None = None,
    goal: GoalContent | None = None,
) -> FrameInfo:
    """Describe a frame for users; `completed_at` and `outcome` are given for an ended one."""
    words: Any = goal
    event = None
    if goal is None:
        event = read_event(env, stream, frame.goal)
        words = None if event is None else event.content
    said = {name: ERASED if words is ERASED else getattr(words, name, None) for name in _GOAL_TEXTS}
    ended = {name: ERASED if outcome is ERASED else getattr(outcome, name, None) for name in _OUTCOME_TEXTS}
    return FrameInfo(
        id=frame.id,
        scope=stream,
        parent=frame.parent or frame.outer,
        depth=frame.depth,
        status=frame.status,
        **said,
        tokens=frame.tokens,
        limits=frame.limits,
        usage=frame.usage,
        tool_calls=frame.tool_calls,
        created_at=frame.created_at,
        completed_at=completed_at,
        deadline=frame.deadline,
        version=frame.version,
        **ended,
        code=code,
        context_hash=frame.context_hash,
        reservations=dict(frame.reservations),
        handles=tuple(sorted(frame.handles.values(), key=lambda handle: handle.position)),
        results=frame.results,
        calls=tuple(sorted(frame.calls.values(), key=lambda call: call.version)),
        children_elsewhere=dict(frame.away),
        question=frame.question,
        turn=event.facts.visible_from if event is not None and event.type == "frame.pushed" else None,
    )


def _read_ended_frame(env: Env, frame_id: str) -> FrameInfo:
    raw = parse_id(frame_id)
    with env.journal.snapshot():
        stream, row = find_frame_row(env, frame_id)
        rows: dict[str, list[Row]] = {"frames": [row]}
        for table in _PARTS:
            found = env.journal.select(env.tenant, RowQuery(table=table, column="frame_id", value=raw, limit=1_000_000))
            rows[table] = [part for _, part in found]
        frame = build_state(Head(id=0, stream=stream, version=0, hash=b""), rows).frames[frame_id]
        # The last event of an ended frame is its end.
        end = read_event(env, stream, frame.version)
        outcome, code = (None, None) if end is None else (end.content, end.facts.code)
        completed_at = row["completed_at"]
        return describe_frame(env, stream, frame, completed_at=completed_at, outcome=outcome, code=code)  # type: ignore[arg-type]


def read_ancestry(env: Env, frame_id: str) -> list[FrameInfo]:
    """Return the frames from the root to this one."""
    thread: list[FrameInfo] = []
    at: str | None = frame_id
    while at is not None:
        info = read_frame(env, at)
        thread.append(info)
        at = info.parent
    thread.reverse()
    return thread


def read_stack(env: Env, stream: str) -> list[FrameInfo]:
    """Return every live frame of a stream, parents before children."""
    state = load_current_state(env, stream)
    return [describe_frame(env, stream, frame) for frame in stack.walk_root_first(state.frames)]


def list_streams_with_work(env: Env) -> Iterator[str]:
    """Yield every stream that has live frames, in the order in which the streams began."""
    for page in read_work_pages(env):
        yield from (head.stream for head in page)


def read_work_pages(env: Env) -> Iterator[list[Head]]:
    """Yield the heads of every stream that has live frames, a page at a time."""
    after: int | None = 0
    while after is not None:
        page = env.journal.heads(env.tenant, HeadQuery(live=True, after_id=after, limit=PAGE))
        yield page
        after = page[-1].id if len(page) == PAGE else None


def read_handles(env: Env, frame_id: str) -> list[HandleInfo]:
    """Return a frame's handles in order, each with its content; detached ones are marked."""
    info = read_frame(env, frame_id)
    return [read_handle(env, info.scope, handle) for handle in info.handles]


def read_results(env: Env, frame_id: str) -> list[ResultInfo]:
    """Return a frame's results in order, each with its summary."""
    info = read_frame(env, frame_id)
    found = ((one, read_event(env, info.scope, one.version)) for one in info.results)
    return [
        ResultInfo(
            **msgspec.structs.asdict(one), summary=content_field(event, "summary"), at=0 if event is None else event.at
        )
        for one, event in found
    ]


def read_handle(env: Env, stream: str, handle: Handle) -> HandleInfo:
    """Return a handle of a frame with its content."""
    event = read_handle_event(env, stream, handle.version)
    passed_on = event is not None and (event.stream, event.version) != (stream, handle.version)
    return HandleInfo(
        **msgspec.structs.asdict(handle),
        **{name: content_field(event, name) for name in ("description", "target", "body", "metadata")},
        trust=None if event is None else lowest_trust(event.facts.trust or event.trust, event.trust),
        at=0 if event is None else event.at,
        source_stream=event.stream if event is not None and passed_on else None,
        source_version=event.version if event is not None and passed_on else None,
    )


def read_handle_event(env: Env, stream: str, version: int) -> Event | None:
    """Return the event that holds a handle's content: its own, or for an inherited handle the original one."""
    event = read_event(env, stream, version)
    if event is None or event.content is not None or event.facts.source_stream is None:
        return event
    return read_event(env, event.facts.source_stream, event.facts.source_version)


def read_questions(env: Env) -> Iterator[QuestionInfo]:
    """Yield every open question of the tenant that can be answered, in order of their frames' ids."""
    after = b""
    while rows := env.journal.select(env.tenant, RowQuery(table="suspended_frames", after_key=after, limit=PAGE)):
        for stream, row in rows:
            if row["within"] is None:
                yield _describe_question(env, stream, row)
        after = rows[-1][1]["frame_id"]  # type: ignore[assignment]


def read_question(env: Env, question_id: str) -> QuestionInfo:
    """Return one open question."""
    stream, row = find_question_row(env, question_id)
    return _describe_question(env, stream, row)


def find_question_row(env: Env, question_id: str) -> tuple[str, Row]:
    """Return the stream and the row of an open question."""
    raw = parse_id(question_id, "question")
    found = env.journal.select(env.tenant, RowQuery(table="suspended_frames", column="question_id", value=raw, limit=1))
    if not found:
        raise QuestionNotFound(f"Question {question_id} is not open: its frame went on or ended, or the id is wrong.")
    return found[0]


def _describe_question(env: Env, stream: str, row: Row) -> QuestionInfo:
    event = read_event(env, stream, int(row["version"]))  # type: ignore[arg-type]
    known: dict[str, Any] = {name: row[name] for name in ("kind", "suspended_at", "expires_at", "on_expiry", "until")}
    said = {name: content_field(event, name) for name in ("reason", "options", "recommended", "arguments", "payload")}
    return QuestionInfo(
        id=row_ulid(row, "question_id"),
        frame=row_ulid(row, "frame_id"),
        scope=stream,
        call=row_ulid(row, "call_id") or None,
        within=row_ulid(row, "within") or None,
        answered=row["answer_version"] is not None,
        has_token=row["token_id"] is not None,
        **known,
        **said,
    )


def row_ulid(row: Row, name: str) -> str:
    """Return the id in a column of a row as text; empty if there is none."""
    raw = row[name]
    return ulid_text(raw) if isinstance(raw, bytes) else ""


@lru_cache(maxsize=SCOPES_CACHED)
def _root_thread(stream: str) -> str | None:
    """Return the thread of the root frames of a stream within a session, else None."""
    scope = parse_scope(stream)
    session = scope.get("session")
    return None if session is None else Scope.thread(session, scope.get("thread") or MAIN_THREAD).text


class FramePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A frame among its ancestors, live or ended, without its texts."""

    frame_id: str
    stream: str
    parent: str | None
    depth: int
    status: str
    goal: int
    """The version of the event that holds its goal."""
    live: FrameState | None = None

    @property
    def thread(self) -> str:
        """The frame's thread: the session's for a root frame within one, else its private one."""
        thread = None if self.parent is not None else _root_thread(self.stream)
        return Scope.frame(self.frame_id).text if thread is None else thread


def frame_thread(env: Env, frame_id: str) -> str:
    """Return the thread of a frame, live or ended. It never changes, so cached state will do."""
    stream = find_frame_stream(env, frame_id)
    return frame_place(env, stream, load_state(env, stream), frame_id).thread


def frame_place(env: Env, stream: str, state: StreamState, frame_id: str) -> FramePlace:
    """Return the place of a frame: from the state of its stream while it is live, else from its row."""
    frame = state.frames.get(frame_id)
    if frame is not None:
        return FramePlace(
            frame_id=frame_id,
            stream=stream,
            parent=frame.parent or frame.outer,
            depth=frame.depth,
            status=frame.status,
            goal=frame.goal,
            live=frame,
        )
    row = find_frame_row(env, frame_id)[1]
    return FramePlace(
        frame_id=frame_id,
        stream=stream,
        parent=row_ulid(row, "parent_frame_id") or row_ulid(row, "outer_frame_id") or None,
        depth=int(row["depth"] or 0),
        status=str(row["status"]),
        goal=int(row["goal_version"] or 0),
    )


def iter_ancestors(env: Env, frame_id: str) -> Iterator[FramePlace]:
    """Iterate over the frame, its parent, and so on to the root, across streams. Each stream is loaded once."""
    states: dict[str, StreamState] = {}
    at: str | None = frame_id
    while at is not None:
        stream = find_frame_stream(env, at)
        if stream not in states:
            states[stream] = load_current_state(env, stream)
        place = frame_place(env, stream, states[stream], at)
        yield place
        at = place.parent
