"""Group commit: callers queue, one of them commits for all, and every caller gets its own answer.

A caller that finds no leader leads: it takes the queue, commits it in one transaction, settles
every member and hands the lead to the next in line. There is no extra thread and nothing to
stop at exit, and a lone caller pays nothing for it.

By itself this settles into two halves that take turns: while one commits, the other waits. On a
slow disk the leader therefore waits briefly for the callers of the last round, at most a quarter
of the last commit's time, so that they share one commit instead.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.records.batches import AppendResult, Batch

GATHER_SHARE = 0.25
"""The share of the last commit's time for which a leader waits for more callers."""

MIN_GATHER_SECONDS = 0.001
"""The shortest commit, in seconds, for which waiting is worthwhile."""


class GroupMember:
    """One caller's batch in the queue: settled exactly once, with an answer or an error."""

    __slots__ = ("_turn", "answer", "batch", "error", "promoted")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.answer: AppendResult | None = None
        self.error: HoldfastError | None = None
        self.promoted = False
        self._turn = threading.Lock()
        self._turn.acquire()

    @property
    def is_settled(self) -> bool:
        """True if this member has its answer or error."""
        return self.answer is not None or self.error is not None

    def wait(self) -> None:
        """Block until settled or promoted."""
        self._turn.acquire()

    def wake(self) -> None:
        """Let the waiting caller go on."""
        self._turn.release()


class GroupCommit:
    """The queue and its leader. `commit` writes members and settles them; it may raise."""

    def __init__(self, commit: Callable[[Sequence[GroupMember]], None], *, members: int, size: int) -> None:
        self._commit = commit
        self._members = members
        self._size = size
        self._mutex = threading.Lock()
        self._queue: deque[GroupMember] = deque()
        self._leading = False
        self._company = 1
        self._took = 0.0
        self._wanted = 0
        self._enough = threading.Event()

    def submit(self, batch: Batch) -> AppendResult:
        """Write a batch, in this thread's commit or in another caller's."""
        own = GroupMember(batch)
        with self._mutex:
            self._queue.append(own)
            leads = not self._leading
            self._leading = True
            if self._wanted and len(self._queue) >= self._wanted:
                self._enough.set()
        if not leads:
            self._follow(own)
        if not own.is_settled:
            members: list[GroupMember] = []
            began = 0.0
            try:
                self._wait_for_callers()
                members = self._take_members()
                began = time.monotonic()
                self._commit(members)
            finally:
                # Whatever happened: every member is answered, and the lead is passed on.
                if began:
                    self._took = time.monotonic() - began
                self._end_round(own, members, OutcomeUnknown if began else Unavailable)
        if own.error is not None:
            raise own.error
        assert own.answer is not None, "a member was left unsettled"
        return own.answer

    def _follow(self, member: GroupMember) -> None:
        try:
            member.wait()
        except BaseException:
            # Interrupted while waiting: leave the queue, and pass the lead on if it was received.
            with self._mutex:
                if member in self._queue:
                    self._queue.remove(member)
            if member.promoted:
                self._hand_over()
            raise

    def _end_round(self, own: GroupMember, members: Sequence[GroupMember], error: type[HoldfastError]) -> None:
        settle_members(members, error)
        with self._mutex:
            if own not in members and own in self._queue:
                self._queue.remove(own)
            self._wanted = 0
            self._company = max(1, len(members) + len(self._queue))
        self._hand_over()
        for member in members:
            if member is not own:
                member.wake()

    def _wait_for_callers(self) -> None:
        """Wait for the callers of the last round, if the disk is slow and they have not arrived yet."""
        if self._took < MIN_GATHER_SECONDS:
            return
        with self._mutex:
            wanted = min(self._company, self._members)
            if len(self._queue) >= wanted:
                return
            self._wanted = wanted
            self._enough.clear()
        self._enough.wait(self._took * GATHER_SHARE)
        self._wanted = 0

    def _take_members(self) -> list[GroupMember]:
        with self._mutex:
            if len(self._queue) == 1:
                return [self._queue.popleft()]
            members: list[GroupMember] = []
            size = 0
            while self._queue and len(members) < self._members:
                size += self._queue[0].batch.size
                if members and size > self._size:
                    break
                members.append(self._queue.popleft())
            return members

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._queue:
                self._leading = False
                return
            heir = self._queue[0]
            heir.promoted = True
        heir.wake()


def settle_members(members: Sequence[GroupMember], error: type[HoldfastError]) -> None:
    """Give `error` to every member that has no answer yet."""
    for member in members:
        if not member.is_settled:
            member.error = error()
