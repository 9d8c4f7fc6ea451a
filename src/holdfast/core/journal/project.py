"""Projection: event → row changes. Stateless, so that inbox events commute and a rebuild needs no memory.

An event's facts contain everything its rows need; amounts are added, never computed from a state that another writer
may have changed. Rows refer to the event that holds a value. Unknown types change no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.core.journal.project_sessions import SESSION_ROW_RULES, usage_amounts
from holdfast.records.batches import Row, RowChange, RowDelete, RowIncrement, RowInsert, RowReplace, RowUpdate
from holdfast.records.events import calls, frames, state
from holdfast.records.frames import FrameLimits
from holdfast.records.ids import hex_bytes, ulid_bytes
from holdfast.records.usage import Usage


class EventPosition(NamedTuple):
    """The version and time of an event."""

    version: int
    at: int


def project_event(type_name: str, facts: Any, version: int, at: int) -> list[RowChange]:
    """Return the row changes of one event, in the order in which they must be applied."""
    thread = SESSION_ROW_RULES.get(type_name) or STATE_ROW_RULES.get(type_name)
    if thread is not None:
        changes = thread(facts, version, at)
    else:
        rule = _FRAME_ROW_RULES.get(type_name)
        changes = rule(facts, EventPosition(version, at)) if rule is not None else []
    artifacts = getattr(facts, "artifacts", None)
    if artifacts:
        changes.extend(
            RowReplace("artifact_refs", {"artifact": hex_bytes(name), "stream_version": version}) for name in artifacts
        )
    return changes


def _update_frame_row(
    frame: str, place: EventPosition, values: Row | None = None, amounts: dict[str, int] | None = None
) -> RowUpdate:
    """Return an update of one frame's row that also sets its version."""
    return RowUpdate("frames", (ulid_bytes(frame),), {**(values or {}), "version": place.version}, amounts or {})


def _spent_amounts(usage: Usage, used: int) -> dict[str, int]:
    return {**({"used": used} if used else {}), **usage_amounts(usage)}


def _limit_columns(limits: FrameLimits) -> Row:
    return {
        "max_context_tokens": limits.context_tokens,
        "max_tool_calls": limits.tool_calls,
        "max_subframe_depth": limits.depth,
        "timeout_ms": limits.timeout_ms,
    }


def _project_frame_pushed(facts: frames.FramePushed, place: EventPosition) -> list[RowChange]:
    row: Row = {
        "frame_id": ulid_bytes(facts.frame),
        "parent_frame_id": None if facts.parent is None else ulid_bytes(facts.parent),
        "depth": facts.depth,
        "status": "active",
        "granted": facts.granted,
        "used": 0,
        "reserved": 0,
        "lent": 0,
        "input_tokens": 0,
        "cached_input_tokens": 0,
        "cache_write_tokens": 0,
        "output_tokens": 0,
        "reasoning_tokens": 0,
        "cost": 0,
        "unpriced_tokens": 0,
        "estimated_tokens": 0,
        "tool_calls": 0,
        **_limit_columns(facts.limits),
        "deadline": facts.deadline,
        "stopped_at": None,
        "created_at": place.at,
        "completed_at": None,
        "pushed_version": place.version,
        "goal_version": place.version,
        "version": place.version,
        "error_version": None,
        "context_hash": None,
        "outer_frame_id": None if facts.outer is None else ulid_bytes(facts.outer),
        "outer_stream": facts.outer_stream,
    }
    changes: list[RowChange] = [RowInsert("frames", row)]
    if facts.parent is not None:
        changes.append(_update_frame_row(facts.parent, place, {"status": "waiting"}, _lent_amount(facts.granted or 0)))
    return changes


def _lent_amount(amount: int) -> dict[str, int]:
    return {"lent": amount} if amount else {}


