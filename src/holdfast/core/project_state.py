"""Events of state, edges and effects → row changes. Rows name the event that holds a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.records.events import state
from holdfast.records.ids import ulid_bytes
from holdfast.records.rows import Change, Drop, Put, Replace, Row, Update


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
        return []  # It only says that somebody asked.
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
    # The version of the newest attempt's event, which says why it failed.
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
