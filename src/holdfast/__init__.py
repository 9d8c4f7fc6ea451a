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

Names beyond the root are in public modules, which only re-export:

    errors       every error, drawn as a tree
    types        objects and records that are returned or passed to callbacks
    effects      effects as data, and the webhook sink
    compaction   rules, triggers, configurations, summarizers
    models       model classes, the registry, prices

Imports point one way: AGENTS.md has the order of the layers, and `make lint` checks it.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from holdfast.core.lazy import lazy_names as _lazy_names
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast import compaction as compaction
    from holdfast import effects as effects
    from holdfast import errors as errors
    from holdfast import models as models
    from holdfast import types as types
    from holdfast.aio.frame import AsyncFrame
    from holdfast.aio.holdfast import AsyncHoldfast, open_async
    from holdfast.aio.session import AsyncSession
    from holdfast.aio.state import AsyncState, open_store_async
    from holdfast.aio.turn import AsyncCallModel, AsyncCallTool, AsyncTurn
    from holdfast.client.frame import Frame
    from holdfast.client.holdfast import Holdfast
    from holdfast.client.holdfast import open as open
    from holdfast.client.pack import ContextPack
    from holdfast.client.session import Session
    from holdfast.client.state import State, open_store
    from holdfast.client.turn import Ask, CallModel, CallTool, Done, Turn
    from holdfast.connect import restore
    from holdfast.core.values import register_type
    from holdfast.errors import (
        Conflict,
        Corrupt,
        EffectFailed,
        HoldfastError,
        OutcomeUnknown,
        Refused,
        Unavailable,
        Unsupported,
    )
    from holdfast.extras.documents import DocumentRoot
    from holdfast.extras.dual_write import DualWrite
    from holdfast.extras.https import HttpsFetcher
    from holdfast.extras.opentelemetry import OpenTelemetry
    from holdfast.model.providers import AnthropicMessages, OpenAIChat, OpenAIResponses
    from holdfast.model.scripted import Scripted
    from holdfast.records.frames import Limits
    from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult, ToolDef
    from holdfast.records.scope import Scope
    from holdfast.records.settings import Settings
    from holdfast.records.usage import Usage
    from holdfast.runtime.agent import Agent, AsyncAgent
    from holdfast.runtime.reply import AgentEvent, Reply
    from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
    from holdfast.runtime.tools.mcp import McpServer
    from holdfast.runtime.tools.result import Bytes
    from holdfast.runtime.tools.tool import Tool, tool
    from holdfast.windows import count_tokens, slide_window, summarise_window

# `open` is public too, but `from holdfast import *` must not replace the builtin.
__all__ = [
    "Agent",
    "AgentEvent",
    "AnthropicMessages",
    "Ask",
    "AsyncAgent",
    "AsyncCallModel",
    "AsyncCallTool",
    "AsyncFrame",
    "AsyncHoldfast",
    "AsyncSession",
    "AsyncState",
    "AsyncToolCall",
    "AsyncTurn",
    "Bytes",
    "CallModel",
    "CallTool",
    "Conflict",
    "ContextPack",
    "Corrupt",
    "DocumentRoot",
    "Done",
    "DualWrite",
    "EffectFailed",
    "Frame",
    "Holdfast",
    "HoldfastError",
    "HttpsFetcher",
    "Limits",
    "McpServer",
    "Message",
    "OpenAIChat",
    "OpenAIResponses",
    "OpenTelemetry",
    "OutcomeUnknown",
    "Refused",
    "Reply",
    "Scope",
    "Scripted",
    "Session",
    "Settings",
    "State",
    "Tool",
    "ToolCall",
    "ToolCallRequest",
    "ToolCallResult",
    "ToolDef",
    "Turn",
    "Unavailable",
    "Unsupported",
    "Usage",
    "__version__",
    "count_tokens",
    "open_async",
    "open_store",
    "open_store_async",
    "register_type",
    "restore",
    "slide_window",
    "summarise_window",
    "tool",
]

_MODULES = ("compaction", "effects", "errors", "models", "types")

# Imported on first use: a process pays for what it works with.
_find_lazy_name = _lazy_names(
    __name__,
    {
        "holdfast.aio.frame": "AsyncFrame",
        "holdfast.aio.holdfast": "AsyncHoldfast open_async",
        "holdfast.aio.session": "AsyncSession",
        "holdfast.aio.state": "AsyncState open_store_async",
        "holdfast.aio.turn": "AsyncCallModel AsyncCallTool AsyncTurn",
        "holdfast.client.frame": "Frame",
        "holdfast.client.holdfast": "Holdfast open",
        "holdfast.client.pack": "ContextPack",
        "holdfast.client.session": "Session",
        "holdfast.client.state": "State open_store",
        "holdfast.client.turn": "Ask CallModel CallTool Done Turn",
        "holdfast.connect": "restore",
        "holdfast.core.values": "register_type",
        "holdfast.errors": (
            "Conflict Corrupt EffectFailed HoldfastError OutcomeUnknown Refused Unavailable Unsupported"
        ),
        "holdfast.extras.documents": "DocumentRoot",
        "holdfast.extras.dual_write": "DualWrite",
        "holdfast.extras.https": "HttpsFetcher",
        "holdfast.extras.opentelemetry": "OpenTelemetry",
        "holdfast.model.providers": "AnthropicMessages OpenAIChat OpenAIResponses",
        "holdfast.model.scripted": "Scripted",
        "holdfast.records.frames": "Limits",
        "holdfast.records.messages": "Message ToolCallRequest ToolCallResult ToolDef",
        "holdfast.records.scope": "Scope",
        "holdfast.records.settings": "Settings",
        "holdfast.records.usage": "Usage",
        "holdfast.runtime.agent": "Agent AsyncAgent",
        "holdfast.runtime.reply": "AgentEvent Reply",
        "holdfast.runtime.tools.call": "AsyncToolCall ToolCall",
        "holdfast.runtime.tools.mcp": "McpServer",
        "holdfast.runtime.tools.result": "Bytes",
        "holdfast.runtime.tools.tool": "Tool tool",
        "holdfast.windows": "count_tokens slide_window summarise_window",
    },
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _import_module(f"holdfast.{name}")
    return _find_lazy_name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "open"})
