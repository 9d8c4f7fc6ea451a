"""What a message says, for people: its words, calls and results, and marks for what is odd about it.

All of it was written by users, models and tools: every piece is made printable before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.cli.output import brief, compact, printable, whole
from holdfast.cli.tree import short_ids
from holdfast.records.messages import Message, Part, ToolCallRequest, ToolCallResult

SHORT = 160
NAME = 24
ERASED = "(erased)"


class Piece(NamedTuple):
    """Some words and their style."""

    text: str
    style: str = ""


class Page:
    """Messages that are shown together, so that calls and results can name each other."""

    def __init__(self, messages: Sequence[Message], *, newest: bool, full: bool) -> None:
        self.messages = messages
        self._full = full
        self._names = {call.id: call.name for message in messages for call in message.tool_calls}
        answered = {result.tool_call_id for message in messages for result in message.tool_results}
        self._labels = short_ids([*self._names, *answered])
        # Further down somebody may have answered; at the end of a line nobody has.
        self._waiting = self._names.keys() - answered if newest else frozenset()

    def pieces(self, message: Message) -> Iterator[Piece]:
        """What a message says: a line each if it is shortened, else as many lines as it has."""
        if message.erased and not message.tool_calls and not message.tool_results:
            yield Piece(ERASED, "dim italic")
        elif message.content:
            yield Piece(self._shown(content_text(message.content)), "")
        for call in message.tool_calls:
            yield self._call(call, erased=message.erased)
        for result in message.tool_results:
            yield self._result(result, erased=message.erased)

    def _call(self, call: ToolCallRequest, *, erased: bool) -> Piece:
        said = ERASED if erased else f"{printable(call.name)}({self._shown(call.arguments)})"
        waits = "  no result yet" if call.id in self._waiting else ""
        return Piece(f"→ {said}  {self._labels[call.id]}{waits}", "magenta")

    def _result(self, result: ToolCallResult, *, erased: bool) -> Piece:
        name = self._names.get(result.tool_call_id)
        whose = "" if name is None or erased else f"{printable(name)}  "
        how = "interrupted: " if result.interrupted else "error: " if result.is_error else ""
        said = ERASED if erased else self._shown(result_text(result.result))
        style = "red" if result.is_error or result.interrupted else "cyan"
        return Piece(f"← {whose}{self._labels[result.tool_call_id]}  {how}{said}", style)

    def _shown(self, text: str) -> str:
        return whole(text) if self._full else printable(brief(text, SHORT))


def marks(message: Message) -> list[str]:
    """What is odd about a message."""
    found = [name for name in ("pinned", "partial", "synthetic", "erased") if getattr(message, name)]
    return found + ["interrupted"] * any(result.interrupted for result in message.tool_results)


def role_of(message: Message) -> str:
    """Who speaks."""
    return message.role if not message.name else f"{message.role} ({printable(brief(message.name, NAME))})"


def content_text(content: str | Sequence[Part]) -> str:
    """Text, with a word for every image, file and other part."""
    if isinstance(content, str):
        return content
    return " ".join(text for part in content if (text := _part_text(part)))


def result_text(result: Any) -> str:
    """What a tool gave back: text, parts, or plain data as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, list) and result and all(isinstance(part, dict) and "type" in part for part in result):
        return content_text(result)
    return compact(result)


def _part_text(part: Mapping[str, Any]) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind in ("text", "refusal") and isinstance(text, str):
        return text if kind == "text" else f"[refusal] {text}"
    if kind == "call":
        return ""
    named = next((part[name] for name in ("name", "media_type", "url", "file_id") if part.get(name)), None)
    item = part.get("item")
    if named is None and isinstance(item, dict):
        named = item.get("type")
    return f"[{kind}]" if not isinstance(named, str) or named == kind else f"[{kind}: {brief(named, SHORT)}]"
