"""Row changes: what an event does to the tables, as data. Backends apply them without knowing why.

Every change names its row by the table's key less tenant, which the backend adds.
"""

from __future__ import annotations

import msgspec

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
