"""Span attributes of packs and calls: numbers, ids and names, never message content.

Attributes use the names of OpenTelemetry's conventions for generative AI where those exist, else `holdfast.…`. A name
that a caller chose is included only if it is one word of plain characters, so that no text gets in under a name;
fields that may hold texts are only counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.records.packs import AssembledPack
from holdfast.records.usage import NANO_USD, Usage

Attributes = dict[str, Any]

PACK_SPAN: Final = "holdfast.pack"
CHAT_OPERATION: Final = "chat"
TOOL_OPERATION: Final = "execute_tool"
MODEL: Final = "gen_ai.request.model"
TOOL: Final = "gen_ai.tool.name"
ERROR: Final = "error.type"
OTHER_ERROR: Final = "_OTHER"
"""The conventions' value for an error without a name of its own."""

_PROVIDERS: Final = {"google": "gcp.gen_ai", "mistral": "mistral_ai"}
"""Providers that the conventions spell differently."""
_UNKNOWN_PROVIDER: Final = "other"
_SAFE_NAME: Final = re.compile(r"[\w.:/@+%~=-]{1,200}", re.ASCII)


def pack_attributes(packed: AssembledPack) -> Attributes:
    """Return the attributes of a pack: its sizes and its composition."""
    metadata, conversation = packed.metadata, packed.conversation
    parts = msgspec.structs.asdict(packed.token_summary.breakdown)
    return _drop_missing(
        {
            "gen_ai.conversation.id": _safe_name(metadata.scope),
            MODEL: _safe_name(packed.model),
            "holdfast.frame.id": _safe_name(metadata.frame_id),
            "holdfast.pack.id": _safe_name(metadata.pack_id),
            "holdfast.pack.role": _safe_name(metadata.role),
            "holdfast.pack.layout": _safe_name(metadata.layout),
            "holdfast.pack.tokenizer": _safe_name(packed.tokenizer),
            "holdfast.pack.exact": packed.exact,
            "holdfast.pack.limited_by": _safe_name(packed.limited_by),
            "holdfast.pack.segments": len(packed.segments),
            "holdfast.pack.messages": conversation.message_count,
            "holdfast.pack.truncated": conversation.truncated_count,
            "holdfast.pack.shortened": packed.shortened,
            "holdfast.pack.omitted": len(metadata.omitted),
            "holdfast.pack.failed": len(metadata.failed),
            **_size_attributes(packed),
            **{f"holdfast.pack.breakdown.{name}": tokens for name, tokens in parts.items()},
        }
    )


def call_attributes(
    *,
    call: str,
    frame: str | None = None,
    model: str | None = None,
    provider: str | None = None,
    conversation: str | None = None,
    packed: AssembledPack | None = None,
) -> Attributes:
    """Return the attributes of a model call: the model, its conversation, and the size of its pack."""
    known = None if provider in (None, _UNKNOWN_PROVIDER) else _safe_name(_PROVIDERS.get(str(provider), provider))
    return _drop_missing(
        {
            "gen_ai.operation.name": CHAT_OPERATION,
            "gen_ai.provider.name": known,
            MODEL: _safe_name(model),
            "gen_ai.conversation.id": _safe_name(conversation),
            "holdfast.call.id": _safe_name(call),
            "holdfast.frame.id": _safe_name(frame),
            **({} if packed is None else _size_attributes(packed)),
        }
    )


def tool_attributes(*, call: str, frame: str | None, conversation: str | None, name: str, attempt: int) -> Attributes:
    """Return the attributes of a tool call."""
    return _drop_missing(
        {
            "gen_ai.operation.name": TOOL_OPERATION,
            TOOL: _safe_name(name),
            "gen_ai.tool.call.id": _safe_name(call),
            "gen_ai.conversation.id": _safe_name(conversation),
            "holdfast.frame.id": _safe_name(frame),
            "holdfast.tool.attempt": attempt,
        }
    )


def answer_attributes(usage: Usage, finish: str | None = None) -> Attributes:
    """Return the usage of a call and its finish reason. Usage that was not reported is left out."""
    finished = _safe_name(finish)
    told: Attributes = {
        "gen_ai.response.finish_reasons": None if finished is None else [finished],
        "gen_ai.response.model": _safe_name(usage.model),
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning or None,
        "holdfast.call.cost_usd": None if usage.cost is None else usage.cost / NANO_USD,
    }
    if usage.spent and not usage.estimated:
        told |= {"gen_ai.usage.input_tokens": usage.input, "gen_ai.usage.output_tokens": usage.output}
    return _drop_missing(told)


def call_span_name(attributes: Mapping[str, Any]) -> str:
    """Return the name of a call's span: the operation, with its model or tool."""
    if attributes.get("gen_ai.operation.name") == TOOL_OPERATION:
        return f"{TOOL_OPERATION} {attributes.get(TOOL, '')}".strip()
    model = attributes.get(MODEL)
    return CHAT_OPERATION if model is None else f"{CHAT_OPERATION} {model}"


def error_type(error: str) -> str:
    """Return the kind of an error, without its message."""
    return _safe_name(error) or OTHER_ERROR


def _size_attributes(packed: AssembledPack) -> Attributes:
    summary = packed.token_summary
    return {
        "holdfast.pack.level": str(summary.compaction_level),
        "holdfast.pack.tokens": summary.used,
        "holdfast.pack.budget": summary.budget,
        "holdfast.pack.cached_tokens": packed.cached_tokens,
        "holdfast.pack.cached_share": round(packed.cached_tokens / summary.used, 4) if summary.used else 0.0,
    }


def _drop_missing(told: Attributes) -> Attributes:
    return {name: value for name, value in told.items() if value is not None}


def _safe_name(value: object) -> str | None:
    """Return a name as it is; None for anything that could be a text."""
    return value if isinstance(value, str) and _SAFE_NAME.fullmatch(value) else None
