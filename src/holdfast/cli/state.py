"""`holdfast state`: read, write, remove and list entries of a journal or another store, and show history and graph.

A value is parsed as JSON if possible, else taken as text. A value that cannot be stored is refused as a whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import msgspec
from cyclopts import Parameter
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from holdfast.cli import output
from holdfast.cli.open import (
    PATH_HELP,
    URL_VARIABLE,
    EntryKey,
    ExpectedVersion,
    IdempotencyKey,
    Json,
    ScopeText,
    StateLocation,
    StoreUrl,
    Tenant,
    is_new,
    locate_state,
    open_existing,
    open_state,
    option,
    path_exists,
    require_path,
    switch,
)
from holdfast.cli.sessions import check_limit
from holdfast.cli.transfer import STDIN, read_source
from holdfast.client.state import State, open_store
from holdfast.core.entries import MAX_DEPTH, MAX_PAGE
from holdfast.core.numbers import short_repr
from holdfast.errors import EntryNotFound, InvalidValue, NotFound
from holdfast.flow.state.search import MAX_REACHED
from holdfast.records.entries import (
    CONTENT_KINDS,
    DIRECTIONS,
    LIFETIMES,
    REDUCERS,
    TIERS,
    Direction,
    Entry,
    Revision,
    TraversalResult,
)
from holdfast.records.events.envelope import Erased
from holdfast.system import SystemClock

STORED_LIFETIMES = tuple(lifetime for lifetime in LIFETIMES if lifetime != "transient")
SCOPE_AND_KEY = ("SCOPE", "KEY")
ENTRIES_PER_PAGE = 100
VALUE_CHARS = 80
ENTRY_COLUMNS = ("key", "version", "written (UTC)", "kept", "value")
REVISION_COLUMNS = ("version", "time (UTC)", "value")

ReducerName = Annotated[str, Parameter(help=f"Combine the old value and this one: {', '.join(REDUCERS)}.")]
DirectionName = Annotated[str, Parameter(help=f"Follow edges in this direction: {', '.join(DIRECTIONS)}.")]
TierName = Annotated[str | None, option(f"Only entries of this tier: {', '.join(TIERS)}.")]
StateJournalPath = Annotated[
    str | None, option("The journal: a path or sqlite:///path. Optional with HOLDFAST_URL or --store.", name="PATH")
]


def get(
    path: StateJournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    /,
    *,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    place, (where, name) = locate_state((path, scope, key), SCOPE_AND_KEY, store=store, tenant=tenant)
    with open_state(place) as stored:
        state = stored(where)
        entry = state.entry(name)
    if entry is None:
        raise _make_not_found(place, state.scope, name)
    if json:
        output.print_json(output.plain_fields(entry))
        return
    _print_value(entry.value)
    output.print_note(
        ", ".join(
            (f"version {entry.version}", f"written {output.format_time(entry.written_at)}", *describe_options(entry))
        )
    )


def set_(
    path: StateJournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    value: Annotated[str | None, option("The value: JSON if it parses, else text.", name="VALUE")] = None,
    /,
    *,
    stdin: Annotated[bool, switch("Read the value from standard input.", name=STDIN)] = False,
    file: Annotated[str | None, option("Read the value from this file.")] = None,
    text: Annotated[bool, switch("Store the value as text, even if it parses as JSON.")] = False,
    reducer: ReducerName = REDUCERS[0],
    expected_version: ExpectedVersion = None,
    ttl: Annotated[float | None, option("Expire after N seconds.")] = None,
    tier: Annotated[str | None, option(f"The tier: {', '.join(TIERS)}.")] = None,
    lifetime: Annotated[str | None, option(f"The lifetime: {', '.join(STORED_LIFETIMES)}.")] = None,
    content_kind: Annotated[str | None, option(f"The kind of content, such as {', '.join(CONTENT_KINDS)}.")] = None,
    salience: Annotated[float | None, option("The importance, from 0 to 1.")] = None,
    once: IdempotencyKey = None,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    if lifetime is not None and lifetime not in STORED_LIFETIMES:
        # A transient entry would be gone with this process.
        raise InvalidValue(f"--lifetime must be one of {', '.join(STORED_LIFETIMES)}, not {short_repr(lifetime)}.")
    if stdin + (file is not None) + (value is not None) > 1:
        raise InvalidValue("Give the value once: as VALUE, with --file, or on standard input with -.")
    source = STDIN if stdin else file
    wanted = (*SCOPE_AND_KEY, "VALUE") if source is None else SCOPE_AND_KEY
    place, (where, name, *given) = locate_state((path, scope, key, value), wanted, store=store, tenant=tenant)
    body = given[0] if source is None else _read_text(source)
    how: dict[str, Any] = {"expected_version": expected_version, "reducer": reducer, "key": once, "ttl": ttl}
    how |= {"tier": tier, "lifetime": lifetime, "content_kind": content_kind, "salience": salience}
    written = body if text else _parse_value(body)
    if is_new(place):
        with open_store("memory:") as rehearsal:
            rehearsal(where).write(name, written, **how)  # Refuse a bad value before a store is created.
    with open_state(place, make=True) as stored:
        state = stored(where)
        into, version = state.scope, state.write(name, written, **how)
    said = f"{name!r} of {into} is at version {version}."
    output.print_result(json, {"scope": into, "key": name, "version": version}, said)


def rm(
    path: StateJournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    /,
    *,
    expected_version: ExpectedVersion = None,
    once: IdempotencyKey = None,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    place, (where, name) = locate_state((path, scope, key), SCOPE_AND_KEY, store=store, tenant=tenant)
    with open_state(place) as stored:
        state = stored(where)
        if not state.delete(name, expected_version=expected_version, key=once):
            raise _make_not_found(place, state.scope, name)
    said = f"Removed {name!r} of {state.scope}."
    output.print_result(json, {"scope": state.scope, "key": name, "removed": True}, said)


def describe_options(entry: Entry) -> list[str]:
    """Describe the options an entry was written with, if any."""
    said = [word for word in (entry.tier, entry.lifetime, entry.content_kind) if word is not None]
    if entry.salience is not None:
        said.append(f"salience {entry.salience:g}")
    if entry.expires_at is not None:
        said.append(f"expires in {output.format_duration(max(0, entry.expires_at - SystemClock().now_ms()))}")
    return said


def _make_not_found(place: StateLocation, scope: str, key: str) -> EntryNotFound:
    command = place.format_command("state ls", "--scope", scope)
    why = f"{key!r} of {scope} has no value. See `{command}`; check the key and the scope."
    return EntryNotFound(why, scope=scope, key=key)


def _print_value(value: Any) -> None:
    """Print a value: over several lines on a terminal; in a pipe, JSON is one line."""
    if isinstance(value, str):
        shown = output.escape_lines(value)
    elif output.console().is_terminal:
        lines = msgspec.json.format(output.encode_json(value), indent=2).split("\n")
        shown = "\n".join(map(output.escape_json, lines))
    else:
        shown = output.escape_json(output.encode_json(value))
    output.write_lines([shown if shown.endswith("\n") else f"{shown}\n"])


def _read_text(source: str) -> str:
    body, name = read_source(source, "a value")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidValue(
            f"{name} is not text in UTF-8, so it cannot be a value. Store its path instead, or encode it."
        ) from None


def _parse_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    except RecursionError:
        raise InvalidValue("The value is nested too deeply. Flatten it, or store it as text with --text.") from None


def graph(
    path: StateJournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    /,
    *,
    depth: Annotated[int, Parameter(help=f"Follow up to N edges, at most {MAX_DEPTH}.")] = 3,
    direction: DirectionName = DIRECTIONS[0],
    kinds: Annotated[list[str] | None, switch("Only edges of this kind; may be repeated.")] = None,
    limit: Annotated[int, Parameter(help="Show the nearest N keys.")] = 200,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    check_limit(limit)
    place, (where, name) = locate_state((path, scope, key), SCOPE_AND_KEY, store=store, tenant=tenant)
    with open_state(place) as stored, output.ProgressBar("graph"):
        state = stored(where)
        # Ask for one more than is shown, to know whether there are more.
        asked = min(limit + 1, MAX_REACHED)
        way = cast(Direction, direction)  # `traverse` checks it.
        found = state.traverse(name, depth=depth, kinds=kinds, direction=way, limit=asked)
    reached = found[:limit]
    if json:
        found_json = [
            {**output.plain_fields(one), "path": [output.plain_fields(e, "data") for e in one.path]} for one in reached
        ]
        output.print_json({"scope": state.scope, "key": name, "reached": found_json})
        return
    if not reached:
        output.print_note(f"No keys are linked to {name!r} of {state.scope} in this direction.")
        return
    label = Text.assemble((output.escape_text(name), "bold"), (f"  {output.escape_text(state.scope)}", "dim"))
    top = Tree(label, guide_style="dim")
    nodes = {(state.scope, name): top}
    for one in reached:
        before, line = _follow_edge(one)
        nodes[one.scope, one.key] = nodes[before].add(line)
    output.print_tree(top)
    if len(found) > limit:
        output.print_note("More keys are linked. Show them with a larger --limit.")


def _follow_edge(one: TraversalResult) -> tuple[tuple[str, str], Text]:
    """Return the key from which the last edge was followed, and the edge with the key it leads to as text.

    The scope is shown only if it changes.
    """
    edge = one.path[-1]
    forwards = (edge.target_scope, edge.target) == (one.scope, one.key)
    before = (edge.scope, edge.source) if forwards else (edge.target_scope, edge.target)
    kind = f"{output.escape_text(edge.kind)} →" if forwards else f"← {output.escape_text(edge.kind)}"
    line = Text.assemble((f"{kind} ", "cyan"), (output.escape_text(one.key), "bold"))
    if before[0] != one.scope:
        line.append(f"  {output.escape_text(one.scope)}", style="dim")
    if edge.weight is not None:
        line.append(f"  {edge.weight:g}", style="dim")
    return before, line


class NameFilter(NamedTuple):
    """A filter on names that are listed in order, and on the tier of entries."""

    prefix: str = ""
    after: str | None = None
    limit: int | None = None
    tier: Any = None


EVERY_NAME = NameFilter()


def ls(
    path: StateJournalPath = None,
    /,
    scope: Annotated[
        str | None, option("Only this scope: a scope's text or a session's id. Default: list the scopes.")
    ] = None,
    *,
    prefix: Annotated[str, option("Only keys or scopes with this prefix.")] = "",
    after: Annotated[str | None, option("Only keys or scopes after this one.")] = None,
    limit: Annotated[int | None, option("Show the first N.")] = None,
    tier: TierName = None,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    check_limit(limit)
    wanted = NameFilter(prefix, after, limit, tier)
    if store is not None:
        place, (where,) = locate_state((path, scope), ("SCOPE",), store=store, tenant=tenant)
        _list_entries(place, where, wanted, json=json)
        return
    journal = os.environ.get(URL_VARIABLE)
    if path and journal and "://" not in path and not path_exists(Path(path)):
        raise NotFound(f"There is no journal at {path}. If that is a scope in {journal}, write --scope {path}.")
    place = StateLocation(require_path(path or journal), tenant)
    if scope is None:
        _list_scopes(place, wanted, json=json)
    else:
        _list_entries(place, scope, wanted, json=json)


def _list_scopes(place: StateLocation, wanted: NameFilter, *, json: bool) -> None:
    """List the scopes with entries. Each stream is asked for its first entry, as there is no index of them."""
    with open_existing(place.journal, place.tenant) as hf, output.ProgressBar("scopes"):
        names = (name for name in hf.journal.streams() if name.startswith(wanted.prefix))
        later = (name for name in names if wanted.after is None or name > wanted.after)
        most = None if wanted.limit is None else min(wanted.limit, sys.maxsize)
        found = list(islice((name for name in later if hf.state(name).list(limit=1, tier=wanted.tier)), most))
    if json:
        output.print_json({"scopes": found})
        return
    if not found:
        output.print_note("No scope has entries." if wanted == EVERY_NAME else "No scope with entries matches.")
        return
    output.write_lines(f"{output.escape_text(name)}\n" for name in found)
    output.print_note(f"List one with: {place.format_command('state ls', '--scope', found[0])}")


def _list_entries(place: StateLocation, where: str, wanted: NameFilter, *, json: bool) -> None:
    with open_state(place) as stored:
        state = stored(where)
        entries = _iterate_entries(state, wanted)
        if json:
            output.print_json({"scope": state.scope, "entries": [output.plain_fields(entry) for entry in entries]})
            return
        shown = output.print_pages(ENTRY_COLUMNS, entries, _format_entry, _build_entry_table, (1,), ENTRIES_PER_PAGE)
        last = "" if shown is None else shown[1].key
        limited = shown is not None and wanted.limit is not None
        more = limited and state.list(wanted.prefix, after=last, limit=1, tier=wanted.tier)
    if shown is None:
        output.print_note(f"{state.scope} has no entries." if wanted == EVERY_NAME else "No entry matches.")
    elif more:
        which = ("--prefix", wanted.prefix) if wanted.prefix else ()
        which += ("--tier", wanted.tier) if wanted.tier else ()
        options = (*which, "--after", last, "--limit", str(wanted.limit))
        output.print_note(f"There are more: {place.format_command('state ls', '--scope', state.scope, *options)}")


def _iterate_entries(state: State, wanted: NameFilter) -> Iterator[Entry]:
    """Yield entries, read page by page, so that a scope of any size can be shown."""
    after, left = wanted.after, wanted.limit
    while left is None or left > 0:
        size = ENTRIES_PER_PAGE if left is None else min(ENTRIES_PER_PAGE, left)
        page = state.entries(wanted.prefix, after=after, limit=size, tier=wanted.tier)
        yield from page
        if len(page) < size:
            return
        after, left = page[-1].key, None if left is None else left - size


def _format_entry(entry: Entry) -> tuple[str, ...]:
    return (
        output.escape_text(entry.key),
        str(entry.version),
        output.format_time(entry.written_at),
        output.escape_text(", ".join(describe_options(entry))),
        output.escape_text(output.shorten_text(output.value_to_text(entry.value), VALUE_CHARS)),
    )


def _build_entry_table(page: list[Entry], rows: output.Rows, widths: list[int], first: bool) -> Table:
    """Build a table for a terminal: related values share a cell, so that keys, which users retype, stay whole."""
    pairs = []
    for key, version, written, how, value in rows:
        about = f"version {version}, {written}" + (f", {how}" if how else "")
        pairs.append((Text(key, style="bold"), Text.assemble(value, "\n", (about, "dim"))))
    return output.pair_table(pairs, max(widths[0], len(ENTRY_COLUMNS[2])))


def history(
    path: Annotated[str | None, option(PATH_HELP, name="PATH")] = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    /,
    *,
    limit: Annotated[int, Parameter(help="Show the newest N values.")] = 20,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    check_limit(limit)
    place, (where, name) = locate_state((path, scope, key), SCOPE_AND_KEY, store=None, tenant=tenant)
    with open_state(place) as stored:
        state = stored(where)
        # Ask for one more than is shown, to know whether there are more.
        found = state.history(name, limit=min(limit + 1, MAX_PAGE))
    if not found:
        command = place.format_command("state ls", "--scope", state.scope)
        why = f"{name!r} of {state.scope} never had a value. See `{command}`; check key and scope."
        raise EntryNotFound(why, scope=state.scope, key=name)
    if json:
        values = [output.plain_fields(one, "value") for one in found[:limit]]
        output.print_json({"scope": state.scope, "key": name, "history": values})
        return
    _print_history(found[:limit])
    if len(found) > limit:
        output.print_note("There are earlier values. Show them with a larger --limit.")


def _print_history(found: Sequence[Revision]) -> None:
    values = [_format_revision(one) for one in found]
    pairs = zip(found, values, strict=True)
    rows = [(str(one.version), output.format_time(one.at), value.plain) for one, value in pairs]
    out = output.console()
    if not out.is_terminal:
        output.print_rows(REVISION_COLUMNS, rows, (0,))
        return
    table = Table(*REVISION_COLUMNS, box=None, header_style="dim", pad_edge=False)
    table.columns[0].justify, table.columns[1].style, table.columns[1].no_wrap = "right", "dim", True
    table.columns[2].overflow = "fold"
    for (version, at, _), value in zip(rows, values, strict=True):
        table.add_row(version, at, value)
    out.print(table)


def _format_revision(revision: Revision) -> Text:
    """Format the value that a revision set."""
    if revision.deleted:
        why = "" if revision.cause == "call" else f": {output.escape_text(revision.cause)}"
        return Text(f"(deleted{why})", "yellow")
    if isinstance(revision.value, Erased):
        return Text(output.ERASED_TEXT, "dim italic")
    return Text(output.escape_text(output.shorten_text(output.value_to_text(revision.value), VALUE_CHARS)))
