"""Messages as items of OpenAI's Responses form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.wire.calls import custom_input, shown_result
from holdfast.core.wire.ids import WireIds
from holdfast.core.wire.order import call_of, in_order, is_custom, kept_for
from holdfast.core.wire.parts import (
    address_of,
    bytes_of,
    copied,
    encoded,
    file_id_of,
    item_of,
    own,
    parts_of,
    said_instead,
)
from holdfast.records.messages import Message, Part, ToolCallResult

_SPOKEN = ("text", "refusal")


def rendered(
    messages: Sequence[Message], message: Message, index: int, wire: WireIds, *, exact: bool
) -> list[dict[str, Any]]:
    """The items that one message becomes."""
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
    """Texts that stood in one message as that message."""
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
    """A part of what a model is given."""
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
