"""OpenAI's Responses format: a list of items, read and written.

An assistant's items between two inputs (reasoning, text, calls, hosted tools) become one message, in their order.
`render_request(read_messages(x).messages, ids="provider")["input"] == x` for every valid `x`, except that:

- a text given in place of the list is one user message
- a message's `type` is left out, but for an assistant's with an `id`; null keys are left out
- an assistant's message without an `id` has its content as one text
- `annotations` are always present and empty `logprobs` never are; an image always has a `detail`
- a call's empty `arguments` come back as `{}`; an output that is not text or parts as JSON text

Reasoning and items of hosted tools are kept and returned unaltered, in their place. Unknown fields are kept under
`responses` and come back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from holdfast.core.wire import calls, plain_data
from holdfast.core.wire.calls import IdStyle, WireIds
from holdfast.core.wire.growth import ListFormat
from holdfast.core.wire.parts import (
    MessageBuilder,
    accept_message,
    build_metadata,
    collect_extras,
    copy_data,
    copy_item,
    find_call,
    is_custom_call,
    message_extras,
    message_parts,
    part_extras,
    part_file_id,
    part_url,
    parts_in_order,
    placeholder_text,
    read_content,
    read_file_data,
    read_media_url,
    read_result_content,
    render_openai_file,
    report_malformed_part,
    text_part,
)
from holdfast.core.wire.plain_data import ParsedConversation, ReadNotes
from holdfast.core.wire.tools import render_tools
from holdfast.records.messages import Message, Part, ToolCallResult, ToolDef

OUTPUT_TYPES = ("function_call_output", "custom_tool_call_output")
_KNOWN_PARTS = ("input_text", "output_text", "text", "refusal")
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
MAX_CALL_ID_CHARS = 64

_TEXT_TYPES = ("text", "refusal")


class ResponsesRequest(TypedDict):
    """Keyword arguments for `responses.create`."""

    instructions: NotRequired[str]
    input: list[Any]
    tools: NotRequired[list[Any]]


def read_messages(
    items: str | Sequence[Mapping[str, Any]] | Iterable[Any], *, instructions: Any = None
) -> ParsedConversation:
    """Read a list of items as far as possible; problems are listed as repairs."""
    notes = ReadNotes()
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    system = instructions if isinstance(instructions, str) and instructions else None
    return ParsedConversation(messages=read_items(items, notes), system=system, repairs=notes.repairs)


def read_items(items: Iterable[Any], notes: ReadNotes, *, reply: bool = False) -> list[Message]:
    """Return the messages that items make up. All items of a `reply` are the assistant's."""
    messages: list[Message | None] = []
    group = _AssistantItems()
    for index, item in enumerate(plain_data.iterate_items(items, notes)):
        notes.index = index
        given = plain_data.to_plain_data(item, notes)
        if not isinstance(given, dict) or not isinstance(given.get("type", ""), str):
            notes.report(f"An item is {item!r:.40}. An item is a mapping with a type.", "left out an item")
        elif reply or _is_assistant_item(given):
            group.add(given, notes)
        else:
            messages += [group.build_message(notes), _read_input(given, notes)]
            group = _AssistantItems()
    messages.append(group.build_message(notes))
    return [message for message in messages if message is not None]


def render_request(
    messages: Sequence[Message], *, system: str | None = None, tools: Iterable[ToolDef] = (), ids: IdStyle = "unique"
) -> ResponsesRequest:
    """Return keyword arguments for `responses.create`; `ids="provider"` is for export, the default for sending."""
    wire = WireIds(messages, ids, _VALID_ID, MAX_CALL_ID_CHARS)
    out: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        out += render_items(messages, message, index, wire, exact=ids == "provider")
    return build_request(out, system, tools, ids)


def build_request(
    out: list[dict[str, Any]], system: str | None, tools: Iterable[ToolDef], ids: IdStyle = "unique"
) -> ResponsesRequest:
    """Return keyword arguments with items that are rendered already."""
    if not out and ids == "unique":
        out.append({"role": "user", "content": plain_data.EMPTY_REQUEST_TEXT})
    request: ResponsesRequest = {"input": out}
    if prompt := plain_data.drop_blank_prompt(system):
        request = {"instructions": prompt, **request}
    told = render_tools(tools, "responses")
    if told:
        request["tools"] = told
    return request


