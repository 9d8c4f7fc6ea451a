"""Loading: a stream's rows → the state that folding its events gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from holdfast.core.journal.tables import USAGE_COLUMNS
from holdfast.core.lazy import decoder
from holdfast.errors import Corrupt
from holdfast.records.batches import Head
from holdfast.records.events.sessions import CallRef, SharedSegment
from holdfast.records.frames import (
    LIVE_STATUSES,
    Call,
    FrameLimits,
    FrameState,
    Handle,
    Question,
    ResultRef,
    StreamState,
)
from holdfast.records.ids import ulid_text
from holdfast.records.sessions import Handover, SessionState, ThreadState
from holdfast.records.usage import Usage, sum_usage

ULID_BYTES = 16

Rows = Mapping[str, Iterable[Mapping[str, Any]]]


def build_state(head: Head, rows: Rows) -> StreamState:
    """Build a stream's state from its head and the rows of its live frames, one list per table.

    Rows that do not fit together raise Corrupt: an unreadable state is never mistaken for an empty one.
    """
    try:
        return _build_state(head, rows)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"The rows of {head.stream} do not fit together ({error!r}). Run `holdfast verify`.") from None


def _build_state(head: Head, rows: Rows) -> StreamState:
    frames = {_id_text(row["frame_id"]): dict(row) for row in rows["frames"]}
    parts: dict[str, dict[str, Any]] = {
        id: {"away": {}, "reservations": {}, "handles": {}, "results": [], "calls": {}} for id in frames
    }
    for row in rows["frame_reservations"]:
        if row["amount"]:
            parts[_id_text(row["frame_id"])]["reservations"][row["purpose"]] = row["amount"]
    for row in rows["frame_handles"]:
        known = _pick(row, "priority", "position", "version", "removed")
        handle = Handle(id=row["handle_id"], kind=row["handle_type"], tokens=row["estimated_tokens"], **known)
        parts[_id_text(row["frame_id"])]["handles"][handle.id] = handle
    for row in rows["frame_results"]:
        ref = ResultRef(position=row["position"], kind=row["result_type"], ref=row["ref_id"], version=row["version"])
        parts[_id_text(row["frame_id"])]["results"].append(ref)
    for row in rows["frame_calls"]:
        call = Call(id=_id_text(row["call_id"]), **_pick(row, "kind", "name", "if_interrupted", "version"))
        parts[_id_text(row["frame_id"])]["calls"][call.id] = call
    for row in rows["frame_children"]:
        parts[_id_text(row["frame_id"])]["away"][_id_text(row["child_frame_id"])] = row["child_stream"]
    for row in rows["suspended_frames"]:
        parts[_id_text(row["frame_id"])]["question"] = _build_question(row)
    _check_ancestry(frames)
    return StreamState(
        version=head.version,
        epoch=head.epoch,
        holder=head.holder,
        lease_ms=head.lease_ms,
        closed=head.closed,
        frames={id: _build_frame(id, row, parts[id]) for id, row in frames.items()},
        session=_build_session(rows),
        thread=_build_thread(rows),
    )


def _build_session(rows: Rows) -> SessionState | None:
    for row in rows.get("sessions", ()):
        handovers = [
            Handover(id=_id_text(one["handover_id"]), version=one["version"], attempts=one["attempts"])
            for one in rows["session_handovers"]
        ]
        return SessionState(
            **_pick(row, "status", "generation", "opened_at", "model", "tokenizer", "idle_timeout_ms", "memory"),
            tools=None if row["tools"] is None else row["tools"].hex(),
            system=row["system_version"],
            title=row["title_version"],
            metadata=row["metadata_version"],
            threads=tuple(sorted(one["thread"] for one in rows["session_threads"])),
            handovers={handover.id: handover for handover in handovers},
        )
    return None


def _build_thread(rows: Rows) -> ThreadState | None:
    for row in rows.get("threads", ()):
        calls = [CallRef(_id_text(one["call_id"]), one["version"], one["provider"]) for one in rows["message_calls"]]
        return ThreadState(
            **_pick(row, "messages", "newest", "newest_at", "floor", "edited", "generation", "packed"),
            ended=bool(row["ended"]),
            fresh=bool(row["fresh"]),
            shared=() if row["shared"] is None else decoder(tuple[SharedSegment, ...]).decode(row["shared"]),
            usage=row_usage(row),
            calls={call.id: call for call in calls},
        )
    return None


def row_usage(row: Mapping[str, Any]) -> Usage:
    """Return the usage in a frame's or thread's row."""
    return sum_usage(**{column.removesuffix("_tokens"): row[column] for column in USAGE_COLUMNS})


def _check_ancestry(frames: dict[str, dict[str, Any]]) -> None:
    """Check that every live frame is one level below its live parent; otherwise walking up might never end."""
    for id, row in frames.items():
        parent = _optional_id_text(row["parent_frame_id"])
        # An ended frame is read without its parent.
        if parent is not None and row["status"] in LIVE_STATUSES and frames[parent]["depth"] != row["depth"] - 1:
            raise ValueError(f"frame {id} is not one level below its parent")


def _build_frame(id: str, row: Mapping[str, Any], parts: Mapping[str, Any]) -> FrameState:
    return FrameState(
        id=id,
        parent=_optional_id_text(row["parent_frame_id"]),
        **_pick(row, "depth", "status", "granted", "version", "created_at", "deadline", "stopped_at"),
        **_pick(row, "used", "reserved", "lent", "tool_calls", "outer_stream"),
        **_pick(parts, "away", "reservations", "handles", "calls"),
        limits=FrameLimits(
            context_tokens=row["max_context_tokens"],
            tool_calls=row["max_tool_calls"],
            depth=row["max_subframe_depth"],
            timeout_ms=row["timeout_ms"],
        ),
        pushed=row["pushed_version"],
        goal=row["goal_version"],
        usage=row_usage(row),
        error=row["error_version"],
        context_hash=None if row["context_hash"] is None else row["context_hash"].hex(),
        outer=_optional_id_text(row["outer_frame_id"]),
        results=tuple(sorted(parts["results"], key=attrgetter("position"))),
        question=parts.get("question"),
    )


def _build_question(row: Mapping[str, Any]) -> Question:
    return Question(
        id=_id_text(row["question_id"]),
        **_pick(row, "kind", "prior", "version", "suspended_at", "released", "expires_at", "on_expiry", "until"),
        token=None if row["token_id"] is None else row["token_id"].hex(),
        within=_optional_id_text(row["within"]),
        call=_optional_id_text(row["call_id"]),
        answer=row["answer_version"],
    )


def _pick(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the columns that a record has under the same name."""
    return {name: row[name] for name in names}


def _id_text(raw: bytes) -> str:
    if len(raw) != ULID_BYTES:
        raise ValueError("an id is not sixteen bytes long")
    return ulid_text(raw)


def _optional_id_text(raw: bytes | None) -> str | None:
    return None if raw is None else _id_text(raw)
