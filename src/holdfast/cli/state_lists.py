"""`holdfast state ls` and `history`: entries of a scope, scopes that have any, and what a key held before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from holdfast.cli.main import OK
from holdfast.cli.opening import VARIABLE, Json, Tenant, named, open_existing
from holdfast.cli.output import Waiting, aligned, brief, console, emit, fields, note, printable, widest
from holdfast.cli.places import EntryKey, Place, ScopeText, StoreUrl, is_there, opened, placed
from holdfast.cli.sessions import check_limit
from holdfast.cli.show import when
from holdfast.cli.state import SCOPE_AND_KEY, JournalPath, as_text, kept
from holdfast.client.state import State
from holdfast.core.entries import MAX_PAGE
from holdfast.errors import EntryNotFound, NotFound
from holdfast.records.entries import Entry, Revision
from holdfast.records.events.envelope import Erased

PAGE = 100
NEWEST = 20
SHORT = 80
ENTRY_COLUMNS = ("key", "version", "written (UTC)", "kept", "value")
REVISION_COLUMNS = ("version", "time (UTC)", "value")


class Wanted(NamedTuple):
    """Which names are listed, of all in order."""

    prefix: str
    after: str | None
    limit: int | None

    def covers(self, name: str) -> bool:
        """Whether it is one of them, if there is room for it."""
        return name.startswith(self.prefix) and (self.after is None or name > self.after)

    def first(self, names: Iterable[str]) -> list[str]:
        """As many as there is room for."""
        return list(names if self.limit is None else islice(names, min(self.limit, sys.maxsize)))


def ls(
    path: JournalPath = None,
    /,
    scope: Annotated[
        str | None,
        Parameter(show_default=False, help="Only this scope: a scope's text or a session's id. Without it, which."),
    ] = None,
    *,
    prefix: Annotated[str, Parameter(show_default=False, help="Only keys, or scopes, that begin so.")] = "",
    after: Annotated[str | None, Parameter(show_default=False, help="Only those after this one.")] = None,
    limit: Annotated[int | None, Parameter(show_default=False, help="Only the first N of them.")] = None,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show the entries of a scope, or the scopes that have any."""
    check_limit(limit)
    wanted = Wanted(prefix, after, limit)
    if store is not None:
        place, (where,) = placed((path, scope), ("SCOPE",), store=store, tenant=tenant)
        return _entries(place, where, wanted, json=json)
    journal = _journal(path)
    if scope is None:
        return _scopes(Place(journal, tenant), wanted, json=json)
    return _entries(Place(journal, tenant), scope, wanted, json=json)


def _journal(path: str | None) -> str:
    """The journal. A scope in its place is what somebody gives whose journal the environment names."""
    journal = os.environ.get(VARIABLE)
    if path and journal and "://" not in path and not is_there(Path(path)):
        raise NotFound(f"There is no journal at {path}. If that is a scope in {journal}, write --scope {path}.")
    return named(path or journal)


# scopes


def _scopes(place: Place, wanted: Wanted, *, json: bool) -> int:
    """Every stream is asked for its first entry, since nothing else knows which have any."""
    with open_existing(place.journal, place.tenant) as hf, Waiting("scopes"):
        names = (stream for stream in hf.journal.streams() if wanted.covers(stream))
        found = wanted.first(stream for stream in names if hf.state(stream).list(limit=1))
    if json:
        emit({"scopes": found})
        return OK
    if not found:
        note("No scope has entries." if wanted == Wanted("", None, None) else "No such scope has entries.")
        return OK
    sys.stdout.writelines(f"{printable(name)}\n" for name in found)
    sys.stdout.flush()
    note(f"Look into one with: {place.spelled('state ls', '--scope', found[0])}")
    return OK


# entries


def _entries(place: Place, where: str, wanted: Wanted, *, json: bool) -> int:
    with opened(place) as stored:
        state = stored(where)
        pages = _pages(state, wanted)
        if json:
            emit({"scope": state.scope, "entries": [fields(entry) for page in pages for entry in page]})
            return OK
        last = _print(pages)
        more = last is not None and wanted.limit is not None and state.list(wanted.prefix, after=last, limit=1)
    if last is None:
        note(f"{state.scope} has no entries." if wanted == Wanted("", None, None) else "No entry matches.")
    elif more:
        which = ("--prefix", wanted.prefix) if wanted.prefix else ()
        options = (*which, "--after", last, "--limit", str(wanted.limit))
        note(f"There are more: {place.spelled('state ls', '--scope', state.scope, *options)}")
    return OK


