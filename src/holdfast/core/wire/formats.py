"""Import and export by the name of a format: `openai`, `responses`, `anthropic`.

A conversation is given as its list of messages, or as the keyword arguments of a request with system prompt and
tools. holdfast's own JSON lines are in `jsonl.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.wire import anthropic, openai_chat, openai_responses
from holdfast.core.wire.calls import IdStyle
from holdfast.core.wire.plain_data import ParsedConversation
from holdfast.core.wire.tools import read_tool_def
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message, Repair, ToolDef

Format = Literal["openai", "responses", "anthropic"]
FORMATS: tuple[Format, ...] = ("openai", "responses", "anthropic")
# Requests contain only what a pack defines; the model, the answer's length and the like are the caller's. Messages,
# items and tools are not typed more closely, so that the types of any SDK release accept them, as in
# `client.chat.completions.create(model=…, **pack.to_openai())`.
Request = openai_chat.OpenAIRequest | openai_responses.ResponsesRequest | anthropic.AnthropicRequest
_RENDERERS: dict[str, Callable[..., Request]] = {
    "openai": openai_chat.render_request,
    "responses": openai_responses.render_request,
    "anthropic": anthropic.render_request,
}


def read_conversation(format: str, given: Any) -> ParsedConversation:
    """Read a conversation in a provider's format; problems are listed as repairs."""
    _check_format(format)
    request = given if isinstance(given, Mapping) else {}
    items = given if not isinstance(given, Mapping) else request.get("input" if format == "responses" else "messages")
    if format == "openai":
        reading = openai_chat.read_messages(items or [])
    elif format == "responses":
        reading = openai_responses.read_messages(items or [], instructions=request.get("instructions"))
    else:
        reading = anthropic.read_messages(items or [], system=request.get("system"))
    tools, repairs = _read_tools(request.get("tools"))
    name = request.get("model")
    model = name if isinstance(name, str) and name else None
    return msgspec.structs.replace(reading, tools=tools, repairs=[*reading.repairs, *repairs], model=model)


def render_conversation(
    format: str,
    messages: Sequence[Message],
    *,
    system: str | None = None,
    tools: Iterable[ToolDef] = (),
    ids: IdStyle = "provider",
) -> Request:
    """Return a conversation as a request's keyword arguments, by default with the provider's own ids."""
    _check_format(format)
    return _RENDERERS[format](messages, system=system, tools=tools, ids=ids)


def _check_format(format: str) -> None:
    if format not in FORMATS:
        raise InvalidValue(f"{format!r:.40} is not a format. Use one of {', '.join(FORMATS)}.")


def _read_tools(given: Any) -> tuple[tuple[ToolDef, ...], list[Repair]]:
    """Return the readable tools, one of each name, and a repair for each tool left out."""
    found: dict[str, ToolDef] = {}
    repairs: list[Repair] = []
    for item in given if isinstance(given, list | tuple) else ():
        try:
            tool = read_tool_def(item)
        except InvalidValue as error:
            repairs.append(Repair(index=0, problem="malformed", done=f"left out a tool: {error}"))
            continue
        if found.setdefault(tool.name, tool) is not tool:
            repairs.append(Repair(index=0, problem="malformed", done=f"left out the second tool {tool.name}"))
    return tuple(found.values()), repairs
