"""The journal's port: what a backend of events must do, at the level of meaning.

A backend stores bytes that were made above it and applies row changes that it need not understand. It
translates every driver error into holdfast's own. The contract suite in `holdfast.testing` says the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from holdfast.core.search.documents import Hit, TextSearch
from holdfast.records.batches import Appended, Artifact, Batch, Found, Head, Row, SessionQuery, SessionRow, Span, Value
from holdfast.records.entries import Edge, EdgeQuery, EntryPage
from holdfast.records.events.envelope import Sealed, Source, StoredEvent
from holdfast.records.frames import StreamState
from holdfast.records.reports import Erasure, Finding, Progress, Query, Subject


class Journal(Protocol):
    """Where events live, in order, per stream."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What this backend offers beyond the base: `backup`, `files`, `shared`."""

    @property
    def secret(self) -> bytes:
        """This journal's own random key, from which artifact names and fences are derived."""

    def append(self, batch: Batch) -> Appended:
        """Write a batch, all of it or nothing; the one write. Returns once it is on disk."""

    def head(self, tenant: str, stream: str) -> Head | None:
        """The end of a stream, or None if it has no events."""

    def heads(self, tenant: str, after: str, limit: int) -> list[Head]:
        """Streams in order of name, after one name."""

    def tenants(self) -> list[str]:
        """Every tenant that has written something."""

    def load(self, tenant: str, stream: str) -> StreamState:
        """A stream's state from its rows, at a cost that follows its live frames."""

    def find(self, tenant: str, table: str, column: str | None, value: Value, after: bytes, limit: int) -> list[Found]:
        """Rows of a projection by one of the columns that it declares, or all, in order of key after its first."""

    def event(self, tenant: str, id: bytes) -> StoredEvent | None:
        """The event with this id, in whatever stream it is."""

    def span(self, tenant: str, stream: str, span: Span) -> list[Row]:
        """Rows of one stream's projection in order of version, forwards or backwards; the cost follows the answer."""

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionRow]:
        """Sessions, the most recently active first."""

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        """Streams of open sessions that have been quiet for as long as their timeouts say, in order of name."""

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        """The event that holds a key's value, also if its time is over; None if the key has none or it was erased."""

    def entries(self, tenant: str, stream: str, page: EntryPage) -> list[StoredEvent]:
        """The same for a page of live entries, in order of key by code points."""

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        """The events below a version that wrote or deleted a key, newest first."""

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        """The events that made edges, whose streams are the scopes that they begin in."""

    def linked(self, tenant: str, edge: Edge) -> bool:
        """Whether there is this edge, whatever its data; the cost does not follow how many its ends have."""

    def expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        """(stream, key, version) of entries whose time is over, in any order; the cost follows the answer."""

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        """Streams that have live entries, in order of name, after one name."""

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        """Messages and entries that hold some of the words, best first; nothing that no longer stands.

        Texts of messages that lie in artifacts are indexed by their beginning, as others are.
        """

    def hits(self, tenant: str, seqs: Sequence[int]) -> list[Hit]:
        """The same for events that were found by other means, without scores."""

    def unembedded(self, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
        """Messages and entries of a stream that have no vector of this embedder yet, oldest first."""

    def known_vectors(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Vectors that were kept under these digests of their texts."""

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Keep (seq, digest, vector) for events of a stream. A cache: it is never told to others, and may be lost."""

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        """(seq, vector) of a stream, after one event, in order."""

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        """Forget the vectors of events that no longer stand for anything."""

    def lanes(self, tenant: str, sink: str | None = None) -> list[Found]:
        """The first effect of every lane, or of those of one sink, in order of sink and stream."""

    def lane(self, tenant: str, sink: str, stream: str, limit: int) -> list[Row]:
        """Rows of effects of one lane, in the order in which they were declared."""

    def streams_with_work(self, tenant: str, after: int, limit: int) -> list[Head]:
        """Ends of streams that have live frames, in order of their ids, after one id; the cost follows the answer."""

    def tenants_with_work(self) -> list[str]:
        """Tenants that have live frames, in order of name; the cost follows the tenants, not what they have."""

    def versions(self, tenant: str, streams: Sequence[str]) -> dict[str, int]:
        """The versions of some streams, at one moment; who has no events is left out."""

    def renew(self, tenant: str, stream: str, epoch: int) -> bool:
        """A sign of life from the owner under this epoch; False if somebody else owns the stream now."""

    def renewals(self, tenant: str, stream: str) -> int:
        """How many signs of life a stream's owners have given: whoever watches looks for a change."""

    def read(self, query: Query) -> list[StoredEvent]:
        """One page of events."""

    def by_key(self, tenant: str, stream: str, key: str) -> list[StoredEvent]:
        """The events that a key stands for, or none."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Within it, everything this thread reads is of one moment, whatever others write."""

    def position(self) -> int:
        """The cursor of the newest committed event, also of other processes; 0 if there is none."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each commit of this process; returns what undoes it."""

    def artifact(self, tenant: str, name: bytes) -> bytes | None:
        """An artifact's bytes; None if it was erased. Unknown names are refused."""

    def place_artifact(self, tenant: str, name: bytes, body: bytes, at: int) -> Artifact:
        """Make a body ready for the append that will refer to it; on disk if it is to be a file."""

    def withdraw_artifact(self, tenant: str, name: bytes) -> None:
        """Take back what was placed for an append that did not need it, unless something else refers to it."""

    def collect(self, before_ms: int) -> int:
        """Remove artifacts that nothing refers to and that were placed before then."""

    def subjects(self, tenant: str) -> list[Subject]:
        """The pseudonyms of a tenant, with the names that are not erased."""

    def erase(self, tenant: str, subject: str, marker: Callable[[int, int, int], Sealed], source: Source) -> Erasure:
        """Remove a subject's content, salts, artifacts and name, and append `marker` in the same commit."""

    def rows(self, table: str) -> Iterator[tuple[str, str, Row]]:
        """Every row of a projection with its tenant and stream, in order of tenant, stream and key."""

    def rebuild(self, progress: Progress | None = None) -> int:
        """Make every projection anew from the events; returns how many were applied."""

    def check(self) -> Iterator[Finding]:
        """What is wrong in ways that only this backend can see."""

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        """Every artifact with its tenant, its body read in."""

    def restore(self, secret: bytes, items: Iterable[tuple[str, StoredEvent | Subject | Artifact]]) -> int:
        """Write exact copies, each with its tenant, into this journal, which must be empty, and take the secret."""

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        """A consistent copy while others write."""

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
