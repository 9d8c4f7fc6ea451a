"""What one caller wants written, and what came of it."""

from __future__ import annotations

import msgspec

from holdfast.records.events.envelope import Sealed, Source

ANY_VERSION = None
"""Expect no particular version: for inbox events, which commute."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The events for one stream. `expected` is the version it must have now; 0 is a new stream."""

    stream: str
    events: tuple[Sealed, ...]
    expected: int | None = ANY_VERSION
    key: str | None = None
    epoch: int = 0


class Artifact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A large body, named by a keyed digest of its bytes. `body` is None if it lies in a file or was erased."""

    name: bytes
    size: int
    at: int
    body: bytes | None
    erased: bool = False


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """All or nothing: parts for several streams, with the artifacts that they refer to."""

    tenant: str
    parts: tuple[Part, ...]
    source: Source = Source()
    artifacts: tuple[Artifact, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that this batch adds, roughly."""
        return sum(event.size for part in self.parts for event in part.events)


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where one part landed: versions `first` to `last` of its stream."""

    stream: str
    first: int
    last: int
    seq: int


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is on disk. `repeated` says that an earlier call with the key had written it."""

    parts: tuple[Placed, ...]
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
    """The end of a stream: what the next event must continue."""

    id: int
    stream: str
    version: int
    hash: bytes
    epoch: int = 0
    holder: str | None = None
    closed: bool = False
