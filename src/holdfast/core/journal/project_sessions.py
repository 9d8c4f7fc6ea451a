"""Projection of sessions and conversations to row changes. Rows hold positions and counts, never message bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.records.batches import Row, RowChange, RowDelete, RowInsert, RowReplace, RowUpdate
from holdfast.records.events import sessions as said
from holdfast.records.ids import hex_bytes, ulid_bytes
from holdfast.records.usage import Usage


def _setting_columns(facts: said.SessionOpened, version: int) -> Row:
    values: Row = {}
    for name in ("model", "tokenizer", "idle_timeout_ms", "memory"):
        value = getattr(facts, name)
        if value is not None:
            values[name] = value
    if facts.tools is not None:
        values["tools"] = hex_bytes(facts.tools)
    if facts.own is not None:
        values["system_version"] = facts.own or None
    for name in (text for text in said.SESSION_TEXTS if text in facts.texts):
        values[f"{name}_version"] = version
    return values


def _project_session_opened(facts: said.SessionOpened, version: int, at: int) -> list[RowChange]:
    values = _setting_columns(facts, version)
    if facts.generation:
        return [RowUpdate("sessions", (), {**values, "status": "open", "generation": facts.generation})]
    row: Row = {
        "status": "open",
        "generation": 0,
        "opened_at": at,
        "opened_version": version,
        "model": None,
        "tokenizer": None,
        "tools": None,
        "idle_timeout_ms": None,
        "memory": None,
        "system_version": None,
        "title_version": None,
        "metadata_version": None,
    }
    return [RowInsert("sessions", {**row, **values})]


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


def _project_session_closed(facts: said.SessionClosedFacts, version: int, at: int) -> list[RowChange]:
    return [RowUpdate("sessions", (), {"status": "ended" if facts.reset else "closed"})]


def _thread_row(**known: Any) -> Row:
    row: Row = {
        "messages": 0,
        "newest": 0,
        "newest_at": 0,
        "floor": 0,
        "edited": 0,
        "generation": 0,
        "packed": 0,
        "private": 0,
        "ended": 0,
        "fresh": 0,
        "shared": None,
        "input_tokens": 0,
        "cached_input_tokens": 0,
        "cache_write_tokens": 0,
        "output_tokens": 0,
        "reasoning_tokens": 0,
        "cost": 0,
        "unpriced_tokens": 0,
        "estimated_tokens": 0,
    }
    return {**row, **known}


def _project_thread_opened(facts: said.ThreadOpened, version: int, at: int) -> list[RowChange]:
    if facts.generation:
        values: Row = {"generation": facts.generation, "ended": 0, "fresh": 0, "newest_at": at}
        return [RowUpdate("threads", (), values)]
    return [RowInsert("threads", _thread_row(newest_at=at, private=int(facts.private)))]


def _encode_shared(stretches: tuple[said.SharedSegment, ...] | tuple[said.MessageSpan, ...]) -> str | None:
    return msgspec.json.encode(stretches).decode() if stretches else None


def _project_thread_forked(facts: said.ThreadForked, version: int, at: int) -> list[RowChange]:
    row = _thread_row(
        messages=facts.position,
        newest_at=at,
        generation=facts.generation,
        shared=_encode_shared(facts.shared),
    )
    return [RowInsert("threads", row), *_replace_call_rows(facts.opened)]


def _project_thread_ended(facts: said.ThreadEnded, version: int, at: int) -> list[RowChange]:
    values: Row = {"ended": 1, "fresh": 1 if facts.reset else 0, "edited": version}
    if facts.reset:
        values.update(floor=version, messages=0, newest=0, shared=None)
    return [RowUpdate("threads", (), values), *_delete_call_rows(facts.dropped)]


def _replace_call_rows(calls: tuple[said.CallRef, ...]) -> list[RowChange]:
    return [
        RowReplace(
            "message_calls", {"call_id": ulid_bytes(call.id), "version": call.version, "provider": call.provider}
        )
        for call in calls
    ]


def _delete_call_rows(calls: tuple[str, ...]) -> list[RowChange]:
    return [RowDelete("message_calls", (ulid_bytes(call),)) for call in calls]


def usage_amounts(usage: Usage) -> dict[str, int]:
    """Return the amounts that a usage adds to the sums of a row."""
    amounts = {
        "input_tokens": usage.input,
        "cached_input_tokens": usage.cached_input,
        "cache_write_tokens": usage.cache_write,
        "output_tokens": usage.output,
        "reasoning_tokens": usage.reasoning,
        "cost": usage.cost or 0,
        "unpriced_tokens": usage.unpriced_tokens,
        "estimated_tokens": usage.estimated,
    }
    return {column: amount for column, amount in amounts.items() if amount}


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
    if facts.calls:
        changes += _replace_call_rows(tuple(said.CallRef(id, version, provider) for id, provider in facts.calls))
    return [*changes, *_delete_call_rows(facts.answers)] if facts.answers else changes


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
        *_delete_call_rows(facts.dropped),
        *_replace_call_rows(facts.opened),
    ]


def _project_summary_made(facts: said.SummaryMade, version: int, at: int) -> list[RowChange]:
    row: Row = {
        "version": version,
        "summary_id": ulid_bytes(facts.summary),
        "first": facts.first,
        "last": facts.last,
        "shared": _encode_shared(facts.shared),
        "tokens": facts.tokens,
        "tokenizer": facts.tokenizer,
        "retired": None,
    }
    changes: list[RowChange] = [RowUpdate("summaries", (place,), {"retired": version}) for place in facts.replaces]
    return [*changes, RowInsert("summaries", row), RowUpdate("threads", (), {"edited": version})]


def _project_tokens_counted(facts: said.TokensCounted, version: int, at: int) -> list[RowChange]:
    pairs = zip(facts.versions, facts.counts, strict=False)
    return [
        RowReplace("message_counts", {"tokenizer": facts.tokenizer, "version": place, "tokens": tokens})
        for place, tokens in pairs
    ]


SESSION_ROW_RULES: dict[str, Callable[[Any, int, int], list[RowChange]]] = {
    "session.opened": _project_session_opened,
    "session.changed": _project_session_changed,
    "session.closing": _project_session_closing,
    "session.offered": _project_session_offered,
    "session.closed": _project_session_closed,
    "thread.added": lambda facts, version, at: [
        RowReplace("session_threads", {"thread": facts.thread, "version": version})
    ],
    "thread.opened": _project_thread_opened,
    "thread.forked": _project_thread_forked,
    "thread.ended": _project_thread_ended,
    "message.appended": _project_message_appended,
    "message.retracted": _project_message_retracted,
    "message.pinned": lambda facts, version, at: [
        RowUpdate("messages", (facts.version,), {"pinned": 1 if facts.pinned else 0})
    ],
    "summary.made": _project_summary_made,
    "context.packed": lambda facts, version, at: [RowUpdate("threads", (), {"packed": version})],
    "tokens.counted": _project_tokens_counted,
}
