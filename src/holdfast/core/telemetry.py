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

from holdfast.records.packs import Packed
from holdfast.records.usage import NANO_USD, Usage

Attributes = dict[str, Any]

PACK_SPAN: Final = "holdfast.pack"
OPERATION: Final = "chat"
TOOL_OPERATION: Final = "execute_tool"
MODEL: Final = "gen_ai.request.model"
TOOL: Final = "gen_ai.tool.name"
ERROR: Final = "error.type"
OTHER_ERROR: Final = "_OTHER"
"""The conventions' value for an error without a name of its own."""

_PROVIDERS: Final = {"google": "gcp.gen_ai", "mistral": "mistral_ai"}
"""Providers that the conventions spell differently."""
_UNKNOWN: Final = "other"
_WORD: Final = re.compile(r"[\w.:/@+%~=-]{1,200}", re.ASCII)


def pack_attributes(packed: Packed) -> Attributes:
    """Return the attributes of a pack: its sizes and its composition."""
    metadata, conversation = packed.metadata, packed.conversation
    return _known(
        {
            "gen_ai.conversation.id": _word(metadata.scope),
            MODEL: _word(packed.model),
            "holdfast.frame.id": _word(metadata.frame_id),
            "holdfast.pack.id": _word(metadata.pack_id),
            "holdfast.pack.role": _word(metadata.role),
            "holdfast.pack.layout": _word(metadata.layout),
            "holdfast.pack.tokenizer": _word(packed.tokenizer),
            "holdfast.pack.exact": packed.exact,
            "holdfast.pack.limited_by": _word(packed.limited_by),
            "holdfast.pack.segments": len(packed.segments),
            "holdfast.pack.messages": conversation.message_count,
            "holdfast.pack.truncated": conversation.truncated_count,
            "holdfast.pack.shortened": packed.shortened,
            "holdfast.pack.omitted": len(metadata.omitted),
            "holdfast.pack.failed": len(metadata.failed),
            **_sizes(packed),
            **_breakdown(packed),
        }
    )


def call_attributes(
    *,
    call: str,
    frame: str | None = None,
    model: str | None = None,
    provider: str | None = None,
    conversation: str | None = None,
    packed: Packed | None = None,
) -> Attributes:
    """Return the attributes of a model call: the model, its conversation, and the size of its pack."""
    known = None if provider in (None, _UNKNOWN) else _word(_PROVIDERS.get(str(provider), provider))
    return _known(
        {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.provider.name": known,
            MODEL: _word(model),
            "gen_ai.conversation.id": _word(conversation),
            "holdfast.call.id": _word(call),
            "holdfast.frame.id": _word(frame),
            **({} if packed is None else _sizes(packed)),
        }
    )


def tool_attributes(*, call: str, frame: str, name: str, conversation: str, attempt: int) -> Attributes:
    """Return the attributes of a tool call."""
    return _known(
        {
            "gen_ai.operation.name": TOOL_OPERATION,
            TOOL: _word(name),
            "gen_ai.tool.call.id": _word(call),
            "gen_ai.conversation.id": _word(conversation),
            "holdfast.frame.id": _word(frame),
            "holdfast.tool.attempt": attempt,
        }
    )


def answer_attributes(usage: Usage, finish: str | None = None) -> Attributes:
    """Return the usage of a call and its finish reason. Usage that was not reported is left out."""
    finished = _word(finish)
    told: Attributes = {
        "gen_ai.response.finish_reasons": None if finished is None else [finished],
        "gen_ai.response.model": _word(usage.model),
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning or None,
        "holdfast.call.cost_usd": None if usage.cost is None else usage.cost / NANO_USD,
    }
    if usage.spent and not usage.estimated:
        told |= {"gen_ai.usage.input_tokens": usage.input, "gen_ai.usage.output_tokens": usage.output}
    return _known(told)


def call_span(attributes: Mapping[str, Any]) -> str:
    """Return the name of a call's span: the operation, with its model or tool."""
    if attributes.get("gen_ai.operation.name") == TOOL_OPERATION:
        return f"{TOOL_OPERATION} {attributes.get(TOOL, '')}".strip()
    model = attributes.get(MODEL)
    return OPERATION if model is None else f"{OPERATION} {model}"


def error_type(error: str) -> str:
    """Return the kind of an error, without its message."""
    return _word(error) or OTHER_ERROR


def _sizes(packed: Packed) -> Attributes:
    summary = packed.token_summary
    return {
        "holdfast.pack.level": str(summary.compaction_level),
        "holdfast.pack.tokens": summary.used,
        "holdfast.pack.budget": summary.budget,
        "holdfast.pack.cached_tokens": packed.cached_tokens,
        "holdfast.pack.cached_share": round(packed.cached_tokens / summary.used, 4) if summary.used else 0.0,
    }


def _breakdown(packed: Packed) -> Attributes:
    parts = msgspec.structs.asdict(packed.token_summary.breakdown)
    return {f"holdfast.pack.breakdown.{name}": tokens for name, tokens in parts.items()}


def _known(told: Attributes) -> Attributes:
    return {name: value for name, value in told.items() if value is not None}


def _word(value: object) -> str | None:
    """Return a name as it is; None for anything that could be a text."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None
