"""Projection: event → row changes. Stateless, so that inbox events commute and a rebuild needs no memory.

An event's facts contain everything its rows need; amounts are added, never computed from a state that another writer
may have changed. Rows refer to the event that holds a value. Unknown types change no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.core.journal.project_sessions import LINE_RULES, used_amounts
from holdfast.records.batches import Bump, Change, Drop, Put, Replace, Row, Update
from holdfast.records.events import calls, frames, state
from holdfast.records.frames import FrameLimits
from holdfast.records.ids import hex_bytes, ulid_bytes
from holdfast.records.usage import Usage


class Place(NamedTuple):
    """The version and time of an event."""

    version: int
    at: int


def project(type_name: str, facts: Any, version: int, at: int) -> list[Change]:
    """Return the row changes of one event, in the order in which they must be applied."""
    line = LINE_RULES.get(type_name) or STATE_RULES.get(type_name)
    if line is not None:
        changes = line(facts, version, at)
    else:
        rule = _RULES.get(type_name)
        changes = rule(facts, Place(version, at)) if rule is not None else []
    artifacts = getattr(facts, "artifacts", None)
    if artifacts:
        changes.extend(
            Replace("artifact_refs", {"artifact": hex_bytes(name), "stream_version": version}) for name in artifacts
        )
    return changes


def _frame(frame: str, place: Place, values: Row | None = None, amounts: dict[str, int] | None = None) -> Update:
    """Return an update of one frame's row that also sets its version."""
    return Update("frames", (ulid_bytes(frame),), {**(values or {}), "version": place.version}, amounts or {})


def _used(usage: Usage, used: int) -> dict[str, int]:
    return {**({"used": used} if used else {}), **used_amounts(usage)}


def _limits(limits: FrameLimits) -> Row:
    return {
        "max_context_tokens": limits.context_tokens,
        "max_tool_calls": limits.tool_calls,
        "max_subframe_depth": limits.depth,
        "timeout_ms": limits.timeout_ms,
    }


def _pushed(facts: frames.FramePushed, place: Place) -> list[Change]:
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
        **_limits(facts.limits),
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
    changes: list[Change] = [Put("frames", row)]
    if facts.parent is not None:
        changes.append(_frame(facts.parent, place, {"status": "waiting"}, _lent(facts.granted or 0)))
    return changes


def _lent(amount: int) -> dict[str, int]:
    return {"lent": amount} if amount else {}


def _updated(facts: frames.FrameUpdated, place: Place) -> list[Change]:
    values: Row = {}
    if facts.status is not None:
        values["status"] = facts.status
    if facts.limits is not None:
        values.update(_limits(facts.limits))
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
    return [_frame(facts.frame, place, values)]


def _reserved(facts: frames.FrameReserved, place: Place) -> list[Change]:
    return [
        Bump("frame_reservations", (ulid_bytes(facts.frame), facts.purpose), {"amount": facts.amount}),
        _frame(facts.frame, place, amounts={"reserved": facts.amount}),
    ]


def _spent(facts: frames.FrameSpent, place: Place) -> list[Change]:
    amounts = _used(facts.usage, facts.usage.spent)
    changes: list[Change] = []
    if facts.purpose is not None and facts.from_reserved:
        amounts["reserved"] = -facts.from_reserved
        key = (ulid_bytes(facts.frame), facts.purpose)
        changes.append(Bump("frame_reservations", key, {"amount": -facts.from_reserved}))
    changes.append(_frame(facts.frame, place, amounts=amounts))
    return changes


def _popped(facts: frames.FramePopped, place: Place) -> list[Change]:
    changes: list[Change] = [_frame(facts.frame, place, {"status": facts.status, "completed_at": place.at})]
    if facts.question is not None:
        changes.append(Drop("suspended_frames", (ulid_bytes(facts.frame),)))
    if facts.parent is not None:
        changes.append(_settle(facts.parent, facts, place))
    return changes


def _settle(parent: str, facts: frames.FramePopped | frames.ChildSettled, place: Place) -> Update:
    values: Row = {"status": "active"} if facts.wakes_parent else {}
    return _frame(parent, place, values, {**_used(facts.usage, facts.used), **_lent(-facts.granted)})


def _child_pushed(facts: frames.ChildPushed, place: Place) -> list[Change]:
    row: Row = {
        "frame_id": ulid_bytes(facts.frame),
        "child_frame_id": ulid_bytes(facts.child),
        "child_stream": facts.child_stream,
    }
    lent = _frame(facts.frame, place, {"status": "waiting"}, _lent(facts.granted))
    return [Put("frame_children", row), lent]


def _child_settled(facts: frames.ChildSettled, place: Place) -> list[Change]:
    gone = Drop("frame_children", (ulid_bytes(facts.frame), ulid_bytes(facts.child)))
    return [gone, _settle(facts.frame, facts, place)]


def _suspended(facts: frames.FrameSuspended, place: Place) -> list[Change]:
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
    changes: list[Change] = [Put("suspended_frames", row), _frame(facts.frame, place, {"status": "suspended"})]
    if facts.parent is not None and facts.released:
        changes.append(_frame(facts.parent, place, amounts=_lent(-facts.released)))
    return changes


def _resumed(facts: frames.FrameResumed, place: Place) -> list[Change]:
    values: Row = {"status": facts.status}
    if facts.deadline is not None:
        values["deadline"] = facts.deadline
    changes: list[Change] = [
        Drop("suspended_frames", (ulid_bytes(facts.frame),)),
        _frame(facts.frame, place, values),
    ]
    if facts.parent is not None and facts.reserved_again:
        changes.append(_frame(facts.parent, place, amounts=_lent(facts.reserved_again)))
    return changes


