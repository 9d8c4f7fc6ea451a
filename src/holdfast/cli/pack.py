"""`holdfast pack` and `holdfast why`: show a pack and the reasons for its content, or trace a fact through the packs.

Both are read-only. A pack is shown as a headline, a bar of where its budget went, and its pieces. They were written
by users, models and tools: every piece of text is escaped before it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any

from rich.table import Table
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.open import (
    PATH_HELP,
    Json,
    LeadingPath,
    Tenant,
    locate_state,
    open_existing,
    option,
    resolve_arguments,
    switch,
)
from holdfast.cli.sessions import MessagePage, SessionArgument, Thread, find_session, message_to_json
from holdfast.client.holdfast import Holdfast
from holdfast.client.pack import ContextPack
from holdfast.client.session import Session
from holdfast.core.packs.manifest import describe_reason
from holdfast.core.packs.views import FREE, token_shares
from holdfast.errors import CallNotFound, InvalidValue
from holdfast.records.events.envelope import Event
from holdfast.records.ids import ULID_CHARS
from holdfast.records.packs import Appearance, Decision, PackDiff, Segment, Trace
from holdfast.records.scope import Scope

PACK_FIELDS = ("digest", "exact", "tokenizer", "model", "limited_by", "cached_share", "system")
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")

CALL_HELP = "1 is the first call of the thread, -1 the newest; or give the id of a call or pack."


def pack(
    path: LeadingPath,
    session: SessionArgument = None,
    /,
    *,
    call: Annotated[str | None, option(f"Show the context of this call, exactly. {CALL_HELP}")] = None,
    budget: Annotated[int | None, option("Token budget of a pack made now; the model's window if not given.")] = None,
    role: Annotated[str | None, option("Role of a pack made now.")] = None,
    why: Annotated[bool, switch("Show every candidate, and why it is or is not in the pack.")] = False,
    diff: Annotated[str | None, option("Compare with the pack of this call, named as for --call.")] = None,
    thread: Thread = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    if call is not None and (budget is not None or role is not None):
        raise InvalidValue("--budget and --role are for a pack made now. Leave them out, or leave out --call.")
    journal, id = resolve_arguments(path, session, "the session's id")
    with open_existing(journal, tenant) as hf, output.ProgressBar("pack"):
        line = find_session(hf, id, thread)
        how: dict[str, Any] = {} if role is None else {"role": role}
        made = line.pack(budget, **how) if call is None else line.pack_at(find_call_id(hf, line, call))
        other = None if diff is None else line.pack_at(find_call_id(hf, line, diff))
        found = None if other is None else other.diff(made)
        shown = _pack_to_json(line, made, other, found, why=why) if json else None
    if shown is not None:
        output.print_json(shown)
        return
    about = made.metadata
    if about.pack_id is not None:
        output.print_line(f"pack {about.pack_id}, {output.format_time(about.created_at)}, role {about.role}", "dim")
    show_pack(made)
    if why:
        show_decisions(made.decisions)
    if found is not None and other is not None:
        show_difference(found, str(other.metadata.pack_id))


def find_call_id(hf: Holdfast, line: Session, given: str) -> str:
    """Return a call's id, given its number (negative ones count from the newest) or an id."""
    text = given.strip()
    if not _NUMBER.fullmatch(text):
        # Anything else than an id is kept as typed, for the error message.
        return text.upper() if len(text) == ULID_CHARS else text
    number = int(text)
    if number == 0:
        raise InvalidValue(f"There is no call 0. {CALL_HELP}")
    scope = Scope.thread(line.id, line.thread)
    known = 0
    events: Iterator[Event] = hf.journal.events(scope, types=("context.packed",), backwards=number < 0)
    for known, event in enumerate(events, 1):
        if known == abs(number):
            return str(event.facts.pack)
    calls = "1 call that was given a pack" if known == 1 else f"{known:,} calls that were given packs"
    raise CallNotFound(f"There is no call {number}: thread {line.thread!r} of session {line.id!r} has {calls}.")


def _pack_to_json(
    line: Session, made: ContextPack, other: ContextPack | None, found: PackDiff | None, *, why: bool
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "session": line.id,
        "thread": line.thread,
        "metadata": output.plain_fields(made.metadata),
        **{name: getattr(made, name) for name in PACK_FIELDS},
        "tokens": output.plain_fields(made.token_summary),
        "shown": made.conversation.message_count,
        "left_out": made.conversation.truncated_count,
        "tools": output.to_plain(made.tools),
        "segments": [
            {**output.plain_fields(segment), "messages": [message_to_json(message) for message in segment.messages]}
            for segment in made.segments
        ],
    }
    if why:
        shown["decisions"] = [output.plain_fields(one) for one in made.decisions]
    if found is not None and other is not None:
        shown["diff"] = {
            **output.plain_fields(found),
            "with": other.metadata.pack_id,
            "added": [_segment_name(one) for one in found.added],
            "removed": [_segment_name(one) for one in found.removed],
            "changed": [_segment_name(one) for _, one in found.changed],
        }
    return shown


