"""OpenAI's chat completions format, read and written.

`render_request(read_messages(x).messages, ids="provider")["messages"] == x` for every valid `x`, except that:

- a null key is left out, but for `content` beside calls, which is always present and may be null
- text beside a `refusal` comes back as a list of one part
- an empty list of calls is left out; so are a call's `index` (of a stream) and `annotations`, which only replies have
- `function_call` and the role `function` come back as calls and tool messages; such calls had no id and get one
- empty arguments come back as `{}`, arguments given as an object as text
- a tool's content that is neither text nor parts comes back as JSON text
- base64 comes back without line breaks

Unknown fields are kept in the message's metadata or in its part, under `openai`, and come back. Assistant and tool
messages can only contain text, so an image in a tool's result is replaced by a description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from holdfast.core.wire.calls import (
    IdStyle,
    WireIds,
    custom_arguments,
    custom_input,
    read_call,
    read_provider_id,
    result_content,
)
from holdfast.core.wire.growth import ListFormat
from holdfast.core.wire.parts import (
    MessageBuilder,
    accept_message,
    build_metadata,
    collect_extras,
    copy_data,
    copy_item,
    is_custom_call,
    message_extras,
    message_parts,
    part_extras,
    part_url,
    placeholder_text,
    read_content,
    read_file_data,
    read_media_url,
    read_result_content,
    render_openai_file,
    report_malformed_part,
    text_part,
)
from holdfast.core.wire.plain_data import (
    EMPTY_REQUEST_TEXT,
    ParsedConversation,
    ReadNotes,
    drop_blank_prompt,
    iterate_items,
    read_mapping,
    read_role,
)
from holdfast.core.wire.tools import render_tools, sendable_author_name
from holdfast.records.messages import Message, Part, ToolCallRequest, ToolCallResult, ToolDef

_KNOWN_KEYS = {"role", "content", "name", "tool_calls", "function_call", "refusal", "annotations"}
_ASSISTANT_KEYS = ("tool_calls", "function_call", "refusal")
_KNOWN_PARTS = ("text", "refusal", "image_url", "file")
_VALID_ID = re.compile(r"[!-~]+")
MAX_CALL_ID_CHARS = 40

_SENDABLE_EXTRAS = frozenset({"audio"})


class OpenAIRequest(TypedDict):
    """Keyword arguments for `chat.completions.create`. A system prompt is the first of the messages."""

    messages: list[Any]
    tools: NotRequired[list[Any]]


def read_messages(items: Sequence[Mapping[str, Any]] | Iterable[Any]) -> ParsedConversation:
    """Read a list of messages as far as possible; problems are listed as repairs."""
    notes = ReadNotes()
    messages: list[Message] = []
    indexes: list[int] = []
    for index, item in enumerate(iterate_items(items, notes)):
        notes.index = index
        message = read_message(item, notes)
        if message is not None:
            messages.append(message)
            indexes.append(index)
    return ParsedConversation(messages=messages, repairs=notes.repairs, indexes=indexes)


def read_message(item: Any, notes: ReadNotes) -> Message | None:
    """Read one message; None if none of it can be used."""
    given = read_mapping(item, notes)
    if given is None:
        return None
    role = read_role(given.get("role"), notes, also=("function",))
    if role is None:
        return None
    name = given.get("name")
    if name is not None and (not isinstance(name, str) or not name):
        notes.report("A message's name is not text. Give text, or no name.", "left out a name")
        name = None
    if role != "assistant" and any(given.get(key) for key in _ASSISTANT_KEYS):
        notes.report(
            f"A message of the role {role} has calls or a refusal. Only an assistant message may have them.",
            "left out calls that are not an assistant's",
        )
    if role in ("tool", "function"):
        return accept_message(_read_result(given, name, notes), notes)
    calls = _read_calls(given, notes) if role == "assistant" else MessageBuilder()
    content = read_content(given.get("content"), _read_part, notes)
    if role == "assistant" and isinstance(given.get("refusal"), str) and given["refusal"]:
        said: list[Part] = [text_part(content)] if isinstance(content, str) else content or []
        content = [*said, {"type": "refusal", "text": given["refusal"], "openai": {"field": True}}]
    message = Message(
        role=role,
        content=content,
        tool_calls=tuple(calls.calls),
        name=name,
        metadata=build_metadata("openai", notes, message=_read_extras(given, role, notes), calls=calls.call_extras),
    )
    return accept_message(message, notes)


def render_request(
    messages: Sequence[Message], *, system: str | None = None, tools: Iterable[ToolDef] = (), ids: IdStyle = "unique"
) -> OpenAIRequest:
    """Return keyword arguments for `chat.completions.create`. `ids="provider"` is for export, not for sending."""
    wire = WireIds(messages, ids, _VALID_ID, MAX_CALL_ID_CHARS)
    items: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        items += render_message(message, index, wire, exact=ids == "provider")
    return build_request(items, system, tools, ids)


def build_request(
    items: list[dict[str, Any]], system: str | None, tools: Iterable[ToolDef], ids: IdStyle = "unique"
) -> OpenAIRequest:
    """Return keyword arguments with messages that are rendered already."""
    out = [{"role": "system", "content": prompt}, *items] if (prompt := drop_blank_prompt(system)) else items
    if not out and ids == "unique":
        out.append({"role": "user", "content": EMPTY_REQUEST_TEXT})  # OpenAI refuses a request without a message.
    told = render_tools(tools, "openai")
    return {"messages": out, "tools": told} if told else {"messages": out}


def _read_extras(given: dict[str, Any], role: str, notes: ReadNotes) -> dict[str, Any]:
    """Return the unknown fields. A model's audio is referred to by its id, and may be the whole message."""
    extras = collect_extras(given, _KNOWN_KEYS)
    match extras.get("audio"):
        case None:
            return extras
        case {"id": str(audio)} if role == "assistant" and audio:
            return extras
    notes.report("`audio` names nothing that an assistant spoke. Leave it out.", "left out audio")
    return {key: value for key, value in extras.items() if key != "audio"}


