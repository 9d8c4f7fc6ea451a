"""Projection of sessions and conversations to row changes. Rows hold positions and counts, never message bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.records.batches import Change, Drop, Put, Replace, Row, Update
from holdfast.records.events import sessions as said
from holdfast.records.ids import hex_bytes, ulid_bytes
from holdfast.records.usage import Usage


def _settings(facts: said.SessionOpened, version: int) -> Row:
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


def _opened(facts: said.SessionOpened, version: int, at: int) -> list[Change]:
    values = _settings(facts, version)
    if facts.generation:
        return [Update("sessions", (), {**values, "status": "open", "generation": facts.generation})]
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
    return [Put("sessions", {**row, **values})]


def _changed(facts: said.SessionOpened, version: int, at: int) -> list[Change]:
    values = _settings(facts, version)
    return [Update("sessions", (), values)] if values else []


def _closing(facts: said.SessionClosing, version: int, at: int) -> list[Change]:
    changes: list[Change] = [Update("sessions", (), {"status": "closing"})]
    if facts.handover is not None:
        row: Row = {"handover_id": ulid_bytes(facts.handover), "version": version, "attempts": 0}
        changes.append(Put("session_handovers", row))
    return changes


def _offered(facts: said.SessionOffered, version: int, at: int) -> list[Change]:
    key = (ulid_bytes(facts.handover),)
    if facts.taken or facts.given_up:
        return [Drop("session_handovers", key)]
    return [Update("session_handovers", key, {"attempts": facts.attempts})]


def _closed(facts: said.SessionClosed, version: int, at: int) -> list[Change]:
    return [Update("sessions", (), {"status": "ended" if facts.reset else "closed"})]


def _thread(**known: Any) -> Row:
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


def _thread_opened(facts: said.ThreadOpened, version: int, at: int) -> list[Change]:
    if facts.generation:
        values: Row = {"generation": facts.generation, "ended": 0, "fresh": 0, "newest_at": at}
        return [Update("threads", (), values)]
    return [Put("threads", _thread(newest_at=at, private=int(facts.private)))]


def _shared(stretches: tuple[said.Segment, ...] | tuple[said.Stretch, ...]) -> str | None:
    return msgspec.json.encode(stretches).decode() if stretches else None


def _forked(facts: said.ThreadForked, version: int, at: int) -> list[Change]:
    row = _thread(
        messages=facts.position,
        newest_at=at,
        generation=facts.generation,
        shared=_shared(facts.shared),
    )
    return [Put("threads", row), *_calls(facts.opened)]


def _thread_ended(facts: said.ThreadEnded, version: int, at: int) -> list[Change]:
    values: Row = {"ended": 1, "fresh": 1 if facts.reset else 0, "edited": version}
    if facts.reset:
        values.update(floor=version, messages=0, newest=0, shared=None)
    return [Update("threads", (), values), *_gone(facts.dropped)]


def _calls(calls: tuple[said.CallRef, ...]) -> list[Change]:
    return [
        Replace("message_calls", {"call_id": ulid_bytes(call.id), "version": call.version, "provider": call.provider})
        for call in calls
    ]


def _gone(calls: tuple[str, ...]) -> list[Change]:
    return [Drop("message_calls", (ulid_bytes(call),)) for call in calls]


def used_amounts(usage: Usage) -> dict[str, int]:
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


def _appended(facts: said.MessageAppended, version: int, at: int) -> list[Change]:
    values: Row = {"messages": facts.position, "newest": version, "newest_at": at}
    row = message_row(facts, version)
    used = {} if facts.usage is None else used_amounts(facts.usage)
    changes: list[Change] = [Put("messages", row), Update("threads", (), values, used)]
    if facts.calls:
        changes += _calls(tuple(said.CallRef(id, version, provider) for id, provider in facts.calls))
    return [*changes, *_gone(facts.answers)] if facts.answers else changes


def _retracted(facts: said.MessageRetracted, version: int, at: int) -> list[Change]:
    changes: list[Change] = [
        Update("messages", (place,), {"retracted": version})
        for first, last in facts.spans
        for place in range(first, last + 1)
    ]
    changes += [Update("summaries", (place,), {"retired": version}) for place in facts.voided]
    values: Row = {"messages": facts.position, "newest": facts.newest, "edited": version}
    if facts.shared is not None:
        values["shared"] = _shared(facts.shared)
    return [*changes, Update("threads", (), values), *_gone(facts.dropped), *_calls(facts.opened)]


def _summary(facts: said.SummaryMade, version: int, at: int) -> list[Change]:
    row: Row = {
        "version": version,
        "summary_id": ulid_bytes(facts.summary),
        "first": facts.first,
        "last": facts.last,
        "shared": _shared(facts.shared),
        "tokens": facts.tokens,
        "tokenizer": facts.tokenizer,
        "retired": None,
    }
    changes: list[Change] = [Update("summaries", (place,), {"retired": version}) for place in facts.replaces]
    return [*changes, Put("summaries", row), Update("threads", (), {"edited": version})]


def _counted(facts: said.TokensCounted, version: int, at: int) -> list[Change]:
    pairs = zip(facts.versions, facts.counts, strict=False)
    return [
        Replace("message_counts", {"tokenizer": facts.tokenizer, "version": place, "tokens": tokens})
        for place, tokens in pairs
    ]


LINE_RULES: dict[str, Callable[[Any, int, int], list[Change]]] = {
    "session.opened": _opened,
    "session.changed": _changed,
    "session.closing": _closing,
    "session.offered": _offered,
    "session.closed": _closed,
    "thread.added": lambda facts, version, at: [
        Replace("session_threads", {"thread": facts.thread, "version": version})
    ],
    "thread.opened": _thread_opened,
    "thread.forked": _forked,
    "thread.ended": _thread_ended,
    "message.appended": _appended,
    "message.retracted": _retracted,
    "message.pinned": lambda facts, version, at: [
        Update("messages", (facts.version,), {"pinned": 1 if facts.pinned else 0})
    ],
    "summary.made": _summary,
    "context.packed": lambda facts, version, at: [Update("threads", (), {"packed": version})],
    "tokens.counted": _counted,
}
