"""Feeds over writers that commit out of order, on a journal that numbers events as a sequence of a server does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.flow.journal.read import JournalTail, read_page
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.ports.journal import Journal
from holdfast.records.batches import AppendResult, Batch
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.reports import EventQuery
from holdfast.testing.journal_contract.feed import FeedContract, PausedWriter
from holdfast.testing.writer import Writer


class SequencedJournal(MemoryJournal):
    """A journal whose writers draw their cursors first and commit in any order.

    Each holds its smallest cursor as a floor until it has committed; readers stop below the smallest floor.
    """

    gated = True

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0
        self.floors: set[int] = set()
        self.pause: Callable[[], None] = lambda: None

    def append(self, batch: Batch) -> AppendResult:
        with self._lock.lock:
            floor = self.drawn + 1
            self.drawn += sum(len(part.events) for part in batch.parts)
            self.floors.add(floor)
        self.pause()
        with self._lock.lock:
            newest, self._position = self._position, floor - 1
            try:
                return super().append(batch)
            finally:
                self._position = max(newest, self._position)
                self.floors.remove(floor)

    def position(self) -> int:
        with self._lock.lock:
            return min(self.floors) - 1 if self.floors and self.gated else self._position

    def read(self, query: EventQuery) -> list[StoredEvent]:
        with self._lock.lock:
            until = min(self.position(), self.drawn if query.until is None else query.until)
            found = super().read(replace(query, until=until, limit=2**62))
            return sorted(found, key=lambda event: event.seq)[: query.limit]


class TestSequencedJournal(FeedContract):
    @pytest.fixture
    def make_journal(self) -> Callable[[], Journal]:
        return SequencedJournal

    @contextmanager
    def pause_midway(self, journal: Any, writer: PausedWriter) -> Iterator[None]:
        journal.pause = writer.pause
        yield

    def test_the_writer_that_began_first_commits_last(self, writer: Writer, journal: Any) -> None:
        self._commit_out_of_order(writer, journal, "session/first", "session/second")
        assert next(event.stream for event in journal._events.values()) == "session/second"


def _reads_up_to_the_newest(patch: pytest.MonkeyPatch) -> None:
    """Readers are given whatever is committed, and go on behind it."""
    patch.setattr(SequencedJournal, "gated", False)


def _jumps_to_the_newest(patch: pytest.MonkeyPatch) -> None:
    """A subscriber goes on behind the newest cursor, not behind the last event that it was given."""

    def poll(self: Any) -> Any:
        newest = self._env.journal._position
        found = read_page(self._env, self._query)
        self._query = replace(self._query, after=max(newest, self._query.after))
        return found

    patch.setattr(JournalTail, "poll", poll)


@pytest.mark.parametrize("plant", [_reads_up_to_the_newest, _jumps_to_the_newest])
def test_a_planted_bug_is_noticed(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    journal = SequencedJournal()
    with pytest.raises(AssertionError, match="missed"):
        TestSequencedJournal().test_a_feed_misses_nothing_that_is_committed_out_of_order(Writer(journal), journal)
