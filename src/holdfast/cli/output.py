"""Output of the commands: tables for people, JSON for programs, a progress bar for long work.

Answers go to standard output, everything else to standard error. Text from a journal is untrusted:
nothing in it may move the cursor or change a colour.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import dropwhile, islice
from typing import Any, NoReturn, Self, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from holdfast.records.events.envelope import Erased

Rows = Sequence[tuple[str, ...]]
ItemT = TypeVar("ItemT")
PAGE = 100
PATIENCE_SECONDS = 1.0
"""A progress bar appears after this time."""
ERASED_TEXT = "(erased)"

_UNLIMITED_WIDTH = 100_000
_TAB_WIDTH = 4


class _Console(Console):
    """A console that raises on a broken pipe; rich would end the process with its own exit code."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console: colours and the real width on a terminal; plain, uncut lines in a pipe."""
    made = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _UNLIMITED_WIDTH
    return made


def escape_text(text: str) -> str:
    """Escape invisible characters in a text: control characters, text directions, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shorten_text(text: str, most: int) -> str:
    """Shorten a text of any length to its first words, on one line."""
    # Leading white space may fill the beginning, so read more than is shown, but never all of 50 MB.
    head = " ".join(text[: most * 8].split())
    whole = len(text) <= most * 8 and len(head) <= most
    return head if whole else head[: most - 1].rstrip() + "…"


def escape_lines(text: str) -> str:
    """Escape a text of several lines. Only real line ends break lines; other line separators are escaped."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(escape_text(line.expandtabs(_TAB_WIDTH)) for line in lines)


def align_rows(rows: Iterable[Sequence[str]], widths: Sequence[int], right: Sequence[int] = ()) -> Iterator[str]:
    """Yield rows as lines for a pipe, padded to the widths; columns in `right` are right-aligned."""
    for row in rows:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip() + "\n"


def write_lines(lines: Iterable[str]) -> None:
    """Write lines of the answer, and flush."""
    sys.stdout.writelines(lines)
    sys.stdout.flush()


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print rows below their headers as aligned lines for a pipe; columns in `right` are right-aligned."""
    every = [columns, *rows]
    write_lines(align_rows(every, [*column_widths(row[:-1] for row in every), 0], right))


def print_table(columns: Sequence[str], rows: Rows, build: Callable[[Rows], Table], right: Sequence[int] = ()) -> None:
    """Print rows: on a terminal as the table that `build` returns, in a pipe as aligned lines."""
    out = console()
    if out.is_terminal:
        out.print(build(rows))
    else:
        print_rows(columns, rows, right)


def print_pages(
    columns: Sequence[str],
    items: Iterable[ItemT],
    format: Callable[[ItemT], tuple[str, ...]],
    build: Callable[[list[ItemT], Rows, list[int], bool], Table],
    right: Sequence[int] = (),
    size: int = PAGE,
) -> tuple[ItemT, ItemT] | None:
    """Print items page by page, so that any number can be shown; return the first and the last, or None.

    A page is aligned lines in a pipe, and on a terminal the table that `build` makes of its items, rows and widths;
    it is told whether the page is the first. Columns only grow, so pages line up.
    """
    out, rest, shown = console(), iter(items), None
    widths = [len(name) for name in columns]
    while page := list(islice(rest, size)):
        rows = [format(item) for item in page]
        widths = [*map(max, widths, column_widths(rows))]
        if out.is_terminal:
            out.print(build(page, rows, widths, shown is None))
        else:
            write_lines(align_rows(rows if shown else [columns, *rows], [*widths[:-1], 0], right))
        shown = (shown or page)[0], page[-1]
    return shown


def column_widths(rows: Iterable[Sequence[str]]) -> list[int]:
    """Return the width that each column needs."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def print_tree(root: Tree, below: Sequence[Text] = ()) -> None:
    """Print a tree: with guides on a terminal, indented in a pipe. The lines `below` it are no branch of it."""
    out = console()
    if not out.is_terminal:
        lines = (str(root.label), *_iterate_branches(root, "  "), *(f"  {line}" for line in below))
        write_lines(f"{line}\n" for line in lines)
        return
    if below:
        root.add(Text("\n").join(below))
    out.print(root)


