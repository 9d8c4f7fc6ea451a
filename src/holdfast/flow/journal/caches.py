"""A cache of stream states: least recently used first out, and nothing depends on it.

States are cached after a commit, dropped on any error, and correct when the cache is switched off. The locks
serialise decisions within this process, so that callers on one stream do not waste each other's work; between
processes the expected version decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from holdfast.records.events.frames import GoalContent
from holdfast.records.frames import StreamState
from holdfast.system import Lru, renew_in_child

ResultT = TypeVar("ResultT")

STRIPES = 4096
MAX_LOCKS = 64
"""The most locks of one decision. Those beyond are left to the expected versions."""
PLACES_PER_STATE = 3


class StateCache:
    """A cache of at most `capacity` stream states; 0 keeps none."""

    def __init__(self, capacity: int) -> None:
        # By tenant and stream: states, each of which may be out of date.
        self.streams = Lru[tuple[str, str], StreamState](capacity, rank=attrgetter("version"))
        # By tenant and frame: the stream that a frame lives in for ever.
        self.frame_streams = Lru[tuple[str, str], str](capacity * PLACES_PER_STATE)
        # By tenant, stream and version: goals of pushed frames. Most frames end in the process that pushed them.
        self.goals = Lru[tuple[str, str, int], GoalContent](capacity)
        # By tenant and session: the pseudonym of the user who opened it, which never changes; 0 for nobody.
        self.session_openers = Lru[tuple[str, str], int](capacity)
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Start with new locks of streams: another thread of the parent may have held one."""
        # Created when first needed, at most STRIPES of them: streams that share one wait for each other.
        self._stripes: dict[int, threading.Lock] = {}

    def put(self, tenant: str, stream: str, state: StreamState) -> None:
        """Cache a committed state, unless a newer one is cached."""
        self.streams.put((tenant, stream), state)

    def drop(self, tenant: str, stream: str) -> None:
        """Drop one state."""
        self.streams.drop((tenant, stream))

    def clear(self) -> None:
        """Drop everything."""
        for cache in (self.streams, self.frame_streams, self.goals, self.session_openers):
            cache.clear()

    def __len__(self) -> int:
        return len(self.streams)

    def locks(self, tenant: str, streams: Iterable[str]) -> list[threading.Lock]:
        """Return the locks of some streams, at least one, in the order in which all take them: no deadlock."""
        stripes = sorted({hash((tenant, stream)) % STRIPES for stream in streams})[:MAX_LOCKS]
        return [self._stripes.get(stripe) or self._stripes.setdefault(stripe, threading.Lock()) for stripe in stripes]


def run_locked(locks: Sequence[threading.Lock], work: Callable[[], ResultT]) -> ResultT:
    """Call `work` under some locks."""
    with locks[0]:  # Not an ExitStack: a signal could come between taking a lock and noting it.
        return work() if len(locks) == 1 else run_locked(locks[1:], work)
