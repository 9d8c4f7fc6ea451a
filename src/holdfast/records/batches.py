"""Batches of events to append, the result of an append, and row changes.

A row change is an event's effect on the projection tables, as data. It identifies its row by the table's key without
the tenant, which the backend adds. Backends apply row changes mechanically.
"""

from __future__ import annotations

import msgspec

from holdfast.records.events.envelope import SealedEvent, Source
from holdfast.records.usage import Usage

ANY_VERSION = None
"""Accept any version: for inbox events, which commute."""

ColumnValue = int | str | bytes | None
Row = dict[str, ColumnValue]
RowWithStream = tuple[str, Row]
"""A row with the name of its stream."""


class BatchPart(msgspec.Struct, frozen=True, kw_only=True):
    """The events for one stream. `expected` is the version the stream must have now; 0 is a new stream."""

    stream: str
    events: tuple[SealedEvent, ...]
    expected: int | None = ANY_VERSION
    key: str | None = None
    epoch: int = 0


class Artifact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A large body, named by a keyed digest of its bytes. `body` is None if it is stored apart or was erased."""

    name: bytes
    size: int
    at: int
    body: bytes | None
    erased: bool = False


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """An atomic write: parts for several streams, with the artifacts they refer to."""

    tenant: str
    parts: tuple[BatchPart, ...]
    source: Source = Source()
    artifacts: tuple[Artifact, ...] = ()


class PartPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The position of an appended part: versions `first` to `last` of its stream."""

    stream: str
    first: int
    last: int
    seq: int


class AppendResult(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is on disk. `repeated` means that an earlier call with the same key wrote it."""

    parts: tuple[PartPlacement, ...]
    repeated: bool = False

    @property
    def version(self) -> int:
        """The version of the first stream after this batch."""
        return self.parts[0].last

    @property
    def seq(self) -> int:
        """The journal's cursor at the last event of this batch."""
        return max(part.seq for part in self.parts)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a stream: the state that the next event must continue."""

    id: int
    stream: str
    version: int
    hash: bytes
    epoch: int = 0
    holder: str | None = None
    lease_ms: int = 0
    closed: bool = False


class RowInsert(msgspec.Struct, frozen=True, gc=False):
    """The insertion of a new row; an existing row with its key is a defect of the journal."""

    table: str
    row: Row


class RowReplace(msgspec.Struct, frozen=True, gc=False):
    """The insertion of a row, replacing any row with its key."""

    table: str
    row: Row


class RowUpdate(msgspec.Struct, frozen=True, gc=False):
    """New values for some columns of one row, and amounts to add to others. A missing row is not an error."""

    table: str
    key: tuple[ColumnValue, ...]
    values: Row
    amounts: dict[str, int] = {}


class RowIncrement(msgspec.Struct, frozen=True, gc=False):
    """Amounts to add to a row; a missing row is created with them."""

    table: str
    key: tuple[ColumnValue, ...]
    amounts: dict[str, int]


class RowDelete(msgspec.Struct, frozen=True, gc=False):
    """The deletion of one row."""

    table: str
    key: tuple[ColumnValue, ...]


RowChange = RowInsert | RowReplace | RowUpdate | RowIncrement | RowDelete


class RowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for rows of a projection, all of them or those with a value in one column.

    Of a stream: those with `after` < version <= `until` in order of version, newest first if `backwards`.
    Of a tenant: in order of key, after `after_key`. `core.journal.tables` says by which columns each can be asked for.
    """

    table: str
    stream: str | None = None
    column: str | None = None
    value: ColumnValue = None
    after: int = 0
    until: int = 2**62
    backwards: bool = False
    after_key: bytes = b""
    limit: int = 256


class HeadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for the ends of streams: all in order of name after `after`, some by their names in any order, or those
    with live frames in order of their number after `after_id`."""

    after: str = ""
    streams: tuple[str, ...] | None = None
    live: bool = False
    after_id: int = 0
    limit: int = 256


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for sessions: opened by a user, in a status, less recently active than a position in the list."""

    user: str | None = None
    status: str | None = None
    before: tuple[int, int] = (2**62, 2**62)
    limit: int = 100


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session as the rows describe it; `place` is the position from which the list continues."""

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
