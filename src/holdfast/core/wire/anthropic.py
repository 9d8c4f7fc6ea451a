"""Anthropic's Messages format, read and written, with marks for its prompt cache.

Anthropic puts tool results into user messages; holdfast keeps them as separate messages.
`render_request(read_messages(x).messages, ids="provider")["messages"] == x` for every valid `x`, except that:

- neighbours of one role are one message; results come first in theirs
- blank texts are left out
- `cache_control` belongs to a request, not to a message, and is left out; so are null keys
- `is_error` is left out when false, a result's content when blank
- a system message among the messages comes back as a user's text with a label

Thinking and blocks of hosted tools are kept and returned unaltered, in their place. Unknown fields are kept under
`anthropic` and come back.

Rendering follows Anthropic's rules: the first message is the user's, roles alternate, every call is answered at the
start of the next message, no text is blank, and there is one system prompt and no other system message.

A cache mark (`cache_control`) says that everything up to it may be sent again. Marks are set only where that is true:
after the tools and the system prompt, after the messages that stay the same in the next call, and at the end, where a
longer request continues. Content before a mark is rendered the same whatever follows it, so that the cache is really
hit. A block from a stable message that comes after an unstable one is not marked. Anthropic accepts four marks, none
on thinking, and no longer-lived mark after a shorter-lived one. A caller's own marks in messages or tools are kept as
far as they are valid, and take precedence over ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.wire.calls import Ids, WireIds, arguments_object, failed, id_text, read_call, shown_result
from holdfast.core.wire.parts import (
    Extras,
    InOrder,
    bytes_of,
    call_of,
    decoded,
    encoded,
    extras_of,
    file_id_of,
    in_order,
    item_of,
    kept_for,
    malformed_part,
    metadata_of,
    own,
    parts_of,
    said_instead,
    text_part,
)
from holdfast.core.wire.plain_data import NOTHING_SAID, Notes, Reading, listed, plain, prompt_of, read_role
from holdfast.core.wire.requests import AnthropicRequest
from holdfast.core.wire.tools import to_anthropic
from holdfast.core.wire.validate import settled
from holdfast.records.messages import Message, Part, ToolCallResult, ToolDef

_KNOWN_BLOCKS = ("text", "image", "document", "tool_use", "tool_result")


def read_messages(items: Sequence[Mapping[str, Any]] | Iterable[Any], *, system: Any = None) -> Reading:
    """Read a list of messages as far as possible; problems are listed as repairs."""
    notes = Notes()
    messages: list[Message] = []
    indexes: list[int] = []
    for index, item in enumerate(listed(items, notes)):
        notes.index = index
        messages += read_message(item, notes)
        indexes += [index] * (len(messages) - len(indexes))
    return Reading(messages=messages, system=read_system(system, notes), repairs=notes.repairs, indexes=indexes)


def read_system(system: Any, notes: Notes) -> str | None:
    """Return the system prompt from text or blocks; blocks become paragraphs."""
    given = plain(system, notes)
    blocks = given if isinstance(given, list) else [given]
    texts = [block.get("text") if isinstance(block, dict) else block for block in blocks]
    return "\n\n".join(text for text in texts if isinstance(text, str) and text) or None


def read_message(item: Any, notes: Notes) -> list[Message]:
    """Read one Anthropic message: its tool results as one message, then the rest as another."""
    given = plain(item, notes)
    if not isinstance(given, dict):
        notes.wrong("malformed", f"A message is a mapping, not a {type(item).__name__}.", "left out: not a mapping")
        return []
    role = read_role(given.get("role"), notes)
    if role is None:
        return []
    extras = extras_of(given, ("role", "content"))
    content = given.get("content")
    if isinstance(content, str):
        message = Message(role=role, content=content, metadata=metadata_of("anthropic", notes, message=extras))
        found = settled(message, notes)
        return [] if found is None else [found]
    if content is not None and not isinstance(content, list):
        notes.wrong("malformed", f"content is {content!r:.40}. Use text or a list of blocks.", "left out the content")
        content = []
    return _read_blocks("user" if role == "tool" else role, content or [], extras, notes)


def render(
    messages: Sequence[Message],
    *,
    system: str | None = None,
    tools: Iterable[ToolDef] = (),
    ids: Ids = "unique",
    stable: int | None = None,
) -> AnthropicRequest:
    """Return keyword arguments for `messages.create`; `ids="provider"` is for export, the default for sending.

    `stable` is the number of leading messages that stay the same in the next call; if given, cache marks are set.
    """
    written, told = rendered(messages, system, ids), to_anthropic(tools)
    if stable is not None:
        return marked(written, told, stable, len(messages))
    request: AnthropicRequest = {"messages": written.messages}
    if written.system:
        request = {"system": written.system, **request}
    if told:
        request["tools"] = told
    return request


def _read_blocks(role: str, blocks: list[Any], extras: dict[str, Any], notes: Notes) -> list[Message]:
    found = InOrder()
    results: list[ToolCallResult] = []
    result_extras: Extras = {}
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result" and role == "user":
            kept = extras_of(block, ("type", "tool_use_id", "content", "is_error", "cache_control"))
            if kept:
                result_extras[str(len(results))] = kept
            results.append(_read_result(block, notes))
        elif kind == "tool_use" and role == "assistant":
            kept = extras_of(block, ("type", "id", "name", "input", "cache_control"))
            found.call(read_call(block.get("name"), block.get("input"), block.get("id"), notes), kept)
        else:
            found.add(_read_block(block, notes))
    if not results:
        message = _spoken(role, found, metadata_of("anthropic", notes, message=extras, calls=found.call_extras))
        return _present(settled(message, notes))
    metadata = metadata_of("anthropic", notes, message=extras, results=result_extras)
    answered = settled(Message(role="tool", tool_results=tuple(results), metadata=metadata), notes)
    return _present(answered, settled(_spoken(role, found, None), notes) if found.parts else None)


def _present(*messages: Message | None) -> list[Message]:
    return [message for message in messages if message is not None]


def _spoken(role: str, found: InOrder, metadata: dict[str, Any] | None) -> Message:
    """Return the message without its results. A single text before calls stays text: it renders as a block anyway."""
    parts = found.content()
    content: str | list[Part] | None = parts or None
    if len(parts) == 1 and set(parts[0]) == {"type", "text"} and found.calls:
        content = parts[0]["text"]
    return Message(role=role, content=content, tool_calls=tuple(found.calls), metadata=metadata)


def _read_block(block: Any, notes: Notes) -> Part | None:
    """Read a block that is neither a call nor a result; a call or result in the wrong role is malformed."""
    match block:
        case str():
            return text_part(block) if block else None
        case {"type": "text", "text": str(text)}:
            extras = extras_of(block, ("type", "text", "cache_control"))
            return text_part(text, "anthropic", extras) if text else None
        case {"type": "thinking" | "redacted_thinking"}:
            return {"type": "reasoning", "provider": "anthropic", "item": block}
        case {"type": "image" | "document", "source": dict(source)}:
            return _read_media(block, source, notes)
        case {"type": str(kind)} if kind not in _KNOWN_BLOCKS:
            item = {key: value for key, value in block.items() if key != "cache_control"}
            return {"type": "other", "provider": "anthropic", "item": item}
        case _:
            malformed_part(block, notes)
            return None


def _read_media(block: dict[str, Any], source: dict[str, Any], notes: Notes) -> Part | None:
    media: dict[str, Any] = {}
    match source:
        case {"type": "base64", "data": str(text), "media_type": str(media_type)}:
            data = decoded(text, notes)
            if data is None:
                return None
            media = {"data": data, "media_type": media_type}
        case {"type": "text", "data": str(text), "media_type": str(media_type)}:
            media = {"data": text.encode(), "media_type": media_type}
        case {"type": "url", "url": str(url)}:
            media = {"url": url}
        case {"type": "file", "file_id": str(file_id)}:
            media = {"file_id": file_id, "provider": "anthropic"}
        case {"type": "content"}:
            return {"type": "other", "provider": "anthropic", "item": block}
        case _:
            malformed_part(block, notes)
            return None
    kind = "image" if block["type"] == "image" else "file"
    name = {"name": block["title"]} if kind == "file" and isinstance(block.get("title"), str) else {}
    extras = extras_of(block, ("type", "source", "cache_control", "title" if name else ""))
    return {"type": kind, **media, **name, **({"anthropic": extras} if extras else {})}


def _read_result(block: dict[str, Any], notes: Notes) -> ToolCallResult:
    content = block.get("content")
    if isinstance(content, list):
        content = [part for item in content if (part := _read_block(item, notes)) is not None] or ""
    return ToolCallResult(
        provider_id=id_text(block.get("tool_use_id")),
        result="" if content is None else content,
        is_error=block.get("is_error") is True,
    )


Block = dict[str, Any]

NOT_SHOWN = "[Earlier messages are not shown.]"
LABELS = {"system": "System message", "developer": "Developer message"}
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
LONGEST_ID = 64
_IMAGES = {name: f"image/{name}" for name in ("jpeg", "png", "gif", "webp")} | {"jpg": "image/jpeg"}


class Written(NamedTuple):
    """A system prompt and messages, with the index of the source message of each block.

    A block that would be rendered differently if more messages followed has the number of all messages as its source.
    """

    system: str | None
    messages: list[dict[str, Any]]
    sources: list[list[int]]
    prompt_source: int = -1
    """The last message that joined the system prompt; -1 if none did."""


class _Turn:
    """Neighbouring messages of one role, rendered as one message."""

    __slots__ = ("blocks", "extras", "role", "text")

    def __init__(self, role: str) -> None:
        self.role = role
        self.blocks: list[tuple[Block, int]] = []
        self.text: str | None = None
        """The content, while it is a single text that was given as text."""
        self.extras: dict[str, Any] = {}

    def add(self, message: Message, blocks: list[Block], source: int) -> None:
        plain_text = isinstance(message.content, str) and not self.blocks and len(blocks) == 1
        self.text = blocks[0].get("text") if plain_text and blocks[0]["type"] == "text" else None
        self.blocks += [(block, source) for block in blocks]
        self.extras |= kept_for(message, "anthropic", "message")

    def close(self) -> None:
        """Move results to the front, keeping the order of all other blocks."""
        if self.role == "user":
            self.blocks = sorted(self.blocks, key=lambda each: each[0]["type"] != "tool_result")

    def wire(self) -> dict[str, Any]:
        content = [block for block, _ in self.blocks] if self.text is None else self.text
        return {"role": self.role, "content": content, **self.extras}


def rendered(messages: Sequence[Message], system: str | None, ids: Ids) -> Written:
    """Render the system prompt and the messages. Prompts at the head of the list join the system prompt."""
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
    """Add what a request needs and a conversation may lack: a message, a user's message first, a continuable end."""
    if not turns:
        # There were only blank texts or instructions, and Anthropic refuses a request without a message.
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
    """Render a part of an assistant's message."""
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
    """Render a part of the model's input."""
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
    """Return the source of an image or file; None if this provider cannot accept it."""
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


