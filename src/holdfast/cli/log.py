"""`holdfast log`: show events in order, for people or as JSON lines; page by page, so any journal can be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from holdfast.cli.open import JournalPath, Json, Tenant, open_existing, switch
from holdfast.cli.output import (
    ERASED_TEXT,
    align_rows,
    console,
    encode_json,
    escape_text,
    print_json,
    print_note,
    to_plain,
    write_lines,
)
from holdfast.client.journal import JournalView
from holdfast.errors import InvalidValue
from holdfast.records.events.envelope import Erased, Event

PAGE = 256
ENVELOPE_FIELDS = tuple(name for name in Event.__struct_fields__ if name not in ("facts", "content"))
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
    json: Json = False,
) -> None:
    """Show the events, and follow new ones."""
    if last is not None and last < 1:
        raise InvalidValue(f"--last must be 1 or more, not {last}.")
    if follow and until is not None:
        raise InvalidValue("--until and --follow exclude each other. Give one of them.")
    with open_existing(path, tenant) as hf:
        wanted = _EventSelection(hf.journal, scope, tuple(type or ()), after, until)
        events = wanted.follow(last) if follow else wanted.read(last)
        if json:
            for event in events:
                print_json(event_to_json(event, content))
        elif not _print_table(events, content, at_once=follow) and not follow:
            print_note("No events match.")


class _EventSelection:
    """A selection of events and their order."""

    def __init__(
        self, journal: JournalView, scope: str | None, types: tuple[str, ...], after: int | None, until: int | None
    ) -> None:
        self._journal = journal
        self._scope = scope
        self._types = types
        self._after = after
        self._until = until

    def read(self, last: int | None = None) -> Iterator[Event]:
        """Yield the events that exist now, oldest first."""
        bounds: dict[str, Any] = {"after": self._after or 0, "until": self._until, "types": self._types}
        if last is None:
            yield from self._journal.events(self._scope, **bounds)
        else:
            newest = list(islice(self._journal.events(self._scope, backwards=True, **bounds), last))
            yield from reversed(newest)

    def follow(self, last: int | None) -> Iterator[Event]:
        """Yield the newest existing events if asked for, then all new ones, without repeats or gaps."""
        start = self._after
        if last is not None or start is None:
            start = self._journal.position() if self._scope is None else self._journal.version(self._scope)
        if last is not None:
            self._until = start
            yield from self.read(last)
        yield from self._journal.subscribe(self._scope, after=start, types=self._types)


def event_to_json(event: Event, content: bool) -> dict[str, Any]:
    """Convert an event to JSON. `erased` tells erased content from content that never existed."""
    line: dict[str, Any] = {name: getattr(event, name) for name in ENVELOPE_FIELDS}
    line["facts"] = to_plain(event.facts)
    line["erased"] = isinstance(event.content, Erased)
    if content:
        line["content"] = to_plain(event.content)
    return line


def _print_table(events: Iterable[Event], content: bool, *, at_once: bool) -> bool:
    """Print page by page; return True if there was any event. Columns only grow, so pages line up."""
    out, rest, first = console(), iter(events), True
    widths = [3, 23, 6, 1, 4]
    while page := [_format_event(event, content) for event in islice(rest, 1 if at_once else PAGE)]:
        widths = [max(width, *(len(row[column]) for row in page)) for column, width in enumerate(widths)]
        if out.is_terminal:
            out.print(_build_table(page, widths, out.width, header=first))
        else:
            write_lines(align_rows([COLUMNS, *page] if first else page, [*widths, 0], (0, 3)))
        first = False
    return not first


def _format_event(event: Event, content: bool) -> tuple[str, ...]:
    what = _format_facts(to_plain(event.facts))
    if content and event.content is not None:
        said = ERASED_TEXT if isinstance(event.content, Erased) else encode_json(to_plain(event.content))
        what = f"{what} {said}" if what else said
    found = (str(event.seq), format_time(event.at), event.stream, str(event.version), event.type, what)
    return tuple(map(escape_text, found))


def _build_table(page: list[tuple[str, ...]], widths: list[int], width: int, *, header: bool) -> Table:
    """Build a table for a terminal: long stream names are cut where room is short, facts are folded."""
    table = Table(box=None, show_header=header, header_style="dim", pad_edge=False)
    for name, wanted, style in zip(COLUMNS, widths, ("", "dim", "", "", "bold"), strict=False):
        most = min(wanted, max(6, width // 4)) if name == "stream" else wanted
        table.add_column(name, style=style, min_width=most, max_width=most, no_wrap=True)
    table.columns[0].justify = table.columns[3].justify = "right"
    table.add_column(COLUMNS[-1], style="dim", overflow="fold")
    for row in page:
        table.add_row(*map(Text, row))
    return table


def _format_facts(facts: Any) -> str:
    if not isinstance(facts, dict):
        return encode_json(facts)
    return " ".join(
        f"{name}={value if isinstance(value, str) else encode_json(value)}" for name, value in facts.items()
    )


def format_time(at_ms: int) -> str:
    """Format a time of the journal; a time that is out of range is shown in milliseconds."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03}"
