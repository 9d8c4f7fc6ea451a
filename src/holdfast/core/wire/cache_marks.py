"""Where Anthropic may take a request from its cache: `cache_control` marks.

A mark says that everything up to it may come again. It is only put where that is so: behind the tools and the system
prompt, behind the messages that are the same in the next call, and at the end, where a longer request goes on. What
comes before a mark is written the same whatever follows it, so that the cache is really hit. A block that comes from
the stable messages but stands behind one that does not is not marked.

Anthropic takes four marks, none on thinking, and none of a longer life behind one of a shorter. Marks that a caller
put into messages or tools stay as far as they are valid, and ours give way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from holdfast.core.wire.anthropic_out import Block, Written
from holdfast.core.wire.requests import AnthropicRequest

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
    """A block or a tool, in the order of the request, and the index of the message that it comes from."""

    block: Block
    source: int
    carries: bool
    """Whether it may have a mark."""


def marked(written: Written, tools: list[Block], stable: int, count: int) -> AnthropicRequest:
    """The request with its marks; `stable` of its `count` messages are the same in the next call."""
    theirs = _Theirs()
    # From the end, because a later mark covers what an earlier one does.
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
    """Our marks, as many as there is room for: the one at the boundary first, then the end, then the brief."""
    spots = [*brief, *said]
    first = 1 + max((at for at, spot in enumerate(spots) if _is_long(spot.block)), default=-1)
    end = _last(spots, count)
    # As long as nothing was said, what follows may join the system prompt: that is no end to go on from.
    chosen = (_last(spots, stable), end if end >= len(brief) else NOWHERE, _last(brief, stable))
    for at in dict.fromkeys(chosen):
        if at >= first and left and CACHE not in spots[at].block:
            spots[at].block[CACHE] = {"type": "ephemeral"}
            left -= 1


def _last(spots: list[_Spot], until: int) -> int:
    """The last place for a mark before anything that comes from a message at `until` or later."""
    found = NOWHERE
    for at, spot in enumerate(spots):
        if spot.source >= until:
            break
        if spot.carries:
            found = at
    return found


def _carries(block: Block) -> bool:
    """Whether a block may have a mark: thinking may not, nor a text that is blank."""
    kind = str(block.get("type"))
    if kind == "text":
        return bool(str(block.get("text", "")).strip())
    return kind in _CARRYING or kind.endswith("_tool_result")


def _tool_carries(tool: Block) -> bool:
    """Whether a tool may have a mark: one that is loaded later stands nowhere yet."""
    return not tool.get("defer_loading")


class _Theirs:
    """The caller's own marks, gone through from the last one to the first."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_MARKS

    def turn(self, message: dict[str, Any]) -> list[Block]:
        """The blocks of a message, also of one that is a text."""
        content = message["content"]
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return self._all_kept(content)

    def kept(self, block: Block, carries: bool) -> Block:
        """A copy of a block or a tool with those of its marks that may stay."""
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
    """Whether it has a mark that outlives ours, itself or inside."""
    return any(not isinstance(mark, dict) or mark.get("ttl") not in _SHORTEST for mark in _marks(block))


def _marks(block: Block) -> Iterator[Any]:
    if CACHE in block:
        yield block[CACHE]
    inner = block.get("content")
    for each in inner if isinstance(inner, list) else ():
        if isinstance(each, dict):
            yield from _marks(each)


def _message(message: dict[str, Any], blocks: list[Block]) -> dict[str, Any]:
    """A message with its marked blocks; one that was a text stays one where it is not marked."""
    if isinstance(message["content"], str) and CACHE not in blocks[0]:
        return message
    return {**message, "content": blocks}
