"""Projection: event → row changes. Stateless, so that inbox events commute and a rebuild needs no memory.

An event's facts contain everything its rows need; amounts are added, never computed from a state that another writer
may have changed. Rows refer to the event that holds a value: positions and counts, never message bodies. Unknown types
change no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.core.journal.fold import CALL_KINDS, call_outcome
from holdfast.core.journal.tables import TABLES, USAGE_COLUMNS
from holdfast.records.batches import Row, RowChange, RowDelete, RowIncrement, RowInsert, RowReplace, RowUpdate
from holdfast.records.events import frames, state
from holdfast.records.events import sessions as said
from holdfast.records.ids import hex_bytes, ulid_bytes
from holdfast.records.usage import Usage

Rule = Callable[[Any, int, int], list[RowChange]]
"""A function from facts, version and time of an event to its row changes."""


def project_event(type_name: str, facts: Any, version: int, at: int) -> list[RowChange]:
    """Return the row changes of one event, in the order in which they must be applied."""
    rule = SESSION_ROW_RULES.get(type_name) or STATE_ROW_RULES.get(type_name) or _FRAME_ROW_RULES.get(type_name)
    changes = [] if rule is None else rule(facts, version, at)
    artifacts = getattr(facts, "artifacts", None)
    if artifacts:
        changes.extend(
            RowReplace("artifact_refs", {"artifact": hex_bytes(name), "stream_version": version}) for name in artifacts
        )
    return changes


@cache
def _split_columns(table: str, kind: type[msgspec.Struct]) -> tuple[Row, tuple[str, ...]]:
    """Return an empty row of a table, and the columns that have the name of a fact."""
    names = TABLES[table].column_names
    return dict.fromkeys(names), tuple(name for name in names if name in kind.__struct_fields__)


def _build_row(table: str, facts: Any, version: int, **values: Any) -> Row:
    """Return a row of a table: its version, its frame and the given values, else facts of the same name, else null."""
    empty, shared = _split_columns(table, facts.__class__)
    row = {**empty, **{name: getattr(facts, name) for name in shared}, **values}
    if "version" in empty:
        row["version"] = version
    if "frame_id" in empty:
        row["frame_id"] = ulid_bytes(facts.frame)
    return row


def _update_frame_row(
    frame: str, version: int, values: Row | None = None, amounts: dict[str, int] | None = None
) -> RowUpdate:
    """Return an update of one frame's row that also sets its version."""
    added = {column: amount for column, amount in amounts.items() if amount} if amounts else {}
    return RowUpdate("frames", (ulid_bytes(frame),), {**(values or {}), "version": version}, added)


_LIMIT_COLUMNS = {
    "max_context_tokens": "context_tokens",
    "max_tool_calls": "tool_calls",
    "max_subframe_depth": "depth",
    "timeout_ms": "timeout_ms",
}
"""The columns of a frame's limits, with the names that the limits have in facts."""
_UNUSED = dict.fromkeys(("used", "reserved", "lent", "tool_calls", *USAGE_COLUMNS), 0)
_NEW_FRAME: Row = {**dict.fromkeys(TABLES["frames"].column_names), **_UNUSED, "status": "active"}


def _project_frame_pushed(facts: frames.FramePushed, version: int, at: int) -> list[RowChange]:
    limits = facts.limits
    row: Row = {
        **_NEW_FRAME,
        "frame_id": ulid_bytes(facts.frame),
        "parent_frame_id": None if facts.parent is None else ulid_bytes(facts.parent),
        "depth": facts.depth,
        "granted": facts.granted,
        "max_context_tokens": limits.context_tokens,
        "max_tool_calls": limits.tool_calls,
        "max_subframe_depth": limits.depth,
        "timeout_ms": limits.timeout_ms,
        "deadline": facts.deadline,
        "created_at": at,
        "pushed_version": version,
        "goal_version": version,
        "version": version,
        "outer_frame_id": None if facts.outer is None else ulid_bytes(facts.outer),
        "outer_stream": facts.outer_stream,
    }
    changes: list[RowChange] = [RowInsert("frames", row)]
    if facts.parent is not None:
        changes.append(_update_frame_row(facts.parent, version, {"status": "waiting"}, {"lent": facts.granted or 0}))
    return changes


def _project_frame_updated(facts: frames.FrameUpdated, version: int, at: int) -> list[RowChange]:
    names = ("status", "deadline", "granted")
    values: Row = {name: value for name in names if (value := getattr(facts, name)) is not None}
    if facts.limits is not None:
        values.update({column: getattr(facts.limits, name) for column, name in _LIMIT_COLUMNS.items()})
    if facts.context_hash is not None:
        values["context_hash"] = hex_bytes(facts.context_hash)
    if facts.texts:
        values["goal_version"] = version
    if facts.runs or facts.stopped_at is not None:
        values["stopped_at"] = facts.stopped_at
    return [_update_frame_row(facts.frame, version, values)]


