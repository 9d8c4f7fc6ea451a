"""Count the tokens of a message, a system prompt and tool definitions in a request.

Texts, arguments and results are exact: the tokenizer counts the very text that is sent, each one
separately. Everything that a provider puts around them is an upper bound. `Framing` has the numbers,
from what providers publish and from requests measured by others; where only a range is known, its
upper end. So a count may be a few tokens high for each message, but is not below what is billed, as
far as the tokenizer is the model's own.

Images are counted at the most that a provider ever takes for one, since their size in pixels is not
known here. Files are counted by their text if it is available, else by their size in bytes, which is
only a rough guide. A part may give a better number in its own "tokens".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.numbers import is_number
from holdfast.core.wire.calls import json_text, result_content
from holdfast.core.wire.parts import ERASED_TEXT, part_bytes
from holdfast.core.wire.plain_data import drop_blank_prompt
from holdfast.core.wire.tools import sendable_author_name, sendable_tool_name
from holdfast.records.messages import Message, Part, ToolDef

CountText = Callable[[str], int]
CountMessage = Callable[[Message], int]

SEAM_TOKENS = 2
"""For each seam between parts: two texts joined may have a token more than apart, rarely two."""
PAGE_TOKENS = 5_000
"""A page of a document as text and as an image, at most."""
PAGE_BYTES = 20_000
"""A page of text in a PDF; pages with pictures have more bytes but not more tokens."""
MAX_PAGES = 100
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml")


class Framing(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that a provider adds to texts."""

    name: str
    message: int
    """A message with its role."""
    author: int
    """The name of a message's author, in addition to the text of the name."""
    part: int
    """A part that is not text; also covers the words that stand for it where it cannot be shown."""
    call: int
    """A tool call, in addition to its name and arguments."""
    parallel: int
    """Calls made together, once for a message."""
    result: int
    """A tool's result, in addition to its text."""
    reply: int
    """The prefix of the reply, once for a request."""
    low_image: int
    image: int
    tools: int
    """Tool definitions as a whole, once for a request that has any."""
    tool: int
    """A tool definition, in addition to its JSON."""
    hosted_tool: int
    """A tool that the provider runs, in addition to its JSON: its instructions are not published."""


OPENAI = Framing(
    name="openai",
    message=4,
    author=1,
    part=8,
    call=10,
    parallel=28,
    result=8,
    reply=3,
    low_image=85,
    image=3_800,
    tools=16,
    tool=8,
    hosted_tool=2_000,
)
"""Chat completions. An image: 85 + 170 for each of 8 tiles, or 1,536 patches times at most 2.46."""

OPENAI_SMALL = msgspec.structs.replace(OPENAI, name="openai-small", low_image=2_833, image=48_200)
"""gpt-4o-mini takes 33 times as many tokens for an image as gpt-4o, to cost as much."""

RESPONSES = msgspec.structs.replace(OPENAI, name="responses", message=6, call=14, result=12)
"""The Responses API: the same, with items and channels around them."""

ANTHROPIC = Framing(
    name="anthropic",
    message=6,
    author=0,
    part=8,
    call=50,
    parallel=0,
    result=40,
    reply=6,
    low_image=4_800,
    image=4_800,
    tools=820,
    tool=20,
    hosted_tool=3_000,
)
"""The Messages API. Tool use has a prompt of 159 to 804 tokens by model; an image at most 4,784. Calls have ids."""

OTHER = Framing(
    name="other",
    message=8,
    author=2,
    part=8,
    call=40,
    parallel=28,
    result=40,
    reply=8,
    low_image=4_800,
    image=4_800,
    tools=400,
    tool=20,
    hosted_tool=3_000,
)
"""Any other provider: chat templates of open models, and providers that publish nothing."""

_FRAMINGS = {"openai": OPENAI, "azure": OPENAI, "responses": RESPONSES, "anthropic": ANTHROPIC}


def framing_of(provider: str | None, model: str | None = None) -> Framing:
    """Return the framing of a provider, or of one of its models where that differs."""
    found = _FRAMINGS.get(provider or "", OTHER)
    return OPENAI_SMALL if found is OPENAI and "gpt-4o-mini" in (model or "") else found