def _read_part(item: Any, notes: ReadNotes) -> Part | None:
    if isinstance(item, str):
        return text_part(item)
    match item:
        case {"type": "text", "text": str(text)}:
            return text_part(text, "openai", collect_extras(item, ("type", "text")))
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "refusal", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)} as image}:
            return _read_image(item, image, url, notes)
        case {"type": "image_url", "image_url": str(url)}:
            return _read_image(item, {}, url, notes)
        case {"type": "file", "file": dict(file)}:
            return _read_file(item, file, notes)
        case {"type": str(kind)} if kind not in _KNOWN_PARTS:
            return {"type": "other", "provider": "openai", "item": item}
        case _:
            report_malformed_part(item, notes)
            return None


def _read_image(item: dict[str, Any], image: dict[str, Any], url: str, notes: ReadNotes) -> Part | None:
    media = read_media_url(url, notes)
    if media is None:
        return None
    extras = collect_extras(item, ("type", "image_url"))
    more = collect_extras(image, ("url", "detail"))
    detail = {"detail": image["detail"]} if image.get("detail") is not None else {}
    kept = {**extras, **({"image_url": more} if more else {})}
    return {"type": "image", **media, **detail, **({"openai": kept} if kept else {})}


def _read_file(item: dict[str, Any], file: dict[str, Any], notes: ReadNotes) -> Part | None:
    media: dict[str, Any] | None = None
    match file:
        case {"file_id": str(file_id)}:
            media = {"file_id": file_id, "provider": "openai"}
        case {"file_data": str(data)}:
            media = read_file_data(data, notes)
        case _:
            report_malformed_part(item, notes)
    if media is None:
        return None
    name = {"name": file["filename"]} if isinstance(file.get("filename"), str) else {}
    extras = collect_extras(item, ("type", "file"))
    return {"type": "file", **media, **name, **({"openai": extras} if extras else {})}


def _read_calls(given: dict[str, Any], notes: ReadNotes) -> MessageBuilder:
    found = MessageBuilder()
    calls = given.get("tool_calls")
    if isinstance(calls, list):
        for item in calls:
            found.add_call(*_read_call(item, notes))
    elif calls is not None:
        notes.report(f"tool_calls is {calls!r:.40}. Give a list of calls.", "left out the calls")
    legacy = given.get("function_call")
    if isinstance(legacy, dict):
        found.add_call(read_call(legacy.get("name"), legacy.get("arguments"), None, notes), {})
    return found


def _read_call(item: Any, notes: ReadNotes) -> tuple[ToolCallRequest | None, dict[str, Any]]:
    if not isinstance(item, dict):
        notes.report(f"A tool call is {item!r:.40}. A call is a mapping.", "left out a call")
        return None, {}
    custom, function = item.get("custom"), item.get("function")
    extras = collect_extras(item, ("id", "type", "function", "custom", "index"))
    if item.get("type") == "custom" and isinstance(custom, dict):
        call = read_call(custom.get("name"), custom_arguments(custom.get("input")), item.get("id"), notes)
        return call, {"custom": True, **extras}
    function = function if isinstance(function, dict) else {}
    return read_call(function.get("name"), function.get("arguments"), item.get("id"), notes), extras