def _pages(state: State, wanted: Wanted) -> Iterator[Sequence[Entry]]:
    """Page by page, so that a scope of any size can be shown."""
    after, left = wanted.after, wanted.limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = state.entries(wanted.prefix, after=after, limit=size)
        if page:
            yield page
        if len(page) < size:
            return
        after, left = page[-1].key, None if left is None else left - size


def _print(pages: Iterable[Sequence[Entry]]) -> str | None:
    """Columns only ever grow wider, so that pages line up. Gives the last key."""
    out, last = console(), None
    widths = [0] * len(ENTRY_COLUMNS)
    for page in pages:
        rows = [_cells(entry) for entry in page]
        widths = [*map(max, widths, widest([ENTRY_COLUMNS, *rows]))]
        if out.is_terminal:
            out.print(_table(rows, min(max(widths[0], len(ENTRY_COLUMNS[2])), out.width // 2)))
        else:
            sys.stdout.writelines(aligned(rows if last is not None else [ENTRY_COLUMNS, *rows], widths, (1,)))
            sys.stdout.flush()
        last = page[-1].key
    return last


def _cells(entry: Entry) -> tuple[str, ...]:
    return (
        printable(entry.key),
        str(entry.version),
        when(entry.written_at),
        printable(", ".join(kept(entry))),
        printable(brief(as_text(entry.value), SHORT)),
    )


def _table(rows: list[tuple[str, ...]], width: int) -> Table:
    """For a terminal: what belongs together is in one cell, so that keys, which are typed again, stay whole."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column(min_width=width, overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for key, version, written, how, value in rows:
        about = f"version {version}, {written}" + (f", {how}" if how else "")
        table.add_row(Text(key, style="bold"), Text.assemble(value, "\n", (about, "dim")))
    return table


# history


def history(
    path: JournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    /,
    *,
    limit: Annotated[int, Parameter(help="Only the newest N of them.")] = NEWEST,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show what a key held, newest first."""
    check_limit(limit)
    place, (where, name) = placed((path, scope, key), SCOPE_AND_KEY, store=None, tenant=tenant)
    with opened(place) as stored:
        state = stored(where)
        # One more than is shown tells whether there are more.
        found = state.history(name, limit=min(limit + 1, MAX_PAGE))
    if not found:
        command = place.spelled("state ls", "--scope", state.scope)
        raise EntryNotFound(f"{name!r} of {state.scope} never had a value. See `{command}`; check key and scope.")
    if json:
        emit({"scope": state.scope, "key": name, "history": [_as_json(one) for one in found[:limit]]})
        return OK
    _print_history(found[:limit])
    if len(found) > limit:
        note("It was changed before that as well. Show more with a larger --limit.")
    return OK


def _as_json(revision: Revision) -> dict[str, Any]:
    """`erased` tells a value that is gone from null."""
    return {**fields(revision), "erased": isinstance(revision.value, Erased)}


def _print_history(found: Sequence[Revision]) -> None:
    out = console()
    rows = [(str(one.version), when(one.at), *_held(one)) for one in found]
    if not out.is_terminal:
        plain = [row[:-1] for row in rows]
        sys.stdout.writelines(aligned([REVISION_COLUMNS, *plain], widest([REVISION_COLUMNS, *plain]), (0,)))
        sys.stdout.flush()
        return
    table = Table(*REVISION_COLUMNS, box=None, header_style="dim", pad_edge=False)
    table.columns[0].justify, table.columns[1].style, table.columns[1].no_wrap = "right", "dim", True
    table.columns[2].overflow = "fold"
    for version, at, held, style in rows:
        table.add_row(version, at, Text(held, style=style))
    out.print(table)


def _held(revision: Revision) -> tuple[str, str]:
    """What a key held from then on, and its style."""
    if revision.deleted:
        return ("(deleted)" if revision.cause == "call" else f"(deleted: {printable(revision.cause)})", "yellow")
    if isinstance(revision.value, Erased):
        return "(erased)", "dim italic"
    return printable(brief(as_text(revision.value), SHORT)), ""
