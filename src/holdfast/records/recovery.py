"""Recovery after a restart: the live leaves, the stack to the current frame, and the unfinished work."""

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


StopCode = Literal["tool_calls", "deadline", "budget", "depth", "loops", "model", "output", "stopped", "failed"]
"""The reason why a turn was stopped: a limit, a model that failed, an output that never fits, a stop, an exception."""

RUN_AGAIN, DO_NOT_RUN = "run again", "do not"
"""The options of a question about repeating a call that may already have run."""


class FrameInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One frame, live or ended, with its texts. `goal` and other texts are ERASED once their content is erased."""

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
    code: StopCode | None = None
    """For a turn that a limit, its model or its output stopped: which of them."""
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
        """True if the frame has not ended."""
        return self.completed_at is None


class HandleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A handle with the content of its event."""

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
    """The lower of the declared trust and the trust of the writer that attached it."""
    source_stream: str | None = None
    """For an inherited handle: the stream where it was first attached and its content is stored."""
    source_version: int | None = None
    at: int = 0
    """The time it was attached."""


class ResultInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to something that a frame produced, with its summary."""

    position: int
    kind: str
    ref: str
    version: int
    summary: str | Erased | None
    at: int
    """The time it was added."""


class QuestionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An open question with its content. `answered` means that its frame only has to be resumed."""

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


class QuestionReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A question that was asked. `token` is returned only here and stored nowhere; `answer` is None until answered."""

    question: str
    frame: str
    token: str | None = None
    repeated: bool = False
    answer: Answer | None = None
    over: bool = False
    """True if the frame has resumed: the question was answered, or its timer elapsed."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to a question. `arguments` are set if they were edited on approval."""

    question: str
    approved: bool | None
    payload: Any = None
    arguments: Any = None
    note: Any = None
    via: str = "id"
    at: int = 0


class PendingWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that was begun and not finished. `unsafe_to_retry` means that it may have taken effect."""

    frame: str
    kind: str
    description: str
    call: str | None = None
    name: str | None = None
    question: str | None = None
    if_interrupted: str | None = None
    unsafe_to_retry: bool = False
    next: str = "work"
    """The next action: work, children, answer, resume, retry, ask or fail."""


class RecoverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a recovery, and the time it took."""

    frames_recovered: int
    pending_work_items: int
    last_event_seq: int
    recovery_time_ms: int


class ActorResumeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an actor after a restart. An empty stack means that there is nothing to resume."""

    current: FrameInfo | None
    stack: tuple[FrameInfo, ...]
    leaves: tuple[FrameInfo, ...]
    frames: tuple[FrameInfo, ...]
    pending: tuple[PendingWork, ...]
    recovery: RecoverySummary
    epoch: int
    holder: str | None


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a sweep, as ids of frames or questions."""

    resumed: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    overdue: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
