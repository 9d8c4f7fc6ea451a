"""Events of scoped state, its graph, and of effects declared as data."""

from __future__ import annotations

from typing import Any

from holdfast.records.events.envelope import Content, Facts


class StateWritten(Facts, frozen=True):
    """A key has a new value; the event's version is the entry's. Keys are never personal; the value is content.

    `effect` names the declared effect that asked for it.
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
    """A value as JSON; `given` is what a reducer was given to make it."""

    value: Any = None
    given: Any = None


class StateDeleted(Facts, frozen=True):
    """A key has no value any more; `cause` is a call, or the end of its lifetime or of its time."""

    key: str
    cause: str = "call"
    effect: str | None = None
    missing: bool = False
    """Whether it had none before: a call under an idempotency key found nothing, and its retry finds as much."""


class StateLinked(Facts, frozen=True):
    """An edge between two keys, which may be in different scopes."""

    source: str
    kind: str
    target: str
    target_scope: str
    weight: float | None = None
    effect: str | None = None


class StateUnlinked(Facts, frozen=True):
    """An edge is gone."""

    source: str
    kind: str
    target: str
    target_scope: str
    effect: str | None = None


class OperatorRan(Facts, frozen=True):
    """An operator gave its output and declared these effects, in order; what they change is in the same append."""

    operator: str
    effects: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """What each of them is."""
    suppressed: tuple[str, ...] = ()
    """Those that middleware took out."""
    given: str | None = None
    """A keyed digest of the input of a run that has a key: the same key with another input is another call."""


class OutputContent(Content, frozen=True):
    """What an operator gave, as data."""

    output: Any = None


class EffectDeclared(Facts, frozen=True):
    """Something is to be changed outside, by a sink: in order with others of its stream and sink, once by its id.

    `effect` is the id of the event, too.
    """

    effect: str
    kind: str
    sink: str
    operator: str | None = None
    needs_approval: bool = False


class EffectContent(Content, frozen=True):
    """The effect itself, as data, and who declared it: what a sink does for them is theirs."""

    payload: Any = None
    user: str | None = None


class EffectSettled(Facts, frozen=True):
    """What came of an attempt: applied, skipped, failed (to be tried again at `retry_at`), deferred or dead."""

    effect: str
    sink: str
    outcome: str
    attempts: int = 1
    retry_at: int | None = None


class SettledContent(Content, frozen=True):
    """What a sink answered, or why it failed."""

    answer: Any = None
    reason: str | None = None


class EffectRevived(Facts, frozen=True):
    """An effect that was dead, deferred or waiting for approval is to be tried now."""

    effect: str
    sink: str
    approved: bool = False