def _project_frame_reserved(facts: frames.FrameReserved, version: int, at: int) -> list[RowChange]:
    return [
        RowIncrement("frame_reservations", (ulid_bytes(facts.frame), facts.purpose), {"amount": facts.amount}),
        _update_frame_row(facts.frame, version, amounts={"reserved": facts.amount}),
    ]


def _project_frame_spent(facts: frames.FrameSpent, version: int, at: int) -> list[RowChange]:
    amounts = {"used": facts.usage.spent, **usage_amounts(facts.usage)}
    changes: list[RowChange] = []
    if facts.purpose is not None and facts.from_reserved:
        amounts["reserved"] = -facts.from_reserved
        key = (ulid_bytes(facts.frame), facts.purpose)
        changes.append(RowIncrement("frame_reservations", key, {"amount": -facts.from_reserved}))
    changes.append(_update_frame_row(facts.frame, version, amounts=amounts))
    return changes


def _project_frame_popped(facts: frames.FramePopped, version: int, at: int) -> list[RowChange]:
    changes: list[RowChange] = [_update_frame_row(facts.frame, version, {"status": facts.status, "completed_at": at})]
    if facts.question is not None:
        changes.append(RowDelete("suspended_frames", (ulid_bytes(facts.frame),)))
    if facts.parent is not None:
        changes.append(_settle_child_row(facts.parent, facts, version))
    return changes


def _settle_child_row(parent: str, facts: frames.FramePopped | frames.ChildSettled, version: int) -> RowUpdate:
    values: Row = {"status": "active"} if facts.wakes_parent else {}
    amounts = {"used": facts.used, **usage_amounts(facts.usage), "lent": -facts.granted}
    return _update_frame_row(parent, version, values, amounts)


def _project_child_pushed(facts: frames.ChildPushed, version: int, at: int) -> list[RowChange]:
    row = _build_row("frame_children", facts, version, child_frame_id=ulid_bytes(facts.child))
    lent = _update_frame_row(facts.frame, version, {"status": "waiting"}, {"lent": facts.granted})
    return [RowInsert("frame_children", row), lent]


def _project_child_settled(facts: frames.ChildSettled, version: int, at: int) -> list[RowChange]:
    gone = RowDelete("frame_children", (ulid_bytes(facts.frame), ulid_bytes(facts.child)))
    return [gone, _settle_child_row(facts.frame, facts, version)]


def _project_frame_suspended(facts: frames.FrameSuspendedFacts, version: int, at: int) -> list[RowChange]:
    row = _build_row(
        "suspended_frames",
        facts,
        version,
        question_id=ulid_bytes(facts.question),
        suspended_at=at,
        token_id=None if facts.token is None else hex_bytes(facts.token),
        within=None if facts.within is None else ulid_bytes(facts.within),
        call_id=None if facts.call is None else ulid_bytes(facts.call),
    )
    own = _update_frame_row(facts.frame, version, {"status": "suspended"})
    changes: list[RowChange] = [RowInsert("suspended_frames", row), own]
    if facts.parent is not None and facts.released:
        changes.append(_update_frame_row(facts.parent, version, amounts={"lent": -facts.released}))
    return changes


def _project_frame_resumed(facts: frames.FrameResumed, version: int, at: int) -> list[RowChange]:
    values: Row = {"status": facts.status}
    if facts.deadline is not None:
        values["deadline"] = facts.deadline
    own = _update_frame_row(facts.frame, version, values)
    changes: list[RowChange] = [RowDelete("suspended_frames", (ulid_bytes(facts.frame),)), own]
    if facts.parent is not None and facts.reserved_again:
        changes.append(_update_frame_row(facts.parent, version, amounts={"lent": facts.reserved_again}))
    return changes


def _project_question_answered(facts: frames.QuestionAnswered, version: int, at: int) -> list[RowChange]:
    return [RowUpdate("suspended_frames", (ulid_bytes(facts.frame),), {"answer_version": version})]


def _project_question_reissued(facts: frames.QuestionReissued, version: int, at: int) -> list[RowChange]:
    values: Row = {"token_id": hex_bytes(facts.token), "expires_at": facts.expires_at}
    return [RowUpdate("suspended_frames", (ulid_bytes(facts.frame),), values)]


