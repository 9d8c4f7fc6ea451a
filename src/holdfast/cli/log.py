"""`holdfast log`: show events in order, for people or as JSON lines; page by page, so any journal can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.open import JournalPath, Tenant, open_existing, switch
from holdfast.client.journal import JournalView
from holdfast.errors import InvalidValue
from holdfast.records.events.envelope import Erased, Event

PAGE = 256
COLUMNS = ("seq", "time (UTC)", "stream", "v", "type", "facts")


def log(
    path: JournalPath = None,
    /,
    *,
    scope: Annotated[str | None, Parameter(help="Only this stream: a session's id or a scope's text.")] = None,
    type: Annotated[list[str] | None, switch("Only events of this type; may be repeated.")] = None,
    after: Annotated[int | None, Parameter(help="Only events after this cursor, or version with --scope.")] = None,
    until: Annotated[int | None, Parameter(help="Only events up to this cursor, or version with --scope.")] = None,
    last: Annotated[int | None, Parameter(help="Only the newest N events.")] = None,
    follow: Annotated[bool, switch("Keep printing new events, from now or from --after or --last.")] = False,
    content: Annotated[bool, switch("Show content as well as facts.")] = False,
    tenant: Tenant = None,
    json: Annotated[bool, switch("Print JSON and nothing else: one event a line, as they are read.")] = False,
) -> None:
    if last is not None and last < 1:
        raise InvalidValue(f"--last must be 1 or more, not {last}.")
    if follow and until is not None:
        raise InvalidValue("--until and --follow exclude each other. Give one of them.")
    with open_existing(path, tenant) as hf:
        kinds = tuple(type or ())
        if follow:
            events = _follow_events(hf.journal, scope, last, after, kinds)
        else:
            events = _read_events(hf.journal, scope, last, after=after or 0, until=until, types=kinds)
        if json:
            for event in events:
                line = output.plain_fields(event, "content")
                if not content:
                    del line["content"]
                output.print_json(line)
            return
        size = 1 if follow else PAGE
        shown = output.print_pages(COLUMNS, events, partial(_format_event, content=content), _build_table, (0, 3), size)
        if shown is None and not follow:
            output.print_note("No events match.")


def _read_events(journal: JournalView, scope: str | None, last: int | None, **bounds: Any) -> Iterator[Event]:
    """Return the events that exist now, oldest first."""
    if last is None:
        return journal.events(scope, **bounds)
    return reversed(list(islice(journal.events(scope, backwards=True, **bounds), last)))


def _follow_events(
    journal: JournalView, scope: str | None, last: int | None, after: int | None, types: tuple[str, ...]
) -> Iterator[Event]:
    """Yield the newest existing events if asked for, then all new ones, without repeats or gaps."""
    start = after
    if last is not None or start is None:
        start = journal.position() if scope is None else journal.version(scope)
    if last is not None:
        yield from _read_events(journal, scope, last, after=after or 0, until=start, types=types)
    yield from journal.subscribe(scope, after=start, types=types)


def _format_event(event: Event, content: bool) -> tuple[str, ...]:
    facts = output.to_plain(event.facts)
    if isinstance(facts, dict):
        what = " ".join(f"{name}={output.value_to_text(value)}" for name, value in facts.items())
    else:
        what = output.encode_json(facts)
    if content and event.content is not None:
        erased = isinstance(event.content, Erased)
        said = output.ERASED_TEXT if erased else output.encode_json(output.to_plain(event.content))
        what = f"{what} {said}" if what else said
    found = (str(event.seq), output.format_time(event.at), event.stream, str(event.version), event.type, what)
    return tuple(map(output.escape_text, found))


def _build_table(page: list[Event], rows: output.Rows, widths: list[int], first: bool) -> Table:
    """Build a table for a terminal: long stream names are cut where room is short, facts are folded."""
    table = Table(box=None, show_header=first, header_style="dim", pad_edge=False)
    for name, wanted, style in zip(COLUMNS[:-1], widths, ("", "dim", "", "", "bold"), strict=False):
        most = min(wanted, max(6, output.console().width // 4)) if name == "stream" else wanted
        table.add_column(name, style=style, min_width=most, max_width=most, no_wrap=True)
    table.columns[0].justify = table.columns[3].justify = "right"
    table.add_column(COLUMNS[-1], style="dim", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