CACHE: Final = "cache_control"
MOST_MARKS: Final = 4
NOWHERE: Final = -1
_SHORTEST: Final = (None, "5m")
_CARRYING: Final = frozenset(
    {
        "container_upload",
        "document",
        "image",
        "mcp_tool_use",
        "search_result",
        "server_tool_use",
        "text",
        "tool_reference",
        "tool_result",
        "tool_use",
    }
)


class _Spot(NamedTuple):
    """A block or a tool, in request order, and the index of its source message."""

    block: Block
    source: int
    carries: bool
    """True if it may carry a mark."""


def marked(written: Written, tools: list[Block], stable: int, count: int) -> AnthropicRequest:
    """Return the request with its marks; `stable` of its `count` messages stay the same in the next call."""
    theirs = _Theirs()
    # Start from the end, because a later mark covers everything that an earlier one covers.
    turns = [theirs.turn(message) for message in reversed(written.messages)][::-1]
    tools = [theirs.kept(tool, _tool_carries(tool)) for tool in reversed(tools)][::-1]
    brief = [_Spot(tool, -1, _tool_carries(tool)) for tool in tools]
    system: list[Block] = [{"type": "text", "text": written.system}] if written.system else []
    brief += [_Spot(block, written.prompt_source, _carries(block)) for block in system]
    said = [
        _Spot(block, source, _carries(block))
        for turn, sources in zip(turns, written.sources, strict=True)
        for block, source in zip(turn, sources, strict=True)
    ]
    _put(brief, said, min(max(stable, 0), count), count, theirs.left)
    request: AnthropicRequest = {"messages": [*map(_message, written.messages, turns)]}
    if written.system:
        request = {"system": system if CACHE in system[0] else written.system, **request}
    if tools:
        request["tools"] = tools
    return request


