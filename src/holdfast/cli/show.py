"""`holdfast log`: what happened, in order, for people or as JSON lines; page by page, so any journal can be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.opening import JournalPath, Json, Tenant, open_existing
from holdfast.cli.output import compact, console, emit, note, plain, printable
from holdfast.client_journal import JournalView
from holdfast.errors import InvalidValue
from holdfast.records.events.envelope import Erased, Event

PAGE = 256
ENVELOPE = (
    "seq tenant stream version id at type schema key epoch origin trust user subject causation correlation app hash"
).split()


def log(
    path: JournalPath = None,
    /,
    *,
    scope: Annotated[str | None, Parameter(help="One stream: a session's id or a scope's text.")] = None,
    type: Annotated[list[str] | None, Parameter(negative=(), help="Only events of this type; may be repeated.")] = None,
    after: Annotated[int, Parameter(help="Only events after this cursor, or version if a scope is given.")] = 0,
    until: Annotated[int | None, Parameter(help="Only events up to this cursor or version.")] = None,
    last: Annotated[int | None, Parameter(help="Only the newest N of them.")] = None,
    follow: Annotated[
        bool, Parameter(negative=(), help="Go on as events happen, in any process; from now on.")
    ] = False,
    content: Annotated[bool, Parameter(negative=(), help="Show content as well as facts.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show what happened, and follow it."""
    if last is not None and last < 1:
        raise InvalidValue(f"--last must be 1 or more, not {last}.")
    if follow and until is not None:
        raise InvalidValue("--until ends where --follow goes on. Give one of them.")
    with open_existing(path, tenant) as hf:
        wanted = _Wanted(hf.journal, scope, tuple(type or ()), after, until)
        events = wanted.followed(last) if follow else wanted.stored(last)
        shown = _print_json(events, content) if json else _print(events, content, at_once=follow)
    if not shown and not json and not follow:
        note("No events match.")
    return 0


class _Wanted:
    """Which events, in which order."""

    def __init__(
        self, journal: JournalView, scope: str | None, types: tuple[str, ...], after: int, until: int | None
    ) -> None:
        self._journal = journal
        self._scope = scope
        self._types = types
        self._after = after
        self._until = until

    def stored(self, last: int | None = None) -> Iterator[Event]:
        """Those that there are now, oldest first."""
        bounds: dict[str, Any] = {"after": self._after, "until": self._until, "types": self._types}
        if last is None:
            yield from self._journal.events(self._scope, **bounds)
        else:
            newest = list(islice(self._journal.events(self._scope, backwards=True, **bounds), last))
            yield from reversed(newest)

    def followed(self, last: int | None) -> Iterator[Event]:
        """Some that there are, if asked for, then all that happen; none twice and none left out."""
        start = self._after
        if last is not None or not self._after:
            start = self._journal.position() if self._scope is None else self._journal.version(self._scope)
        if last is not None:
            self._until = start
            yield from self.stored(last)
        yield from self._journal.subscribe(self._scope, after=start, types=self._types)


def _print_json(events: Iterable[Event], content: bool) -> bool:
    shown = False
    for event in events:
        emit(as_json(event, content))
        shown = True
    return shown


def as_json(event: Event, content: bool) -> dict[str, Any]:
    """An event as one JSON object. `erased` tells content that is gone from content that never was."""
    line: dict[str, Any] = {name: getattr(event, name) for name in ENVELOPE}
    line["facts"] = plain(event.facts)
    line["erased"] = isinstance(event.content, Erased)
    if content:
        line["content"] = plain(event.content)
    return line


def _print(events: Iterable[Event], content: bool, *, at_once: bool) -> bool:
    """Tables of one page each; the columns of the first give the widths of the rest."""
    out = console()
    rest, first = iter(events), True
    widths = [3, 23, 6, 1, 4]
    while page := [_cells(event, content) for event in islice(rest, 1 if at_once else PAGE)]:
        widths = [max(width, *(len(row[column]) for row in page)) for column, width in enumerate(widths)]
        _print_page(out, page, widths, header=first)
        first = False
    return not first


def _cells(event: Event, content: bool) -> tuple[Text, ...]:
    what = Text(printable(_short(plain(event.facts))), style="dim")
    if content and event.content is not None:
        erased = isinstance(event.content, Erased)
        what.append("\n" if what else "")
        what.append(
            "(erased)" if erased else printable(compact(plain(event.content))), style="red" if erased else "green"
        )
    return (
        Text(str(event.seq)),
        Text(when(event.at), style="dim"),
        Text(printable(event.stream)),
        Text(str(event.version)),
        Text(printable(event.type), style="bold"),
        what,
    )


def _print_page(out: Console, page: list[tuple[Text, ...]], widths: list[int], *, header: bool) -> None:
    table = Table(box=None, show_header=header, header_style="dim", pad_edge=False)
    names = ("seq", "time (UTC)", "stream", "v", "type")
    for column, (name, width) in enumerate(zip(names, widths, strict=True)):
        right = name in ("seq", "v")
        # A long stream may be cut on a narrow terminal; numbers and types may not.
        limit = None if column != 2 or not out.is_terminal else max(6, out.width // 4)
        table.add_column(
            name,
            justify="right" if right else "left",
            min_width=min(width, limit or width),
            max_width=limit,
            no_wrap=True,
        )
    table.add_column("facts", overflow="fold")
    for row in page:
        table.add_row(*row)
    out.print(table)


def _short(facts: Any) -> str:
    """`name=value` pairs: what a line has room for."""
    if not isinstance(facts, dict):
        return compact(facts)
    return " ".join(f"{name}={value if isinstance(value, str) else compact(value)}" for name, value in facts.items())


def when(at_ms: int) -> str:
    """A time of the journal; a clock that was far off must not stop the listing."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03}"