class _AssistantItems:
    """A run of consecutive items of the assistant."""

    __slots__ = ("first", "found", "plain_texts")

    def __init__(self) -> None:
        self.first: int | None = None
        """The index of its first item, for repairs."""
        self.found = MessageBuilder()
        self.plain_texts = 0
        """Number of messages that were only text."""

    def add(self, item: dict[str, Any], notes: ReadNotes) -> None:
        self.first = notes.index if self.first is None else self.first
        kind = item.get("type")
        if kind == "reasoning":
            self.found.add({"type": "reasoning", "provider": "responses", "item": item})
        elif kind == "function_call":
            extras = collect_extras(item, ("type", "call_id", "name", "arguments"))
            call_id = item.get("call_id") or item.get("id")
            self.found.add_call(calls.read_call(item.get("name"), item.get("arguments"), call_id, notes), extras)
        elif kind == "custom_tool_call":
            extras = collect_extras(item, ("type", "call_id", "name", "input"))
            arguments = calls.custom_arguments(item.get("input"))
            call = calls.read_call(item.get("name"), arguments, item.get("call_id"), notes)
            self.found.add_call(call, {"custom": True, **extras})
        elif "role" in item and kind in (None, "message"):
            self._add_message(item, notes)
        else:
            self.found.add({"type": "other", "provider": "responses", "item": item})

    def _add_message(self, item: dict[str, Any], notes: ReadNotes) -> None:
        extras = collect_extras(item, ("type", "role", "content"))
        content = read_content(item.get("content"), _read_part, notes)
        if isinstance(content, str):
            self.plain_texts += bool(content and not extras)
            content = [text_part(content)] if content else []
        if item.get("content") == [] and isinstance(extras.get("id"), str):
            # Keep an empty message: the reasoning before it refers to it.
            self.found.add({"type": "other", "provider": "responses", "item": item})
        for at, part in enumerate(content or ()):
            own = dict(part.get("responses") or {})
            self.found.add({**part, "responses": {**own, "message": extras}} if at == 0 else part)

    def build_message(self, notes: ReadNotes) -> Message | None:
        """Return the items as one message; None if there are none."""
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
            metadata=build_metadata("responses", notes, calls=self.found.call_extras),
        )
        after, notes.index = notes.index, self.first
        kept = accept_message(message, notes)
        notes.index = after
        return kept


def _is_assistant_item(item: dict[str, Any]) -> bool:
    """Return True if the model produced the item, False if it was input to the model."""
    if item.get("type") in (None, "message"):
        parts = item.get("content")
        made = [plain_data.get_field(part, "type") for part in parts] if isinstance(parts, list) else []
        return item.get("role") == "assistant" or "output_text" in made  # Whatever role it claims.
    kind = item["type"]
    return not (isinstance(kind, str) and (kind.endswith("_output") or kind == "mcp_approval_response"))


def _read_input(item: dict[str, Any], notes: ReadNotes) -> Message | None:
    kind = item.get("type")
    if kind in OUTPUT_TYPES:
        return accept_message(_read_output(item, notes), notes)
    if kind not in (None, "message"):
        # A separate item, such as the output of a hosted tool, rather than a part of a message.
        alone: Part = {"type": "other", "provider": "responses", "item": item, "alone": True}
        return accept_message(Message(role="user", content=[alone]), notes)
    role = plain_data.read_role(item.get("role"), notes)
    if role is None:
        return None
    message = Message(
        # In this format a tool's result is an item of its own type, not a message.
        role="user" if role == "tool" else role,
        content=read_content(item.get("content"), _read_part, notes),
        metadata=build_metadata("responses", notes, message=collect_extras(item, ("type", "role", "content"))),
    )
    return accept_message(message, notes)


def _read_output(item: dict[str, Any], notes: ReadNotes) -> Message:
    result = ToolCallResult(
        provider_id=calls.read_provider_id(item.get("call_id")),
        result=read_result_content(item.get("output"), _read_part, notes),
    )
    extras = collect_extras(item, ("type", "call_id", "output"))
    metadata = build_metadata("responses", notes, results={"0": extras} if extras else {})
    return Message(role="tool", tool_results=(result,), metadata=metadata)


def _read_part(item: Any, notes: ReadNotes) -> Part | None:
    match item:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            extras = {key: value for key, value in collect_extras(item, ("type", "text")).items() if value != []}
            return text_part(text, "responses", extras)
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "refusal", "text": text}
        case {"type": "input_image" | "input_file"}:
            return _read_media(item, notes)
        case {"type": str(kind)} if kind not in _KNOWN_PARTS:
            return {"type": "other", "provider": "responses", "item": item}
        case _:
            report_malformed_part(item, notes)
            return None


def _read_media(item: dict[str, Any], notes: ReadNotes) -> Part | None:
    media: dict[str, Any] | None = None
    match item:
        case {"file_id": str(file_id)}:
            media = {"file_id": file_id, "provider": "openai"}
        case {"file_data": str(data)}:
            media = read_file_data(data, notes)
        case {"image_url": str(url)} | {"file_url": str(url)}:
            media = read_media_url(url, notes)
        case _:
            report_malformed_part(item, notes)
    if media is None:
        return None
    name = {"name": item["filename"]} if isinstance(item.get("filename"), str) else {}
    detail = {"detail": item["detail"]} if item.get("detail") is not None else {}
    extras = collect_extras(item, ("type", "image_url", "file_url", "file_data", "file_id", "filename", "detail"))
    kind = "image" if item["type"] == "input_image" else "file"
    return {"type": kind, **media, **name, **detail, **({"responses": extras} if extras else {})}


