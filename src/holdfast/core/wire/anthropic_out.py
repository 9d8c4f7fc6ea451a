"""Messages in Anthropic's form, which has the strictest rules.

The first message is the user's, roles alternate, every call is answered at the start of the next
message, no text is blank, and nothing but the one system prompt is the system's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.core.wire.calls import arguments_object, failed, shown_result
from holdfast.core.wire.ids import Ids, WireIds
from holdfast.core.wire.order import call_of, in_order, kept_for
from holdfast.core.wire.parts import bytes_of, encoded, file_id_of, item_of, own, parts_of, said_instead
from holdfast.core.wire.roles import NOTHING_SAID, prompt_of
from holdfast.records.messages import Message, Part

Block = dict[str, Any]

NOT_SHOWN = "[Earlier messages are not shown.]"
LABELS = {"system": "System message", "developer": "Developer message"}
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
LONGEST_ID = 64
_IMAGES = {name: f"image/{name}" for name in ("jpeg", "png", "gif", "webp")} | {"jpg": "image/jpeg"}


class Written(NamedTuple):
    """A system prompt and messages, and of each block the index of the message that it comes from.

    A block that the same message would not become again, were more to follow, has the number of all messages.
    """

    system: str | None
    messages: list[dict[str, Any]]
    sources: list[list[int]]
    prompt_source: int = -1
    """The last message that joined the system prompt; -1 if none did."""


class _Turn:
    """Neighbours of one role, as one message."""

    __slots__ = ("blocks", "extras", "role", "text")

    def __init__(self, role: str) -> None:
        self.role = role
        self.blocks: list[tuple[Block, int]] = []
        self.text: str | None = None
        """The content, as long as it is one text and was given as such."""
        self.extras: dict[str, Any] = {}

    def add(self, message: Message, blocks: list[Block], source: int) -> None:
        plain_text = isinstance(message.content, str) and not self.blocks and len(blocks) == 1
        self.text = blocks[0].get("text") if plain_text and blocks[0]["type"] == "text" else None
        self.blocks += [(block, source) for block in blocks]
        self.extras |= kept_for(message, "anthropic", "message")

    def close(self) -> None:
        """Put results first, and leave everything else in its order."""
        if self.role == "user":
            # Sorting is stable.
            self.blocks = sorted(self.blocks, key=lambda each: each[0]["type"] != "tool_result")

    def wire(self) -> dict[str, Any]:
        content = [block for block, _ in self.blocks] if self.text is None else self.text
        return {"role": self.role, "content": content, **self.extras}


def rendered(messages: Sequence[Message], system: str | None, ids: Ids) -> Written:
    """The system prompt and the messages. Prompts at the head of the list join the system prompt."""
    wire = WireIds(messages, ids, _VALID_ID, LONGEST_ID)
    prompts, prompt_source = [prompt] if (prompt := prompt_of(system)) else [], -1
    turns: list[_Turn] = []
    for index, message in enumerate(messages):
        if message.role in LABELS and not turns:
            if message.text.strip():
                prompts.append(message.text)
                prompt_source = index
            continue
        blocks = list(_blocks(message, index, wire, exact=ids == "provider"))
        if not blocks:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if not turns or turns[-1].role != role:
            turns.append(_Turn(role))
        turns[-1].add(message, blocks, index)
    for turn in turns:
        turn.close()
    if ids == "unique":
        _make_sendable(turns, len(messages))
    return Written(
        system="\n\n".join(prompts) or None,
        messages=[turn.wire() for turn in turns],
        sources=[[source for _, source in turn.blocks] for turn in turns],
        prompt_source=prompt_source,
    )


def _make_sendable(turns: list[_Turn], count: int) -> None:
    """What a request needs and a conversation may lack: a message, the user's first, an end that can be continued."""
    if not turns:
        # Only blanks were said, or instructions, and a request without a message is refused.
        turns.append(_told(NOTHING_SAID, count))
    if turns[0].role == "assistant":
        turns.insert(0, _told(NOT_SHOWN, turns[0].blocks[0][1]))
    end, (last, _) = turns[-1], turns[-1].blocks[-1]
    if end.role == "assistant" and last["type"] == "text" and last["text"] != last["text"].rstrip():
        trimmed = last["text"].rstrip()
        end.blocks[-1] = ({**last, "text": trimmed}, count)
        end.text = trimmed if end.text is not None else None


def _told(text: str, source: int) -> _Turn:
    turn = _Turn("user")
    turn.add(Message(role="user", content=text), [{"type": "text", "text": text}], source)
    return turn


def _blocks(message: Message, index: int, wire: WireIds, *, exact: bool) -> Iterator[Block]:
    if message.role == "assistant":
        for part in in_order(message):
            yield from _said(message, index, part, wire)
    elif message.role == "tool":
        for at, result in enumerate(message.tool_results):
            shown = shown_result(message, result)
            words = shown if isinstance(shown, str) and not shown.isspace() else ""
            content = words if isinstance(shown, str) else [block for part in shown for block in _given(part)]
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
            made = {"id": wire.of_call(index, at), "name": wire.tool(call.name), "input": arguments_object(call)}
            yield {"type": "tool_use", **made, **kept_for(message, "anthropic", "calls", at)}
    elif kind in ("reasoning", "other"):
        if part.get("provider") == "anthropic":
            yield item_of(part)
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
        yield item_of(part)
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
