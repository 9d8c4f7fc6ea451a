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
from itertools import takewhile
from typing import Any, Final, NamedTuple, NotRequired, TypedDict

import msgspec

from holdfast.core.wire import plain_data
from holdfast.core.wire.calls import (
    IdStyle,
    KnownIds,
    WireIds,
    arguments_object,
    read_call,
    read_provider_id,
    result_content,
)
from holdfast.core.wire.growth import begins_with, continue_ids, copy_items, take_plain
from holdfast.core.wire.parts import (
    Extras,
    MessageBuilder,
    accept_message,
    build_metadata,
    collect_extras,
    copy_item,
    decode_base64,
    encode_base64,
    find_call,
    message_extras,
    message_parts,
    part_bytes,
    part_extras,
    part_file_id,
    parts_in_order,
    placeholder_text,
    report_malformed_part,
    text_part,
)
from holdfast.core.wire.plain_data import ParsedConversation, ReadNotes
from holdfast.core.wire.tools import render_tools
from holdfast.records.messages import Message, Part, ToolCallResult, ToolDef

_KNOWN_BLOCKS = ("text", "image", "document", "tool_use", "tool_result")

Block = dict[str, Any]
EARLIER_NOT_SHOWN = "[Earlier messages are not shown.]"
ROLE_LABELS = {"system": "System message", "developer": "Developer message"}
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
MAX_CALL_ID_CHARS = 64
_IMAGE_TYPES = {name: f"image/{name}" for name in ("jpeg", "png", "gif", "webp")} | {"jpg": "image/jpeg"}
CACHE_CONTROL: Final = "cache_control"
MAX_MARKS: Final = 4
NO_POSITION: Final = -1
_SHORT_TTLS: Final = (None, "5m")
_MARKABLE_TYPES: Final = frozenset(
    {"container_upload", "document", "image", "search_result", "tool_reference", "tool_result"}
    | {"tool_use", "mcp_tool_use", "server_tool_use"}
)


class AnthropicRequest(TypedDict):
    """Keyword arguments for `messages.create`. A system prompt with a cache mark is a list of one block."""

    system: NotRequired[str | list[Any]]
    messages: list[Any]
    tools: NotRequired[list[Any]]


def read_messages(items: Sequence[Mapping[str, Any]] | Iterable[Any], *, system: Any = None) -> ParsedConversation:
    """Read a list of messages as far as possible; problems are listed as repairs."""
    notes = ReadNotes()
    messages: list[Message] = []
    indexes: list[int] = []
    for index, item in enumerate(plain_data.iterate_items(items, notes)):
        notes.index = index
        messages += read_message(item, notes)
        indexes += [index] * (len(messages) - len(indexes))
    return ParsedConversation(
        messages=messages, system=read_system(system, notes), repairs=notes.repairs, indexes=indexes
    )


def read_system(system: Any, notes: ReadNotes) -> str | None:
    """Return the system prompt from text or blocks; blocks become paragraphs."""
    given = plain_data.to_plain_data(system, notes)
    blocks = given if isinstance(given, list) else [given]
    texts = [block.get("text") if isinstance(block, dict) else block for block in blocks]
    return "\n\n".join(text for text in texts if isinstance(text, str) and text) or None


def read_message(item: Any, notes: ReadNotes) -> list[Message]:
    """Read one Anthropic message: its tool results as one message, then the rest as another."""
    given = plain_data.read_mapping(item, notes)
    if given is None:
        return []
    role = plain_data.read_role(given.get("role"), notes)
    if role is None:
        return []
    extras = collect_extras(given, ("role", "content"))
    content = given.get("content")
    if isinstance(content, str):
        message = Message(role=role, content=content, metadata=build_metadata("anthropic", notes, message=extras))
        found = accept_message(message, notes)
        return [] if found is None else [found]
    if content is not None and not isinstance(content, list):
        notes.report(f"content is {content!r:.40}. Use text or a list of blocks.", "left out the content")
        content = []
    return _read_blocks("user" if role == "tool" else role, content or [], extras, notes)