def _project_handle_added(facts: frames.HandleAdded, version: int, at: int) -> list[RowChange]:
    named = {"handle_id": facts.handle, "handle_type": facts.kind, "estimated_tokens": facts.tokens}
    row = _build_row("frame_handles", facts, version, **named)
    return [RowReplace("frame_handles", row), _update_frame_row(facts.frame, version)]


def _mark_handle_rows(facts: Any, handles: tuple[str, ...], removed: str | None, version: int) -> list[RowChange]:
    raw = ulid_bytes(facts.frame)
    marks = (RowUpdate("frame_handles", (raw, handle), {"removed": removed}) for handle in handles)
    return [*marks, _update_frame_row(facts.frame, version)]


def _project_result_added(facts: frames.ResultAdded, version: int, at: int) -> list[RowChange]:
    row = _build_row("frame_results", facts, version, result_type=facts.kind, ref_id=facts.ref)
    return [RowInsert("frame_results", row), _update_frame_row(facts.frame, version)]


def _project_call_requested(facts: Any, version: int, at: int) -> list[RowChange]:
    kind = CALL_KINDS[type(facts)]
    name = facts.model if kind == "model" else facts.name
    row = _build_row("frame_calls", facts, version, call_id=ulid_bytes(facts.call), kind=kind, name=name)
    shown = getattr(facts, "context_hash", None)
    values: Row = {} if shown is None else {"context_hash": hex_bytes(shown)}
    # A tool that runs again after an interruption keeps its call id: only the newest attempt is open.
    again = getattr(facts, "attempt", 1) > 1
    return [
        (RowReplace if again else RowInsert)("frame_calls", row),
        _update_frame_row(facts.frame, version, values, {"tool_calls": int(kind == "tool")}),
    ]


def _project_call_returned(facts: Any, version: int, at: int) -> list[RowChange]:
    usage, failed = call_outcome(facts)
    values: Row = {"error_version": version if failed else None}
    return [
        RowDelete("frame_calls", (ulid_bytes(facts.frame), ulid_bytes(facts.call))),
        _update_frame_row(facts.frame, version, values, {"used": usage.spent, **usage_amounts(usage)}),
    ]


_FRAME_ROW_RULES: dict[str, Rule] = {
    "frame.pushed": _project_frame_pushed,
    "frame.updated": _project_frame_updated,
    "frame.reserved": _project_frame_reserved,
    "frame.spent": _project_frame_spent,
    "frame.popped": _project_frame_popped,
    "frame.suspended": _project_frame_suspended,
    "frame.resumed": _project_frame_resumed,
    "frame.overdue": lambda facts, version, at: [_update_frame_row(facts.frame, version)],
    "frame.handle_added": _project_handle_added,
    "frame.handles_removed": lambda facts, version, at: _mark_handle_rows(facts, facts.handles, facts.removal, version),
    "frame.handles_restored": lambda facts, version, at: _mark_handle_rows(facts, facts.handles, None, version),
    "frame.compacted": lambda facts, version, at: _mark_handle_rows(facts, facts.removed, facts.compaction, version),
    "frame.result_added": _project_result_added,
    "child.pushed": _project_child_pushed,
    "child.settled": _project_child_settled,
    "question.answered": _project_question_answered,
    "question.reissued": _project_question_reissued,
    "model.requested": _project_call_requested,
    "model.responded": _project_call_returned,
    "model.failed": _project_call_returned,
    "tool.requested": _project_call_requested,
    "tool.returned": _project_call_returned,
    "run.requested": _project_call_requested,
    "run.returned": _project_call_returned,
}


def _project_state_written(facts: state.StateWritten, version: int, at: int) -> list[RowChange]:
    row = _build_row("state", facts, version)
    return [RowReplace("state", row), RowInsert("state_history", {"key": facts.key, "version": version})]


def _project_state_deleted(facts: state.StateDeleted, version: int, at: int) -> list[RowChange]:
    if facts.missing:
        return []  # It only records that a deletion was requested.
    return [RowDelete("state", (facts.key,)), RowInsert("state_history", {"key": facts.key, "version": version})]


def _project_effect_declared(facts: state.EffectDeclared, version: int, at: int) -> list[RowChange]:
    status, id = "approval" if facts.needs_approval else "pending", ulid_bytes(facts.effect)
    return [RowInsert("effects", _build_row("effects", facts, version, effect_id=id, status=status, attempts=0))]


def _project_effect_settled(facts: state.EffectSettled, version: int, at: int) -> list[RowChange]:
    key = (ulid_bytes(facts.effect),)
    if facts.outcome in ("applied", "skipped"):
        return [RowDelete("effects", key)]
    # `settled` is the version of the newest attempt's event, which holds the reason for the failure.
    values: Row = {"status": facts.outcome, "attempts": facts.attempts, "retry_at": facts.retry_at, "settled": version}
    return [RowUpdate("effects", key, values)]


