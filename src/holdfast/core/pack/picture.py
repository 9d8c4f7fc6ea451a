"""A pack as HTML: a bar of where the budget went, and a table of its pieces."""

from __future__ import annotations

import html

from holdfast.records.packs import Packed, Segment

COLOURS = {
    "brief": "#4c78a8",
    "breadcrumb": "#72b7b2",
    "summary": "#b279a2",
    "conversation": "#54a24b",
    "memory": "#e45756",
    "evidence": "#f58518",
}
MOST = 200


def html_of(packed: Packed, title: str) -> str:
    """For notebooks. Everything that others wrote is escaped."""
    budget = max(packed.token_summary.budget, 1)
    shares: dict[str, int] = {}
    for segment in packed.segments:
        shares[segment.kind] = shares.get(segment.kind, 0) + segment.estimated_tokens
    bar = "".join(
        f'<span title="{kind}: {tokens}" style="display:inline-block;height:1em;width:{100 * tokens / budget:.2f}%;'
        f'background:{COLOURS[kind]}"></span>'
        for kind, tokens in shares.items()
    )
    rows = "".join(map(_row, packed.segments))
    level = packed.token_summary.compaction_level
    head = f"<p>{html.escape(title)} of {packed.token_summary.budget}, level {level}</p>"
    return (
        f'{head}<div style="border:1px solid #999;line-height:0">{bar}</div>'
        f"<table><tr><th>kind</th><th>id</th><th>tokens</th><th>trust</th><th>text</th></tr>{rows}</table>"
    )


def _row(segment: Segment) -> str:
    cells = (segment.kind, segment.id, str(segment.estimated_tokens), segment.trust, segment.text[:MOST])
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