def _project_frame_updated(facts: frames.FrameUpdated, place: EventPosition) -> list[RowChange]:
    values: Row = {}
    if facts.status is not None:
        values["status"] = facts.status
    if facts.limits is not None:
        values.update(_limit_columns(facts.limits))
    if facts.deadline is not None:
        values["deadline"] = facts.deadline
    if facts.granted is not None:
        values["granted"] = facts.granted
    if facts.context_hash is not None:
        values["context_hash"] = hex_bytes(facts.context_hash)
    if facts.texts:
        values["goal_version"] = place.version
    if facts.runs or facts.stopped_at is not None:
        values["stopped_at"] = facts.stopped_at
    return [_update_frame_row(facts.frame, place, values)]


def _project_frame_reserved(facts: frames.FrameReserved, place: EventPosition) -> list[RowChange]:
    return [
        RowIncrement("frame_reservations", (ulid_bytes(facts.frame), facts.purpose), {"amount": facts.amount}),
        _update_frame_row(facts.frame, place, amounts={"reserved": facts.amount}),
    ]


def _project_frame_spent(facts: frames.FrameSpent, place: EventPosition) -> list[RowChange]:
    amounts = _spent_amounts(facts.usage, facts.usage.spent)
    changes: list[RowChange] = []
    if facts.purpose is not None and facts.from_reserved:
        amounts["reserved"] = -facts.from_reserved
        key = (ulid_bytes(facts.frame), facts.purpose)
        changes.append(RowIncrement("frame_reservations", key, {"amount": -facts.from_reserved}))
    changes.append(_update_frame_row(facts.frame, place, amounts=amounts))
    return changes


def _project_frame_popped(facts: frames.FramePopped, place: EventPosition) -> list[RowChange]:
    changes: list[RowChange] = [
        _update_frame_row(facts.frame, place, {"status": facts.status, "completed_at": place.at})
    ]
    if facts.question is not None:
        changes.append(RowDelete("suspended_frames", (ulid_bytes(facts.frame),)))
    if facts.parent is not None:
        changes.append(_settle_child_row(facts.parent, facts, place))
    return changes


def _settle_child_row(parent: str, facts: frames.FramePopped | frames.ChildSettled, place: EventPosition) -> RowUpdate:
    values: Row = {"status": "active"} if facts.wakes_parent else {}
    return _update_frame_row(
        parent, place, values, {**_spent_amounts(facts.usage, facts.used), **_lent_amount(-facts.granted)}
    )


def _project_child_pushed(facts: frames.ChildPushed, place: EventPosition) -> list[RowChange]:
    row: Row = {
        "frame_id": ulid_bytes(facts.frame),
        "child_frame_id": ulid_bytes(facts.child),
        "child_stream": facts.child_stream,
    }
    lent = _update_frame_row(facts.frame, place, {"status": "waiting"}, _lent_amount(facts.granted))
    return [RowInsert("frame_children", row), lent]


def _project_child_settled(facts: frames.ChildSettled, place: EventPosition) -> list[RowChange]:
    gone = RowDelete("frame_children", (ulid_bytes(facts.frame), ulid_bytes(facts.child)))
    return [gone, _settle_child_row(facts.frame, facts, place)]


def _project_frame_suspended(facts: frames.FrameSuspendedFacts, place: EventPosition) -> list[RowChange]:
    row: Row = {
        "frame_id": ulid_bytes(facts.frame),
        "question_id": ulid_bytes(facts.question),
        "kind": facts.kind,
        "prior": facts.prior,
        "version": place.version,
        "suspended_at": place.at,
        "released": facts.released,
        "expires_at": facts.expires_at,
        "on_expiry": facts.on_expiry,
        "until": facts.until,
        "token_id": None if facts.token is None else hex_bytes(facts.token),
        "within": None if facts.within is None else ulid_bytes(facts.within),
        "call_id": None if facts.call is None else ulid_bytes(facts.call),
        "answer_version": None,
    }
    changes: list[RowChange] = [
        RowInsert("suspended_frames", row),
        _update_frame_row(facts.frame, place, {"status": "suspended"}),
    ]
    if facts.parent is not None and facts.released:
        changes.append(_update_frame_row(facts.parent, place, amounts=_lent_amount(-facts.released)))
    return changes


