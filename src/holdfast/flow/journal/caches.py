"""Caches of stream states and of recent messages: least recently used first out, and nothing depends on them.

States are cached after a commit, dropped on any error, and correct when the cache is switched off. The locks
serialise decisions within this process, so that callers on one stream do not waste each other's work; between
processes the expected version decides. A recent window is compared with the journal before it is used.

"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from holdfast.records.events.frames import GoalContent
from holdfast.records.frames import StreamState
from holdfast.system import renew_in_child

STRIPES = 4096
PLACES_PER_STATE = 10


class StateCache:
    """A cache of at most `capacity` stream states; 0 keeps none."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[tuple[str, str], StreamState] = OrderedDict()
        self._places: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._goals: OrderedDict[tuple[str, str, int], GoalContent] = OrderedDict()
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Replace the locks: another thread of the parent may have held one."""
        self._mutex = threading.Lock()
        # Created when first needed, at most STRIPES of them: streams that share one wait for each other.
        self._stripes: dict[int, threading.Lock] = {}

    def get(self, tenant: str, stream: str) -> StreamState | None:
        """Return a state that may be out of date, or None."""
        with self._mutex:
            state = self._kept.get((tenant, stream))
            if state is not None:
                self._kept.move_to_end((tenant, stream))
            return state

    def put(self, tenant: str, stream: str, state: StreamState) -> None:
        """Cache a committed state, unless a newer one is cached."""
        if not self._capacity:
            return
        with self._mutex:
            known = self._kept.get((tenant, stream))
            if known is not None and known.version > state.version:
                return
            self._kept[tenant, stream] = state
            self._kept.move_to_end((tenant, stream))
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)

    def drop(self, tenant: str, stream: str) -> None:
        """Drop one state."""
        with self._mutex:
            self._kept.pop((tenant, stream), None)

    def clear(self) -> None:
        """Drop everything."""
        with self._mutex:
            self._kept.clear()
            self._places.clear()
            self._goals.clear()

    def frame_stream(self, tenant: str, frame: str) -> str | None:
        """Return the stream that a frame lives in for ever, or None if it is not cached."""
        return self._places.get((tenant, frame))

    def note_frame_stream(self, tenant: str, frame: str, stream: str) -> None:
        """Cache the stream that a frame lives in."""
        if self._capacity:
            with self._mutex:
                self._places[tenant, frame] = stream
                while len(self._places) > self._capacity * PLACES_PER_STATE:
                    self._places.popitem(last=False)

    def note_goal(self, tenant: str, stream: str, version: int, goal: GoalContent) -> None:
        """Cache the goal of a pushed frame until it is read: most frames end in the process that pushed them."""
        if self._capacity:
            with self._mutex:
                self._goals[tenant, stream, version] = goal
                while len(self._goals) > self._capacity:
                    self._goals.popitem(last=False)

    def take_goal(self, tenant: str, stream: str, version: int) -> GoalContent | None:
        """Remove and return a cached goal, or None."""
        with self._mutex:
            return self._goals.pop((tenant, stream, version), None)

    def __len__(self) -> int:
        return len(self._kept)

    def lock(self, tenant: str, streams: Iterable[str]) -> AbstractContextManager[object]:
        """Return a context that holds the locks of these streams, taken in sorted order, so there is no deadlock."""
        stripes = sorted({hash((tenant, stream)) % STRIPES for stream in streams})
        locks = [self._stripes.get(stripe) or self._stripes.setdefault(stripe, threading.Lock()) for stripe in stripes]
        return locks[0] if len(locks) == 1 else _hold(locks)


@contextmanager
def _hold(locks: Iterable[threading.Lock]) -> Iterator[None]:
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


RecentKey = tuple[str, str, str]
"""Tenant, stream, and the name that token counts are kept under."""


class RecentCache:
    """The ends of threads in memory, least recently used first out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[RecentKey, Any] = OrderedDict()
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Replace the lock: another thread of the parent may have held it."""
        self._lock = threading.Lock()

    def get(self, place: RecentKey) -> Any:
        """Return the cached window, or None."""
        with self._lock:
            if place in self._kept:
                self._kept.move_to_end(place)
            return self._kept.get(place)

    def put(self, place: RecentKey, window: Any) -> None:
        """Cache a window."""
        with self._lock:
            self._kept[place] = window
            self._kept.move_to_end(place)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._kept.clear()
