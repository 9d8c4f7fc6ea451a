"""A provider's whole response as a reply: the message, why it ended, what it used. Nonsense is a fault.

A refusal is an answer. A reply that was cut at its length keeps what was said; calls that were cut off are left out.
Whether a reply fits the schema that was asked for is not looked at here: whoever asked knows the type, and can tell the
model what is wrong.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.wire.formats import Format
from holdfast.core.wire.notes import Notes
from holdfast.core.wire.replies import read_reply, read_usage, reply_kind
from holdfast.errors import InvalidMessage
from holdfast.model.failures import Fault
from holdfast.records.messages import Message
from holdfast.records.usage import Usage

_SHORT = ("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded")
_REFUSED = ("refusal", "content_filter")
_NOT_SAID = "The provider held the answer back."
_NO_END = ("in_progress", "queued", "cancelled")


def read(whole: dict[str, Any], form: Format) -> tuple[Message, str | None]:
    """The message, and why it ended if not by itself; a Fault with the usage if there is none that can be used."""
    usage = usage_of(whole)
    if reply_kind(whole) != form:
        raise Fault("its answer is not of the form that was asked for", kind="malformed", usage=usage)
    finish = _finish(whole, form)
    if finish in _NO_END:
        raise Fault(f"its answer is not complete but {finish}", kind="malformed", usage=usage)
    try:
        message = read_reply(whole, form, Notes(strict=True, partial=finish in _SHORT))
    except InvalidMessage as error:
        if finish not in _REFUSED:
            raise _nothing(error, finish, usage) from None
        message = _held_back(whole, form, finish, usage)
    if _only_thought(message):
        raise _nothing(InvalidMessage("it has only thought, and said nothing"), finish, usage)
    finish = (message.metadata or {}).get("finish")
    if finish is None and any(part.get("type") == "refusal" for part in _parts(message)):
        finish = "refusal"
    return message, finish


def usage_of(whole: dict[str, Any]) -> Usage | None:
    """What a response says that it used."""
    model = whole.get("model")
    return read_usage(whole.get("usage"), model if isinstance(model, str) else None)


def _finish(whole: dict[str, Any], form: Format) -> str | None:
    """Why it ended, in the provider's word, unless it was complete; the message's own note has it from here, too."""
    if form == "openai":
        choice = whole["choices"][0] if whole["choices"] else {}
        reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    elif form == "responses":
        details = whole.get("incomplete_details")
        reason = (details.get("reason") if isinstance(details, dict) else None) or whole.get("status")
    else:
        reason = whole.get("stop_reason")
    return reason if isinstance(reason, str) and reason in (*_SHORT, *_REFUSED, *_NO_END, "pause_turn") else None


def _nothing(error: InvalidMessage, finish: str | None, usage: Usage | None) -> Fault:
    if finish in _SHORT:
        why = "it came to the end of its reply's length before it had said anything. Give it a larger max_tokens"
        return Fault(why, kind="malformed", retryable=False, usage=usage)
    return Fault(f"its answer cannot be read: {error}", kind="malformed", usage=usage)


def _held_back(whole: dict[str, Any], form: Format, finish: str | None, usage: Usage | None) -> Message:
    """A refusal without words, as a message that says so."""
    details = whole.get("stop_details")
    said = details.get("explanation") if isinstance(details, dict) else None
    model = whole.get("model")
    return Message(
        role="assistant",
        content=[{"type": "refusal", "text": said if isinstance(said, str) and said else _NOT_SAID}],
        provider="anthropic" if form == "anthropic" else "openai",
        model=model if isinstance(model, str) else None,
        usage=usage,
        metadata={"finish": finish},
    )


def _only_thought(message: Message) -> bool:
    parts = _parts(message)
    blank = all(part.get("type") == "reasoning" or part.get("text") == "" for part in parts)
    return bool(parts) and blank and not message.tool_calls


def _parts(message: Message) -> list[dict[str, Any]]:
    return message.content if isinstance(message.content, list) else []
