"""Messages in OpenAI's chat completions form.

Assistants and tools can be given text only, so an image in a tool's result is named in words there.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.wire.calls import custom_input, shown_result
from holdfast.core.wire.ids import WireIds
from holdfast.core.wire.names import author_name
from holdfast.core.wire.order import is_custom, kept_for
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
from holdfast.records.messages import Message, Part

_SENT = frozenset({"audio"})


def rendered(message: Message, index: int, wire: WireIds, *, exact: bool) -> list[dict[str, Any]]:
    """The messages that one message becomes: none if it holds nothing for this provider, one for each result."""
    if message.role == "tool":
        return _results(message, index, wire, exact)
    out: dict[str, Any] = {"role": message.role, "content": _content(message, exact)}
    if message.name:
        out["name"] = message.name if exact else author_name(message.name)
    refused = "".join(part["text"] for part in _field_refusals(message))
    if refused:
        out["refusal"] = refused
    if message.tool_calls:
        out["tool_calls"] = [_call(message, index, at, wire) for at in range(len(message.tool_calls))]
    out |= _extras(message, exact)
    says = out["content"] or message.tool_calls or refused or out.get("audio")
    # An empty text is an answer that was given; nothing at all is a message for another provider.
    return [out] if says or isinstance(message.content, str) else []


def _content(message: Message, exact: bool) -> str | list[dict[str, Any]] | None:
    if isinstance(message.content, str):
        return message.content
    shown = (_part(part, message.role, exact) for part in parts_of(message) if not _is_field_refusal(part))
    return [part for part in shown if part is not None] or None


def _part(part: Part, role: str, exact: bool) -> dict[str, Any] | None:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part["text"], **own(part, "openai")}
    if kind == "refusal":
        name = "refusal" if role == "assistant" else "text"
        return {"type": name, name: part["text"]}
    if kind in ("reasoning", "call"):
        return None
    if kind == "other" and part.get("provider") == "openai":
        return item_of(part)
    if kind == "other" and role == "assistant":
        return None
    shown = None
    if role == "user" and kind != "other":
        shown = _image(part) if kind == "image" else _file(part, exact)
    return shown or {"type": "text", "text": said_instead(part)}


def _image(part: Part) -> dict[str, Any] | None:
    url = address_of(part)
    if url is None:
        return None
    kept = own(part, "openai")
    image = {"url": url, **kept.pop("image_url", {})}
    if part.get("detail") is not None:
        image["detail"] = copied(part["detail"])
    return {"type": "image_url", "image_url": image, **kept}


def _file(part: Part, exact: bool) -> dict[str, Any] | None:
    file: dict[str, Any] = {}
    data, kept = bytes_of(part), file_id_of(part, "openai")
    name = part.get("name")
    if kept is not None:
        file["file_id"] = kept
    elif data is None:
        return None
    else:
        file["file_data"] = encoded(data) if part.get("media_type") is None else address_of(part)
        # Bytes without a name are refused there, so those that never had one are called something.
        name = name if isinstance(name, str) or exact else "file"
    if isinstance(name, str):
        file["filename"] = name
    return {"type": "file", "file": file, **own(part, "openai")}


def _call(message: Message, index: int, at: int, wire: WireIds) -> dict[str, Any]:
    call, name = message.tool_calls[at], wire.tool(message.tool_calls[at].name)
    extras = {key: value for key, value in kept_for(message, "openai", "calls", at).items() if key != "custom"}
    if is_custom(message, at):
        made: dict[str, Any] = {"type": "custom", "custom": {"name": name, "input": custom_input(call)}}
    else:
        made = {"type": "function", "function": {"name": name, "arguments": call.arguments}}
    return {"id": wire.of_call(index, at), **made, **extras}


def _results(message: Message, index: int, wire: WireIds, exact: bool) -> list[dict[str, Any]]:
    out = []
    for at, result in enumerate(message.tool_results):
        shown = shown_result(message, result)
        parts = shown if isinstance(shown, str) else [_part(part, "tool", exact) for part in shown]
        told: dict[str, Any] = {
            "role": "tool",
            "tool_call_id": wire.of_result(index, at, result, exact=exact),
            "content": parts if isinstance(parts, str) else [part for part in parts if part is not None],
        }
        if message.name:
            told["name"] = wire.tool(message.name)
        out.append(told | _extras(message, exact))
    return out


def _extras(message: Message, exact: bool) -> dict[str, Any]:
    """What stood beside the known fields: all of it for export, and what a request may hold for sending."""
    kept = kept_for(message, "openai", "message")
    return kept if exact else {name: value for name, value in kept.items() if name in _SENT}


def _field_refusals(message: Message) -> list[Part]:
    return [part for part in parts_of(message) if _is_field_refusal(part)]


def _is_field_refusal(part: Part) -> bool:
    """Whether a refusal stood beside the content rather than in it."""
    return part.get("type") == "refusal" and bool(own(part, "openai").get("field"))
