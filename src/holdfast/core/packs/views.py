"""Views of a pack for callers: copies of its records, the diff of two packs, and a pack as HTML.

Copies share texts, which are immutable; changing a copied list or mapping does not change the pack. In HTML, all text
from elsewhere is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core.packs.trace import readable_text
from holdfast.core.wire.parts import copy_data
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import SEGMENT_KINDS, AssembledPack, BriefContext, PackDiff, Segment
from holdfast.records.sessions import Summary

COLOURS: Final = {
    "brief": "#4c78a8",
    "breadcrumb": "#72b7b2",
    "summary": "#b279a2",
    "conversation": "#54a24b",
    "memory": "#e45756",
    "evidence": "#f58518",
}
FREE: Final = "free"
MAX_CELL_CHARS: Final = 200
MAX_ROWS: Final = 200
COLUMNS: Final = ("kind", "id", "tokens", "trust", "text")
_CELL: Final = "text-align:left;vertical-align:top;padding:2px 8px"


def copy_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Copy messages with their parts, results and metadata."""
    return tuple(map(_copy_message, messages))


def _copy_message(message: Message) -> Message:
    results = message.tool_results
    if not (isinstance(message.content, list | dict) or message.metadata or results):
        return message
    if not (_is_mutable(message.content) or message.metadata or any(_is_mutable(one.result) for one in results)):
        return message
    return replace(
        message,
        content=copy_data(message.content),
        tool_results=tuple(replace(one, result=copy_data(one.result)) for one in results),
        metadata=copy_data(message.metadata),
    )


def copy_segments(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Copy segments with their messages."""
    return tuple(map(_copy_segment, segments))


def _copy_segment(segment: Segment) -> Segment:
    messages = copy_messages(segment.messages)
    same = all(one is other for one, other in zip(messages, segment.messages, strict=True))
    return segment if same else replace(segment, messages=messages)


def copy_tools(tools: Iterable[ToolDef]) -> tuple[ToolDef, ...]:
    """Copy tools with their schemas."""
    return tuple(replace(tool, parameters=copy_data(tool.parameters), raw=copy_data(tool.raw)) for tool in tools)


def copy_brief(brief: BriefContext) -> BriefContext:
    """Copy a brief with its data and tools."""
    context, tools = copy_data(brief.working_context), copy_tools(brief.available_tools)
    return replace(brief, working_context=context, available_tools=tools)


def copy_summaries(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    """Copy summaries with their data."""
    return tuple(one if one.state is None else replace(one, state=copy_data(one.state)) for one in summaries)


def copy_diff(found: PackDiff) -> PackDiff:
    """Copy a diff with its segments."""
    changed = tuple((_copy_segment(one), _copy_segment(other)) for one, other in found.changed)
    return replace(found, added=copy_segments(found.added), removed=copy_segments(found.removed), changed=changed)


def _is_mutable(value: Any) -> bool:
    return isinstance(value, list | dict)


def diff_packs(before: AssembledPack, after: AssembledPack) -> PackDiff:
    """Return the segments that were added, removed or changed between two packs."""
    old = {(segment.kind, segment.id): segment for segment in before.segments}
    new = {(segment.kind, segment.id): segment for segment in after.segments}
    both = [(old[key], segment) for key, segment in new.items() if key in old]
    changed = tuple(
        pair
        for pair in both
        if _content_fields(pair[0]) != _content_fields(pair[1]) or _is_other_brief(pair, before, after)
    )
    return PackDiff(
        added=tuple(segment for key, segment in new.items() if key not in old),
        removed=tuple(segment for key, segment in old.items() if key not in new),
        changed=changed,
        same=len(both) - len(changed),
        common_tokens=_count_common(before, after),
        level=(before.token_summary.compaction_level, after.token_summary.compaction_level),
        tokens=(before.token_summary.used, after.token_summary.used),
    )


def _content_fields(segment: Segment) -> list[tuple[object, ...]]:
    return [(one.role, one.content, one.tool_calls, one.tool_results) for one in segment.messages]


def _is_other_brief(pair: tuple[Segment, Segment], before: AssembledPack, after: AssembledPack) -> bool:
    """Return True if the system prompt or tools differ, which are outside the segments."""
    return pair[0].id == "brief" and (before.system, before.tools) != (after.system, after.tools)


def _count_common(before: AssembledPack, after: AssembledPack) -> int:
    """Return the tokens that both packs begin with."""
    total = 0
    for one, other in zip(before.segments, after.segments, strict=False):
        if (one.kind, one.id) != (other.kind, other.id) or _content_fields(one) != _content_fields(other):
            break
        if _is_other_brief((one, other), before, after):
            break
        total += other.estimated_tokens
    return total


def token_shares(packed: AssembledPack) -> dict[str, int]:
    """Return the tokens of each kind, in the order of kinds, and the free ones."""
    found = dict.fromkeys(SEGMENT_KINDS, 0)
    for segment in packed.segments:
        found[segment.kind] += segment.estimated_tokens
    shown: dict[str, int] = {kind: tokens for kind, tokens in found.items() if tokens}
    return {**shown, FREE: packed.token_summary.remaining}


def render_html(packed: AssembledPack, title: str) -> str:
    """Return a pack as HTML, for notebooks."""
    summary = packed.token_summary
    share = f"{packed.cached_tokens / summary.used:.0%}" if summary.used else "0%"
    head = f"{title} of {summary.budget:,}, level {summary.compaction_level.value}, {share} cached"
    rows = "".join(_render_row(packed, segment) for segment in packed.segments[:MAX_ROWS])
    more = len(packed.segments) - MAX_ROWS
    tail = f"<p>and {more:,} more pieces</p>" if more > 0 else ""
    names = "".join(f'<th style="{_CELL}">{name}</th>' for name in COLUMNS)
    return (
        f"<div><p>{html.escape(head)}</p>{_render_bar(packed)}"
        f'<table style="border-collapse:collapse"><tr>{names}</tr>{rows}</table>{tail}</div>'
    )


def _render_bar(packed: AssembledPack) -> str:
    budget = max(packed.token_summary.budget, packed.token_summary.used, 1)
    found = token_shares(packed)
    pieces = "".join(
        f'<span title="{kind}: {tokens:,}" style="flex:0 0 {100 * tokens / budget:.2f}%;background:{COLOURS[kind]}">'
        "</span>"
        for kind, tokens in found.items()
        if kind != FREE
    )
    names = "".join(
        f'<span style="margin-right:1em"><span style="color:{COLOURS.get(kind, "#999")}">■</span>'
        f" {kind} {tokens:,}</span>"
        for kind, tokens in found.items()
    )
    return f'<div style="display:flex;height:1em;border:1px solid #999">{pieces}</div><div>{names}</div>'


def _render_row(packed: AssembledPack, segment: Segment) -> str:
    text = packed.system or "" if segment.id == "brief" else "\n".join(map(readable_text, segment.messages))
    short = text[:MAX_CELL_CHARS] + ("…" if len(text) > MAX_CELL_CHARS else "")
    cells = (segment.kind, segment.id, f"{segment.estimated_tokens:,}", segment.trust, short)
    shown = "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in cells)
    return f"<tr>{shown}</tr>"
