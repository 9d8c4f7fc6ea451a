"""Effects: changes that operators declare as data, and their outcomes.

An operator returns an OperatorOutput. Nothing in this module performs a change: effects are applied in the operator's
own append, or later by a sink, which recognises a repeated effect by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from holdfast.records.frames import Limits
from holdfast.records.ids import OperatorId
from holdfast.records.scope import Address

EffectStatus = Literal["pending", "approval", "applied", "skipped", "failed", "deferred", "dead"]
WhenDead = Literal["stop", "go_on"]

WHEN_DEAD: Final[tuple[WhenDead, ...]] = ("stop", "go_on")
FINAL_STATUSES: Final = ("applied", "skipped")
"""Outcomes that need no further work."""

STATE_SINK: Final = "state"
FRAME_SINK: Final = "frames"
QUESTION_SINK: Final = "questions"
SIGNAL_SINK: Final = "signals"
BUILT_IN_SINKS: Final = frozenset({STATE_SINK, FRAME_SINK, QUESTION_SINK, SIGNAL_SINK})
"""Sinks that every client has."""


class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """A declared change. With `needs_approval` it waits until it is approved."""

    needs_approval: bool = False


class StateEffect(Effect, frozen=True, kw_only=True):
    """A change of state: of `hf.state` in the operator's own append, or of another `store` by the sink of that name."""

    store: str | None = None


class _WriteOptions(StateEffect, frozen=True, kw_only=True):
    """The options of writing an entry; the arguments of `State.write`."""

    expected_version: int | None = None
    reducer: str = "overwrite"
    tier: str | None = None
    lifetime: str | None = None
    content_kind: str | None = None
    salience: float | None = None
    ttl: float | None = None


class WriteState(_WriteOptions, frozen=True, tag="write"):
    """An effect that writes a key of a scope. `key` is the entry's key; an effect needs no idempotency key."""

    scope: Address
    key: str
    value: Any


class DeleteState(StateEffect, frozen=True, tag="delete"):
    """An effect that deletes a key of a scope."""

    scope: Address
    key: str
    expected_version: int | None = None


class LinkState(StateEffect, frozen=True, tag="link"):
    """An effect that connects two keys by an edge; the target is in the same scope unless `target_scope` is given."""

    scope: Address
    source: str
    kind: str
    target: str
    target_scope: Address | None = None
    weight: float | None = None
    data: Any = None


class UnlinkState(StateEffect, frozen=True, tag="unlink"):
    """An effect that removes an edge."""

    scope: Address
    source: str
    kind: str
    target: str
    target_scope: Address | None = None


class Signal(Effect, frozen=True, tag="signal"):
    """An effect that signals a scope: an event `app.signal.<kind>` in its stream, for subscribers."""

    to: Address
    kind: str
    payload: Any = None


class _FrameOptions(Effect, frozen=True, kw_only=True):
    """The arguments of a new frame. `tokens` is a number of tokens, or a fraction of the parent's."""

    session: str | None = None
    inputs: Any = None
    metadata: dict[str, Any] | None = None
    tokens: int | float | None = None
    limits: Limits | None = None


class PushFrame(_FrameOptions, frozen=True, tag="push_frame"):
    """An effect that begins a root frame of an actor, alone or within a session. The frame's id is the effect's."""

    actor: str
    goal: str


class Delegate(_FrameOptions, frozen=True, tag="delegate"):
    """An effect that gives part of a frame's work to another actor: a child of `parent` in that actor's stream."""

    to: str
    goal: str
    parent: str


class Handoff(_FrameOptions, frozen=True, tag="handoff"):
    """An effect that hands work over for good: `frame` is completed and another actor gets a root frame for it."""

    to: str
    goal: str
    frame: str
    summary: str | None = None


class RequestApproval(Effect, frozen=True, tag="approval"):
    """An effect that asks a person.

    The question suspends `frame`; without one, a frame of `actor` is pushed to wait for the answer.
    """

    question: str
    frame: str | None = None
    actor: str = "main"
    session: str | None = None
    options: list[str] | None = None
    recommended: str | None = None
    arguments: Any = None
    payload: Any = None
    expires_ms: int | None = None
    on_expiry: str | None = None


class Custom(Effect, frozen=True, tag="custom"):
    """Any other effect, for a sink of your own: `kind` names it, `payload` is the data."""

    kind: str
    payload: Any
    sink: str


AnyStateEffect = WriteState | DeleteState | LinkState | UnlinkState
AnyEffect = AnyStateEffect | Signal | PushFrame | Delegate | Handoff | RequestApproval | Custom

EFFECT_KINDS: Final[dict[str, type[Effect]]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyEffect)}


class OperatorOutput(msgspec.Struct, frozen=True):
    """The return value of an operator: its output as plain data, and the effects it declares, in order."""

    output: Any = None
    effects: Sequence[AnyEffect] = ()


class EffectOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one effect so far. `sink` is None if middleware suppressed the effect."""

    effect: str
    kind: str
    sink: str | None
    outcome: EffectStatus
    answer: Any = None
    reason: Any = None


class OperatorResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an operator. `repeated` means that it had already run under its key and did not run again."""

    output: Any
    outcomes: tuple[EffectOutcome, ...] = ()
    repeated: bool = False


class DeclaredEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect as a sink receives it. The same `id` is the same effect: applying it twice must change nothing."""

    id: str
    kind: str
    sink: str
    payload: Any
    scope: str
    """The stream that declared it: effects of one scope for one sink arrive in order."""
    tenant: str
    operator: OperatorId | None = None
    attempt: int = 1
    declared_at: int = 0


class EffectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A declared effect and its status.

    It waits for its turn, its next attempt, its sink, an approval or manual attention, or it is settled: applied
    with an answer, or skipped.
    """

    id: str
    kind: str
    sink: str
    status: EffectStatus
    scope: str
    operator: OperatorId | None
    payload: Any
    attempts: int
    retry_at: int | None
    declared_at: int
    reason: Any = None
    answer: Any = None


class DispatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one dispatch, as numbers of effects."""

    applied: int = 0
    skipped: int = 0
    failed: int = 0
    deferred: int = 0
    dead: int = 0

    @property
    def attempts(self) -> int:
        """The number of effects handled."""
        return self.applied + self.skipped + self.failed + self.deferred + self.dead
