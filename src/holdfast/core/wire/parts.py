"""Parts of a message's content: images and files by their bytes, and what stands for a part that cannot be shown.

What a provider wrote in a part and holdfast has no word for is kept in the part under the
provider's name, and given back to it.

The order of what an assistant said and the calls it made, and what a message keeps for its provider.

Nearly always a message is content and then calls. Where it is not, parts that name a call
stand where the call stood.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping
from typing import Any

from holdfast.core.wire.plain_data import Notes
from holdfast.records.messages import Message, Part, ToolCallRequest

ERASED_TEXT = "[erased]"
FILE_IDS = {"openai": "openai", "responses": "openai", "anthropic": "anthropic"}
"""Whose file ids a wire format understands."""

_SDK_NOTES = ("parsed", "parsed_arguments", "parsed_output")
"""What SDKs add to a reply when they parse it for the caller; providers refuse to be sent it."""
_DATA_URL = re.compile(r"data:([^,]*?);base64,(.*)", re.DOTALL | re.IGNORECASE)
_NEEDED = {
    "text": ("text",),
    "refusal": ("text",),
    "image": ("data", "artifact", "url", "file_id"),
    "file": ("data", "artifact", "url", "file_id"),
    "reasoning": ("item",),
    "other": ("item",),
}


def text_part(text: str, provider: str = "", extras: Mapping[str, Any] | None = None) -> Part:
    """Text, with what else its provider wrote beside it."""
    return {"type": "text", "text": text, **({provider: dict(extras)} if extras else {})}


def extras_of(item: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """What an item holds besides the keys that are understood; nulls say nothing, and SDKs' own notes are not sent."""
    return {
        key: value for key, value in item.items() if value is not None and key not in known and key not in _SDK_NOTES
    }


def copied(value: Any) -> Any:
    """Data that shares no list and no mapping with what it was made from: a request is its caller's to change."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def own(part: Part, provider: str) -> dict[str, Any]:
    """What a provider wrote in this part that is its own; a copy."""
    kept = part.get(provider)
    return copied(kept) if isinstance(kept, dict) else {}


def item_of(part: Part) -> dict[str, Any]:
    """What only its provider understands, as it came; a copy."""
    return {key: copied(value) for key, value in dict(part["item"]).items()}


def malformed_part(item: Any, notes: Notes) -> None:
    """A part that is none, or lacks what its type says it holds."""
    notes.wrong(
        "malformed",
        f"A part of the content is {item!r:.60}. A part is a mapping with a type and what belongs to that type.",
        "left out a part that is malformed",
    )


def is_parts(value: Any) -> bool:
    """Whether a value is a list of parts, rather than data that happens to be a list."""
    return isinstance(value, list) and bool(value) and all(_is_part(item) for item in value)


def _is_part(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    needed = _NEEDED.get(item.get("type", "")) if isinstance(item.get("type"), str) else None
    if needed is None or not any(key in item for key in needed):
        return False
    return "text" not in needed or isinstance(item["text"], str)


def media_of(url: str, notes: Notes) -> dict[str, Any] | None:
    """An address as `url`, or the bytes of a data URL as `data` with their `media_type`."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return {"url": url}
    data = decoded(found[2], notes)
    return None if data is None else {"data": data, "media_type": found[1]}


def file_media(data: str, notes: Notes) -> dict[str, Any] | None:
    """A file's bytes from a data URL, or from base64 that says nothing of its type."""
    if data.startswith("data:"):
        return media_of(data, notes)
    found = decoded(data, notes)
    return None if found is None else {"data": found}


def decoded(text: Any, notes: Notes) -> bytes | None:
    """The bytes of base64 text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        notes.wrong(
            "malformed",
            "An image or file is not valid base64. Encode its bytes, or append it as a file.",
            "left out an image or file that is not valid base64",
        )
        return None


def encoded(data: bytes) -> str:
    """Bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")


def bytes_of(part: Part) -> bytes | None:
    """The bytes of an image or file, if they are here."""
    data = part.get("data")
    return bytes(data) if isinstance(data, bytes | bytearray | memoryview) else None


