"""The contract of following a journal while writers commit, in whatever order they do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.core.journal import chain
from holdfast.core.journal.chain import link_hash
from holdfast.flow.journal.read import JournalTail
from holdfast.ports.journal import Journal
from holdfast.records.reports import EventQuery
from holdfast.testing.journal_contract.fixtures import JournalFixtures
from holdfast.testing.writer import Writer, make_note

STALL_SECONDS = 0.2
"""The time for which the first writer is kept from committing; a second one may commit meanwhile."""
WAIT_SECONDS = 30.0
FIRST, SECOND = "session/first", "session/second"


class PausedWriter:
    """A writer in a thread of its own that stops midway through its append until it is let go."""

    def __init__(self, append: Callable[[], object]) -> None:
        self.numbered, self.let_go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=append, daemon=True)

    def pause(self) -> None:
        """Stop this writer's thread, once; any other thread goes on."""
        if threading.current_thread() is self.thread and not self.numbered.is_set():
            self.numbered.set()
            self.let_go.wait(WAIT_SECONDS)


class FeedContract(JournalFixtures):
    """The contract of a subscriber: every event once, in the order of the cursor."""

    @contextmanager
    def pause_midway(self, journal: Journal, writer: PausedWriter) -> Iterator[None]:
        """Call `writer.pause` within its append, after its events were numbered and before they are committed.

        Here when the hash of an event is computed. A backend that does this elsewhere overrides the method.
        """

        def pause_and_link(*given: Any) -> bytes:
            writer.pause()
            return link_hash(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chain, "link_hash", pause_and_link)
            yield

    def test_a_feed_misses_nothing_that_is_committed_out_of_order(self, writer: Writer, journal: Journal) -> None:
        for number in range(3):
            self._commit_out_of_order(writer, journal, f"{FIRST}{number}", f"{SECOND}{number}")
        assert len(journal.read(EventQuery(tenant="default"))) == 9

    def _commit_out_of_order(self, writer: Writer, journal: Journal, first: str, second: str) -> None:
        """Let the writer that begins first commit last, if the backend can, and follow both."""
        start = journal.position()
        slow = PausedWriter(lambda: writer.append(first, make_note(), make_note()))
        fast = threading.Thread(target=lambda: writer.append(second, make_note()), daemon=True)
        followers = [_Follower(writer, start, limit) for limit in (1, 256)]
        with self.pause_midway(journal, slow):
            slow.thread.start()
            assert slow.numbered.wait(WAIT_SECONDS), "the first writer never numbered its events"
            fast.start()
            fast.join(STALL_SECONDS)  # Where writers take turns, it waits for the first one.
            if not fast.is_alive():
                for follower in followers:
                    follower.await_poll()
            slow.let_go.set()
            slow.thread.join(WAIT_SECONDS)
            fast.join(WAIT_SECONDS)
        every = [follower.finish() for follower in followers]
        wanted = journal.read(EventQuery(tenant="default", after=start))
        assert sorted(event.stream for event in wanted) == [first, first, second]
        for seen in every:
            assert seen == sorted(set(seen)), f"not in the order of the cursor, or not once: {seen}"
            assert seen == [event.seq for event in wanted], f"missed: {seen}"
        assert journal.position() == wanted[-1].seq


class _Follower:
    """A subscriber in a thread of its own, which notes the cursors that it is given."""

    def __init__(self, writer: Writer, after: int, limit: int) -> None:
        self._tail = JournalTail(writer.env, EventQuery(tenant="default", after=after, limit=limit))
        self._over = threading.Event()
        self._polled = threading.Semaphore(0)
        self._seen: list[int] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        over, found = False, True
        while found or not over:
            over = self._over.wait(0.001)
            page = self._tail.poll()
            self._seen += [event.seq for event in page]
            found = bool(page)
            self._polled.release()

    def await_poll(self) -> None:
        """Wait until this follower has looked at the journal as it is now."""
        while self._polled.acquire(blocking=False):
            pass
        for _ in range(2):  # The first of them may have begun earlier.
            assert self._polled.acquire(timeout=WAIT_SECONDS), "a follower is stuck"

    def finish(self) -> list[int]:
        """Stop once nothing more comes; return the cursors in the order in which they came."""
        self._over.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "a follower is stuck"
        return self._seen
