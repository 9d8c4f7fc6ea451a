"""A conversation in words: who said what, which tools were called, and what they gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.compaction.extract import clean
from holdfast.records.messages import Message

MOST_OF_A_RESULT = 4_000
"""Characters of a tool's result or arguments that are told."""
_LABELS = {"user": "User", "assistant": "Assistant", "tool": "Tool"}


def transcript(messages: Sequence[Message], most: int = MOST_OF_A_RESULT) -> str:
    """What was said and done, a line for each. Without what is erased."""
    return "\n".join(line for message in messages if not message.erased for line in _told(message, most))


def spoken(message: Message) -> str:
    """What a message says, with the names of its files; results of tools are told apart from it."""
    if message.role == "tool":
        return ""
    text = message.text
    for part in message.content if isinstance(message.content, list) else ():
        if part.get("type") in ("image", "file"):
            name = part.get("name")
            text += f"\n[{part['type']}: {name}]" if isinstance(name, str) and name else f"\n[{part['type']}]"
    return text


def speaker(message: Message) -> str:
    """Who says it."""
    label = _LABELS.get(message.role, "System")
    return f"{label} ({clean(message.name)[:40]})" if message.name and message.role != "tool" else label


def _told(message: Message, most: int) -> Iterator[str]:
    if said := spoken(message):
        yield _line(speaker(message), said)
    for call in message.tool_calls:
        yield _line(f"Call of {clean(call.name)}", call.arguments[:most])
    for result in message.tool_results:
        body = result.result if isinstance(result.result, str) else _json(result.result)
        kind = "No result" if result.interrupted else "Failure" if result.is_error else "Result"
        yield _line(kind, body[:most])
    if message.role == "tool" and not message.tool_results:
        yield _line("Result", message.text[:most])


def _line(label: str, text: str) -> str:
    # Lines after the first are set in, so that no text can pass for somebody else's line.
    return f"{label}: " + "\n    ".join(text.splitlines())


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode() if value is not None else ""
    except (TypeError, ValueError, RecursionError):
        return "[data that cannot be shown]"
