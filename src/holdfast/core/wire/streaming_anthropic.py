"""Events of Anthropic's Messages, put together to the message that would have come whole.

Thinking keeps its signature, blocks of hosted tools stay as they came. Usage grows: the counts at the beginning
stay unless a later report has its own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.wire.calls import json_text
from holdfast.core.wire.streaming_pieces import Pieces, called, each, field, joined, number, reasoned, settled, taken
from holdfast.records.calling import Delta


class MessagePieces(Pieces):
    """One streamed message. The arguments of a call to `answer_tool` are the answer itself, and become text."""

    __slots__ = ("_answer_tool", "_blocks", "_head", "_inputs")

    def __init__(self, answer_tool: str | None = None) -> None:
        super().__init__()
        self._answer_tool = answer_tool
        self._head: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}

    def add(self, event: Any) -> list[Delta]:
        kind = field(event, "type")
        if kind == "content_block_delta":
            return self._add_delta(number(field(event, "index")) or 0, field(event, "delta"))
        if kind == "content_block_start":
            return self._begin(number(field(event, "index")), taken(field(event, "content_block")))
        if kind == "message_start":
            self._head = taken(field(event, "message"))
            self.note_usage(self._head.get("usage"))
            given = each(self._head.get("content"))
            self._blocks = dict(enumerate(block for block in given if isinstance(block, dict)))
        elif kind == "message_delta":
            changed = taken(field(event, "delta"))
            self._head.update({name: value for name, value in changed.items() if value is not None})
            self.note_usage(field(event, "usage"))
            self.ended = self.ended or bool(changed.get("stop_reason"))
        return []

    def whole(self) -> dict[str, Any]:
        content = [self._block(index) for index in sorted(self._blocks)]
        told = {} if self.usage is None else {"usage": self.usage}
        made = {"type": "message", "role": "assistant", **self._head, "content": content, **told}
        return answered(made, self._answer_tool)

    def _begin(self, index: int | None, block: dict[str, Any]) -> list[Delta]:
        self._blocks[len(self._blocks) if index is None else index] = block
        if block.get("type") == "text":
            return self.text(block.get("text"))
        if block.get("type") == "thinking":
            return reasoned(block.get("thinking"))
        name = block.get("name")
        return called(name) if block.get("type") == "tool_use" and not self._is_answer(block) else []

    def _is_answer(self, block: dict[str, Any]) -> bool:
        return self._answer_tool is not None and block.get("name") == self._answer_tool

    def _add_delta(self, index: int, delta: Any) -> list[Delta]:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        kind = field(delta, "type")
        if kind == "input_json_delta":
            piece = field(delta, "partial_json")
            self._inputs.setdefault(index, []).append(piece if isinstance(piece, str) else "")
            return self.text(piece) if self._is_answer(block) else []
        if kind == "signature_delta":
            block["signature"] = field(delta, "signature")
            return []
        if kind == "citations_delta":
            block["citations"] = [*each(block.get("citations")), taken(field(delta, "citation"))]
            return []
        joined(block, {name: piece for name, piece in taken(delta).items() if isinstance(piece, str)})
        return self.text(field(delta, "text")) or reasoned(field(delta, "thinking"))

    def _block(self, index: int) -> dict[str, Any]:
        block: dict[str, Any] = settled(self._blocks[index])
        written = "".join(self._inputs.get(index, ()))
        if not written.strip():
            return block
        if self._is_answer(block):
            return {**block, "input": written}
        try:
            return {**block, "input": msgspec.json.decode(written)}
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            # It stays the text that it is, so that whoever reads the call sees that it is none.
            return {**block, "input": written}


def answered(message: dict[str, Any], answer_tool: str | None) -> dict[str, Any]:
    """The same message with a call of the tool that takes the answer turned into the text that it was given."""
    content = message.get("content")
    if answer_tool is None or not isinstance(content, list):
        return message
    blocks = [_as_text(block, answer_tool) if isinstance(block, dict) else block for block in content]
    calls = any(isinstance(block, dict) and block.get("type") == "tool_use" for block in blocks)
    ended = message.get("stop_reason")
    return {**message, "content": blocks, "stop_reason": "end_turn" if ended == "tool_use" and not calls else ended}


def _as_text(block: dict[str, Any], answer_tool: str) -> dict[str, Any]:
    if block.get("type") != "tool_use" or block.get("name") != answer_tool:
        return block
    given = block.get("input")
    return {"type": "text", "text": given if isinstance(given, str) else json_text(given)}
