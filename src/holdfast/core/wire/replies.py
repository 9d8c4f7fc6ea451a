"""Providers' responses: the message, the finish reason and the usage. The response itself is not kept.

Of several choices the first is used; `metadata["choices"]` is their number, and the usage covers all. A reply that
was cut short has the reason in `metadata["finish"]`: `length`, `max_tokens`, `max_output_tokens`, `content_filter`,
`refusal`, `pause_turn`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.checks import is_number
from holdfast.core.wire import anthropic, openai_chat, openai_responses
from holdfast.core.wire.plain_data import ReadNotes
from holdfast.core.wire.validate import EMPTY_MESSAGE
from holdfast.errors import InvalidMessage
from holdfast.records.messages import Message
from holdfast.records.usage import Usage

CUT_OFF_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
"""The finish reasons of a reply that ended at its length limit."""
_NORMAL_FINISHES = ("stop", "tool_calls", "function_call", "end_turn", "tool_use", "stop_sequence", "completed")


def reply_format(given: dict[str, Any]) -> str | None:
    """Return the format of a whole response; None if it is not one."""
    if isinstance(given.get("choices"), list):
        return "openai"
    if given.get("object") == "response" and isinstance(given.get("output"), list):
        return "responses"
    ended = "stop_reason" in given or "usage" in given
    if given.get("type") == "message" and ended and isinstance(given.get("content"), list):
        return "anthropic"
    return None


def read_reply(given: dict[str, Any], kind: str, notes: ReadNotes) -> Message:
    """Return the message in a response."""
    finish = finish_reason(given, kind)
    read = {"openai": _read_chat_completion, "responses": _read_response, "anthropic": _read_anthropic_message}[kind]
    try:
        message = read(given, notes)
        if message is None:
            raise InvalidMessage(EMPTY_MESSAGE)
    except InvalidMessage as error:
        if finish is None:
            raise
        raise InvalidMessage(f"{error} This reply did not end by itself, but by {finish}.") from None
    model, provider_id = (said if isinstance(said := given.get(name), str) else None for name in ("model", "id"))
    more: dict[str, Any] = {} if finish is None else {"finish": finish}
    if kind == "openai" and len(given["choices"]) > 1:
        more["choices"] = len(given["choices"])
    return msgspec.structs.replace(
        message,
        provider="anthropic" if kind == "anthropic" else "openai",
        model=model,
        provider_id=provider_id,
        usage=read_usage(given.get("usage"), model),
        metadata={**(message.metadata or {}), **more} or None,
    )


def read_usage(usage: Any, model: str | None = None) -> Usage | None:
    """Return the usage from any provider's report. Input includes cached tokens."""
    if not isinstance(usage, dict):
        return None
    into = _details(usage, "prompt_tokens_details", "input_tokens_details")
    out = _details(usage, "completion_tokens_details", "output_tokens_details")
    cached = _count(into, "cached_tokens")
    written = _count(into, "cache_write_tokens")
    given = _count(usage, "prompt_tokens", "input_tokens")
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        # Anthropic reports cache reads and writes separately from the input.
        cached, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
        given = given + cached + written if "prompt_tokens" not in usage else given
    return Usage(
        input=given,
        cached_input=cached,
        cache_write=written,
        output=_count(usage, "completion_tokens", "output_tokens"),
        reasoning=_count(out, "reasoning_tokens", "thinking_tokens"),
        model=model,
    )


def _read_chat_completion(given: dict[str, Any], notes: ReadNotes) -> Message | None:
    choice = given["choices"][0] if given["choices"] else None
    choice = choice if isinstance(choice, dict) else {}
    item = choice.get("message")
    if not isinstance(item, dict):
        what = "one chunk of a stream" if "delta" in choice else "a response without a message"
        raise InvalidMessage(f"This is {what}. Collect the whole reply, then append it.")
    said = {"role": "assistant", **item}
    audio = said.pop("audio", None)
    if said.get("content") is None and isinstance(audio, dict):
        # The audio can only be referred to for an hour; keep the transcript.
        said["content"] = audio.get("transcript")
    return openai_chat.read_message(said, notes)


def _read_response(given: dict[str, Any], notes: ReadNotes) -> Message | None:
    messages = openai_responses.read_items(given["output"], notes, reply=True)
    return messages[0] if messages else None


def _read_anthropic_message(given: dict[str, Any], notes: ReadNotes) -> Message | None:
    messages = anthropic.read_message({"role": "assistant", "content": given["content"]}, notes)
    if not messages:
        return None
    (message,) = messages
    parts = message.content
    if isinstance(parts, list) and len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        return msgspec.structs.replace(message, content=parts[0]["text"])
    return message


def finish_reason(given: dict[str, Any], kind: str) -> str | None:
    """Return the provider's reason why a reply ended, unless it was complete; its metadata holds the same word."""
    if kind == "openai":
        choice = given["choices"][0] if given["choices"] else None
        reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    elif kind == "responses":
        details = given.get("incomplete_details")
        reason = (details.get("reason") if isinstance(details, dict) else None) or given.get("status")
    else:
        reason = given.get("stop_reason")
    return reason if isinstance(reason, str) and reason not in _NORMAL_FINISHES else None


def _details(usage: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((usage[name] for name in names if isinstance(usage.get(name), dict)), {})


def _count(usage: dict[str, Any], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if is_number(value, least=0, most=2**63 - 1):
            return value
    return 0