def _iterate_branches(node: Tree, indent: str) -> Iterator[str]:
    for child in node.children:
        head, *rest = str(child.label).split("\n")
        yield f"{indent}- {head}"
        yield from (f"{indent}    {line}" for line in rest)
        yield from _iterate_branches(child, indent + "  ")


def print_line(text: str, style: str = "") -> None:
    """Print a line of the answer to standard output."""
    console().print(Text(escape_text(text), style=style), soft_wrap=True)


def print_note(text: str, style: str = "dim") -> None:
    """Print a line to standard error, apart from the answer."""
    console(stderr=True).print(Text(escape_text(text), style=style), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on one line, and flush."""
    write_lines([escape_json(encode_json(value)), "\n"])


def print_result(json: bool, values: dict[str, Any], said: str) -> None:
    """Print the result of a command: an object for programs, a sentence for people."""
    if json:
        print_json(values)
    else:
        print_line(said)


def escape_json(text: str) -> str:
    """Escape invisible characters in JSON text, some of which move a terminal's cursor; the value stays equal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def encode_json(value: Any) -> str:
    """Encode a value as JSON on one line."""
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except UnicodeEncodeError:
        # A path need not be valid Unicode; the standard library escapes the invalid parts.
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


def value_to_text(value: Any) -> str:
    """Return text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else encode_json(value)


def to_plain(value: Any) -> Any:
    """Convert a record to dicts, lists and plain values; erased content becomes None."""
    return None if isinstance(value, Erased) else msgspec.to_builtins(value)


def plain_fields(record: msgspec.Struct, content: str | None = None) -> dict[str, Any]:
    """Return a record's fields as plain values; erased ones are None.

    If `content` names a field, `erased` tells its erased value from one that is None.
    """
    found = {name: to_plain(getattr(record, name)) for name in record.__struct_fields__}
    return found if content is None else {**found, "erased": isinstance(getattr(record, content), Erased)}


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> Table:
    """Build a table with headers, without rules; columns in `right` are right-aligned."""
    table = Table(*columns, box=None, header_style="dim", pad_edge=False)
    for column in right:
        table.columns[column].justify = "right"
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def pair_table(pairs: Iterable[tuple[Text, Text]], width: int) -> Table:
    """Build a table of a name, which users retype and which stays whole, and what is known about it."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column(min_width=min(width, console().width // 2), overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for pair in pairs:
        table.add_row(*pair)
    return table


def facts_table(rows: list[tuple[str, str]]) -> Table:
    """Build a table of names and values, without rules."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(escape_text(name)), Text(escape_text(value)))
    return table


def format_text(text: object, nothing: str) -> str:
    """Format text of a journal for one line; `nothing` stands for None."""
    if isinstance(text, Erased):
        return ERASED_TEXT
    return nothing if text is None else escape_text(value_to_text(text))


def format_time(at_ms: int) -> str:
    """Format a time of the journal; a time that is out of range is shown in milliseconds."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03}"


def format_duration(milliseconds: int) -> str:
    """Format a duration in its two largest units."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1000
    units = {"d": seconds // 86_400, "h": seconds // 3_600 % 24, "min": seconds // 60 % 60, "s": seconds % 60}
    largest = list(dropwhile(lambda unit: not units[unit], units))[:2]
    return " ".join(f"{units[unit]:,} {unit}" for unit in largest if units[unit])


def format_size(count: int) -> str:
    """Format a number of bytes."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} bytes"


class ProgressBar:
    """A progress bar on standard error, shown after a second of work; none if stderr is not a terminal.

    Call it with the work done and the total. Work that reports no progress still shows a spinner.
    """

    def __init__(self, what: str, *, patience: float = PATIENCE_SECONDS, on: Console | None = None) -> None:
        self._console = on or console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn(what, markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(what, total=None)
        self._timer = threading.Timer(patience, self._bar.start)
        self._timer.daemon = True

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._timer.cancel()
            self._timer.join()
            if self._bar.live.is_started:
                self._bar.stop()
