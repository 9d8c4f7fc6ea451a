"""A pack for people: a line about it, a bar of where its budget went, its pieces, and why they are in it.

What is in a pack was written by users, models and tools: every piece is made printable before it is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from holdfast.cli.message_text import Page
from holdfast.cli.output import aligned, brief, console, printable, say, widest
from holdfast.client.pack import ContextPack
from holdfast.core.pack.picture import FREE, shares
from holdfast.core.pack.reasons import sentence
from holdfast.records.packs import Decision, PackDiff, Segment

PAGE = 100
WORDS = 100
BAR = 72
LEAST = 20
COLUMNS = ("kind", "id", "tokens", "trust", "text")
DECIDED = ("id", "kind", "outcome", "tokens", "shown", "priority", "why")
CHANGED = ("", "kind", "id", "tokens", "text")
RowStyle = Callable[[Sequence[str]], str]
KINDS = {
    "brief": "blue",
    "breadcrumb": "cyan",
    "summary": "magenta",
    "conversation": "green",
    "memory": "red",
    "evidence": "yellow",
}
"""Colours that every terminal has."""
STYLES = {"included": "green", "shortened": "yellow", "summarised": "magenta", "omitted": "red"}
SIGNS = {"+": "green", "-": "red", "~": "yellow"}


def headline(pack: ContextPack) -> str:
    """What it takes, how hard it was made smaller, and how sure that is."""
    share = pack.tokens / pack.budget if pack.budget else 0.0
    talk = pack.conversation
    said = [
        f"{pack.tokens:,} of {pack.budget:,} tokens ({share:.0%})",
        f"level {pack.level.value}",
        "exact" if pack.exact else "an upper estimate",
        f"{pack.cached_share:.0%} cached",
        f"{talk.message_count:,} messages shown",
        f"{talk.truncated_count:,} left out",
    ]
    said += [] if pack.limited_by is None else [f"limited by {pack.limited_by}"]
    gone = len(pack.metadata.erased)
    return ", ".join(said + ([f"{gone:,} pieces erased since"] if gone else []))


def show_pack(pack: ContextPack) -> None:
    """The line, the bar and the table."""
    say(headline(pack), "bold")
    _show_bar(pack)
    show_rows(COLUMNS, [_cells(pack, segment) for segment in pack.segments], (2,), _kind_style)


def show_decisions(decisions: Sequence[Decision]) -> None:
    """Every candidate, and why it is in the pack or not."""
    say("")
    rows = [_decided(one) for one in decisions]
    show_rows(DECIDED, rows, (3, 4), lambda row: STYLES.get(row[2], ""))


def show_difference(found: PackDiff, other: str) -> None:
    """What a pack has that another one had not, and the other way round."""
    say("")
    level = found.level[1] if found.level[0] == found.level[1] else f"{found.level[0]} → {found.level[1]}"
    say(
        f"compared with pack {other}: {found.tokens[0]:,} → {found.tokens[1]:,} tokens, level {level}, "
        f"{found.same:,} pieces the same, the first {found.common_tokens:,} tokens in common",
        "bold",
    )
    rows = [_changed("-", one) for one in found.removed]
    rows += [_changed("~", one) for _, one in found.changed]
    rows += [_changed("+", one) for one in found.added]
    if rows:
        show_rows(CHANGED, rows, (3,), lambda row: SIGNS[row[0]])
    else:
        say("They show the same.")


# where the budget went


def _show_bar(pack: ContextPack) -> None:
    found = shares(pack._packed)
    out = console()
    if out.is_terminal:
        width = min(out.width, BAR)
        budget = max(pack.budget, 1)
        bar = Text()
        for kind, tokens in found.items():
            cells = max(round(tokens * width / budget), 1) if tokens else 0
            bar.append(("░" if kind == FREE else "█") * min(cells, width - len(bar)), style=_colour(kind))
        out.print(bar)
    legend = Text()
    for kind, tokens in found.items():
        legend.append("■ " if out.is_terminal else "", style=_colour(kind)).append(f"{kind} {tokens:,}  ")
    legend.rstrip()
    out.print(legend, soft_wrap=True)
    say("")


def _colour(kind: str) -> str:
    return KINDS.get(kind, "dim")


# rows


def _cells(pack: ContextPack, segment: Segment) -> tuple[str, ...]:
    return (
        segment.kind,
        printable(segment.id),
        f"{segment.estimated_tokens:,}",
        segment.trust,
        first_words(pack, segment),
    )


def first_words(pack: ContextPack | None, segment: Segment) -> str:
    """How a piece begins, on one line. The brief's words stand beside it."""
    if segment.id == "brief" and pack is not None:
        names = ", ".join(tool.name for tool in pack.tools)
        text = " ".join(part for part in (pack.system or "", f"[tools: {names}]" if names else "") if part)
        return printable(brief(text, WORDS))
    page = Page(segment.messages, newest=False, full=False)
    said = [piece.text for message in segment.messages for piece in page.pieces(message)]
    return printable(brief("  ".join(said), WORDS))


def _decided(one: Decision) -> tuple[str, ...]:
    many = f" ({one.count:,} messages)" if one.count > 1 else ""
    whole = "" if one.tokens is None else f"{one.tokens:,}"
    shown = f"{one.shown:,}" if one.shown else ""
    why = f"{sentence(one.reason)}{many}"
    return printable(one.id), one.kind, one.outcome, whole, shown, one.priority, printable(why)


def _changed(sign: str, segment: Segment) -> tuple[str, ...]:
    tokens = f"{segment.estimated_tokens:,}"
    return sign, segment.kind, printable(segment.id), tokens, first_words(None, segment)


def _kind_style(row: Sequence[str]) -> str:
    return _colour(row[0])


def show_rows(columns: Sequence[str], rows: Sequence[tuple[str, ...]], right: Sequence[int], style: RowStyle) -> None:
    """A table for a terminal, a page at a time; aligned lines for a pipe."""
    out = console()
    widths = widest([columns[:-1], *(row[:-1] for row in rows)])
    if not out.is_terminal:
        sys.stdout.writelines(aligned([columns, *rows], [*widths, 0], right))
        sys.stdout.flush()
        return
    # How a text begins is enough, on one line; a reason is read to its end.
    room = max(out.width - sum(widths) - 2 * len(widths), LEAST)
    cut = room if columns[-1] == "text" else WORDS * 10
    for start in range(0, len(rows), PAGE):
        table = Table(box=None, show_header=not start, header_style="dim", pad_edge=False)
        for at, (name, width) in enumerate(zip(columns, widths, strict=False)):
            most = min(width, max(out.width // 3, 1))
            table.add_column(name, justify="right" if at in right else "left", overflow="fold", min_width=most)
        table.add_column(columns[-1], overflow="fold")
        for row in rows[start : start + PAGE]:
            cells = (*row[:-1], brief(row[-1], cut))
            table.add_row(*(Text(cell, style=style(row) if at == 0 else "") for at, cell in enumerate(cells)))
        out.print(table)
