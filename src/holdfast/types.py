"""Types of the objects and records that holdfast returns or passes to callbacks, for annotations and tests.

There is no need to construct one. Records of effects, compaction and models are in modules of their own.
"""

from typing import TYPE_CHECKING

from holdfast.client.history_tools import HistoryTools
from holdfast.client.state import StateReader, StateStore
from holdfast.core.lazy import lazy_names as _lazy_names
from holdfast.core.sessions.windows import Window
from holdfast.core.wire.anthropic import AnthropicRequest
from holdfast.core.wire.openai_chat import OpenAIRequest
from holdfast.core.wire.openai_responses import ResponsesRequest
from holdfast.flow.sessions.import_export import ImportReport
from holdfast.ports import EndedConversation
from holdfast.records.batches import AppendResult
from holdfast.records.entries import Edge, Entry, Revision, SearchResult, TraversalResult
from holdfast.records.events.envelope import ERASED, Erased, Event
from holdfast.records.frames import FrameLimits, TokenBudget
from holdfast.records.ids import OperatorId, SessionId, WorkflowId
from holdfast.records.messages import Repair
from holdfast.records.packs import (
    Appearance,
    BriefContext,
    ContextPackMetadata,
    ConversationSlice,
    Decision,
    FrameBreadcrumb,
    PackDiff,
    PackInfo,
    RetrievedEvidence,
    Segment,
    TokenBreakdown,
    TokenSummary,
    Trace,
)
from holdfast.records.recovery import (
    ActorResumeState,
    Answer,
    FrameInfo,
    HandleInfo,
    PendingWork,
    QuestionInfo,
    QuestionReceipt,
    RecoverySummary,
    ResultInfo,
    SweepReport,
)
from holdfast.records.reports import Erasure, Finding, VerificationReport
from holdfast.records.sessions import SessionInfo, SessionSweepReport

if TYPE_CHECKING:
    from holdfast.aio.frame import AsyncHistoryTools
    from holdfast.aio.state import AsyncStateReader, AsyncStateStore

__all__ = [
    "ActorResumeState",
    "Answer",
    "AnthropicRequest",
    "Appearance",
    "AppendResult",
    "AsyncHistoryTools",
    "AsyncStateReader",
    "AsyncStateStore",
    "BriefContext",
    "ContextPackMetadata",
    "ConversationSlice",
    "Decision",
    "ERASED",
    "Edge",
    "EndedConversation",
    "Entry",
    "Erased",
    "Erasure",
    "Event",
    "Finding",
    "FrameBreadcrumb",
    "FrameInfo",
    "FrameLimits",
    "HandleInfo",
    "HistoryTools",
    "ImportReport",
    "OpenAIRequest",
    "OperatorId",
    "PackDiff",
    "PackInfo",
    "PendingWork",
    "QuestionInfo",
    "QuestionReceipt",
    "RecoverySummary",
    "Repair",
    "ResponsesRequest",
    "ResultInfo",
    "RetrievedEvidence",
    "Revision",
    "SearchResult",
    "Segment",
    "SessionId",
    "SessionInfo",
    "SessionSweepReport",
    "StateReader",
    "StateStore",
    "SweepReport",
    "TokenBreakdown",
    "TokenBudget",
    "TokenSummary",
    "Trace",
    "TraversalResult",
    "VerificationReport",
    "Window",
    "WorkflowId",
]

# Imported on first use: slow to import.
__getattr__ = _lazy_names(
    __name__,
    {
        "holdfast.aio.frame": "AsyncHistoryTools",
        "holdfast.aio.state": "AsyncStateReader AsyncStateStore",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
