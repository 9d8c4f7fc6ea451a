"""Events of OpenAI's Responses. The last one holds the whole response; what came before is for those who watch.

A host that leaves the output out of the last event has said each item when it was done, so those are taken.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.wire.streaming_pieces import Pieces, called, field, number, reasoned, taken
from holdfast.records.calling import Delta

_LAST = ("response.completed", "response.incomplete", "response.failed")
_BEGUN = ("response.created", "response.queued", "response.in_progress")
_WORDS = ("response.output_text.delta", "response.refusal.delta")
_THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_CALLS = ("function_call", "custom_tool_call")


class ResponsePieces(Pieces):
    """One streamed response."""

    __slots__ = ("_head", "_items", "_last", "_told")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._last: dict[str, Any] | None = None
        self._items: dict[int, dict[str, Any]] = {}
        self._told: set[int] = set()
        """Items of which something was said already."""

    def add(self, event: Any) -> list[Delta]:
        kind = field(event, "type")
        if kind in _WORDS:
            self._tell(event)
            return self.text(field(event, "delta"))
        if kind in _THOUGHTS:
            return reasoned(field(event, "delta"))
        if kind == "response.output_item.added":
            item = field(event, "item")
            if field(item, "type") in _CALLS and self._tell(event):
                return called(field(item, "name"))
        elif kind == "response.output_item.done":
            return self._done(event)
        elif kind in _LAST:
            self._end(taken(field(event, "response")))
        elif kind in _BEGUN:
            self._head = taken(field(event, "response"))
        return []

    def whole(self) -> dict[str, Any]:
        found = dict(self._head if self._last is None else self._last)
        if not found.get("output"):
            found["output"] = [self._items[index] for index in sorted(self._items)]
        return {**found, "object": "response"}

    def _end(self, response: dict[str, Any]) -> None:
        self._last = response
        self.note_usage(response.get("usage"))
        if response.get("status") == "failed":
            error = response.get("error")
            self.error = error if isinstance(error, dict) else {"message": "The response failed."}
        else:
            self.ended = True

    def _tell(self, event: Any) -> bool:
        """Note that something of an item is told; whether it is the first of it."""
        index = number(field(event, "output_index")) or 0
        first = index not in self._told
        self._told.add(index)
        return first

    def _done(self, event: Any) -> list[Delta]:
        item = taken(field(event, "item"))
        first = self._tell(event)
        index = number(field(event, "output_index"))
        self._items[len(self._items) if index is None else index] = item
        if not first:
            return []
        if item.get("type") in _CALLS:
            return called(item.get("name"))
        content = item.get("content") if item.get("type") == "message" else ()
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        return [new for part in parts for new in self.text(part.get("text") or part.get("refusal"))]