def _project_frame_resumed(facts: frames.FrameResumed, place: EventPosition) -> list[RowChange]:
    values: Row = {"status": facts.status}
    if facts.deadline is not None:
        values["deadline"] = facts.deadline
    changes: list[RowChange] = [
        RowDelete("suspended_frames", (ulid_bytes(facts.frame),)),
        _update_frame_row(facts.frame, place, values),
    ]
    if facts.parent is not None and facts.reserved_again:
        changes.append(_update_frame_row(facts.parent, place, amounts=_lent_amount(facts.reserved_again)))
    return changes


def _project_question_answered(facts: frames.QuestionAnswered, place: EventPosition) -> list[RowChange]:
    return [RowUpdate("suspended_frames", (ulid_bytes(facts.frame),), {"answer_version": place.version})]


def _project_question_reissued(facts: frames.QuestionReissued, place: EventPosition) -> list[RowChange]:
    values: Row = {"token_id": hex_bytes(facts.token), "expires_at": facts.expires_at}
    return [RowUpdate("suspended_frames", (ulid_bytes(facts.frame),), values)]


def _project_handle_added(facts: frames.HandleAdded, place: EventPosition) -> list[RowChange]:
    row: Row = {
        "frame_id": ulid_bytes(facts.frame),
        "handle_id": facts.handle,
        "handle_type": facts.kind,
        "priority": facts.priority,
        "position": facts.position,
        "estimated_tokens": facts.tokens,
        "version": place.version,
        "removed": None,
    }
    return [RowReplace("frame_handles", row), _update_frame_row(facts.frame, place)]


def _mark_handle_rows(
    frame: str, handles: tuple[str, ...], removed: str | None, place: EventPosition
) -> list[RowChange]:
    raw = ulid_bytes(frame)
    changes: list[RowChange] = [RowUpdate("frame_handles", (raw, handle), {"removed": removed}) for handle in handles]
    changes.append(_update_frame_row(frame, place))
    return changes


def _project_result_added(facts: frames.ResultAdded, place: EventPosition) -> list[RowChange]:
    row: Row = {
        "frame_id": ulid_bytes(facts.frame),
        "position": facts.position,
        "result_type": facts.kind,
        "ref_id": facts.ref,
        "version": place.version,
    }
    return [RowInsert("frame_results", row), _update_frame_row(facts.frame, place)]


def _project_call_requested(kind: str, name: str | None, facts: Any, place: EventPosition) -> list[RowChange]:
    row: Row = {
        "frame_id": ulid_bytes(facts.frame),
        "call_id": ulid_bytes(facts.call),
        "kind": kind,
        "name": name,
        "if_interrupted": facts.if_interrupted,
        "version": place.version,
    }
    shown = getattr(facts, "context_hash", None)
    values: Row = {} if shown is None else {"context_hash": hex_bytes(shown)}
    amounts = {"tool_calls": 1} if kind == "tool" else None
    # A tool that runs again after an interruption keeps its call id: only the newest attempt is open.
    again = getattr(facts, "attempt", 1) > 1
    return [
        (RowReplace if again else RowInsert)("frame_calls", row),
        _update_frame_row(facts.frame, place, values, amounts),
    ]


def _project_call_returned(facts: Any, place: EventPosition, usage: Usage, failed: bool) -> list[RowChange]:
    return [
        RowDelete("frame_calls", (ulid_bytes(facts.frame), ulid_bytes(facts.call))),
        _update_frame_row(
            facts.frame, place, {"error_version": place.version if failed else None}, _spent_amounts(usage, usage.spent)
        ),
    ]


def _project_model_responded(facts: calls.ModelResponded, place: EventPosition) -> list[RowChange]:
    usage = facts.usage if facts.doubtful is None else facts.usage + facts.doubtful
    return _project_call_returned(facts, place, usage, failed=False)


_NO_USAGE = Usage()

