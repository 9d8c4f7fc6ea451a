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
from typing import Any

from holdfast.core.wire.calls import Ids, WireIds, custom_arguments, custom_input, id_text, read_call, shown_result
from holdfast.core.wire.parts import (
    InOrder,
    address_of,
    bytes_of,
    call_of,
    copied,
    encoded,
    extras_of,
    file_id_of,
    file_media,
    in_order,
    is_custom,
    item_of,
    kept_for,
    malformed_part,
    media_of,
    metadata_of,
    own,
    parts_of,
    said_instead,
    text_part,
)
from holdfast.core.wire.plain_data import NOTHING_SAID, Notes, Reading, listed, plain, prompt_of, read_role
from holdfast.core.wire.requests import ResponsesRequest
from holdfast.core.wire.tools import to_responses
from holdfast.core.wire.validate import settled
from holdfast.records.messages import Message, Part, ToolCallResult, ToolDef

OUTPUTS = ("function_call_output", "custom_tool_call_output")
_KNOWN_PARTS = ("input_text", "output_text", "text", "refusal")
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
LONGEST_ID = 64


def read_messages(items: str | Sequence[Mapping[str, Any]] | Iterable[Any], *, instructions: Any = None) -> Reading:
    """Read a list of items as far as possible; problems are listed as repairs."""
    notes = Notes()
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    system = instructions if isinstance(instructions, str) and instructions else None
    return Reading(messages=read_items(items, notes), system=system, repairs=notes.repairs)


def read_items(items: Iterable[Any], notes: Notes, *, reply: bool = False) -> list[Message]:
    """Return the messages that items make up. All items of a `reply` are the assistant's."""
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
    """Return keyword arguments for `responses.create`; `ids="provider"` is for export, the default for sending."""
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
    """A run of consecutive items of the assistant."""

    __slots__ = ("first", "found", "plain_texts")

    def __init__(self) -> None:
        self.first: int | None = None
        """The index of its first item, for repairs."""
        self.found = InOrder()
        self.plain_texts = 0
        """Number of messages that were only text."""

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
            # Keep an empty message: the reasoning before it refers to it.
            self.found.add({"type": "other", "provider": "responses", "item": item})
        for at, part in enumerate(content or ()):
            own = dict(part.get("responses") or {})
            self.found.add({**part, "responses": {**own, "message": extras}} if at == 0 else part)

    def message(self, notes: Notes) -> Message | None:
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
            metadata=metadata_of("responses", notes, calls=self.found.call_extras),
        )
        after, notes.index = notes.index, self.first
        kept = settled(message, notes)
        notes.index = after
        return kept


def _is_assistants(item: dict[str, Any]) -> bool:
    """Return True if the model produced the item, False if it was input to the model."""
    if item.get("type") in (None, "message"):
        return item.get("role") == "assistant"
    kind = item["type"]
    return not (isinstance(kind, str) and (kind.endswith("_output") or kind == "mcp_approval_response"))


