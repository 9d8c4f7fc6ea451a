"""What a restart finds: every live leaf, the line to the current frame, and what was left undone."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.records.events.envelope import Erased
from holdfast.records.frames import Call, FrameLimits, Handle, Question, ResultRef, TokenBudget
from holdfast.records.usage import Usage

WorkKind = Literal[
    "waiting_for_subcall",
    "waiting_for_user",
    "waiting",
    "tool_in_progress",
    "model_in_progress",
    "run_in_progress",
    "unhandled_error",
]


class FrameInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One frame, live or ended, with its texts. `goal` and the like are ERASED once their content is."""

    id: str
    scope: str
    parent: str | None
    depth: int
    status: str
    goal: str | Erased | None
    inputs: Any
    metadata: Any
    tokens: TokenBudget
    limits: FrameLimits
    usage: Usage
    tool_calls: int
    created_at: int
    completed_at: int | None
    deadline: int | None
    version: int
    summary: str | Erased | None = None
    error: str | Erased | None = None
    value: Any = None
    context_hash: str | None = None
    reservations: dict[str, int] = {}
    handles: tuple[Handle, ...] = ()
    results: tuple[ResultRef, ...] = ()
    calls: tuple[Call, ...] = ()
    children_elsewhere: dict[str, str] = {}
    question: Question | None = None
    turn: int | None = None
    """For a turn: the version of the message that began it."""

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.completed_at is None


class HandleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A handle with what its event says about it."""

    id: str
    kind: str
    priority: int
    position: int
    tokens: int | None
    version: int
    removed: str | None
    description: str | Erased | None
    target: str | Erased | None
    body: str | Erased | None
    metadata: Any
    trust: str | None = None
    """The lower of what was declared and of who attached it."""
    source_stream: str | None = None
    """For one that was inherited: where it was first attached, and what it says is kept."""
    source_version: int | None = None
    at: int = 0
    """When it was attached."""


class QuestionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An open question with what is asked. `answered` says that its frame only has to be resumed."""

    id: str
    frame: str
    scope: str
    kind: str
    reason: str | Erased | None
    options: Any
    recommended: Any
    arguments: Any
    payload: Any
    suspended_at: int
    expires_at: int | None
    on_expiry: str | None
    until: int | None
    call: str | None
    within: str | None
    answered: bool
    has_token: bool


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A question that was asked. The token is shown here once and kept nowhere; `answer` is None until there is one."""

    question: str
    frame: str
    token: str | None = None
    repeated: bool = False
    answer: Answer | None = None
    over: bool = False
    """The frame has gone on: there is an answer, or its timer rang."""


RUN_AGAIN, DO_NOT = "run again", "do not"
"""The answers to whether something that may have run is to run again."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody answered. `arguments` are set if they were edited on approval."""

    question: str
    approved: bool | None
    payload: Any = None
    arguments: Any = None
    note: Any = None
    via: str = "id"
    at: int = 0


class PendingWork(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was begun and not finished. `unsafe_to_retry` says that it may have happened."""

    frame: str
    kind: str
    description: str
    call: str | None = None
    name: str | None = None
    question: str | None = None
    if_interrupted: str | None = None
    unsafe_to_retry: bool = False
    next: str = "work"
    """What to do about it: work, children, answer, resume, retry, ask or fail."""


class RecoverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """How much was found, and how long it took."""

    frames_recovered: int
    pending_work_items: int
    last_event_seq: int
    recovery_time_ms: int


class ActorResumeState(msgspec.Struct, frozen=True, kw_only=True):
    """Where an actor stood. An empty stack means that there is nothing to go on with."""

    current: FrameInfo | None
    stack: tuple[FrameInfo, ...]
    leaves: tuple[FrameInfo, ...]
    frames: tuple[FrameInfo, ...]
    pending: tuple[PendingWork, ...]
    recovery: RecoverySummary
    epoch: int
    holder: str | None


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep did, by frame or question."""

    resumed: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    overdue: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
