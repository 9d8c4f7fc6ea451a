"""The port of the journal: the operations that every backend of events must implement.

A backend stores bytes that were encoded above it and applies row changes that it need not understand. It
translates every driver error into holdfast's own. The contract suite in `holdfast.testing` specifies the rest.

Further groups of operations, which a backend may leave out, are in `ports/capabilities.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.core.search.documents import Hit
from holdfast.records import batches
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.frames import StreamState
from holdfast.records.reports import EventQuery, Subject


class Journal(Protocol):
    """The store of events, in order, per stream."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The names of the groups in `ports/capabilities.py` that this backend implements.

        And `shared`, if other processes can open the same journal.
        """

    @property
    def secret(self) -> bytes:
        """This journal's own random key, from which artifact names and fences are derived."""

    def append(self, batch: batches.Batch) -> batches.AppendResult:
        """Write a batch, all of it or nothing, and return once it is durable. The only way to write."""

    def load(self, tenant: str, stream: str) -> StreamState:
        """Load a stream's state from its rows; the cost follows the number of live frames."""

    def head(self, tenant: str, stream: str) -> batches.Head | None:
        """Return the end of a stream, or None if it has no events."""

    def heads(self, tenant: str, query: batches.HeadQuery) -> list[batches.Head]:
        """Return the ends of streams at one moment; the cost follows the answer."""

    def tenants(self, *, live: bool = False) -> list[str]:
        """Return every tenant that has written an event, or those with live frames, in order of name."""

    def read(self, query: EventQuery) -> list[StoredEvent]:
        """Return one page of events.

        Cursors have gaps, and writers may commit out of their order. No event is returned while one with a smaller
        cursor can still appear: a reader that continues after the last event it was given misses none.
        """

    def event(self, tenant: str, id: bytes) -> StoredEvent | None:
        """Return the event with this id, in any stream."""

    def events_by_key(self, tenant: str, stream: str, key: str) -> list[StoredEvent]:
        """Return the events written under an idempotency key, or none."""

    def select(self, tenant: str, query: batches.RowQuery) -> list[batches.RowWithStream]:
        """Return rows of a projection, each with its stream; the cost follows the answer."""

    def sessions(self, tenant: str, query: batches.SessionQuery) -> list[batches.SessionRow]:
        """Return sessions, the most recently active first."""

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        """Return streams of open sessions that have been idle for their timeout, in order of name."""

    def lanes(self, tenant: str, sink: str | None = None) -> list[batches.RowWithStream]:
        """Return the first effect of every lane, or of every lane of one sink, in order of sink and stream."""

    def hits(self, tenant: str, seqs: Sequence[int]) -> list[Hit]:
        """Return events by their cursors, with the facts that tell whether they are current, without scores."""

    def subjects(self, tenant: str, id: int | None = None) -> list[Subject]:
        """Return the pseudonyms of a tenant, or one of them, with the names that are not erased."""

    def renew_lease(self, tenant: str, stream: str, epoch: int) -> bool:
        """Record a sign of life of the owner under this epoch; return False if the stream has another owner now."""

    def renewals(self, tenant: str, stream: str) -> int:
        """Return the number of signs of life that a stream's owners have given; watchers look for a change."""

    def is_writable(self, within_ms: int) -> bool:
        """Return False if the write lock cannot be had within that time: then no owner can give a sign of life."""

    def snapshot(self) -> AbstractContextManager[object]:
        """Open a snapshot: inside it, all reads of this thread see one moment, whatever other writers do."""

    def position(self) -> int:
        """Return the cursor up to which `read` returns events, of any process; 0 if there are none."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each commit of this process; return a function that stops it."""

    def close(self) -> None:
        """Release all resources. Closing twice is fine."""
