"""OpenAI's Responses form: a list of items, read and written.

What an assistant did between two inputs (reasoning, text, calls, hosted tools) is one message, in
the order of its items. `render(read_messages(x).messages, ids="provider")["input"] == x` for every
valid `x`, up to this:

- a text given in place of the list is one user message
- a message's `type` is left out, but for an assistant's with an `id`; keys that are null are left out
- an assistant's message without an `id` has its content as one text
- `annotations` are always there and `logprobs` are not when empty; an image always has a `detail`
- a call's `arguments` that are empty come back as `{}`; an output that is not text or parts as JSON text

Reasoning and items of hosted tools are kept and given back unaltered, in their place. What is not
understood is kept under `responses` and comes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.wire.calls import custom_arguments, id_text, read_call
from holdfast.core.wire.checking import settled
from holdfast.core.wire.given import listed, plain
from holdfast.core.wire.ids import Ids, WireIds
from holdfast.core.wire.notes import Notes, Reading
from holdfast.core.wire.order import InOrder, metadata_of
from holdfast.core.wire.parts import extras_of, file_media, malformed_part, media_of, text_part
from holdfast.core.wire.requests import ResponsesRequest
from holdfast.core.wire.responses_out import rendered
from holdfast.core.wire.roles import NOTHING_SAID, prompt_of, read_role
from holdfast.core.wire.tools import to_responses
from holdfast.records.messages import Message, Part, ToolCallResult, ToolDef

OUTPUTS = ("function_call_output", "custom_tool_call_output")
_KNOWN_PARTS = ("input_text", "output_text", "text", "refusal")
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
LONGEST_ID = 64


def read_messages(items: str | Sequence[Mapping[str, Any]] | Iterable[Any], *, instructions: Any = None) -> Reading:
    """A list of items, as far as it can be read; what could not is among the repairs."""
    notes = Notes()
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    system = instructions if isinstance(instructions, str) and instructions else None
    return Reading(messages=read_items(items, notes), system=system, repairs=notes.repairs)


def read_items(items: Iterable[Any], notes: Notes, *, reply: bool = False) -> list[Message]:
    """The messages that items make up. A reply is all the assistant's."""
    messages: list[Message | None] = []
    group = _Group()
    for index, item in enumerate(listed(items, notes)):
        notes.index = index
        given = plain(item, notes)
        if not isinstance(given, dict) or not isinstance(given.get("type", ""), str):
            notes.wrong("malformed", f"An item is {item!r:.40}. An item is a mapping with a type.", "left out an item")
        elif reply or _is_assistants(given):
            group.add(given, notes)
        else:
            messages += [group.message(notes), _read_input(given, notes)]
            group = _Group()
    messages.append(group.message(notes))
    return [message for message in messages if message is not None]


def render(
    messages: Sequence[Message], *, system: str | None = None, tools: Iterable[ToolDef] = (), ids: Ids = "unique"
) -> ResponsesRequest:
    """Keyword arguments for `responses.create`; `ids="provider"` is for export, the default for sending."""
    wire = WireIds(messages, ids, _VALID_ID, LONGEST_ID)
    out: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        out += rendered(messages, message, index, wire, exact=ids == "provider")
    if not out and ids == "unique":
        out.append({"role": "user", "content": NOTHING_SAID})
    request: ResponsesRequest = {"input": out}
    if prompt := prompt_of(system):
        request = {"instructions": prompt, **request}
    told = to_responses(tools)
    if told:
        request["tools"] = told
    return request