_FRAME_ROW_RULES: dict[str, Callable[[Any, EventPosition], list[RowChange]]] = {
    "frame.pushed": _project_frame_pushed,
    "frame.updated": _project_frame_updated,
    "frame.reserved": _project_frame_reserved,
    "frame.spent": _project_frame_spent,
    "frame.popped": _project_frame_popped,
    "frame.suspended": _project_frame_suspended,
    "frame.resumed": _project_frame_resumed,
    "frame.overdue": lambda facts, place: [_update_frame_row(facts.frame, place)],
    "frame.handle_added": _project_handle_added,
    "frame.handles_removed": lambda facts, place: _mark_handle_rows(facts.frame, facts.handles, facts.removal, place),
    "frame.handles_restored": lambda facts, place: _mark_handle_rows(facts.frame, facts.handles, None, place),
    "frame.compacted": lambda facts, place: _mark_handle_rows(facts.frame, facts.removed, facts.compaction, place),
    "frame.result_added": _project_result_added,
    "child.pushed": _project_child_pushed,
    "child.settled": _project_child_settled,
    "question.answered": _project_question_answered,
    "question.reissued": _project_question_reissued,
    "model.requested": lambda facts, place: _project_call_requested("model", facts.model, facts, place),
    "model.responded": _project_model_responded,
    "model.failed": lambda facts, place: _project_call_returned(facts, place, facts.usage, failed=True),
    "tool.requested": lambda facts, place: _project_call_requested("tool", facts.name, facts, place),
    "tool.returned": lambda facts, place: _project_call_returned(facts, place, _NO_USAGE, failed=facts.failed),
    "run.requested": lambda facts, place: _project_call_requested("run", facts.name, facts, place),
    "run.returned": lambda facts, place: _project_call_returned(facts, place, _NO_USAGE, failed=facts.failed),
}


def _project_state_written(facts: state.StateWritten, version: int, at: int) -> list[RowChange]:
    row: Row = {
        "key": facts.key,
        "version": version,
        "expires_at": facts.expires_at,
        "lifetime": facts.lifetime,
    }
    return [RowReplace("state", row), RowInsert("state_history", {"key": facts.key, "version": version})]


def _project_state_deleted(facts: state.StateDeleted, version: int, at: int) -> list[RowChange]:
    if facts.missing:
        return []  # It only records that a deletion was requested.
    return [RowDelete("state", (facts.key,)), RowInsert("state_history", {"key": facts.key, "version": version})]


def _project_state_linked(facts: state.StateLinked, version: int, at: int) -> list[RowChange]:
    row: Row = {
        "source": facts.source,
        "kind": facts.kind,
        "target_scope": facts.target_scope,
        "target": facts.target,
        "version": version,
    }
    return [RowReplace("edges", row)]


def _project_state_unlinked(facts: state.StateUnlinked, version: int, at: int) -> list[RowChange]:
    return [RowDelete("edges", (facts.source, facts.kind, facts.target_scope, facts.target))]


def _project_effect_declared(facts: state.EffectDeclared, version: int, at: int) -> list[RowChange]:
    row: Row = {
        "effect_id": ulid_bytes(facts.effect),
        "sink": facts.sink,
        "kind": facts.kind,
        "status": "approval" if facts.needs_approval else "pending",
        "version": version,
        "attempts": 0,
        "retry_at": None,
        "settled": None,
    }
    return [RowInsert("effects", row)]


def _project_effect_settled(facts: state.EffectSettled, version: int, at: int) -> list[RowChange]:
    key = (ulid_bytes(facts.effect),)
    if facts.outcome in ("applied", "skipped"):
        return [RowDelete("effects", key)]
    # `settled` is the version of the newest attempt's event, which holds the reason for the failure.
    values: Row = {
        "status": facts.outcome,
        "attempts": facts.attempts,
        "retry_at": facts.retry_at,
        "settled": version,
    }
    return [RowUpdate("effects", key, values)]


def _project_effect_revived(facts: state.EffectRevived, version: int, at: int) -> list[RowChange]:
    values: Row = {"status": "pending", "attempts": 0, "retry_at": None}
    return [RowUpdate("effects", (ulid_bytes(facts.effect),), values)]


STATE_ROW_RULES: dict[str, Callable[[Any, int, int], list[RowChange]]] = {
    "state.written": _project_state_written,
    "state.deleted": _project_state_deleted,
    "state.linked": _project_state_linked,
    "state.unlinked": _project_state_unlinked,
    "effect.declared": _project_effect_declared,
    "effect.settled": _project_effect_settled,
    "effect.revived": _project_effect_revived,
}