def _put(brief: list[_Spot], said: list[_Spot], stable: int, count: int, left: int) -> None:
    """Set our marks while there is room: first at the stable boundary, then at the end, then after the brief."""
    spots = [*brief, *said]
    first = 1 + max((at for at, spot in enumerate(spots) if _is_long(spot.block)), default=-1)
    end = _last(spots, count)
    # Without messages, the next prompt may join the system prompt, so its end is not a point to continue from.
    chosen = (_last(spots, stable), end if end >= len(brief) else NOWHERE, _last(brief, stable))
    for at in dict.fromkeys(chosen):
        if at >= first and left and CACHE not in spots[at].block:
            spots[at].block[CACHE] = {"type": "ephemeral"}
            left -= 1


def _last(spots: list[_Spot], until: int) -> int:
    """Return the last markable position before any block of a message at `until` or later."""
    found = NOWHERE
    for at, spot in enumerate(spots):
        if spot.source >= until:
            break
        if spot.carries:
            found = at
    return found


def _carries(block: Block) -> bool:
    """Return True if a block may carry a mark: thinking and blank text may not."""
    kind = str(block.get("type"))
    if kind == "text":
        return bool(str(block.get("text", "")).strip())
    return kind in _CARRYING or kind.endswith("_tool_result")


def _tool_carries(tool: Block) -> bool:
    """Return True if a tool may carry a mark: a tool loaded later is not in the prompt yet."""
    return not tool.get("defer_loading")