def _segment_name(segment: Segment) -> dict[str, Any]:
    return {"kind": segment.kind, "id": segment.id, "tokens": segment.estimated_tokens}


PAGE_ROWS = 100
TEXT_CHARS = 100
BAR_WIDTH = 72
MIN_TEXT_WIDTH = 20
SEGMENT_COLUMNS = ("kind", "id", "tokens", "trust", "text")
DECISION_COLUMNS = ("id", "kind", "outcome", "tokens", "shown", "priority", "why")
CHANGE_COLUMNS = ("", "kind", "id", "tokens", "text")
KIND_COLOURS = {
    "brief": "blue",
    "breadcrumb": "cyan",
    "summary": "magenta",
    "conversation": "green",
    "memory": "red",
    "evidence": "yellow",
}
"""A colour for each kind of segment; every terminal has these."""
OUTCOME_STYLES = {"included": "green", "shortened": "yellow", "summarised": "magenta", "omitted": "red"}
CHANGE_STYLES = {"+": "green", "-": "red", "~": "yellow"}


def format_headline(pack: ContextPack) -> str:
    """Format a pack's size, compaction level, exactness and message counts on one line."""
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
    """Print a pack: its headline, the bar and the table of segments."""
    output.print_line(format_headline(pack), "bold")
    _show_bar(pack)
    rows = [
        (one.kind, output.escape_text(one.id), f"{one.estimated_tokens:,}", one.trust, first_words(pack, one))
        for one in pack.segments
    ]
    show_rows(SEGMENT_COLUMNS, rows, (2,), lambda row: _kind_colour(row[0]))


def show_decisions(decisions: Sequence[Decision]) -> None:
    """Print every candidate, and why it is in the pack or not."""
    output.print_line("")
    rows = [_format_decision(one) for one in decisions]
    show_rows(DECISION_COLUMNS, rows, (3, 4), lambda row: OUTCOME_STYLES.get(row[2], ""))


def show_difference(found: PackDiff, other: str) -> None:
    """Print the differences between two packs."""
    output.print_line("")
    level = found.level[1] if found.level[0] == found.level[1] else f"{found.level[0]} → {found.level[1]}"
    output.print_line(
        f"compared with pack {other}: {found.tokens[0]:,} → {found.tokens[1]:,} tokens, level {level}, "
        f"{found.same:,} pieces the same, the first {found.common_tokens:,} tokens in common",
        "bold",
    )
    changes = {"-": found.removed, "~": [one for _, one in found.changed], "+": found.added}
    rows = [
        (sign, one.kind, output.escape_text(one.id), f"{one.estimated_tokens:,}", first_words(None, one))
        for sign, some in changes.items()
        for one in some
    ]
    if rows:
        show_rows(CHANGE_COLUMNS, rows, (3,), lambda row: CHANGE_STYLES[row[0]])
    else:
        output.print_line("The packs are the same.")


def _show_bar(pack: ContextPack) -> None:
    """Print where the budget went."""
    found = token_shares(pack._packed)
    out = output.console()
    if out.is_terminal:
        width = min(out.width, BAR_WIDTH)
        budget = max(pack.budget, 1)
        bar = Text()
        for kind, tokens in found.items():
            cells = max(round(tokens * width / budget), 1) if tokens else 0
            bar.append(("░" if kind == FREE else "█") * min(cells, width - len(bar)), style=_kind_colour(kind))
        out.print(bar)
    legend = Text()
    for kind, tokens in found.items():
        legend.append("■ " if out.is_terminal else "", style=_kind_colour(kind)).append(f"{kind} {tokens:,}  ")
    legend.rstrip()
    out.print(legend, soft_wrap=True)
    output.print_line("")


def _kind_colour(kind: str) -> str:
    return KIND_COLOURS.get(kind, "dim")


def first_words(pack: ContextPack | None, segment: Segment) -> str:
    """Return the beginning of a segment on one line. The text of the brief is taken from the pack itself."""
    if segment.id == "brief" and pack is not None:
        names = ", ".join(tool.name for tool in pack.tools)
        text = " ".join(part for part in (pack.system or "", f"[tools: {names}]" if names else "") if part)
        return output.escape_text(output.shorten_text(text, TEXT_CHARS))
    page = MessagePage(segment.messages, newest=False, full=False)
    said = [piece.plain for message in segment.messages for piece in page.pieces(message)]
    return output.escape_text(output.shorten_text("  ".join(said), TEXT_CHARS))