def render_request(
    messages: Sequence[Message],
    *,
    system: str | None = None,
    tools: Iterable[ToolDef] = (),
    ids: IdStyle = "unique",
    stable: int | None = None,
) -> AnthropicRequest:
    """Return keyword arguments for `messages.create`; `ids="provider"` is for export, the default for sending.

    `stable` is the number of leading messages that stay the same in the next call; if given, cache marks are set.
    """
    written, told = render_messages(messages, system, ids), render_tools(tools, "anthropic")
    if stable is not None:
        return mark_request(written, told, stable, len(messages))
    return _build_request(written.system, written.messages, told)


def _build_request(
    system: str | list[Any] | None, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> AnthropicRequest:
    request: AnthropicRequest = {"messages": messages}
    if system:
        request = {"system": system, **request}
    if tools:
        request["tools"] = tools
    return request


def _read_blocks(role: str, blocks: list[Any], extras: dict[str, Any], notes: ReadNotes) -> list[Message]:
    found = MessageBuilder()
    results: list[ToolCallResult] = []
    result_extras: Extras = {}
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result" and role == "user":
            kept = collect_extras(block, ("type", "tool_use_id", "content", "is_error", "cache_control"))
            if kept:
                result_extras[str(len(results))] = kept
            results.append(_read_result(block, notes))
        elif kind == "tool_use" and role == "assistant":
            kept = collect_extras(block, ("type", "id", "name", "input", "cache_control"))
            found.add_call(read_call(block.get("name"), block.get("input"), block.get("id"), notes), kept)
        else:
            found.add(_read_block(block, notes))
    if not results:
        metadata = build_metadata("anthropic", notes, message=extras, calls=found.call_extras)
        return _drop_missing(accept_message(_build_message(role, found, metadata), notes))
    metadata = build_metadata("anthropic", notes, message=extras, results=result_extras)
    answered = accept_message(Message(role="tool", tool_results=tuple(results), metadata=metadata), notes)
    return _drop_missing(answered, accept_message(_build_message(role, found, None), notes) if found.parts else None)


def _drop_missing(*messages: Message | None) -> list[Message]:
    return [message for message in messages if message is not None]


def _build_message(role: str, found: MessageBuilder, metadata: dict[str, Any] | None) -> Message:
    """Return the message without its results. A single text before calls stays text: it renders as a block anyway."""
    parts = found.content()
    content: str | list[Part] | None = parts or None
    if len(parts) == 1 and set(parts[0]) == {"type", "text"} and found.calls:
        content = parts[0]["text"]
    return Message(role=role, content=content, tool_calls=tuple(found.calls), metadata=metadata)


def _read_block(block: Any, notes: ReadNotes) -> Part | None:
    """Read a block that is neither a call nor a result; a call or result in the wrong role is malformed."""
    match block:
        case str():
            return text_part(block) if block else None
        case {"type": "text", "text": str(text)}:
            extras = collect_extras(block, ("type", "text", "cache_control"))
            return text_part(text, "anthropic", extras) if text else None
        case {"type": "thinking" | "redacted_thinking"}:
            return {"type": "reasoning", "provider": "anthropic", "item": block}
        case {"type": "image" | "document", "source": dict(source)}:
            return _read_media(block, source, notes)
        case {"type": str(kind)} if kind not in _KNOWN_BLOCKS:
            item = {key: value for key, value in block.items() if key != "cache_control"}
            return {"type": "other", "provider": "anthropic", "item": item}
        case _:
            report_malformed_part(block, notes)
            return None


def _read_media(block: dict[str, Any], source: dict[str, Any], notes: ReadNotes) -> Part | None:
    media: dict[str, Any] = {}
    match source:
        case {"type": "base64", "data": str(text), "media_type": str(media_type)}:
            data = decode_base64(text, notes)
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
            report_malformed_part(block, notes)
            return None
    kind = "image" if block["type"] == "image" else "file"
    name = {"name": block["title"]} if kind == "file" and isinstance(block.get("title"), str) else {}
    extras = collect_extras(block, ("type", "source", "cache_control", "title" if name else ""))
    return {"type": kind, **media, **name, **({"anthropic": extras} if extras else {})}


def _read_result(block: dict[str, Any], notes: ReadNotes) -> ToolCallResult:
    content = block.get("content")
    if isinstance(content, list):
        content = [part for item in content if (part := _read_block(item, notes)) is not None] or ""
    return ToolCallResult(
        provider_id=read_provider_id(block.get("tool_use_id")),
        result="" if content is None else content,
        is_error=block.get("is_error") is True,
    )


class AnthropicDraft(NamedTuple):
    """A system prompt and messages, with the index of the source message of each block.

    A block that would be rendered differently if more messages followed has the number of all messages as its source.
    """

    system: str | None
    messages: list[dict[str, Any]]
    sources: list[list[int]]
    prompt_source: int = -1
    """The last message that joined the system prompt; -1 if none did."""


class _RoleGroup(msgspec.Struct):
    """Neighbouring messages of one role, rendered as one message."""

    role: str
    blocks: list[tuple[Block, int]] = []
    text: str | None = None
    """The content, while it is a single text that was given as text."""
    extras: dict[str, Any] = {}
    start: int = -1
    """The index of its first message."""

    def add(self, message: Message, blocks: list[Block], source: int) -> None:
        self.start = source if self.start < 0 else self.start
        plain_text = isinstance(message.content, str) and not self.blocks and len(blocks) == 1
        self.text = blocks[0].get("text") if plain_text and blocks[0]["type"] == "text" else None
        self.blocks += [(block, source) for block in blocks]
        self.extras |= message_extras(message, "anthropic", "message")

    def build(self) -> dict[str, Any]:
        """Return the message."""
        content = [block for block, _ in self.blocks] if self.text is None else self.text
        return {"role": self.role, "content": content} | self.extras


def render_messages(messages: Sequence[Message], system: str | None, ids: IdStyle) -> AnthropicDraft:
    """Render the system prompt and the messages. Prompts at the head of the list join the system prompt."""
    wire = WireIds(messages, ids, _VALID_ID, MAX_CALL_ID_CHARS)
    groups = _group_roles(messages, wire, exact=ids == "provider")
    if ids == "unique":
        _make_sendable(groups.turns, len(messages))
    prompts = [prompt] if (prompt := plain_data.drop_blank_prompt(system)) else []
    return AnthropicDraft(
        system="\n\n".join([*prompts, *groups.prompts]) or None,
        messages=[turn.build() for turn in groups.turns],
        sources=[[source for _, source in turn.blocks] for turn in groups.turns],
        prompt_source=groups.prompt_source,
    )


class _RoleGroups(NamedTuple):
    """Prompts at the head of messages, and the others by role."""

    prompts: list[str]
    prompt_source: int
    turns: list[_RoleGroup]


def _group_roles(
    messages: Sequence[Message], wire: WireIds, *, exact: bool = False, first: int = 0, begun: bool = False
) -> _RoleGroups:
    """Group messages by role; the first of them is at `first` of all, and `begun` if others were said before."""
    prompts: list[str] = []
    prompt_source, turns = -1, list[_RoleGroup]()
    for index, message in enumerate(messages):
        if message.role in ROLE_LABELS and not turns and not begun:
            if message.text.strip():
                prompts.append(message.text)
                prompt_source = index
            continue
        blocks = list(_render_blocks(message, index, wire, exact=exact))
        if not blocks:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if not turns or turns[-1].role != role:
            turns.append(_RoleGroup(role))
        turns[-1].add(message, blocks, first + index)
    for turn in turns:
        if turn.role == "user":
            turn.blocks = sorted(turn.blocks, key=lambda each: each[0]["type"] != "tool_result")  # Results come first.
    return _RoleGroups(prompts, prompt_source, turns)


class RenderedTurns(msgspec.Struct, frozen=True):
    """Messages of all turns that are over, as a request shows them; without marks of the caller's."""

    messages: tuple[Message, ...] = ()
    turns: tuple[dict[str, Any], ...] = ()
    prompts: tuple[str, ...] = ()
    prompt_source: int = -1
    ids: KnownIds = KnownIds()

    def extend(self, messages: tuple[Message, ...]) -> RenderedTurns | None:
        """Return these and the turns of more messages that are over; None if all must be rendered together.

        The last turn is not: what follows may join it. A result is in another turn than its call, and stays behind it.
        """
        wire = continue_ids(self.ids, messages, _VALID_ID, MAX_CALL_ID_CHARS)
        if wire is None:
            return None
        first = len(self.messages)
        groups = _group_roles(messages, wire, first=first, begun=bool(self.turns))
        turns = groups.turns[:-1]
        while turns and messages[groups.turns[len(turns)].start - first].role == "tool":
            turns.pop()
        if not turns:
            return self
        over = messages[: groups.turns[len(turns)].start - first]
        ids = continue_ids(self.ids, over, _VALID_ID, MAX_CALL_ID_CHARS)
        if ids is None or any(True for turn in turns for block, _ in turn.blocks for _ in _iterate_marks(block)):
            return None
        if not self.turns:
            _begin_with_user(turns)
        return RenderedTurns(
            messages=(*self.messages, *over),
            turns=(*self.turns, *[turn.build() for turn in turns]),
            prompts=(*self.prompts, *groups.prompts),
            prompt_source=groups.prompt_source if groups.prompts else self.prompt_source,
            ids=ids.known,
        )

    def finish(
        self, messages: Sequence[Message], system: str | None, tools: Iterable[ToolDef], stable: int | None
    ) -> AnthropicRequest | None:
        """Return a request with these messages behind the turns that are over; None if it must be rendered together."""
        wire = continue_ids(self.ids, messages, _VALID_ID, MAX_CALL_ID_CHARS)
        if wire is None or not self.turns:
            return None
        first, count = len(self.messages), len(self.messages) + len(messages)
        turns = _group_roles(messages, wire, first=first, begun=True).turns
        if not turns or turns[0].role == self.turns[-1]["role"]:
            return None
        _trim_end(turns, count)
        prompts = [prompt] if (prompt := plain_data.drop_blank_prompt(system)) else []
        draft = AnthropicDraft(
            system="\n\n".join([*prompts, *self.prompts]) or None,
            messages=[turn.build() for turn in turns],
            sources=[[source for _, source in turn.blocks] for turn in turns],
            prompt_source=self.prompt_source,
        )
        told = render_tools(tools, "anthropic")
        if stable is None:
            request = _build_request(draft.system, draft.messages, told)
        elif _has_markable(turns, stable):
            request = mark_request(draft, told, stable, count)
        else:
            return None  # A mark would stand in a turn that is over.
        request["messages"] = [*copy_items(self.turns), *request["messages"]]
        return request


def _has_markable(turns: Sequence[_RoleGroup], until: int) -> bool:
    """Return True if a block may carry a mark before any block of a message at `until` or later."""
    blocks = takewhile(lambda each: each[1] < until, [each for turn in turns for each in turn.blocks])
    return any(_is_markable(block) for block, _ in blocks)


def render_over(known: RenderedTurns | None, steady: tuple[Message, ...]) -> RenderedTurns | None:
    """Render the turns that the next request begins with as well, up to a message with files.

    `known` is what the last request began with. None means that all must be rendered together.
    """
    if known is None or not begins_with(steady, known.messages):
        known = RenderedTurns()
    return known.extend(take_plain(steady, len(known.messages)))


def _make_sendable(turns: list[_RoleGroup], count: int) -> None:
    """Add what a request needs and a conversation may lack: a message, a user's message first, a continuable end."""
    if not turns:
        # There were only blank texts or instructions, and Anthropic refuses a request without a message.
        turns.append(_make_user_group(plain_data.EMPTY_REQUEST_TEXT, count))
    _begin_with_user(turns)
    _trim_end(turns, count)


def _begin_with_user(turns: list[_RoleGroup]) -> None:
    if turns[0].role == "assistant":
        turns.insert(0, _make_user_group(EARLIER_NOT_SHOWN, turns[0].blocks[0][1]))


def _trim_end(turns: list[_RoleGroup], count: int) -> None:
    end, (last, _) = turns[-1], turns[-1].blocks[-1]
    if end.role == "assistant" and last["type"] == "text" and last["text"] != last["text"].rstrip():
        trimmed = last["text"].rstrip()
        end.blocks[-1] = ({**last, "text": trimmed}, count)
        end.text = trimmed if end.text is not None else None


def _make_user_group(text: str, source: int) -> _RoleGroup:
    turn = _RoleGroup("user")
    turn.add(Message(role="user", content=text), [{"type": "text", "text": text}], source)
    return turn


def _render_blocks(message: Message, index: int, wire: WireIds, *, exact: bool) -> Iterator[Block]:
    if message.role == "assistant":
        for part in parts_in_order(message):
            yield from _render_assistant_part(message, index, part, wire)
    elif message.role == "tool":
        for at, result in enumerate(message.tool_results):
            shown = result_content(message, result, has_flag=True)
            words = shown if isinstance(shown, str) and not shown.isspace() else ""
            content = (
                words if isinstance(shown, str) else [block for part in shown for block in _render_input_part(part)]
            )
            yield {
                "type": "tool_result",
                "tool_use_id": wire.result_call_id(index, at, result, exact=exact),
                **({"content": content} if content else {}),
                **({"is_error": True} if result.is_error or result.interrupted else {}),
                **message_extras(message, "anthropic", "results", at),
            }
    elif message.role in ROLE_LABELS:
        if message.text.strip():
            yield {"type": "text", "text": f"[{ROLE_LABELS[message.role]}]\n{message.text}"}
    else:
        for part in message_parts(message):
            yield from _render_input_part(part)


def _render_assistant_part(message: Message, index: int, part: Part, wire: WireIds) -> Iterator[Block]:
    kind = part.get("type")
    if kind == "call":
        found = find_call(message, part)
        if found is not None:
            at, call = found
            made = {"id": wire.call_id(index, at), "name": wire.tool_name(call.name), "input": arguments_object(call)}
            yield {"type": "tool_use", **made, **message_extras(message, "anthropic", "calls", at)}
    elif kind in ("reasoning", "other"):
        if part.get("provider") == "anthropic":
            yield copy_item(part)
    elif kind in ("image", "file"):
        yield {"type": "text", "text": placeholder_text(part)}
    else:
        yield from _render_text(part)


def _render_input_part(part: Part) -> Iterator[Block]:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        yield from _render_text(part)
    elif kind == "other" and part.get("provider") == "anthropic":
        yield copy_item(part)
    elif kind in ("image", "file", "other"):
        source = _media_source(part) if kind != "other" else None
        if source is None:
            yield {"type": "text", "text": placeholder_text(part)}
            return
        block_type = "image" if kind == "image" or source.get("media_type") in _IMAGE_TYPES.values() else "document"
        name = part.get("name")
        title = {"title": name} if block_type == "document" and isinstance(name, str) and name else {}
        yield {"type": block_type, "source": source, **title, **part_extras(part, "anthropic")}


def _render_text(part: Part) -> Iterator[Block]:
    if part["text"].strip():
        yield {"type": "text", "text": part["text"], **part_extras(part, "anthropic")}


def _media_source(part: Part) -> dict[str, Any] | None:
    """Return the source of an image or file; None if this provider cannot accept it."""
    data, kept = part_bytes(part), part_file_id(part, "anthropic")
    media_type = str(part.get("media_type") or "")
    if data is not None:
        image = _IMAGE_TYPES.get(media_type.removeprefix("image/")) if media_type.startswith("image/") else None
        if image or (media_type == "application/pdf" and part["type"] == "file"):
            return {"type": "base64", "media_type": image or media_type, "data": encode_base64(data)}
        if not media_type.startswith("text/") or part["type"] != "file":
            return None
        try:
            return {"type": "text", "media_type": "text/plain", "data": data.decode()}
        except UnicodeDecodeError:
            return None
    if kept is not None:
        return {"type": "file", "file_id": kept}
    url = part.get("url")
    return {"type": "url", "url": url} if isinstance(url, str) else None


class _MarkPosition(NamedTuple):
    """A block or a tool, in request order, and the index of its source message."""

    block: Block
    source: int
    is_markable: bool
    """True if it may carry a mark."""


def mark_request(written: AnthropicDraft, tools: list[Block], stable: int, count: int) -> AnthropicRequest:
    """Return the request with its marks; `stable` of its `count` messages stay the same in the next call."""
    theirs = _CallerMarks()
    # Start from the end, because a later mark covers everything that an earlier one covers.
    turns = [theirs.keep_all_marks(message["content"]) for message in reversed(written.messages)][::-1]
    # A tool that is loaded later is not in the prompt yet, and carries no mark.
    tools = [theirs.keep_marks(tool, not tool.get("defer_loading")) for tool in reversed(tools)][::-1]
    brief = [_MarkPosition(tool, -1, not tool.get("defer_loading")) for tool in tools]
    system: list[Block] = [{"type": "text", "text": written.system}] if written.system else []
    brief += [_MarkPosition(block, written.prompt_source, _is_markable(block)) for block in system]
    said = [
        _MarkPosition(block, source, _is_markable(block))
        for turn, sources in zip(turns, written.sources, strict=True)
        for block, source in zip(turn, sources, strict=True)
    ]
    _set_marks(brief, said, min(max(stable, 0), count), count, theirs.left)
    marked = system if system and CACHE_CONTROL in system[0] else written.system
    messages = [
        # A plain text without a mark stays text.
        message
        if isinstance(message["content"], str) and CACHE_CONTROL not in turn[0]
        else {**message, "content": turn}
        for message, turn in zip(written.messages, turns, strict=True)
    ]
    return _build_request(marked, messages, tools)


def _set_marks(brief: list[_MarkPosition], said: list[_MarkPosition], stable: int, count: int, left: int) -> None:
    """Set our marks while there is room: first at the stable boundary, then at the end, then after the brief."""
    spots = [*brief, *said]
    # No mark of ours may come before one that outlives it.
    long = [
        at
        for at, spot in enumerate(spots)
        for mark in _iterate_marks(spot.block)
        if not (isinstance(mark, dict) and mark.get("ttl") in _SHORT_TTLS)
    ]
    first = 1 + max(long, default=-1)
    end = _last_markable(spots, count)
    # Without messages, the next prompt may join the system prompt, so its end is not a point to continue from.
    chosen = (_last_markable(spots, stable), end if end >= len(brief) else NO_POSITION, _last_markable(brief, stable))
    for at in dict.fromkeys(chosen):
        if at >= first and left and CACHE_CONTROL not in spots[at].block:
            spots[at].block[CACHE_CONTROL] = {"type": "ephemeral"}
            left -= 1


def _last_markable(spots: list[_MarkPosition], until: int) -> int:
    """Return the last markable position before any block of a message at `until` or later."""
    found = NO_POSITION
    for at, spot in enumerate(spots):
        if spot.source >= until:
            break
        if spot.is_markable:
            found = at
    return found


def _is_markable(block: Block) -> bool:
    """Return True if a block may carry a mark: thinking and blank text may not."""
    kind = str(block.get("type"))
    if kind == "text":
        return bool(str(block.get("text", "")).strip())
    return kind in _MARKABLE_TYPES or kind.endswith("_tool_result")


class _CallerMarks:
    """The caller's own marks, visited from the last to the first."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_MARKS

    def keep_marks(self, block: Block, carries: bool) -> Block:
        """Return a copy of a block or tool with only its valid marks."""
        out = dict(block)
        if CACHE_CONTROL in out and (out[CACHE_CONTROL] is None or not self.left or not carries):
            del out[CACHE_CONTROL]
        self.left -= CACHE_CONTROL in out
        if isinstance(out.get("content"), list):
            out["content"] = self.keep_all_marks(out["content"])
        return out

    def keep_all_marks(self, content: list[Any] | str) -> list[Any]:
        """Return the blocks of a content with only their valid marks; a text as a block."""
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        last_first = reversed(blocks)
        kept = [self.keep_marks(one, _is_markable(one)) if isinstance(one, dict) else one for one in last_first]
        return kept[::-1]


def _iterate_marks(block: Block) -> Iterator[Any]:
    if CACHE_CONTROL in block:
        yield block[CACHE_CONTROL]
    inner = block.get("content")
    for each in inner if isinstance(inner, list) else ():
        if isinstance(each, dict):
            yield from _iterate_marks(each)