class _Theirs:
    """The caller's own marks, visited from the last to the first."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_MARKS

    def turn(self, message: dict[str, Any]) -> list[Block]:
        """Return a message's blocks, also for a plain text."""
        content = message["content"]
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return self._all_kept(content)

    def kept(self, block: Block, carries: bool) -> Block:
        """Return a copy of a block or tool with only its valid marks."""
        out = dict(block)
        if CACHE in out and (out[CACHE] is None or not self.left or not carries):
            del out[CACHE]
        self.left -= CACHE in out
        if isinstance(out.get("content"), list):
            out["content"] = self._all_kept(out["content"])
        return out

    def _all_kept(self, blocks: list[Any]) -> list[Any]:
        kept = (self.kept(each, _carries(each)) if isinstance(each, dict) else each for each in reversed(blocks))
        return [*kept][::-1]


def _is_long(block: Block) -> bool:
    """Return True if the block or its content has a mark that outlives ours."""
    return any(not isinstance(mark, dict) or mark.get("ttl") not in _SHORTEST for mark in _marks(block))


def _marks(block: Block) -> Iterator[Any]:
    if CACHE in block:
        yield block[CACHE]
    inner = block.get("content")
    for each in inner if isinstance(inner, list) else ():
        if isinstance(each, dict):
            yield from _marks(each)


def _message(message: dict[str, Any], blocks: list[Block]) -> dict[str, Any]:
    """Return a message with its marked blocks; a plain text without a mark stays text."""
    if isinstance(message["content"], str) and CACHE not in blocks[0]:
        return message
    return {**message, "content": blocks}
