"""holdfast: durable state and bounded context for LLM agents.

    records/     nouns: frozen records, no I/O
    core/        verbs: pure functions from records to records
    ports/       the Protocols that flows depend on; the journal's own in ports/journal.py
    flow/        one plain function per operation: load, decide, append, fold
    sqlite/      connections, text index and vectors, shared by journal and store
    journal/     backends of the journal: memory, sqlite
    store/       backends of state: memory, files, SQLite, Redis, Cozo
    model/       models over HTTP and scripted, tokenizers, prices, summarizers, embedders
    connect.py   the composition root: a URL becomes an environment
    system.py    the clock and randomness, read here and nowhere else
    client/      Holdfast, its sessions, turns, frames, packs, state; aio/ the same for asyncio
    runtime/     agents and tools: recovery at start, draining at the end
    windows.py   for callers who keep their own list of messages
    extras/      optional extensions: documents, https, opentelemetry, webhook, dual_write
    cli/         the command line
    testing/     the public kit: contracts, faults, clocks, the simulated disk

Imports point one way:
cli → testing → runtime → aio → client → connect → flow | journal | store | model → ports → core → records → errors.

"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from holdfast.client.frame import Frame
from holdfast.client.history_tools import HistoryTools
from holdfast.client.holdfast import Holdfast, open
from holdfast.client.pack import ContextPack
from holdfast.client.session import Session
from holdfast.client.state import State, StateReader, StateStore, open_store
from holdfast.client.steps import Ask, CallModel, CallTool, Done
from holdfast.client.turn import Turn
from holdfast.connect import restore
from holdfast.core.values import register_type
from holdfast.core.wire.requests import AnthropicRequest, OpenAIRequest, ResponsesRequest
from holdfast.errors import (
    ActorBusy,
    AlreadyAnswered,
    ArgumentsUnfit,
    BudgetExhausted,
    BudgetTooSmall,
    Busy,
    CallNotFound,
    Closed,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Draining,
    DuplicateFrame,
    EffectFailed,
    EffectNotFound,
    EffectRefused,
    EntryNotFound,
    EvidenceFailed,
    FrameEnded,
    FrameNotFound,
    FrameSuspended,
    HasLiveChildren,
    HasOpenCalls,
    HoldfastError,
    InsufficientTokens,
    InvalidMessage,
    InvalidTransition,
    InvalidValue,
    KeyReused,
    LimitExceeded,
    MaxDepthExceeded,
    MessageNotFound,
    ModelFailed,
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
    RedactionFailed,
    Refused,
    RetryLater,
    SessionClosed,
    SessionNotFound,
    StaleEpoch,
    StepUnanswered,
    StorageFull,
    StrategyFailed,
    StreamClosed,
    SummaryFailed,
    TokenNotFound,
    TooLarge,
    ToolCallLimitExceeded,
    ToolFailed,
    ToolInterrupted,
    ToolPairingError,
    ToolTimedOut,
    TurnLeft,
    Unavailable,
    Unsupported,
    ValueMismatch,
    VersionConflict,
    Waiting,
)
from holdfast.flow.sessions.import_export import ImportReport
from holdfast.ports import EndedConversation
from holdfast.records.batches import AppendResult
from holdfast.records.compaction import (
    Always,
    BudgetGuard,
    CompactionConfig,
    CompactionResult,
    MessagesOver,
    Occasion,
    PackOverBudget,
    Rule,
    TelemetryRecorder,
    TokensOver,
)
from holdfast.records.effects import (
    Custom,
    DeclaredEffect,
    Delegate,
    DeleteState,
    DispatchReport,
    EffectInfo,
    EffectOutcome,
    Handoff,
    LinkState,
    OperatorOutput,
    OperatorResult,
    PushFrame,
    RequestApproval,
    Signal,
    UnlinkState,
    WriteState,
)
from holdfast.records.entries import Edge, Entry, Revision, SearchResult, TraversalResult
from holdfast.records.events.envelope import ERASED, Erased, Event
from holdfast.records.frames import FrameLimits, Limits, TokenBudget
from holdfast.records.messages import Message, Repair, ToolCallRequest, ToolCallResult, ToolDef
from holdfast.records.models import Delta, ModelCall, ModelInfo, ModelReply
from holdfast.records.packs import (
    Appearance,
    BriefContext,
    CompactionLevel,
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
    SweepReport,
)
from holdfast.records.reports import Erasure, Finding, VerificationReport
from holdfast.records.scope import Scope
from holdfast.records.sessions import SessionInfo, SessionSweepReport, Summary
from holdfast.records.settings import Settings
from holdfast.records.usage import Usage
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.aio.frame import AsyncHistoryTools
    from holdfast.aio.holdfast import AsyncHoldfast, open_async
    from holdfast.aio.session import AsyncSession
    from holdfast.aio.state import AsyncState, AsyncStateReader, AsyncStateStore, open_store_async
    from holdfast.aio.turn import AsyncCallModel, AsyncCallTool, AsyncTurn
    from holdfast.core.sessions.windows import Window
    from holdfast.extras.documents import DocumentRoot
    from holdfast.extras.dual_write import DualWrite
    from holdfast.extras.https import HttpsFetcher
    from holdfast.extras.opentelemetry import OpenTelemetry
    from holdfast.extras.webhook import WebhookSink, verify_webhook
    from holdfast.model.prices import register_price
    from holdfast.model.providers import AnthropicMessages, OpenAIChat, OpenAIResponses
    from holdfast.model.recorded import Recorded
    from holdfast.model.registry import model_info, register_model
    from holdfast.model.scripted import Scripted
    from holdfast.model.summarizers import ModelSummarizer
    from holdfast.runtime.agent import Agent, AsyncAgent
    from holdfast.runtime.reply import AgentEvent, Reply
    from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
    from holdfast.runtime.tools.mcp import McpServer
    from holdfast.runtime.tools.result import Bytes
    from holdfast.runtime.tools.tool import Tool, tool
    from holdfast.windows import count_tokens, slide_window, summarise_window

__all__ = [
    "ActorBusy",
    "ActorResumeState",
    "Agent",
    "AgentEvent",
    "AlreadyAnswered",
    "Always",
    "Answer",
    "AnthropicMessages",
    "AnthropicRequest",
    "Appearance",
    "AppendResult",
    "ArgumentsUnfit",
    "Ask",
    "QuestionReceipt",
    "AsyncAgent",
    "AsyncCallModel",
    "AsyncCallTool",
    "AsyncHistoryTools",
    "AsyncHoldfast",
    "AsyncSession",
    "AsyncState",
    "AsyncStateReader",
    "AsyncStateStore",
    "AsyncToolCall",
    "AsyncTurn",
    "BriefContext",
    "BudgetExhausted",
    "BudgetGuard",
    "BudgetTooSmall",
    "Busy",
    "Bytes",
    "CallModel",
    "CallNotFound",
    "CallTool",
    "Closed",
    "CompactionConfig",
    "CompactionLevel",
    "CompactionResult",
    "Conflict",
    "ContextPack",
    "ContextPackMetadata",
    "ConversationSlice",
    "Corrupt",
    "Custom",
    "DeadlineExceeded",
    "Decision",
    "DeclaredEffect",
    "Delegate",
    "DeleteState",
    "Delta",
    "DispatchReport",
    "DocumentRoot",
    "Done",
    "Draining",
    "DualWrite",
    "DuplicateFrame",
    "ERASED",
    "Edge",
    "EffectFailed",
    "EffectInfo",
    "EffectNotFound",
    "EffectOutcome",
    "EffectRefused",
    "EndedConversation",
    "Entry",
    "EntryNotFound",
    "Erased",
    "Erasure",
    "Event",
    "EvidenceFailed",
    "Finding",
    "Frame",
    "FrameBreadcrumb",
    "FrameEnded",
    "FrameInfo",
    "FrameLimits",
    "FrameNotFound",
    "FrameSuspended",
    "HandleInfo",
    "Handoff",
    "HasLiveChildren",
    "HasOpenCalls",
    "HistoryTools",
    "Holdfast",
    "HoldfastError",
    "HttpsFetcher",
    "ImportReport",
    "InsufficientTokens",
    "InvalidMessage",
    "InvalidTransition",
    "InvalidValue",
    "KeyReused",
    "LimitExceeded",
    "Limits",
    "LinkState",
    "MaxDepthExceeded",
    "McpServer",
    "Message",
    "MessageNotFound",
    "MessagesOver",
    "ModelCall",
    "ModelFailed",
    "ModelInfo",
    "ModelReply",
    "ModelSummarizer",
    "NewerSchema",
    "NotAJournal",
    "NotFound",
    "NotOwner",
    "Occasion",
    "OpenAIChat",
    "OpenAIRequest",
    "OpenAIResponses",
    "OpenTelemetry",
    "OperatorResult",
    "OperatorOutput",
    "OutcomeUnknown",
    "PackDiff",
    "PackInfo",
    "PackOverBudget",
    "ParentNotActive",
    "ParentNotFound",
    "PendingWork",
    "PushFrame",
    "QuestionExpired",
    "QuestionInfo",
    "QuestionNotFound",
    "TraversalResult",
    "ReadOnly",
    "Recorded",
    "RecoverySummary",
    "RedactionFailed",
    "Refused",
    "Repair",
    "Reply",
    "RequestApproval",
    "ResponsesRequest",
    "RetrievedEvidence",
    "RetryLater",
    "Revision",
    "Rule",
    "Scope",
    "Scripted",
    "SearchResult",
    "Segment",
    "Session",
    "SessionClosed",
    "SessionInfo",
    "SessionNotFound",
    "Settings",
    "Signal",
    "StaleEpoch",
    "State",
    "StateReader",
    "StateStore",
    "StepUnanswered",
    "StorageFull",
    "StrategyFailed",
    "StreamClosed",
    "Summary",
    "SummaryFailed",
    "SweepReport",
    "SessionSweepReport",
    "TelemetryRecorder",
    "TokenBreakdown",
    "TokenBudget",
    "TokenNotFound",
    "TokenSummary",
    "TokensOver",
    "TooLarge",
    "Tool",
    "ToolCall",
    "ToolCallLimitExceeded",
    "ToolCallRequest",
    "ToolCallResult",
    "ToolDef",
    "ToolFailed",
    "ToolInterrupted",
    "ToolPairingError",
    "ToolTimedOut",
    "Trace",
    "Turn",
    "TurnLeft",
    "Unavailable",
    "UnlinkState",
    "Unsupported",
    "Usage",
    "ValueMismatch",
    "VerificationReport",
    "VersionConflict",
    "Waiting",
    "WebhookSink",
    "Window",
    "WriteState",
    "__version__",
    "count_tokens",
    "model_info",
    "open",
    "open_async",
    "open_store",
    "open_store_async",
    "register_model",
    "register_price",
    "register_type",
    "restore",
    "slide_window",
    "summarise_window",
    "tool",
    "verify_webhook",
]


# Imported on first use: slow to import, or not needed by every program.
_LAZY_IMPORTS = {
    "Agent": "holdfast.runtime.agent",
    "AgentEvent": "holdfast.runtime.reply",
    "AnthropicMessages": "holdfast.model.providers",
    "AsyncAgent": "holdfast.runtime.agent",
    "AsyncHistoryTools": "holdfast.aio.frame",
    "AsyncHoldfast": "holdfast.aio.holdfast",
    "AsyncSession": "holdfast.aio.session",
    "AsyncState": "holdfast.aio.state",
    "AsyncStateReader": "holdfast.aio.state",
    "AsyncStateStore": "holdfast.aio.state",
    "AsyncToolCall": "holdfast.runtime.tools.call",
    "AsyncCallModel": "holdfast.aio.turn",
    "AsyncCallTool": "holdfast.aio.turn",
    "AsyncTurn": "holdfast.aio.turn",
    "Bytes": "holdfast.runtime.tools.result",
    "DocumentRoot": "holdfast.extras.documents",
    "DualWrite": "holdfast.extras.dual_write",
    "HttpsFetcher": "holdfast.extras.https",
    "McpServer": "holdfast.runtime.tools.mcp",
    "ModelSummarizer": "holdfast.model.summarizers",
    "OpenAIChat": "holdfast.model.providers",
    "OpenAIResponses": "holdfast.model.providers",
    "OpenTelemetry": "holdfast.extras.opentelemetry",
    "Recorded": "holdfast.model.recorded",
    "Reply": "holdfast.runtime.reply",
    "Scripted": "holdfast.model.scripted",
    "Tool": "holdfast.runtime.tools.tool",
    "ToolCall": "holdfast.runtime.tools.call",
    "WebhookSink": "holdfast.extras.webhook",
    "Window": "holdfast.core.sessions.windows",
    "count_tokens": "holdfast.windows",
    "model_info": "holdfast.model.registry",
    "open_async": "holdfast.aio.holdfast",
    "open_store_async": "holdfast.aio.state",
    "register_model": "holdfast.model.registry",
    "register_price": "holdfast.model.prices",
    "slide_window": "holdfast.windows",
    "summarise_window": "holdfast.windows",
    "tool": "holdfast.runtime.tools.tool",
    "verify_webhook": "holdfast.extras.webhook",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        return getattr(_import_module(_LAZY_IMPORTS[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
