"""Events of scoped state, its graph, and declared effects."""

from __future__ import annotations

from typing import Any

from holdfast.records.events.envelope import Content, Facts
from holdfast.records.ids import OperatorId


class StateWritten(Facts, frozen=True):
    """A key has a new value; the event's version is the entry's. Keys are never personal; the value is content.

    `effect` names the declared effect that requested it.
    """

    key: str
    tier: str | None = None
    lifetime: str | None = None
    content_kind: str | None = None
    salience: float | None = None
    expires_at: int | None = None
    reducer: str | None = None
    value_schema: str | None = None
    effect: str | None = None


class ValueContent(Content, frozen=True):
    """A value as JSON; `given` is the argument from which a reducer made it."""

    value: Any = None
    given: Any = None


class StateDeleted(Facts, frozen=True):
    """A key was deleted; `cause` is a call, the end of its lifetime, its expiry, or the retraction of its source."""

    key: str
    cause: str = "call"
    effect: str | None = None
    missing: bool = False
    """True if the key had no value: a call with an idempotency key found nothing, and its retry must find the same."""


class StateLinked(Facts, frozen=True):
    """An edge between two keys, which may be in different scopes."""

    source: str
    kind: str
    target: str
    target_scope: str
    weight: float | None = None
    effect: str | None = None


class StateUnlinked(Facts, frozen=True):
    """An edge was removed."""

    source: str
    kind: str
    target: str
    target_scope: str
    effect: str | None = None


class OperatorRan(Facts, frozen=True):
    """An operator returned its output and declared these effects, in order; their changes are in the same append."""

    operator: OperatorId
    effects: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kind of each effect."""
    suppressed: tuple[str, ...] = ()
    """Effects that middleware suppressed."""
    given: str | None = None
    """A keyed digest of the input of a run with a key: the same key with another input is another call."""


class OutputContent(Content, frozen=True):
    """An operator's output, as data."""

    output: Any = None


class EffectDeclared(Facts, frozen=True):
    """A change for a sink to make: in order with the others of its stream and sink, once per id.

    `effect` is also the id of the event.
    """

    effect: str
    kind: str
    sink: str
    operator: OperatorId | None = None
    needs_approval: bool = False


class EffectContent(Content, frozen=True):
    """The effect itself, as data, and the user who declared it, on whose behalf the sink acts."""

    payload: Any = None
    user: str | None = None


class EffectSettled(Facts, frozen=True):
    """The outcome of an attempt: applied, skipped, failed (to be retried at `retry_at`), deferred or dead."""

    effect: str
    sink: str
    outcome: str
    attempts: int = 1
    retry_at: int | None = None


class SettledContent(Content, frozen=True):
    """A sink's answer, or the reason why it failed."""

    answer: Any = None
    reason: str | None = None


class EffectRevived(Facts, frozen=True):
    """A dead, deferred or unapproved effect is to be tried now."""

    effect: str
    sink: str
    approved: bool = False
