"""Chunks of OpenAI's chat completions, put together to the completion that would have come whole.

Other hosts speak this form with habits of their own: calls that all have the index 0 or none at all, ids and names
in every piece, reasoning beside the content, usage in a chunk without choices, or in every chunk.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.wire.streaming_pieces import (
    Pieces,
    Words,
    called,
    each,
    field,
    joined,
    number,
    reasoned,
    settled,
    taken,
)
from holdfast.records.calling import Delta

_ONCE = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_THOUGHT = ("reasoning_content", "reasoning")


class ChatPieces(Pieces):
    """One streamed completion. Only the first choice is said aloud; others are kept."""

    __slots__ = ("_choices", "_head")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, event: Any) -> list[Delta]:
        # The SDK's own way of streaming wraps each chunk, and tells of it in other events besides.
        chunk = event if field(event, "type") is None else field(event, "chunk")
        for name in _ONCE:
            value = field(chunk, name)
            if value is not None:
                self._head.setdefault(name, value)
        self.note_usage(field(chunk, "usage"))
        said: list[Delta] = []
        for choice in each(field(chunk, "choices")):
            said += self._add_choice(choice)
        return said

    def whole(self) -> dict[str, Any]:
        choices = [self._choices[index].whole(index) for index in sorted(self._choices)]
        told = {} if self.usage is None else {"usage": self.usage}
        return {**self._head, "object": "chat.completion", "choices": choices, **told}

    def _add_choice(self, choice: Any) -> list[Delta]:
        index = number(field(choice, "index")) or 0
        kept = self._choices.setdefault(index, _Choice())
        new = kept.add(field(choice, "delta"), field(choice, "logprobs"))
        finish = field(choice, "finish_reason")
        if isinstance(finish, str) and finish:
            kept.finish = finish
            self.ended = self.ended or index == 0
        if index != 0:
            return []
        self.said += [delta.text for delta in new if delta.kind == "text"]
        return new


class _Choice:
    """One of the answers."""

    __slots__ = ("calls", "finish", "logprobs", "message")

    def __init__(self) -> None:
        self.message: dict[str, Any] = {"role": "assistant", "content": None}
        self.calls: list[dict[str, Any]] = []
        self.finish: str | None = None
        self.logprobs: dict[str, Any] = {}

    def add(self, delta: Any, logprobs: Any) -> list[Delta]:
        given = taken(delta)
        given.pop("role", None)
        calls, content = given.pop("tool_calls", None), given.pop("content", None)
        said = [new for name in _THOUGHT for new in reasoned(given.get(name))][:1]
        said += self._add_content(content)
        said += _words(given.get("refusal"))
        for call in each(calls):
            said += self._add_call(call) if isinstance(call, dict) else []
        joined(self.message, given)
        joined(self.logprobs, taken(logprobs))
        return said

    def whole(self, index: int) -> dict[str, Any]:
        message: dict[str, Any] = settled(self.message)
        if self.calls:
            message["tool_calls"] = [
                {key: value for key, value in settled(call).items() if key != "index"} for call in self.calls
            ]
        told = {"logprobs": settled(self.logprobs)} if self.logprobs else {}
        return {"index": index, "message": message, "finish_reason": self.finish, **told}

    def _add_content(self, content: Any) -> list[Delta]:
        """Text, or parts where a host streams its reasoning as part of the content."""
        held = self.message["content"]
        if isinstance(content, list):
            self.message["content"] = [*_parts(held), *content]
            return [new for part in content if isinstance(part, dict) for new in _words(part.get("text"))]
        if isinstance(content, str) and isinstance(held, list) and not isinstance(held, Words):
            held.extend(_parts(content))
        elif isinstance(content, str):
            joined(self.message, {"content": content})
        return _words(content)

    def _add_call(self, piece: dict[str, Any]) -> list[Delta]:
        call, new = self._call_for(piece)
        inner = "custom" if isinstance(piece.get("custom"), dict) else "function"
        held = call.setdefault(inner, {"name": "", "input" if inner == "custom" else "arguments": ""})
        more = piece.pop(inner, None)
        more = more if isinstance(more, dict) else {}
        before, name = held["name"], more.pop("name", None)
        if isinstance(name, str) and name != before:
            held["name"] += name
        joined(held, more)
        for key, value in piece.items():
            if value is not None and key not in ("function", "custom") and not call.get(key):
                call[key] = value
        return called(held["name"]) if new or not before else []

    def _call_for(self, piece: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """The call that a piece belongs to: by its index, unless another id says that it is another call."""
        index, given = number(piece.get("index")), piece.get("id")
        if index is None:
            same = [call for call in self.calls if call.get("id") == given] if given else self.calls[-1:]
        else:
            same = [call for call in self.calls if call.get("index") == index][-1:]
            if same and given and same[0].get("id") and same[0]["id"] != given:
                same = []
        if same:
            return same[-1], False
        self.calls.append({"id": "", "type": "function", **({} if index is None else {"index": index})})
        if isinstance(piece.get("type"), str) and piece["type"]:
            self.calls[-1]["type"] = piece["type"]
        return self.calls[-1], True


def _parts(content: Any) -> list[Any]:
    content = settled(content)
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _words(text: Any) -> list[Delta]:
    return [Delta(text=text)] if isinstance(text, str) and text else []
