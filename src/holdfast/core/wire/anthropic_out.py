"""Messages in Anthropic's form, which has the strictest rules.

The first message is the user's, roles alternate, every call is answered at the start of the next
message, no text is blank, and nothing but the one system prompt is the system's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.core.wire.calls import arguments_object, failed, shown_result
from holdfast.core.wire.ids import Ids, WireIds
from holdfast.core.wire.order import call_of, in_order, kept_for
from holdfast.core.wire.parts import bytes_of, encoded, file_id_of, own, parts_of, said_instead
from holdfast.records.messages import Message, Part

Block = dict[str, Any]

NOTHING_SAID = "[Nothing was said.]"
NOT_SHOWN = "[Earlier messages are not shown.]"
LABELS = {"system": "System message", "developer": "Developer message"}
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
LONGEST_ID = 64
_IMAGES = {name: f"image/{name}" for name in ("jpeg", "png", "gif", "webp")} | {"jpg": "image/jpeg"}


class _Turn:
    """Neighbours of one role, as one message."""

    __slots__ = ("blocks", "extras", "role", "text")

    def __init__(self, role: str) -> None:
        self.role = role
        self.blocks: list[Block] = []
        self.text: str | None = None
        """The content, as long as it is one text and was given as such."""
        self.extras: dict[str, Any] = {}

    def add(self, message: Message, blocks: list[Block]) -> None:
        plain_text = isinstance(message.content, str) and not self.blocks and len(blocks) == 1
        self.text = blocks[0].get("text") if plain_text and blocks[0]["type"] == "text" else None
        self.blocks += blocks
        self.extras |= kept_for(message, "anthropic", "message")

    def wire(self) -> dict[str, Any]:
        # Sorting is stable: results first, and everything else in its order.
        blocks = sorted(self.blocks, key=lambda block: block["type"] != "tool_result")
        if self.role == "assistant":
            blocks = self.blocks
        return {"role": self.role, "content": blocks if self.text is None else self.text, **self.extras}


def rendered(messages: Sequence[Message], system: str | None, ids: Ids) -> tuple[str | None, list[dict[str, Any]]]:
    """The system prompt and the messages. Prompts at the head of the list join the system prompt."""
    wire = WireIds(messages, ids, _VALID_ID, LONGEST_ID)
    prompts = [system] if system else []
    turns: list[_Turn] = []
    for index, message in enumerate(messages):
        if message.role in LABELS and not turns:
            prompts += [message.text] if message.text.strip() else []
            continue
        blocks = list(_blocks(message, index, wire, exact=ids == "provider"))
        if not blocks:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if not turns or turns[-1].role != role:
            turns.append(_Turn(role))
        turns[-1].add(message, blocks)
    out = [turn.wire() for turn in turns]
    if not out and messages and ids == "unique":
        # Only blanks were said, or instructions, and a request without a message is refused.
        out.append({"role": "user", "content": NOTHING_SAID})
    if out and out[0]["role"] == "assistant" and ids == "unique":
        out.insert(0, {"role": "user", "content": NOT_SHOWN})
    if out and ids == "unique":
        _trim_end(out[-1])
    return "\n\n".join(prompts) or None, out


def _trim_end(message: dict[str, Any]) -> None:
    """An assistant's message that is to be continued may not end in blanks."""
    content = message["content"]
    if message["role"] != "assistant":
        return
    if isinstance(content, str):
        message["content"] = content.rstrip()
    elif content[-1]["type"] == "text":
        message["content"] = [*content[:-1], {**content[-1], "text": content[-1]["text"].rstrip()}]


def _blocks(message: Message, index: int, wire: WireIds, *, exact: bool) -> Iterator[Block]:
    if message.role == "assistant":
        for part in in_order(message):
            yield from _said(message, index, part, wire)
    elif message.role == "tool":
        for at, result in enumerate(message.tool_results):
            shown = shown_result(message, result)
            content = shown if isinstance(shown, str) else [block for part in shown for block in _given(part)]
            yield {
                "type": "tool_result",
                "tool_use_id": wire.of_result(index, at, result, exact=exact),
                **({"content": content} if content else {}),
                **({"is_error": True} if failed(result) else {}),
                **kept_for(message, "anthropic", "results", at),
            }
    elif message.role in LABELS:
        if message.text.strip():
            yield {"type": "text", "text": f"[{LABELS[message.role]}]\n{message.text}"}
    else:
        for part in parts_of(message):
            yield from _given(part)


def _said(message: Message, index: int, part: Part, wire: WireIds) -> Iterator[Block]:
    """A part of what the assistant said."""
    kind = part.get("type")
    if kind == "call":
        found = call_of(message, part)
        if found is not None:
            at, call = found
            made = {"id": wire.of_call(index, at), "name": call.name, "input": arguments_object(call)}
            yield {"type": "tool_use", **made, **kept_for(message, "anthropic", "calls", at)}
    elif kind in ("reasoning", "other"):
        if part.get("provider") == "anthropic":
            yield dict(part["item"])
    elif kind in ("image", "file"):
        yield {"type": "text", "text": said_instead(part)}
    else:
        yield from _text(part)


def _given(part: Part) -> Iterator[Block]:
    """A part of what the assistant is given."""
    kind = part.get("type")
    if kind in ("text", "refusal"):
        yield from _text(part)
    elif kind == "other" and part.get("provider") == "anthropic":
        yield dict(part["item"])
    elif kind in ("image", "file", "other"):
        source = _source(part) if kind != "other" else None
        if source is None:
            yield {"type": "text", "text": said_instead(part)}
            return
        block_type = "image" if kind == "image" or source.get("media_type") in _IMAGES.values() else "document"
        name = part.get("name")
        title = {"title": name} if block_type == "document" and isinstance(name, str) and name else {}
        yield {"type": block_type, "source": source, **title, **own(part, "anthropic")}


def _text(part: Part) -> Iterator[Block]:
    if part["text"].strip():
        yield {"type": "text", "text": part["text"], **own(part, "anthropic")}


def _source(part: Part) -> dict[str, Any] | None:
    """Where an image or file comes from; None if this provider cannot be given it."""
    data, kept = bytes_of(part), file_id_of(part, "anthropic")
    media_type = str(part.get("media_type") or "")
    if data is not None:
        image = _IMAGES.get(media_type.removeprefix("image/")) if media_type.startswith("image/") else None
        if image or (media_type == "application/pdf" and part["type"] == "file"):
            return {"type": "base64", "media_type": image or media_type, "data": encoded(data)}
        return _text_source(data) if media_type.startswith("text/") and part["type"] == "file" else None
    if kept is not None:
        return {"type": "file", "file_id": kept}
    url = part.get("url")
    return {"type": "url", "url": url} if isinstance(url, str) else None


def _text_source(data: bytes) -> dict[str, Any] | None:
    try:
        return {"type": "text", "media_type": "text/plain", "data": data.decode()}
    except UnicodeDecodeError:
        return None
