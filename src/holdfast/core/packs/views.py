"""Views of packs for callers: the diff of two packs, and a pack as HTML, with all text from elsewhere escaped."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final

from holdfast.core.lazy import lazy_module
from holdfast.core.packs.assemble import copy_segments
from holdfast.core.packs.trace import readable_text
from holdfast.records.packs import SEGMENT_KINDS, AssembledPack, PackDiff, Segment

if TYPE_CHECKING:
    import html
else:
    html = lazy_module(__name__, "html")

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


def diff_packs(before: AssembledPack, after: AssembledPack) -> PackDiff:
    """Return the segments that were added, removed or changed between two packs."""
    old = {(segment.kind, segment.id): segment for segment in copy_segments(before.segments)}
    new = {(segment.kind, segment.id): segment for segment in copy_segments(after.segments)}
    both = [(old[key], segment) for key, segment in new.items() if key in old]
    changed = tuple((one, other) for one, other in both if _shown_content(before, one) != _shown_content(after, other))
    pairs = zip(before.segments, after.segments, strict=False)
    common = takewhile(lambda pair: _shown_content(before, pair[0]) == _shown_content(after, pair[1]), pairs)
    return PackDiff(
        added=tuple(segment for key, segment in new.items() if key not in old),
        removed=tuple(segment for key, segment in old.items() if key not in new),
        changed=changed,
        same=len(both) - len(changed),
        common_tokens=sum(other.estimated_tokens for _, other in common),
        level=(before.token_summary.compaction_level, after.token_summary.compaction_level),
        tokens=(before.token_summary.used, after.token_summary.used),
    )


def _shown_content(packed: AssembledPack, segment: Segment) -> tuple[object, ...]:
    """Return what is shown of a segment; the system prompt and tools are outside of its messages."""
    said = [(one.role, one.content, one.tool_calls, one.tool_results) for one in segment.messages]
    return segment.kind, segment.id, said, (packed.system, packed.tools) if segment.id == "brief" else None


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
    rows = ""
    for segment in packed.segments[:MAX_ROWS]:
        text = packed.system or "" if segment.id == "brief" else "\n".join(map(readable_text, segment.messages))
        short = text[:MAX_CELL_CHARS] + ("…" if len(text) > MAX_CELL_CHARS else "")
        cells = (segment.kind, segment.id, f"{segment.estimated_tokens:,}", segment.trust, short)
        shown = "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in cells)
        rows += f"<tr>{shown}</tr>"
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