def render_items(
    messages: Sequence[Message], message: Message, index: int, wire: WireIds, *, exact: bool
) -> list[dict[str, Any]]:
    """Return the items that one message becomes."""
    if message.role == "assistant":
        return _render_assistant(message, index, wire)
    if message.role == "tool":
        return [
            _render_output(messages, index, at, result, wire, exact=exact)
            for at, result in enumerate(message.tool_results)
        ]
    parts = message_parts(message)
    alone = [part for part in parts if part.get("alone") and part.get("provider") == "responses"]
    if alone:
        return [copy_item(part) for part in alone]
    content: str | list[dict[str, Any]]
    if isinstance(message.content, str):
        content = message.content
    else:
        content = [_render_input_part(part, exact) for part in parts if part.get("type") not in ("reasoning", "call")]
    item = {"role": message.role, "content": content, **message_extras(message, "responses", "message")}
    return [item] if content or isinstance(content, str) else []


def _render_assistant(message: Message, index: int, wire: WireIds) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    spoken: list[Part] = []
    for part in parts_in_order(message):
        kind = part.get("type")
        if kind in _TEXT_TYPES and not (spoken and "message" in part_extras(part, "responses")):
            spoken.append(part)
            continue
        out += _render_texts(spoken)
        spoken = [part] if kind in _TEXT_TYPES else []
        if kind in ("reasoning", "other") and part.get("provider") == "responses":
            out.append(copy_item(part))
        elif kind == "call":
            out += _render_call(message, index, part, wire)
        elif kind in ("image", "file"):
            spoken = [{"type": "text", "text": placeholder_text(part)}]
    return out + _render_texts(spoken)


def _render_texts(parts: list[Part]) -> list[dict[str, Any]]:
    """Return the message made of texts that belonged together."""
    if not parts:
        return []
    extras = part_extras(parts[0], "responses").get("message") or {}
    if not isinstance(extras.get("id"), str):
        text = "".join(part["text"] for part in parts)
        return [{"role": "assistant", "content": text, **extras}] if text else []
    content = [
        {"type": "refusal", "refusal": part["text"]}
        if part["type"] == "refusal"
        else {"type": "output_text", "text": part["text"], "annotations": [], **_text_extras(part)}
        for part in parts
    ]
    return [{"type": "message", "role": "assistant", "status": "completed", **extras, "content": content}]


def _text_extras(part: Part) -> dict[str, Any]:
    return {key: value for key, value in part_extras(part, "responses").items() if key != "message"}


def _render_call(message: Message, index: int, part: Part, wire: WireIds) -> list[dict[str, Any]]:
    found = find_call(message, part)
    if found is None:
        return []
    at, call = found
    extras = {key: value for key, value in message_extras(message, "responses", "calls", at).items() if key != "custom"}
    item = {"call_id": wire.call_id(index, at), "name": wire.tool_name(call.name), **extras}
    if is_custom_call(message, at):
        return [{"type": "custom_tool_call", "input": calls.custom_input(call), **item}]
    return [{"type": "function_call", "arguments": call.arguments, **item}]


def _render_output(
    messages: Sequence[Message], index: int, at: int, result: ToolCallResult, wire: WireIds, *, exact: bool
) -> dict[str, Any]:
    message = messages[index]
    shown = calls.result_content(message, result)
    call = wire.call_position(index, at)
    custom = call is not None and is_custom_call(messages[call[0]], call[1])
    return {
        "type": "custom_tool_call_output" if custom else "function_call_output",
        "call_id": wire.result_call_id(index, at, result, exact=exact),
        "output": shown if isinstance(shown, str) else [_render_input_part(part, exact) for part in shown],
        **message_extras(message, "responses", "results", at),
    }


def _render_input_part(part: Part, exact: bool) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "other" and part.get("provider") == "responses":
        return copy_item(part)
    if kind in _TEXT_TYPES:
        return {"type": "input_text", "text": part["text"], **_text_extras(part)}
    shown = _render_image(part) if kind == "image" else _render_file(part, exact) if kind == "file" else None
    if shown is None:
        return {"type": "input_text", "text": placeholder_text(part)}
    return {**shown, **part_extras(part, "responses")}


def _render_image(part: Part) -> dict[str, Any] | None:
    kept, url = part_file_id(part, "responses"), part_url(part)
    if kept is None and url is None:
        return None
    place = {"image_url": url} if kept is None else {"file_id": kept}
    return {"type": "input_image", "detail": copy_data(part.get("detail")) or "auto", **place}


def _render_file(part: Part, exact: bool) -> dict[str, Any] | None:
    file = render_openai_file(part, "responses", exact=exact, urls=True)
    if file is None:
        return None
    detail = {} if part.get("detail") is None else {"detail": copy_data(part["detail"])}
    return {"type": "input_file", **file, **detail}


LIST_FORMAT = ListFormat(
    "responses",
    _VALID_ID,
    MAX_CALL_ID_CHARS,
    lambda messages, index, wire: render_items(messages, messages[index], index, wire, exact=False),
)
"""The format for requests that begin like the last one."""
