"""Events of scoped state, its graph, and of effects declared as data."""

from __future__ import annotations

from typing import Any

from holdfast.records.events.envelope import Content, Facts


class StateWritten(Facts, frozen=True):
    """A key has a new value. The key itself is never personal; the value is content."""

    key: str
    revision: int
    tier: str | None = None
    lifetime: str | None = None
    content_kind: str | None = None
    salience: float | None = None
    expires_at: int | None = None
    reducer: str | None = None
    tokens: int | None = None
    trust: str | None = None
    value_schema: str | None = None


class ValueContent(Content, frozen=True):
    """A value as JSON."""

    value: Any = None
    metadata: dict[str, Any] | None = None


class StateDeleted(Facts, frozen=True):
    """A key has no value any more; `cause` is a call, expiry or the end of its lifetime."""

    key: str
    revision: int
    cause: str = "call"


class StateLinked(Facts, frozen=True):
    """An edge between two entries."""

    source: str
    kind: str
    target: str
    target_scope: str | None = None
    weight: float | None = None


class StateUnlinked(Facts, frozen=True):
    """An edge is gone."""

    source: str
    kind: str
    target: str
    target_scope: str | None = None


class EffectDeclared(Facts, frozen=True):
    """An operator or a frame wants something changed outside."""

    effect: str
    kind: str
    sink: str
    frame: str | None = None
    operator: str | None = None
    needs_approval: bool = False


class EffectContent(Content, frozen=True):
    """The effect itself, as data."""

    scope: str | None = None
    key: str | None = None
    value: Any = None
    payload: Any = None


class EffectSettled(Facts, frozen=True):
    """applied, skipped, failed, deferred or dead, after this many attempts."""

    effect: str
    sink: str
    outcome: str
    attempts: int = 1
    retry_at: int | None = None


class EffectRevived(Facts, frozen=True):
    """A dead effect is to be tried again."""

    effect: str
    sink: str
