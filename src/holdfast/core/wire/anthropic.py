"""Anthropic's Messages form, read and written.

Tool results, which it puts into user messages, are a message of their own here.
`render(read_messages(x).messages, ids="provider")["messages"] == x` for every valid `x`, up to this:

- neighbours of one role are one message; results come first in theirs
- blank texts are left out
- `cache_control` belongs to a request, not to a message, and is left out; so are keys that are null
- `is_error` is left out when false, a result's content when blank
- a system message among the messages comes back as a user's text with a label

Thinking and blocks of hosted tools are kept and given back unaltered, in their place. What is not
understood is kept under `anthropic` and comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.wire.anthropic_out import rendered
from holdfast.core.wire.cache_marks import marked
from holdfast.core.wire.calls import id_text, read_call
from holdfast.core.wire.checking import settled
from holdfast.core.wire.given import listed, plain
from holdfast.core.wire.ids import Ids
from holdfast.core.wire.notes import Notes, Reading
from holdfast.core.wire.order import Extras, InOrder, metadata_of
from holdfast.core.wire.parts import decoded, extras_of, malformed_part, text_part
from holdfast.core.wire.requests import AnthropicRequest
from holdfast.core.wire.roles import read_role
from holdfast.core.wire.tools import to_anthropic
from holdfast.records.messages import Message, Part, ToolCallResult, ToolDef

_KNOWN_BLOCKS = ("text", "image", "document", "tool_use", "tool_result")


def read_messages(items: Sequence[Mapping[str, Any]] | Iterable[Any], *, system: Any = None) -> Reading:
    """A list of messages, as far as it can be read; what could not is among the repairs."""
    notes = Notes()
    messages: list[Message] = []
    indexes: list[int] = []
    for index, item in enumerate(listed(items, notes)):
        notes.index = index
        messages += read_message(item, notes)
        indexes += [index] * (len(messages) - len(indexes))
    return Reading(messages=messages, system=read_system(system, notes), repairs=notes.repairs, indexes=indexes)


def read_system(system: Any, notes: Notes) -> str | None:
    """The system prompt from text or blocks; blocks become paragraphs."""
    given = plain(system, notes)
    blocks = given if isinstance(given, list) else [given]
    texts = [block.get("text") if isinstance(block, dict) else block for block in blocks]
    return "\n\n".join(text for text in texts if isinstance(text, str) and text) or None


def read_message(item: Any, notes: Notes) -> list[Message]:
    """One of its messages as ours: the results in it, then what else was said."""
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
    """Keyword arguments for `messages.create`; `ids="provider"` is for export, the default for sending.

    `stable` says how many of the leading messages are the same in the next call, and has cache marks put.
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
    """What is not a result. One text is kept as text where it comes back as a block anyway."""
    parts = found.content()
    content: str | list[Part] | None = parts or None
    if len(parts) == 1 and set(parts[0]) == {"type", "text"} and found.calls:
        content = parts[0]["text"]
    return Message(role=role, content=content, tool_calls=tuple(found.calls), metadata=metadata)


def _read_block(block: Any, notes: Notes) -> Part | None:
    """A block that is neither a call nor a result; those were where they may be, or are malformed."""
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
