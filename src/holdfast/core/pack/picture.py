"""A pack as HTML: a line about it, a bar of where the budget went, and a table of its pieces.

Everything that others wrote is escaped. Colours are of the bar alone, so that it can be read on any background.
"""

from __future__ import annotations

import html
from typing import Final

from holdfast.core.tracing import words
from holdfast.records.packs import KINDS, Packed, Segment

COLOURS: Final = {
    "brief": "#4c78a8",
    "breadcrumb": "#72b7b2",
    "summary": "#b279a2",
    "conversation": "#54a24b",
    "memory": "#e45756",
    "evidence": "#f58518",
}
FREE: Final = "free"
MOST_CHARS: Final = 200
MOST_ROWS: Final = 200
COLUMNS: Final = ("kind", "id", "tokens", "trust", "text")

_CELL: Final = "text-align:left;vertical-align:top;padding:2px 8px"


def shares(packed: Packed) -> dict[str, int]:
    """Tokens by kind of what is there, in the order of kinds, and what is free."""
    found = dict.fromkeys(KINDS, 0)
    for segment in packed.segments:
        found[segment.kind] += segment.estimated_tokens
    shown: dict[str, int] = {kind: tokens for kind, tokens in found.items() if tokens}
    return {**shown, FREE: packed.token_summary.remaining}


def html_of(packed: Packed, title: str) -> str:
    """For notebooks."""
    summary = packed.token_summary
    share = f"{packed.cached_tokens / summary.used:.0%}" if summary.used else "0%"
    head = f"{title} of {summary.budget:,}, level {summary.compaction_level.value}, {share} cached"
    rows = "".join(_row(packed, segment) for segment in packed.segments[:MOST_ROWS])
    more = len(packed.segments) - MOST_ROWS
    tail = f"<p>and {more:,} more pieces</p>" if more > 0 else ""
    names = "".join(f'<th style="{_CELL}">{name}</th>' for name in COLUMNS)
    return (
        f"<div><p>{html.escape(head)}</p>{_bar(packed)}"
        f'<table style="border-collapse:collapse"><tr>{names}</tr>{rows}</table>{tail}</div>'
    )


def _bar(packed: Packed) -> str:
    budget = max(packed.token_summary.budget, packed.token_summary.used, 1)
    found = shares(packed)
    pieces = "".join(
        f'<span title="{kind}: {tokens:,}" style="flex:0 0 {100 * tokens / budget:.2f}%;background:{COLOURS[kind]}">'
        "</span>"
        for kind, tokens in found.items()
        if kind != FREE
    )
    names = "".join(
        f'<span style="margin-right:1em">{_square(kind)} {kind} {tokens:,}</span>' for kind, tokens in found.items()
    )
    return f'<div style="display:flex;height:1em;border:1px solid #999">{pieces}</div><div>{names}</div>'


def _square(kind: str) -> str:
    return f'<span style="color:{COLOURS.get(kind, "#999")}">■</span>'


def _row(packed: Packed, segment: Segment) -> str:
    text = packed.system or "" if segment.id == "brief" else "\n".join(map(words, segment.messages))
    short = text[:MOST_CHARS] + ("…" if len(text) > MOST_CHARS else "")
    cells = (segment.kind, segment.id, f"{segment.estimated_tokens:,}", segment.trust, short)
    shown = "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in cells)
    return f"<tr>{shown}</tr>"
