"""Frames: units of work on a call stack, as facts, with limits and token budgets. Texts stay in the events.

A `FrameState` holds numbers, ids and statuses only, so that folding and loading give the same record whether or not
any content was erased in between. A `TokenBudget` is only arithmetic: a frame and all its descendants together never
spend more than the frame was granted, unless finished work cost more than planned. That excess is reported as an
overdraft.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.records.sessions import SessionState, ThreadState
from holdfast.records.usage import Usage

LIVE_STATUSES: frozenset[str] = frozenset({"active", "waiting", "suspended"})
ENDED_STATUSES: frozenset[str] = frozenset({"completed", "failed", "cancelled"})

IfInterrupted = Literal["ask", "retry", "fail"]
QuestionKind = Literal["approval", "input", "external", "checkpoint", "pause", "timer"]
OnExpiry = Literal["fail", "cancel", "keep"]

# Scores are stored, because packing needs an order; names are displayed.
Priority = Literal["critical", "high", "medium", "low", "background"]
PRIORITY_SCORE: dict[str, int] = {"critical": 100, "high": 75, "medium": 50, "low": 25, "background": 10}

HandleKind = Literal["event_ref", "tool_output", "worker_finding", "worker_learning", "artifact", "document", "url"]


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The requested limits of a frame, turn or agent.

    A limit that is not given takes the default of its place: for a turn or a block 50 tool calls, the model's window
    and no deadline; for a bare frame the defaults of the source documents; for a child the limits of its ancestors; for
    an update the frame's current limits. `timeout_ms=None` means no deadline.
    """

    context_tokens: int | UnsetType = UNSET
    tool_calls: int | UnsetType = UNSET
    depth: int | UnsetType = UNSET
    timeout_ms: int | UnsetType | None = UNSET

    def apply_to(self, default: FrameLimits) -> FrameLimits:
        """Return `default` with the limits given here applied."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}
        return msgspec.structs.replace(default, **given)


class FrameLimits(Limits, frozen=True, omit_defaults=True, repr_omit_defaults=False):
    """The limits of one frame. The defaults are those of a bare frame pushed at the low level."""

    context_tokens: int = 4000
    tool_calls: int = 10
    depth: int = 3
    timeout_ms: int | None = 120_000


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer to evidence; its description and target are in the event at `version`."""

    id: str
    kind: str
    priority: int
    position: int
    tokens: int | None
    version: int
    removed: str | None = None


class ResultRef(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer to a frame's result; its summary is in the event at `version`."""

    position: int
    kind: str
    ref: str
    version: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An intent without an outcome: a model, tool or memoised call that is running or was interrupted."""

    id: str
    kind: str
    name: str | None
    if_interrupted: str
    version: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A suspension waiting for an answer; reason and options are in the event at `version`."""

    id: str
    kind: str
    prior: str
    version: int
    suspended_at: int
    released: int = 0
    expires_at: int | None = None
    on_expiry: str | None = None
    until: int | None = None
    token: str | None = None
    within: str | None = None
    """The question of an ancestor whose whole subtree was suspended; this question ends with that one."""
    call: str | None = None
    answer: int | None = None


class FrameState(msgspec.Struct, frozen=True, kw_only=True):
    """One live unit of work. `version` is the stream's version when the frame last changed."""

    id: str
    parent: str | None
    depth: int
    status: str
    granted: int | None
    limits: FrameLimits
    pushed: int
    goal: int
    version: int
    created_at: int
    deadline: int | None = None
    stopped_at: int | None = None
    """The time at which the deadline was paused because all work below waits for answers."""
    used: int = 0
    reserved: int = 0
    lent: int = 0
    tool_calls: int = 0
    usage: Usage = Usage(cost=0)
    error: int | None = None
    context_hash: str | None = None
    outer: str | None = None
    outer_stream: str | None = None
    away: dict[str, str] = {}
    """Live children in other streams, each with its stream."""
    reservations: dict[str, int] = {}
    handles: dict[str, Handle] = {}
    results: tuple[ResultRef, ...] = ()
    calls: dict[str, Call] = {}
    question: Question | None = None

    @property
    def tokens(self) -> TokenBudget:
        """The frame's token budget."""
        released = 0 if self.question is None else self.question.released
        return TokenBudget(
            granted=self.granted, used=self.used, reserved=self.reserved, lent=self.lent, released=released
        )


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a stream's events: version, owner, live frames, and the state of its session or thread."""

    version: int = 0
    epoch: int = 0
    holder: str | None = None
    lease_ms: int = 0
    closed: bool = False
    frames: dict[str, FrameState] = {}
    session: SessionState | None = None
    thread: ThreadState | None = None


class TokenBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A frame's tokens. `granted` is None for a root without a limit: usage is counted and nothing is refused."""

    granted: int | None = None
    used: int = 0
    reserved: int = 0
    lent: int = 0
    released: int = 0
    """Tokens that a suspended frame gave back until it resumes."""

    @property
    def available(self) -> int | None:
        """Tokens that may still be spent, reserved or lent; never negative. None if there is no limit."""
        if self.granted is None:
            return None
        return max(0, self.granted - self.used - self.reserved - self.lent - self.released)

    @property
    def overdraft(self) -> int:
        """The amount by which the work cost more than was granted."""
        return 0 if self.granted is None else max(0, self.used + self.reserved + self.lent - self.granted)

    @property
    def unused(self) -> int:
        """Tokens that a suspended frame can give back: its grant less the tokens spent or lent."""
        return 0 if self.granted is None else max(0, self.granted - self.used - self.lent)

    def can_afford(self, amount: int) -> bool:
        """Return True if at least `amount` tokens are available."""
        return self.available is None or amount <= self.available