def _project_effect_revived(facts: state.EffectRevived, version: int, at: int) -> list[RowChange]:
    values: Row = {"status": "pending", "attempts": 0, "retry_at": None}
    return [RowUpdate("effects", (ulid_bytes(facts.effect),), values)]


STATE_ROW_RULES: dict[str, Rule] = {
    "state.written": _project_state_written,
    "state.deleted": _project_state_deleted,
    "state.linked": lambda facts, version, at: [RowReplace("edges", _build_row("edges", facts, version))],
    "state.unlinked": lambda facts, *_: [
        RowDelete("edges", (facts.source, facts.kind, facts.target_scope, facts.target))
    ],
    "effect.declared": _project_effect_declared,
    "effect.settled": _project_effect_settled,
    "effect.revived": _project_effect_revived,
}


def _setting_columns(facts: said.SessionOpened, version: int) -> Row:
    names = ("model", "tokenizer", "memory")
    values: Row = {name: value for name in names if (value := getattr(facts, name)) is not None}
    if facts.tools is not None:
        values["tools"] = hex_bytes(facts.tools)
    if facts.idle_timeout_ms is not None:
        values["idle_timeout_ms"] = facts.idle_timeout_ms or None
    if facts.own is not None:
        values["system_version"] = facts.own or None
    for name in (text for text in said.SESSION_TEXTS if text in facts.texts):
        values[f"{name}_version"] = version
    return values


def _project_session_opened(facts: said.SessionOpened, version: int, at: int) -> list[RowChange]:
    values = _setting_columns(facts, version)
    if facts.generation:
        return [RowUpdate("sessions", (), {**values, "status": "open", "generation": facts.generation})]
    row: Row = {**dict.fromkeys(TABLES["sessions"].columns), "status": "open", "generation": 0, "opened_at": at}
    return [RowInsert("sessions", {**row, "opened_version": version, **values})]


def _project_session_changed(facts: said.SessionOpened, version: int, at: int) -> list[RowChange]:
    values = _setting_columns(facts, version)
    return [RowUpdate("sessions", (), values)] if values else []


def _project_session_closing(facts: said.SessionClosing, version: int, at: int) -> list[RowChange]:
    changes: list[RowChange] = [RowUpdate("sessions", (), {"status": "closing"})]
    if facts.handover is not None:
        row: Row = {"handover_id": ulid_bytes(facts.handover), "version": version, "attempts": 0}
        changes.append(RowInsert("session_handovers", row))
    return changes


def _project_session_offered(facts: said.SessionOffered, version: int, at: int) -> list[RowChange]:
    key = (ulid_bytes(facts.handover),)
    if facts.taken or facts.given_up:
        return [RowDelete("session_handovers", key)]
    return [RowUpdate("session_handovers", key, {"attempts": facts.attempts})]


_NEW_THREAD: Row = {**dict.fromkeys(TABLES["threads"].columns, 0), "shared": None}


def _project_thread_opened(facts: said.ThreadOpened, version: int, at: int) -> list[RowChange]:
    if facts.generation:
        values: Row = {"generation": facts.generation, "ended": 0, "fresh": 0, "newest_at": at}
        return [RowUpdate("threads", (), values)]
    return [RowInsert("threads", {**_NEW_THREAD, "newest_at": at, "private": int(facts.private)})]


def _encode_shared(stretches: tuple[said.SharedSegment, ...] | tuple[said.MessageSpan, ...]) -> str | None:
    return msgspec.json.encode(stretches).decode() if stretches else None


def _project_thread_forked(facts: said.ThreadForked, version: int, at: int) -> list[RowChange]:
    known: Row = {"messages": facts.position, "newest_at": at, "generation": facts.generation}
    row: Row = {**_NEW_THREAD, **known, "shared": _encode_shared(facts.shared)}
    return [RowInsert("threads", row), *_replace_call_rows(facts.opened)]


def _project_thread_ended(facts: said.ThreadEnded, version: int, at: int) -> list[RowChange]:
    values: Row = {"ended": 1, "fresh": 1 if facts.reset else 0, "edited": version}
    if facts.reset:
        values.update(floor=version, messages=0, newest=0, shared=None)
    dropped = (RowDelete("message_calls", (ulid_bytes(call),)) for call in facts.dropped)
    return [RowUpdate("threads", (), values), *dropped]


