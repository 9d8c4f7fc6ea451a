"""Row changes: what an event does to the tables, as data. Backends apply them without knowing why.

Every change names its row by the table's key less tenant, which the backend adds.
"""

from __future__ import annotations

import msgspec

from holdfast.records.usage import Usage

Value = int | str | bytes | None
Row = dict[str, Value]
Found = tuple[str, Row]
"""A row with the name of its stream."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """A new row; one that exists already is a defect of the journal."""

    table: str
    row: Row


class Replace(msgspec.Struct, frozen=True, gc=False):
    """A row, new or in place of the one with its key."""

    table: str
    row: Row


class Update(msgspec.Struct, frozen=True, gc=False):
    """New values for some columns of one row, and amounts to add to others. No row, no change."""

    table: str
    key: tuple[Value, ...]
    values: Row
    amounts: dict[str, int] = {}


class Bump(msgspec.Struct, frozen=True, gc=False):
    """Amounts to add to a row that may not exist yet and then starts at them."""

    table: str
    key: tuple[Value, ...]
    amounts: dict[str, int]


class Drop(msgspec.Struct, frozen=True, gc=False):
    """One row goes."""

    table: str
    key: tuple[Value, ...]


Change = Put | Replace | Update | Bump | Drop


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a stream: those with `after` < version <= `until`, newest first if `backwards`.

    `prefix` are the values of the key columns before the version, if there are any.
    """

    table: str
    after: int = 0
    until: int = 2**62
    limit: int = 256
    backwards: bool = False
    prefix: tuple[Value, ...] = ()
    pinned: bool = False
    """Only messages that are pinned."""


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions: opened by a user, in a status, less recently active than a place in the list."""

    user: str | None = None
    status: str | None = None
    before: tuple[int, int] = (2**62, 2**62)
    limit: int = 100


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session as the rows know it; `place` is where the list goes on."""

    stream: str
    status: str
    model: str | None
    user: int | None
    opened_at: int
    active_at: int
    title_version: int | None
    messages: int
    threads: int
    usage: Usage
    place: tuple[int, int]