def _read_input(item: dict[str, Any], notes: Notes) -> Message | None:
    kind = item.get("type")
    if kind in OUTPUTS:
        return settled(_read_output(item, notes), notes)
    if kind not in (None, "message"):
        # A separate item, such as the output of a hosted tool, rather than a part of a message.
        alone: Part = {"type": "other", "provider": "responses", "item": item, "alone": True}
        return settled(Message(role="user", content=[alone]), notes)
    role = read_role(item.get("role"), notes)
    if role is None:
        return None
    message = Message(
        # In this format a tool's result is an item of its own type, not a message.
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
    """Read the content of a message or an output."""
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


_SPOKEN = ("text", "refusal")


def rendered(
    messages: Sequence[Message], message: Message, index: int, wire: WireIds, *, exact: bool
) -> list[dict[str, Any]]:
    """Return the items that one message becomes."""
    if message.role == "assistant":
        return _assistants(message, index, wire)
    if message.role == "tool":
        return [
            _output(messages, index, at, result, wire, exact=exact) for at, result in enumerate(message.tool_results)
        ]
    alone = [item_of(part) for part in parts_of(message) if part.get("alone") and part.get("provider") == "responses"]
    if alone:
        return alone
    content: str | list[dict[str, Any]]
    if isinstance(message.content, str):
        content = message.content
    else:
        content = [_part(part, exact) for part in parts_of(message) if part.get("type") not in ("reasoning", "call")]
    item = {"role": message.role, "content": content, **kept_for(message, "responses", "message")}
    return [item] if content or isinstance(content, str) else []


def _assistants(message: Message, index: int, wire: WireIds) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    spoken: list[Part] = []
    for part in in_order(message):
        kind = part.get("type")
        if kind in _SPOKEN and not (spoken and "message" in own(part, "responses")):
            spoken.append(part)
            continue
        out += _spoken(spoken)
        spoken = [part] if kind in _SPOKEN else []
        if kind in ("reasoning", "other") and part.get("provider") == "responses":
            out.append(item_of(part))
        elif kind == "call":
            out += _call(message, index, part, wire)
        elif kind in ("image", "file"):
            spoken = [{"type": "text", "text": said_instead(part)}]
    return out + _spoken(spoken)


def _spoken(parts: list[Part]) -> list[dict[str, Any]]:
    """Return the message made of texts that belonged together."""
    if not parts:
        return []
    extras = own(parts[0], "responses").get("message") or {}
    if not isinstance(extras.get("id"), str):
        text = "".join(part["text"] for part in parts)
        return [{"role": "assistant", "content": text, **extras}] if text else []
    content = [_said(part) for part in parts]
    return [{"type": "message", "role": "assistant", "status": "completed", **extras, "content": content}]


def _said(part: Part) -> dict[str, Any]:
    if part["type"] == "refusal":
        return {"type": "refusal", "refusal": part["text"]}
    extras = {key: value for key, value in own(part, "responses").items() if key != "message"}
    return {"type": "output_text", "text": part["text"], "annotations": [], **extras}


def _call(message: Message, index: int, part: Part, wire: WireIds) -> list[dict[str, Any]]:
    found = call_of(message, part)
    if found is None:
        return []
    at, call = found
    extras = {key: value for key, value in kept_for(message, "responses", "calls", at).items() if key != "custom"}
    item = {"call_id": wire.of_call(index, at), "name": wire.tool(call.name), **extras}
    if is_custom(message, at):
        return [{"type": "custom_tool_call", "input": custom_input(call), **item}]
    return [{"type": "function_call", "arguments": call.arguments, **item}]


def _output(
    messages: Sequence[Message], index: int, at: int, result: ToolCallResult, wire: WireIds, *, exact: bool
) -> dict[str, Any]:
    message = messages[index]
    shown = shown_result(message, result)
    call = wire.call_place(index, at)
    custom = call is not None and is_custom(messages[call[0]], call[1])
    return {
        "type": "custom_tool_call_output" if custom else "function_call_output",
        "call_id": wire.of_result(index, at, result, exact=exact),
        "output": shown if isinstance(shown, str) else [_part(part, exact) for part in shown],
        **kept_for(message, "responses", "results", at),
    }


def _part(part: Part, exact: bool) -> dict[str, Any]:
    """Return a part of the model's input."""
    kind = part.get("type")
    if kind == "other" and part.get("provider") == "responses":
        return item_of(part)
    if kind in _SPOKEN:
        extras = {key: value for key, value in own(part, "responses").items() if key != "message"}
        return {"type": "input_text", "text": part["text"], **extras}
    shown = _image(part) if kind == "image" else _file(part, exact) if kind == "file" else None
    if shown is None:
        return {"type": "input_text", "text": said_instead(part)}
    return {**shown, **own(part, "responses")}


def _image(part: Part) -> dict[str, Any] | None:
    kept, url = file_id_of(part, "responses"), address_of(part)
    if kept is None and url is None:
        return None
    place = {"image_url": url} if kept is None else {"file_id": kept}
    return {"type": "input_image", "detail": copied(part.get("detail")) or "auto", **place}


def _file(part: Part, exact: bool) -> dict[str, Any] | None:
    file: dict[str, Any] = {"type": "input_file"}
    kept, data, name = file_id_of(part, "responses"), bytes_of(part), part.get("name")
    if kept is not None:
        file["file_id"] = kept
    elif data is not None:
        file["file_data"] = encoded(data) if part.get("media_type") is None else address_of(part)
        name = name if isinstance(name, str) or exact else "file"
    elif isinstance(part.get("url"), str):
        file["file_url"] = part["url"]
    else:
        return None
    if isinstance(name, str):
        file["filename"] = name
    if part.get("detail") is not None:
        file["detail"] = copied(part["detail"])
    return file
