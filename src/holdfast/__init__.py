"""holdfast: durable state and bounded context for LLM agents.

    records/    nouns: frozen records, no I/O
    core/       verbs: pure functions from records to records
    ports.py    what the flows need from outside, as Protocols
    ambient.py  the clock and randomness, read here and nowhere else
    flow/       one plain function per operation: load, decide, append, fold
    journal/    backends: memory, sqlite
    connect.py  the composition root: a URL becomes ports
    client*.py  Holdfast, its views and blocks; async_*.py for asyncio
    cli/        the command line
    testing/    the public kit: contracts, faults, clocks, the simulated disk

Imports point one way: cli → testing → client → connect → flow | journal → ports → core → records → errors.
"""

from typing import TYPE_CHECKING, Any

from holdfast.client import Holdfast, open
from holdfast.client_frame import Frame
from holdfast.connect import restore
from holdfast.errors import (
    ActorBusy,
    AlreadyAnswered,
    BudgetExhausted,
    Busy,
    CallNotFound,
    Closed,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Draining,
    DuplicateFrame,
    EffectFailed,
    FrameEnded,
    FrameNotFound,
    FrameSuspended,
    HasLiveChildren,
    HasOpenCalls,
    HoldfastError,
    InsufficientTokens,
    InvalidTransition,
    InvalidValue,
    KeyReused,
    LimitExceeded,
    MaxDepthExceeded,
    NewerSchema,
    NotAJournal,
    NotFound,
    NotOwner,
    OutcomeUnknown,
    ParentNotActive,
    ParentNotFound,
    QuestionExpired,
    QuestionNotFound,
    ReadOnly,
    Refused,
    StaleEpoch,
    StorageFull,
    StreamClosed,
    TokenNotFound,
    TooLarge,
    ToolCallLimitExceeded,
    Unavailable,
    Unsupported,
    VersionConflict,
    Waiting,
)
from holdfast.records.batches import Appended
from holdfast.records.budget import TokenBudget
from holdfast.records.events.envelope import ERASED, Erased, Event
from holdfast.records.frames import Limits
from holdfast.records.reports import Erasure, Finding, Verified
from holdfast.records.resume import (
    ActorResumeState,
    Answer,
    Asked,
    FrameInfo,
    HandleInfo,
    PendingWork,
    QuestionInfo,
    RecoverySummary,
    Swept,
)
from holdfast.records.scope import Scope
from holdfast.records.settings import Settings
from holdfast.records.usage import Usage
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.async_client import AsyncHoldfast, open_async

__all__ = [
    "ActorBusy",
    "ActorResumeState",
    "AlreadyAnswered",
    "Answer",
    "Appended",
    "Asked",
    "AsyncHoldfast",
    "BudgetExhausted",
    "Busy",
    "CallNotFound",
    "Closed",
    "Conflict",
    "Corrupt",
    "DeadlineExceeded",
    "Draining",
    "DuplicateFrame",
    "ERASED",
    "EffectFailed",
    "Erased",
    "Erasure",
    "Event",
    "Finding",
    "Frame",
    "FrameEnded",
    "FrameInfo",
    "FrameNotFound",
    "FrameSuspended",
    "HandleInfo",
    "HasLiveChildren",
    "HasOpenCalls",
    "Holdfast",
    "HoldfastError",
    "InsufficientTokens",
    "InvalidTransition",
    "InvalidValue",
    "KeyReused",
    "LimitExceeded",
    "Limits",
    "MaxDepthExceeded",
    "NewerSchema",
    "NotAJournal",
    "NotFound",
    "NotOwner",
    "OutcomeUnknown",
    "ParentNotActive",
    "ParentNotFound",
    "PendingWork",
    "QuestionExpired",
    "QuestionInfo",
    "QuestionNotFound",
    "ReadOnly",
    "RecoverySummary",
    "Refused",
    "Scope",
    "Settings",
    "StaleEpoch",
    "StorageFull",
    "StreamClosed",
    "Swept",
    "TokenBudget",
    "TokenNotFound",
    "TooLarge",
    "ToolCallLimitExceeded",
    "Unavailable",
    "Unsupported",
    "Usage",
    "Verified",
    "VersionConflict",
    "Waiting",
    "__version__",
    "open",
    "open_async",
    "restore",
]


def __getattr__(name: str) -> Any:
    # asyncio takes longer to import than all of holdfast: only who asks for it pays.
    if name in ("AsyncHoldfast", "open_async"):
        from holdfast import async_client

        return getattr(async_client, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
