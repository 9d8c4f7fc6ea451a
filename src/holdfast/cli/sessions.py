"""`holdfast sessions`: list the sessions of a journal, page by page, so that any number can be shown."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from holdfast.cli.open import JournalPath, Json, Tenant, format_command, open_existing, option
from holdfast.cli.output import (
    align_rows,
    column_widths,
    console,
    escape_text,
    format_duration,
    plain_fields,
    print_json,
    print_note,
    shorten_text,
    to_plain,
    write_lines,
)
from holdfast.cli.stack import format_text
from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.errors import InvalidValue, SessionNotFound
from holdfast.flow.sessions.sessions import ORDERS, STATUSES
from holdfast.records.events.envelope import ERASED, Erased
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.records.sessions import SessionInfo
from holdfast.records.usage import NANO_USD
from holdfast.system import SystemClock

PAGE = 100
COLUMNS = ("session", "title", "status", "model", "messages", "tokens", "cost (USD)", "last active")
NUMBERS = (4, 5, 6)
TITLE_CHARS = 60
MIN_ID_WIDTH = 20
STYLES = {"open": "green", "closing": "yellow", "ended": "dim", "closed": "dim"}

Thread = Annotated[str | None, option(f"The thread of the session; {MAIN_THREAD!r} if not given.")]


class SessionListing(NamedTuple):
    """A session, with its first words if it has no title."""

    info: SessionInfo
    words: str | Erased | None


def sessions(
    path: JournalPath = None,
    /,
    *,
    user: Annotated[str | None, option("Only sessions of this user.")] = None,
    title: Annotated[str | None, option("Only sessions with this text in their title.")] = None,
    status: Annotated[str | None, option(f"Only sessions with this status: {', '.join(STATUSES)}.")] = None,
    order: Annotated[
        str, Parameter(help=f"Sort by {', '.join(ORDERS)}: latest or most expensive first, or by name.")
    ] = ORDERS[0],
    limit: Annotated[int | None, option("Show the first N sessions.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Show the conversations with their titles, sizes and costs."""
    check_limit(limit)
    with open_existing(path, tenant) as hf:
        infos = hf.sessions(user=user, title=title, status=status, order=order, limit=limit)
        found = (SessionListing(info, None if info.title else _load_first_words(hf, info)) for info in infos)
        if json:
            print_json({"sessions": [_session_to_json(one) for one in found]})
            return
        last = _print_sessions(found)
    if last is None:
        print_note("No session matches." if user or title or status else "There are no sessions yet.")
    else:
        print_note(f"Read one with: {format_command('messages', str(path), last, tenant=tenant)}")


def check_limit(limit: int | None) -> None:
    """Refuse a limit below 1."""
    if limit is not None and limit < 1:
        raise InvalidValue(f"--limit must be 1 or more, not {limit}.")


def find_session(hf: Holdfast, id: str, thread: str | None) -> Session:
    """Return a thread of an existing session; if it is missing, the error names the threads that exist."""
    wanted = MAIN_THREAD if thread is None else thread
    try:
        return hf.session(id, thread=wanted, create=False)
    except SessionNotFound:
        known = thread_names(hf, id)
    if not known:
        raise SessionNotFound(f"There is no session {id!r}. See `holdfast sessions`; check the id and --tenant.")
    others = ", ".join(map(repr, known[:8])) + (", …" if len(known) > 8 else "")
    raise SessionNotFound(f"Session {id!r} has no thread {wanted!r}. Give one of its threads with --thread: {others}.")


def thread_names(hf: Holdfast, id: str) -> list[str]:
    """Return the names of all threads a session ever had, in order; none if there is no such session."""
    return [event.facts.thread for event in hf.journal.events(Scope.session(id), types=("thread.added",))]


def _load_first_words(hf: Holdfast, info: SessionInfo) -> str | Erased | None:
    """Return the beginning of the first user message; None if there is none."""
    if not info.messages:
        return None
    try:
        session = hf.session(info.id, create=False)
    except SessionNotFound:
        session = hf.session(info.id, thread=thread_names(hf, info.id)[0], create=False)
    said = next((message for message in session if message.role == "user"), None)
    if said is None:
        return None
    return ERASED if said.erased else shorten_text(said.text, TITLE_CHARS) or None


def _session_to_json(one: SessionListing) -> dict[str, Any]:
    """Convert a session to JSON with exact times and numbers. `first_words` is set if there is no title."""
    idle = max(0, SystemClock().now_ms() - one.info.active_at)
    more = {"first_words": to_plain(one.words), "tokens": one.info.usage.spent, "idle_ms": idle}
    return {**plain_fields(one.info), **more}


def _print_sessions(found: Iterable[SessionListing]) -> str | None:
    """Print page by page and return the first session's id. Columns only grow, so pages line up."""
    out, rest, first = console(), iter(found), None
    widths = [0] * len(COLUMNS)
    while page := list(islice(rest, PAGE)):
        rows = [_format_session(one) for one in page]
        widths = [*map(max, widths, column_widths([COLUMNS, *rows]))]
        if out.is_terminal:
            out.print(_build_table(page, rows, min(max(widths[0], MIN_ID_WIDTH), out.width // 2)))
        else:
            write_lines(align_rows(rows if first else [COLUMNS, *rows], widths, NUMBERS))
        first = first or page[0].info.id
    return first


def _format_session(one: SessionListing) -> tuple[str, ...]:
    info = one.info
    cost = info.usage.cost
    return (
        escape_text(info.id),
        format_text(shorten_text(info.title, TITLE_CHARS) if info.title else one.words, ""),
        info.status,
        escape_text(info.model or ""),
        f"{info.messages:,}",
        f"{info.usage.spent:,}",
        f"{cost / NANO_USD:,.4f}{'' if info.usage.cost_known else '+'}" if cost else "",
        f"{format_duration(max(0, SystemClock().now_ms() - info.active_at))} ago",
    )


def _build_table(page: list[SessionListing], rows: list[tuple[str, ...]], width: int) -> Table:
    """Build a table for a terminal: related values share a cell, so that ids, which users retype, stay whole."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column(min_width=width, overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for one, (id, title, status, model, messages, tokens, cost, active) in zip(page, rows, strict=True):
        used = f"{messages} messages, {tokens} tokens" + (f", {cost} USD" if cost else "")
        table.add_row(
            Text.assemble((id, "bold"), "\n", (status, STYLES.get(status, "")), (f"  {model}".rstrip(), "dim")),
            Text.assemble((title, "" if one.info.title else "italic"), "\n", (f"{used}, {active}", "dim")),
        )
    return table