def _format_decision(one: Decision) -> tuple[str, ...]:
    many = f" ({one.count:,} messages)" if one.count > 1 else ""
    whole = "" if one.tokens is None else f"{one.tokens:,}"
    shown = f"{one.shown:,}" if one.shown else ""
    why = f"{describe_reason(one.reason)}{many}"
    return output.escape_text(one.id), one.kind, one.outcome, whole, shown, one.priority, output.escape_text(why)


def show_rows(
    columns: Sequence[str], rows: Sequence[tuple[str, ...]], right: Sequence[int], style: Callable[[Sequence[str]], str]
) -> None:
    """Print rows: a table for a terminal, a page at a time; aligned lines for a pipe."""
    out = output.console()
    if not out.is_terminal:
        output.print_rows(columns, rows, right)
        return
    widths = output.column_widths([columns[:-1], *(row[:-1] for row in rows)])
    # The beginning of a text is enough, on one line; a reason is shown to its end.
    room = max(out.width - sum(widths) - 2 * len(widths), MIN_TEXT_WIDTH)
    cut = room if columns[-1] == "text" else TEXT_CHARS * 10
    for start in range(0, len(rows), PAGE_ROWS):
        table = Table(box=None, show_header=not start, header_style="dim", pad_edge=False)
        for at, (name, width) in enumerate(zip(columns, widths, strict=False)):
            most = min(width, max(out.width // 3, 1))
            table.add_column(name, justify="right" if at in right else "left", overflow="fold", min_width=most)
        table.add_column(columns[-1], overflow="fold")
        for row in rows[start : start + PAGE_ROWS]:
            cells = (*row[:-1], output.shorten_text(row[-1], cut))
            table.add_row(*(Text(cell, style=style(row) if at == 0 else "") for at, cell in enumerate(cells)))
        out.print(table)


TRACE_COLUMNS = ("calls", "time (UTC)", "first call", "state", "by", "why")
TRACE_STYLES = {"shown": "green", "recalled": "green", "summarised": "magenta", "shortened": "yellow", "absent": "red"}
MAX_NAMES = 12


def why(
    path: Annotated[str | None, option(PATH_HELP, name="PATH")] = None,
    session: SessionArgument = None,
    fact: Annotated[str | None, option("Some words of a message, verbatim.", name="FACT")] = None,
    /,
    *,
    thread: Thread = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    place, (id, text) = locate_state((path, session, fact), ("SESSION", "FACT"), store=None, tenant=tenant)
    with open_existing(place.journal, tenant) as hf, output.ProgressBar("why"):
        line = find_session(hf, id, thread)
        trace = line.why(text)
    if json:
        output.print_json({"session": line.id, "thread": line.thread, **output.plain_fields(trace)})
        return
    show_trace(trace)
    if trace.left is not None:
        thread_of = () if thread is None else ("--thread", thread)
        command = place.format_command("pack", line.id, "--call", trace.left.call, "--why", *thread_of)
        output.print_note(f"See that pack with: {command}")


def show_trace(trace: Trace) -> None:
    """Print where a fact was said, which calls were shown it, and what to do about it."""
    names = ", ".join(map(output.escape_text, trace.found[:MAX_NAMES]))
    more = f" and {len(trace.found) - MAX_NAMES:,} more" if len(trace.found) > MAX_NAMES else ""
    since = "" if trace.said_at is None else f", first said {output.format_time(trace.said_at)}"
    output.print_line(f"Found in {names}{more}{since}." if names else "Not found in this conversation.", "bold")
    stretches = list(_group_calls(trace.appearances))
    if stretches:
        show_rows(TRACE_COLUMNS, stretches, (0,), lambda row: TRACE_STYLES.get(row[3], ""))
    else:
        output.print_line("No pack was journaled after it was said.")
    if trace.left is not None:
        left = trace.left
        output.print_line(f"left: call {left.call}, {output.format_time(left.at)}, {_format_reason(left)}")
    if trace.covered_by is not None:
        output.print_line(f"covered by: {trace.covered_by}")
    output.console().print(Text.assemble("now: ", (trace.now, TRACE_STYLES.get(trace.now, ""))))
    output.print_line(f"fix: {trace.fix}", "bold")
    if trace.note is not None:
        output.print_note(trace.note)


def _group_calls(found: Sequence[Appearance]) -> Iterator[tuple[str, ...]]:
    """Yield one row for each run of calls with the same outcome."""
    for _, group in groupby(found, key=lambda one: (one.role, one.state, one.by, one.reason)):
        calls = list(group)
        first = calls[0]
        yield (
            f"{len(calls):,}",
            output.format_time(first.at),
            first.call,
            first.state,
            output.escape_text(first.by or ""),
            _format_reason(first),
        )


def _format_reason(one: Appearance) -> str:
    role = "" if one.role == "main" else f" (role {one.role})"
    return output.escape_text(f"{'' if one.reason is None else describe_reason(one.reason)}{role}".strip())