def count_label(tokenizer: str, framing: Framing) -> str:
    """Return the name under which counts are kept: they hold for this tokenizer within this framing."""
    return tokenizer if framing is OPENAI else f"{tokenizer}+{framing.name}"


def message_tokens(message: Message, count: CountText, framing: Framing) -> int:
    """Return the tokens of one message in a request."""
    total = framing.message
    content = message.content
    if isinstance(content, str):
        total += count(content)
    elif content:
        total += _parts_tokens(content, count, framing)
    elif message.erased:
        total += count(ERASED_TEXT)
    if message.name and message.role == "tool":  # Each of its results is sent with the name.
        total += len(message.tool_results) * (framing.author + count(sendable_tool_name(message.name)))
    elif message.name:
        total += framing.author + count(sendable_author_name(message.name))
    if message.tool_calls:
        total += framing.parallel if len(message.tool_calls) > 1 else 0
        for call in message.tool_calls:
            total += framing.call + count(sendable_tool_name(call.name)) + count(call.arguments)
    for result in message.tool_results:
        shown = result_content(message, result)
        total += framing.result + (count(shown) if isinstance(shown, str) else _parts_tokens(shown, count, framing))
    return total


def system_tokens(text: str | None, count: CountText, framing: Framing) -> int:
    """Return the tokens of a system prompt; 0 if it is empty."""
    prompt = drop_blank_prompt(text)
    return framing.message + count(prompt) if prompt else 0


def tools_tokens(tools: Sequence[ToolDef], count: CountText, framing: Framing) -> int:
    """Return the tokens of tool definitions, counted as JSON, which is longer than any form that models see."""
    total = framing.tools if tools else 0
    for tool in tools:
        if tool.raw is not None:
            total += framing.hosted_tool + count(json_text(tool.raw))
        else:
            shown = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
            total += framing.tool + count(json_text(shown))
    return total


def request_tokens(
    messages: Sequence[Message],
    count: CountText,
    framing: Framing,
    *,
    system: str | None = None,
    tools: Sequence[ToolDef] = (),
) -> int:
    """Return the tokens of a whole request, including the prefix of the reply."""
    total = framing.reply + system_tokens(system, count, framing) + tools_tokens(tools, count, framing)
    return total + sum(message_tokens(message, count, framing) for message in messages)


def _parts_tokens(parts: Sequence[Part], count: CountText, framing: Framing) -> int:
    return sum(_part_tokens(part, count, framing) for part in parts) + SEAM_TOKENS * (len(parts) - 1)


def _part_tokens(part: Part, count: CountText, framing: Framing) -> int:
    kind = part.get("type")
    text = part.get("text")
    if kind in ("text", "refusal") and isinstance(text, str):
        return count(text)
    if kind == "call":
        # Only marks the position of a call; the call itself is counted with the calls.
        return 0
    if is_number(known := part.get("tokens"), least=0):
        return framing.part + known
    if kind == "image":
        return framing.part + (framing.low_image if part.get("detail") == "low" else framing.image)
    if kind == "file":
        return framing.part + _file_tokens(part, count)
    if kind in ("reasoning", "other") and "item" in part:
        return framing.part + count(json_text(part["item"]))
    return framing.part + count(json_text(part))


def _file_tokens(part: Part, count: CountText) -> int:
    named = sum(count(name) for name in (part.get("name"), part.get("url")) if isinstance(name, str))
    kind = part.get("media_type")
    textual = isinstance(kind, str) and kind.startswith(_TEXT_TYPES)
    data = part_bytes(part)
    if textual and data is not None:
        return named + count(data.decode("utf-8", "replace"))
    size = part.get("size") if data is None else len(data)
    if not is_number(size, least=0):
        return named + PAGE_TOKENS
    if textual:
        # Prose has four bytes to a token; digits and noise have two.
        return named + (size + 1) // 2
    return named + PAGE_TOKENS * min(MAX_PAGES, -(-size // PAGE_BYTES) or 1)