def _replace_call_rows(calls: tuple[said.CallRef, ...]) -> list[RowChange]:
    rows = ({"call_id": ulid_bytes(call.id), "version": call.version, "provider": call.provider} for call in calls)
    return [RowReplace("message_calls", row) for row in rows]


_read_amounts: Callable[[Usage], tuple[int | None, ...]] = attrgetter(
    "input", "cached_input", "cache_write", "output", "reasoning", "cost", "unpriced_tokens", "estimated"
)
"""A function from a usage to its amounts, in the order of the columns."""


def usage_amounts(usage: Usage) -> dict[str, int]:
    """Return the amounts that a usage adds to the sums of a row."""
    return {column: amount for column, amount in zip(USAGE_COLUMNS, _read_amounts(usage), strict=True) if amount}


def message_row(facts: said.MessageAppended, version: int) -> Row:
    """Return the row of a newly appended message."""
    return {
        "version": version,
        "position": facts.position,
        "role": facts.role,
        "round": version if facts.round is None else facts.round,
        "before": facts.before,
        "calls": len(facts.calls),
        "tokens": facts.tokens,
        "tokenizer": facts.tokenizer,
        "pinned": 1 if facts.policy == "pinned" else 0,
        "retracted": None,
    }


def _project_message_appended(facts: said.MessageAppended, version: int, at: int) -> list[RowChange]:
    values: Row = {"messages": facts.position, "newest": version, "newest_at": at}
    row = message_row(facts, version)
    used = {} if facts.usage is None else usage_amounts(facts.usage)
    changes: list[RowChange] = [RowInsert("messages", row), RowUpdate("threads", (), values, used)]
    for id, provider in facts.calls:
        made: Row = {"call_id": ulid_bytes(id), "version": version, "provider": provider}
        changes.append(RowReplace("message_calls", made))
    if facts.answers:
        changes += [RowDelete("message_calls", (ulid_bytes(call),)) for call in facts.answers]
    return changes


def _project_message_retracted(facts: said.MessageRetracted, version: int, at: int) -> list[RowChange]:
    changes: list[RowChange] = [
        RowUpdate("messages", (place,), {"retracted": version})
        for first, last in facts.spans
        for place in range(first, last + 1)
    ]
    changes += [RowUpdate("summaries", (place,), {"retired": version}) for place in facts.voided]
    values: Row = {"messages": facts.position, "newest": facts.newest, "edited": version}
    if facts.shared is not None:
        values["shared"] = _encode_shared(facts.shared)
    return [
        *changes,
        RowUpdate("threads", (), values),
        *(RowDelete("message_calls", (ulid_bytes(call),)) for call in facts.dropped),
        *_replace_call_rows(facts.opened),
    ]


def _project_summary_made(facts: said.SummaryMade, version: int, at: int) -> list[RowChange]:
    if facts.window:
        return []  # Only packs refer to it.
    summary, shared = ulid_bytes(facts.summary), _encode_shared(facts.shared)
    row = _build_row("summaries", facts, version, summary_id=summary, shared=shared)
    changes: list[RowChange] = [RowUpdate("summaries", (place,), {"retired": version}) for place in facts.replaces]
    used = {} if facts.usage is None else usage_amounts(facts.usage)
    return [*changes, RowInsert("summaries", row), RowUpdate("threads", (), {"edited": version}, used)]


def _project_tokens_counted(facts: said.TokensCounted, version: int, at: int) -> list[RowChange]:
    return [
        RowReplace("message_counts", {"tokenizer": facts.tokenizer, "version": place, "tokens": tokens})
        for place, tokens in zip(facts.versions, facts.counts, strict=False)
    ]


SESSION_ROW_RULES: dict[str, Rule] = {
    "session.opened": _project_session_opened,
    "session.changed": _project_session_changed,
    "session.closing": _project_session_closing,
    "session.offered": _project_session_offered,
    "session.closed": lambda facts, *_: [RowUpdate("sessions", (), {"status": "ended" if facts.reset else "closed"})],
    "thread.added": lambda facts, version, at: [
        RowReplace("session_threads", {"thread": facts.thread, "version": version})
    ],
    "thread.opened": _project_thread_opened,
    "thread.forked": _project_thread_forked,
    "thread.ended": _project_thread_ended,
    "message.appended": _project_message_appended,
    "message.retracted": _project_message_retracted,
    "message.pinned": lambda facts, *_: [RowUpdate("messages", (facts.version,), {"pinned": 1 if facts.pinned else 0})],
    "summary.made": _project_summary_made,
    "context.packed": lambda facts, version, at: [RowUpdate("threads", (), {"packed": version})],
    "tokens.counted": _project_tokens_counted,
}
