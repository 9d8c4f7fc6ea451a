"""Effects: changes declared as data by operators, and what came of them.

An operator returns an OperatorOutput. Nothing in here does anything: the effects are applied with the
operator's own event, or later by a sink, each under an id by which a sink knows it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from holdfast.records.frames import Limits
from holdfast.records.scope import Address

Outcome = Literal["pending", "approval", "applied", "skipped", "failed", "deferred", "dead"]
WhenDead = Literal["stop", "go_on"]

WHEN_DEAD: Final[tuple[WhenDead, ...]] = ("stop", "go_on")
FINAL: Final = ("applied", "skipped")
"""Outcomes after which nothing is left to do."""

STATE: Final = "state"
FRAMES: Final = "frames"
QUESTIONS: Final = "questions"
SIGNALS: Final = "signals"
BUILT_IN: Final = frozenset({STATE, FRAMES, QUESTIONS, SIGNALS})
"""Sinks that every client has."""


class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Something that is to be changed. With `needs_approval` it waits until somebody approves it."""

    needs_approval: bool = False


class StateEffect(Effect, frozen=True, kw_only=True):
    """A change of state: of `hf.state` in the operator's own append, or of another `store` by the sink of that name."""

    store: str | None = None


class _Written(StateEffect, frozen=True, kw_only=True):
    """How an entry is to be written; the arguments of `State.write`."""

    expected_version: int | None = None
    reducer: str = "overwrite"
    tier: str | None = None
    lifetime: str | None = None
    content_kind: str | None = None
    salience: float | None = None
    ttl: float | None = None


class WriteState(_Written, frozen=True, tag="write"):
    """Write a key of a scope. `key` is the entry's: no idempotency key, which an effect does not need."""

    scope: Address
    key: str
    value: Any


class DeleteState(StateEffect, frozen=True, tag="delete"):
    """Remove a key of a scope."""

    scope: Address
    key: str
    expected_version: int | None = None


class LinkState(StateEffect, frozen=True, tag="link"):
    """Connect two keys by an edge of a kind; the target's scope is the same unless another is given."""

    scope: Address
    source: str
    kind: str
    target: str
    target_scope: Address | None = None
    weight: float | None = None
    data: Any = None


class UnlinkState(StateEffect, frozen=True, tag="unlink"):
    """Take an edge away."""

    scope: Address
    source: str
    kind: str
    target: str
    target_scope: Address | None = None


class Signal(Effect, frozen=True, tag="signal"):
    """Tell a scope something: an event `app.signal.<kind>` in its stream, for whoever subscribes."""

    to: Address
    kind: str
    payload: Any = None


class _Work(Effect, frozen=True, kw_only=True):
    """What a new frame is given. `tokens` is a number of them, or the share of the parent's as a fraction."""

    session: str | None = None
    inputs: Any = None
    metadata: dict[str, Any] | None = None
    tokens: int | float | None = None
    limits: Limits | None = None


class PushFrame(_Work, frozen=True, tag="push_frame"):
    """Begin a unit of work: a root frame of an actor, on its own or within a session. Its id is the effect's."""

    actor: str
    goal: str


class Delegate(_Work, frozen=True, tag="delegate"):
    """Give a part of a frame's work to another actor: a child frame below `parent` in that actor's stream."""

    to: str
    goal: str
    parent: str


class Handoff(_Work, frozen=True, tag="handoff"):
    """Give work away for good: `frame` is completed and another actor has a root frame for it."""

    to: str
    goal: str
    frame: str
    summary: str | None = None


class RequestApproval(Effect, frozen=True, tag="approval"):
    """Ask a person. `frame` is suspended by the question; without one, a frame of `actor` is pushed to wait for it."""

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
    """Anything else, for a sink of yours: `kind` says what, `payload` is the data."""

    kind: str
    payload: Any
    sink: str


AnyEffect = (
    WriteState
    | DeleteState
    | LinkState
    | UnlinkState
    | Signal
    | PushFrame
    | Delegate
    | Handoff
    | RequestApproval
    | Custom
)

KINDS: Final[dict[str, type[Effect]]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyEffect)}


class OperatorOutput(msgspec.Struct, frozen=True):
    """What an operator gives: its output, as plain data, and the effects that it declares, in order."""

    output: Any = None
    effects: Sequence[AnyEffect] = ()


class EffectOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one effect so far. `sink` is None where middleware took it out."""

    effect: str
    kind: str
    sink: str | None
    outcome: Outcome
    answer: Any = None
    reason: Any = None


class Operated(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator gave. `repeated` says that it had run before under its key, and did not run now."""

    output: Any
    outcomes: tuple[EffectOutcome, ...] = ()
    repeated: bool = False


class DeclaredEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect as a sink gets it. The same `id` is the same effect again: taking it twice must change nothing."""

    id: str
    kind: str
    sink: str
    payload: Any
    scope: str
    """The stream that it was declared in: effects of one scope for one sink come in order."""
    tenant: str
    operator: str | None = None
    attempt: int = 1
    declared_at: int = 0


class EffectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A declared effect. It waits for its turn, its next attempt, its sink, its approval or for somebody to look at
    it, or it is settled: applied with an answer, or skipped."""

    id: str
    kind: str
    sink: str
    status: Outcome
    scope: str
    operator: str | None
    payload: Any
    attempts: int
    retry_at: int | None
    declared_at: int
    reason: Any = None
    answer: Any = None


class Dispatched(msgspec.Struct, frozen=True, kw_only=True):
    """What one dispatch did, in numbers of effects."""

    applied: int = 0
    skipped: int = 0
    failed: int = 0
    deferred: int = 0
    dead: int = 0

    @property
    def attempts(self) -> int:
        """How many effects were looked at."""
        return self.applied + self.skipped + self.failed + self.deferred + self.dead
