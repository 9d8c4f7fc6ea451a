"""The port of the journal: the operations that every backend of events must implement.

A backend stores bytes that were encoded above it and applies row changes that it need not understand. It
translates every driver error into holdfast's own. The contract suite in `holdfast.testing` specifies the rest.

"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from holdfast.core.search.documents import Hit, TextSearch
from holdfast.records.batches import (
    AppendResult,
    Artifact,
    Batch,
    ColumnValue,
    Head,
    Row,
    RowQuery,
    RowWithStream,
    SessionQuery,
    SessionRow,
)
from holdfast.records.entries import Edge, EdgeQuery, EntryPageQuery
from holdfast.records.events.envelope import SealedEvent, Source, StoredEvent
from holdfast.records.frames import StreamState
from holdfast.records.reports import Erasure, EventQuery, Finding, Progress, Subject


class Journal(Protocol):
    """The store of events, in order, per stream."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The optional features of this backend: `backup`, `files`, `shared`."""

    @property
    def secret(self) -> bytes:
        """This journal's own random key, from which artifact names and fences are derived."""

    def append(self, batch: Batch) -> AppendResult:
        """Write a batch, all of it or nothing, and return once it is on disk. The only way to write."""

    def head(self, tenant: str, stream: str) -> Head | None:
        """Return the end of a stream, or None if it has no events."""

    def heads(self, tenant: str, after: str, limit: int) -> list[Head]:
        """Return the ends of streams in order of name, after one name."""

    def tenants(self) -> list[str]:
        """Return every tenant that has written an event."""

    def load(self, tenant: str, stream: str) -> StreamState:
        """Load a stream's state from its rows; the cost follows the number of live frames."""

    def find(
        self, tenant: str, table: str, column: str | None, value: ColumnValue, after: bytes, limit: int
    ) -> list[RowWithStream]:
        """Return rows of a projection by one of its declared columns (None: all), in order of key after `after`."""

    def event(self, tenant: str, id: bytes) -> StoredEvent | None:
        """Return the event with this id, in any stream."""

    def span(self, tenant: str, stream: str, span: RowQuery) -> list[Row]:
        """Return rows of one stream's projection in order of version, either way; the cost follows the answer."""

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionRow]:
        """Return sessions, the most recently active first."""

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        """Return streams of open sessions that have been idle for their timeout, in order of name."""

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        """Return the event that holds a key's value, even if expired; None if the key has none or it was erased."""

    def entries(self, tenant: str, stream: str, page: EntryPageQuery) -> list[StoredEvent]:
        """Return the events of a page of live entries, in order of key by code points."""

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        """Return the events below a version that wrote or deleted a key, newest first."""

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        """Return the events that made edges; an event's stream is the scope that its edge begins in."""

    def has_edge(self, tenant: str, edge: Edge) -> bool:
        """Return True if this edge exists, with any data; the cost does not follow the number of edges at its ends."""

    def find_expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        """Return (stream, key, version) of expired entries, in any order; the cost follows the answer."""

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        """Return streams with live entries, in order of name, after one name."""

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        """Return current messages and entries that hold some of the words, best first.

        A message whose text is in an artifact is indexed by the beginning of the text.
        """

    def hits(self, tenant: str, seqs: Sequence[int]) -> list[Hit]:
        """Return hits without scores for events that were found by other means."""

    def find_unembedded(self, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
        """Return messages and entries of a stream without a vector of this embedder, oldest first."""

    def vectors_by_digest(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the vectors stored under these digests of their texts."""

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Store (seq, digest, vector) for events of a stream. A cache: it is never exported, and may be lost."""

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        """Return (seq, vector) of a stream, after one event, in order."""

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        """Delete the vectors of events that are no longer current."""

    def lanes(self, tenant: str, sink: str | None = None) -> list[RowWithStream]:
        """Return the first effect of every lane, or of every lane of one sink, in order of sink and stream."""

    def lane(self, tenant: str, sink: str, stream: str, limit: int) -> list[Row]:
        """Return the rows of one lane's effects, in the order of their declaration."""

    def streams_with_work(self, tenant: str, after: int, limit: int) -> list[Head]:
        """Return the ends of streams with live frames, in order of id, after one id; the cost follows the answer."""

    def tenants_with_work(self) -> list[str]:
        """Return the tenants with live frames, in order of name; the cost follows the number of tenants."""

    def versions(self, tenant: str, streams: Sequence[str]) -> dict[str, int]:
        """Return the versions of some streams at one moment; a stream without events is left out."""

    def renew_lease(self, tenant: str, stream: str, epoch: int) -> bool:
        """Record a sign of life of the owner under this epoch; return False if the stream has another owner now."""

    def renewals(self, tenant: str, stream: str) -> int:
        """Return the number of signs of life that a stream's owners have given; watchers look for a change."""

    def read(self, query: EventQuery) -> list[StoredEvent]:
        """Return one page of events."""

    def events_by_key(self, tenant: str, stream: str, key: str) -> list[StoredEvent]:
        """Return the events written under an idempotency key, or none."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Open a snapshot: inside it, all reads of this thread see one moment, whatever other writers do."""

    def position(self) -> int:
        """Return the cursor of the newest committed event of any process; 0 if there is none."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each commit of this process; return a function that stops it."""

    def artifact(self, tenant: str, name: bytes) -> bytes | None:
        """Return an artifact's bytes, or None if it was erased. Raise NotFound for an unknown name."""

    def place_artifact(self, tenant: str, name: bytes, body: bytes, at: int) -> Artifact:
        """Prepare a body for the append that will refer to it; a body that becomes a file is on disk on return."""

    def withdraw_artifact(self, tenant: str, name: bytes) -> None:
        """Remove an artifact placed for an append that did not need it, unless something else refers to it."""

    def collect(self, before_ms: int) -> int:
        """Remove artifacts that nothing refers to and that were placed before `before_ms`; return their number."""

    def subjects(self, tenant: str) -> list[Subject]:
        """Return the pseudonyms of a tenant, with the names that are not erased."""

    def erase(
        self, tenant: str, subject: str, marker: Callable[[int, int, int], SealedEvent], source: Source
    ) -> Erasure:
        """Remove a subject's content, salts, artifacts and name, and append `marker` in the same commit."""

    def rows(self, table: str) -> Iterator[tuple[str, str, Row]]:
        """Yield every row of a projection with its tenant and stream, in order of tenant, stream and key."""

    def rebuild(self, progress: Progress | None = None) -> int:
        """Rebuild every projection from the events; return the number of events applied."""

    def check(self) -> Iterator[Finding]:
        """Yield the problems that only this backend can detect."""

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        """Yield every artifact with its tenant and its body."""

    def restore(self, secret: bytes, items: Iterable[tuple[str, StoredEvent | Subject | Artifact]]) -> int:
        """Write exact copies, each with its tenant, into this empty journal, and adopt the secret."""

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        """Write a consistent copy while other writers go on."""

    def close(self) -> None:
        """Release all resources. Closing twice is fine."""