class _Group:
    """An assistant's items, one after another."""

    __slots__ = ("first", "found", "plain_texts")

    def __init__(self) -> None:
        self.first: int | None = None
        """Where it began, for repairs to name."""
        self.found = InOrder()
        self.plain_texts = 0
        """How many messages were nothing but text."""

    def add(self, item: dict[str, Any], notes: Notes) -> None:
        self.first = notes.index if self.first is None else self.first
        kind = item.get("type")
        if kind == "reasoning":
            self.found.add({"type": "reasoning", "provider": "responses", "item": item})
        elif kind == "function_call":
            extras = extras_of(item, ("type", "call_id", "name", "arguments"))
            call_id = item.get("call_id") or item.get("id")
            self.found.call(read_call(item.get("name"), item.get("arguments"), call_id, notes), extras)
        elif kind == "custom_tool_call":
            extras = extras_of(item, ("type", "call_id", "name", "input"))
            arguments = custom_arguments(item.get("input"))
            call = read_call(item.get("name"), arguments, item.get("call_id"), notes)
            self.found.call(call, {"custom": True, **extras})
        elif "role" in item and kind in (None, "message"):
            self._add_message(item, notes)
        else:
            self.found.add({"type": "other", "provider": "responses", "item": item})

    def _add_message(self, item: dict[str, Any], notes: Notes) -> None:
        extras = extras_of(item, ("type", "role", "content"))
        content = read_content(item.get("content"), notes)
        if isinstance(content, str):
            self.plain_texts += bool(content and not extras)
            content = [text_part(content)] if content else []
        if item.get("content") == [] and isinstance(extras.get("id"), str):
            # An empty message is still the one that some reasoning was for.
            self.found.add({"type": "other", "provider": "responses", "item": item})
        for at, part in enumerate(content or ()):
            own = dict(part.get("responses") or {})
            self.found.add({**part, "responses": {**own, "message": extras}} if at == 0 else part)

    def message(self, notes: Notes) -> Message | None:
        """All of it as one message; None if there is nothing."""
        if self.first is None:
            return None
        parts: list[Part] = self.found.content()
        content: str | list[Part] | None = parts or None
        if len(parts) == 1 and self.plain_texts == 1:
            content = parts[0]["text"]
        message = Message(
            role="assistant",
            content=content,
            tool_calls=tuple(self.found.calls),
            metadata=metadata_of("responses", notes, calls=self.found.call_extras),
        )
        after, notes.index = notes.index, self.first
        kept = settled(message, notes)
        notes.index = after
        return kept


def _is_assistants(item: dict[str, Any]) -> bool:
    """Whether an item is what a model gave, rather than what it was given."""
    if item.get("type") in (None, "message"):
        return item.get("role") == "assistant"
    kind = item["type"]
    return not (isinstance(kind, str) and (kind.endswith("_output") or kind == "mcp_approval_response"))


def _read_input(item: dict[str, Any], notes: Notes) -> Message | None:
    kind = item.get("type")
    if kind in OUTPUTS:
        return settled(_read_output(item, notes), notes)
    if kind not in (None, "message"):
        # An item of its own, such as the output of a hosted tool, rather than a part of a message.
        alone: Part = {"type": "other", "provider": "responses", "item": item, "alone": True}
        return settled(Message(role="user", content=[alone]), notes)
    role = read_role(item.get("role"), notes)
    if role is None:
        return None
    message = Message(
        # A tool's result is an item of another type here.
        role="user" if role == "tool" else role,
        content=read_content(item.get("content"), notes),
        metadata=metadata_of("responses", notes, message=extras_of(item, ("type", "role", "content"))),
    )
    return settled(message, notes)


def _read_output(item: dict[str, Any], notes: Notes) -> Message:
    output = item.get("output")
    if isinstance(output, list) and output and all(isinstance(part, dict) and "type" in part for part in output):
        output = read_content(output, notes)
    extras = extras_of(item, ("type", "call_id", "output"))
    return Message(
        role="tool",
        tool_results=(
            ToolCallResult(provider_id=id_text(item.get("call_id")), result="" if output is None else output),
        ),
        metadata=metadata_of("responses", notes, results={"0": extras} if extras else {}),
    )


def read_content(content: Any, notes: Notes) -> str | list[Part] | None:
    """Content of a message or an output."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        return [part for item in content if (part := _read_part(item, notes)) is not None]
    notes.wrong("malformed", f"content is {content!r:.40}. Use text or a list of parts.", "left out the content")
    return None


def _read_part(item: Any, notes: Notes) -> Part | None:
    match item:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            extras = {key: value for key, value in extras_of(item, ("type", "text")).items() if value != []}
            return text_part(text, "responses", extras)
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "refusal", "text": text}
        case {"type": "input_image" | "input_file"}:
            return _read_media(item, notes)
        case {"type": str(kind)} if kind not in _KNOWN_PARTS:
            return {"type": "other", "provider": "responses", "item": item}
        case _:
            malformed_part(item, notes)
            return None


def _read_media(item: dict[str, Any], notes: Notes) -> Part | None:
    media: dict[str, Any] | None = None
    match item:
        case {"file_id": str(file_id)}:
            media = {"file_id": file_id, "provider": "openai"}
        case {"file_data": str(data)}:
            media = file_media(data, notes)
        case {"image_url": str(url)} | {"file_url": str(url)}:
            media = media_of(url, notes)
        case _:
            malformed_part(item, notes)
    if media is None:
        return None
    name = {"name": item["filename"]} if isinstance(item.get("filename"), str) else {}
    detail = {"detail": item["detail"]} if item.get("detail") is not None else {}
    extras = extras_of(item, ("type", "image_url", "file_url", "file_data", "file_id", "filename", "detail"))
    kind = "image" if item["type"] == "input_image" else "file"
    return {"type": kind, **media, **name, **detail, **({"responses": extras} if extras else {})}