def _answered(facts: frames.QuestionAnswered, place: Place) -> list[Change]:
    return [Update("suspended_frames", (ulid_bytes(facts.frame),), {"answer_version": place.version})]


def _reissued(facts: frames.QuestionReissued, place: Place) -> list[Change]:
    values: Row = {"token_id": hex_bytes(facts.token), "expires_at": facts.expires_at}
    return [Update("suspended_frames", (ulid_bytes(facts.frame),), values)]


def _handle_added(facts: frames.HandleAdded, place: Place) -> list[Change]:
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
    return [Replace("frame_handles", row), _frame(facts.frame, place)]


def _handles(frame: str, handles: tuple[str, ...], removed: str | None, place: Place) -> list[Change]:
    raw = ulid_bytes(frame)
    changes: list[Change] = [Update("frame_handles", (raw, handle), {"removed": removed}) for handle in handles]
    changes.append(_frame(frame, place))
    return changes


def _result_added(facts: frames.ResultAdded, place: Place) -> list[Change]:
    row: Row = {
        "frame_id": ulid_bytes(facts.frame),
        "position": facts.position,
        "result_type": facts.kind,
        "ref_id": facts.ref,
        "version": place.version,
    }
    return [Put("frame_results", row), _frame(facts.frame, place)]


def _requested(kind: str, name: str | None, facts: Any, place: Place) -> list[Change]:
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
    return [(Replace if again else Put)("frame_calls", row), _frame(facts.frame, place, values, amounts)]


def _returned(facts: Any, place: Place, usage: Usage, failed: bool) -> list[Change]:
    return [
        Drop("frame_calls", (ulid_bytes(facts.frame), ulid_bytes(facts.call))),
        _frame(facts.frame, place, {"error_version": place.version if failed else None}, _used(usage, usage.spent)),
    ]


def _responded(facts: calls.ModelResponded, place: Place) -> list[Change]:
    usage = facts.usage if facts.doubtful is None else facts.usage + facts.doubtful
    return _returned(facts, place, usage, failed=False)


_NOTHING = Usage()

_RULES: dict[str, Callable[[Any, Place], list[Change]]] = {
    "frame.pushed": _pushed,
    "frame.updated": _updated,
    "frame.reserved": _reserved,
    "frame.spent": _spent,
    "frame.popped": _popped,
    "frame.suspended": _suspended,
    "frame.resumed": _resumed,
    "frame.overdue": lambda facts, place: [_frame(facts.frame, place)],
    "frame.handle_added": _handle_added,
    "frame.handles_removed": lambda facts, place: _handles(facts.frame, facts.handles, facts.removal, place),
    "frame.handles_restored": lambda facts, place: _handles(facts.frame, facts.handles, None, place),
    "frame.compacted": lambda facts, place: _handles(facts.frame, facts.removed, facts.compaction, place),
    "frame.result_added": _result_added,
    "child.pushed": _child_pushed,
    "child.settled": _child_settled,
    "question.answered": _answered,
    "question.reissued": _reissued,
    "model.requested": lambda facts, place: _requested("model", facts.model, facts, place),
    "model.responded": _responded,
    "model.failed": lambda facts, place: _returned(facts, place, facts.usage, failed=True),
    "tool.requested": lambda facts, place: _requested("tool", facts.name, facts, place),
    "tool.returned": lambda facts, place: _returned(facts, place, _NOTHING, failed=facts.failed),
    "run.requested": lambda facts, place: _requested("run", facts.name, facts, place),
    "run.returned": lambda facts, place: _returned(facts, place, _NOTHING, failed=facts.failed),
}


def _written(facts: state.StateWritten, version: int, at: int) -> list[Change]:
    row: Row = {
        "key": facts.key,
        "version": version,
        "expires_at": facts.expires_at,
        "lifetime": facts.lifetime,
    }
    return [Replace("state", row), Put("state_history", {"key": facts.key, "version": version})]


def _deleted(facts: state.StateDeleted, version: int, at: int) -> list[Change]:
    if facts.missing:
        return []  # It only records that a deletion was requested.
    return [Drop("state", (facts.key,)), Put("state_history", {"key": facts.key, "version": version})]


def _linked(facts: state.StateLinked, version: int, at: int) -> list[Change]:
    row: Row = {
        "source": facts.source,
        "kind": facts.kind,
        "target_scope": facts.target_scope,
        "target": facts.target,
        "version": version,
    }
    return [Replace("edges", row)]


def _unlinked(facts: state.StateUnlinked, version: int, at: int) -> list[Change]:
    return [Drop("edges", (facts.source, facts.kind, facts.target_scope, facts.target))]


def _declared(facts: state.EffectDeclared, version: int, at: int) -> list[Change]:
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
    return [Put("effects", row)]


def _settled(facts: state.EffectSettled, version: int, at: int) -> list[Change]:
    key = (ulid_bytes(facts.effect),)
    if facts.outcome in ("applied", "skipped"):
        return [Drop("effects", key)]
    # `settled` is the version of the newest attempt's event, which holds the reason for the failure.
    values: Row = {
        "status": facts.outcome,
        "attempts": facts.attempts,
        "retry_at": facts.retry_at,
        "settled": version,
    }
    return [Update("effects", key, values)]


def _revived(facts: state.EffectRevived, version: int, at: int) -> list[Change]:
    values: Row = {"status": "pending", "attempts": 0, "retry_at": None}
    return [Update("effects", (ulid_bytes(facts.effect),), values)]


STATE_RULES: dict[str, Callable[[Any, int, int], list[Change]]] = {
    "state.written": _written,
    "state.deleted": _deleted,
    "state.linked": _linked,
    "state.unlinked": _unlinked,
    "effect.declared": _declared,
    "effect.settled": _settled,
    "effect.revived": _revived,
}