def _read_result(given: dict[str, Any], name: str | None, notes: ReadNotes) -> Message:
    result = ToolCallResult(
        provider_id=read_provider_id(given.get("tool_call_id")),
        result=read_result_content(given.get("content"), _read_part, notes),
    )
    return Message(
        role="tool",
        tool_results=(result,),
        name=name,
        metadata=build_metadata("openai", notes, message=collect_extras(given, {*_KNOWN_KEYS, "tool_call_id"})),
    )


def render_message(message: Message, index: int, wire: WireIds, *, exact: bool) -> list[dict[str, Any]]:
    """Return the messages that one message becomes: none if it holds nothing for this provider, one per result."""
    if message.role == "tool":
        return _render_results(message, index, wire, exact)
    parts = message_parts(message)
    content: str | list[dict[str, Any]] | None = message.content if isinstance(message.content, str) else None
    if content is None:
        shown = (_render_part(part, message.role, exact) for part in parts if not _is_field_refusal(part))
        content = [part for part in shown if part is not None] or None
    out: dict[str, Any] = {"role": message.role, "content": content}
    if message.name:
        out["name"] = message.name if exact else sendable_author_name(message.name)
    refused = "".join(part["text"] for part in parts if _is_field_refusal(part))
    if refused:
        out["refusal"] = refused
    if message.tool_calls:
        out["tool_calls"] = [_render_call(message, index, at, wire) for at in range(len(message.tool_calls))]
    out |= _render_extras(message, exact)
    says = out["content"] or message.tool_calls or refused or out.get("audio")
    # An empty text is a real answer; no content at all means a message for another provider.
    return [out] if says or isinstance(message.content, str) else []


def _render_part(part: Part, role: str, exact: bool) -> dict[str, Any] | None:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part["text"], **part_extras(part, "openai")}
    if kind == "refusal":
        name = "refusal" if role == "assistant" else "text"
        return {"type": name, name: part["text"]}
    if kind in ("reasoning", "call"):
        return None
    if kind == "other" and part.get("provider") == "openai":
        return copy_item(part)
    if kind == "other" and role == "assistant":
        return None
    shown = None
    if role == "user" and kind != "other":
        shown = _render_image(part) if kind == "image" else _render_file(part, exact)
    return shown or {"type": "text", "text": placeholder_text(part)}


def _render_image(part: Part) -> dict[str, Any] | None:
    url = part_url(part)
    if url is None:
        return None
    kept = part_extras(part, "openai")
    image = {"url": url, **kept.pop("image_url", {})}
    if part.get("detail") is not None:
        image["detail"] = copy_data(part["detail"])
    return {"type": "image_url", "image_url": image, **kept}


def _render_file(part: Part, exact: bool) -> dict[str, Any] | None:
    file = render_openai_file(part, "openai", exact=exact)
    return None if file is None else {"type": "file", "file": file, **part_extras(part, "openai")}


def _render_call(message: Message, index: int, at: int, wire: WireIds) -> dict[str, Any]:
    call, name = message.tool_calls[at], wire.tool_name(message.tool_calls[at].name)
    extras = {key: value for key, value in message_extras(message, "openai", "calls", at).items() if key != "custom"}
    if is_custom_call(message, at):
        made: dict[str, Any] = {"type": "custom", "custom": {"name": name, "input": custom_input(call)}}
    else:
        made = {"type": "function", "function": {"name": name, "arguments": call.arguments}}
    return {"id": wire.call_id(index, at), **made, **extras}


def _render_results(message: Message, index: int, wire: WireIds, exact: bool) -> list[dict[str, Any]]:
    out = []
    for at, result in enumerate(message.tool_results):
        shown = result_content(message, result)
        parts = shown if isinstance(shown, str) else [_render_part(part, "tool", exact) for part in shown]
        told: dict[str, Any] = {
            "role": "tool",
            "tool_call_id": wire.result_call_id(index, at, result, exact=exact),
            "content": parts if isinstance(parts, str) else [part for part in parts if part is not None],
        }
        if message.name:
            told["name"] = wire.tool_name(message.name)
        out.append(told | _render_extras(message, exact))
    return out


def _render_extras(message: Message, exact: bool) -> dict[str, Any]:
    """Return the unknown fields: all of them for export, only those that a request may hold for sending."""
    kept = message_extras(message, "openai", "message")
    return kept if exact else {name: value for name, value in kept.items() if name in _SENDABLE_EXTRAS}


def _is_field_refusal(part: Part) -> bool:
    """Return True if the refusal was a field beside the content rather than a part of it."""
    return part.get("type") == "refusal" and bool(part_extras(part, "openai").get("field"))


LIST_FORMAT = ListFormat(
    "openai",
    _VALID_ID,
    MAX_CALL_ID_CHARS,
    lambda messages, index, wire: render_message(messages[index], index, wire, exact=False),
)
"""The format for requests that begin like the last one."""