def address_of(part: Part) -> str | None:
    """An image or file as one address: its URL, or its bytes as a data URL."""
    data = bytes_of(part)
    if data is not None:
        return f"data:{part.get('media_type') or ''};base64,{encoded(data)}"
    url = part.get("url")
    return url if isinstance(url, str) else None


def file_id_of(part: Part, provider: str) -> str | None:
    """The id under which this provider keeps the file; another's id is none."""
    kept = part.get("file_id")
    if not isinstance(kept, str) or part.get("provider") not in (None, FILE_IDS[provider]):
        return None
    return kept


def said_instead(part: Part) -> str:
    """Words for an image, a file or another provider's part where it cannot be shown."""
    kind = part.get("type")
    if kind == "other":
        item = part.get("item")
        kind = item.get("type") if isinstance(item, dict) else None
        return f"[{kind if isinstance(kind, str) and kind else 'content'} not shown]"
    if not any(part.get(key) is not None for key in ("data", "url", "file_id")):
        return ERASED_TEXT
    names = (part.get("name"), part.get("url"), part.get("media_type"))
    name = next((name for name in names if isinstance(name, str) and name), "")
    return f"[{kind} {name} not shown]" if name else f"[{kind} not shown]"


def parts_of(message: Message) -> list[Part]:
    """Content as a list of parts; an erased message says so."""
    if isinstance(message.content, list):
        return message.content
    if message.content is not None:
        return [{"type": "text", "text": message.content}]
    return [{"type": "text", "text": ERASED_TEXT}] if message.erased and not message.tool_results else []


Extras = dict[str, dict[str, Any]]
"""What a provider wrote beside calls or results, by their index as text."""


class InOrder:
    """An assistant's message while it is read: parts and calls as they come."""

    __slots__ = ("call_extras", "calls", "parts")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.calls: list[ToolCallRequest] = []
        self.call_extras: Extras = {}

    def add(self, part: Part | None) -> None:
        if part is not None:
            self.parts.append(part)

    def call(self, call: ToolCallRequest | None, extras: dict[str, Any]) -> None:
        if call is None:
            return
        if extras:
            self.call_extras[str(len(self.calls))] = extras
        self.parts.append({"type": "call", "call": len(self.calls)})
        self.calls.append(call)

    def content(self) -> list[Part]:
        """The parts, without the names of calls that come last anyway."""
        parts = list(self.parts)
        while parts and parts[-1]["type"] == "call":
            parts.pop()
        return parts


def in_order(message: Message) -> list[Part]:
    """Every part and every call of a message in its order."""
    parts = parts_of(message)
    named = {part.get("call") for part in parts if part.get("type") == "call"}
    rest = (index for index in range(len(message.tool_calls)) if index not in named)
    return [*parts, *({"type": "call", "call": index} for index in rest)]


def call_of(message: Message, part: Part) -> tuple[int, ToolCallRequest] | None:
    """The call that a part names."""
    index = part.get("call")
    if not isinstance(index, int) or not 0 <= index < len(message.tool_calls):
        return None
    return index, message.tool_calls[index]


def metadata_of(provider: str, notes: Notes, **kinds: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a message keeps for its provider, and the calls that were left out of it."""
    kept = {kind: dict(extras) for kind, extras in kinds.items() if extras}
    metadata: dict[str, Any] = {provider: kept} if kept else {}
    left_out = notes.take_left_out()
    if left_out:
        metadata["left_out"] = left_out
    return metadata or None


def kept_for(message: Message, provider: str, kind: str, index: int | None = None) -> dict[str, Any]:
    """What a message, or one of its calls or results, has kept for a provider; a copy."""
    found: Any = (message.metadata or {}).get(provider)
    for key in (kind,) if index is None else (kind, str(index)):
        found = found.get(key) if isinstance(found, dict) else None
    return copied(found) if isinstance(found, dict) else {}


def is_custom(message: Message, index: int) -> bool:
    """Whether a call was made to a custom tool of OpenAI's, which takes free text."""
    return any(kept_for(message, provider, "calls", index).get("custom") for provider in ("openai", "responses"))
