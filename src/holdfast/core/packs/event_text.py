"""The text of an event. The same event always gives the same text.

So evidence that was shown can be shown again from its source, without keeping a copy of it.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.core.journal.codec import encode
from holdfast.core.wire.parts import has_types
from holdfast.records.events.envelope import ERASED, Erased, Event
from holdfast.records.messages import Message

MAX_TEXT_CHARS: Final = 1_000_000
"""The most characters of one text: no model is shown more of one thing, and memory stays bounded."""
_MARKER_CHARS: Final = 64
_MAX_DEPTH: Final = 1_000
"""Stored values were checked when they were written."""

_TEXT_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "summary.made": ("text", "state"),
    "frame.compacted": ("text", "state"),
    "frame.handle_added": ("body",),
    "question.answered": ("payload",),
    "tool.returned": ("value", "error"),
    "run.returned": ("value", "error"),
    "model.responded": ("response",),
    "model.failed": ("error",),
    "worker.reported": ("claim", "insight", "report"),
    "worker.signalled": ("claim", "insight", "reason", "report"),
    "memory.noted": ("text",),
    "operator.ran": ("output",),
}
"""The fields of a content that hold its text, best first. Other events use the whole content."""


def event_text(event: Event, part: str | None = None) -> str | Erased | None:
    """Return the text of an event other than a message, if any; `part` names one field of a worker's words."""
    content = event.content
    if content is ERASED or content is None:
        return None if content is None else ERASED
    if event.type == "state.written":
        return value_text(content.value)
    if event.type.startswith("app."):
        return value_text(getattr(content, "data", content))
    names = _TEXT_FIELDS.get(event.type, ())
    for name in (part, *names) if part in names else names:
        found = getattr(content, str(name), None)
        if found is not None:
            return value_text(found)
    return value_text(content)


def message_text(message: Message, call: str | None = None) -> str:
    """Return a message's text and results, or the result of one call; its calls if there is nothing else."""
    values = [one.result for one in message.tool_results if call in (None, one.tool_call_id)]
    results = [text for text in map(_result_text, values) if text]
    if call is not None and results:
        return "\n".join(results)
    said = [text for text in (message.text, *results) if text]
    return "\n".join(said or [f"{one.name}({one.arguments})" for one in message.tool_calls])


def _result_text(value: Any) -> str:
    if has_types(value):
        return "\n".join(part["text"] for part in value if isinstance(part.get("text"), str))
    return value_text(value)


def value_text(value: Any) -> str:
    """Return a text as it is, other data as canonical JSON."""
    return value if isinstance(value, str) else encode(value, _MAX_DEPTH).decode()


def cap_text(text: str) -> str:
    """Cut a text to MAX_TEXT_CHARS; a longer one says at its end how much is missing."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    kept = MAX_TEXT_CHARS - _MARKER_CHARS
    return f"{text[:kept]}\n[{len(text) - kept:,} more characters are not shown]"
