"""The cache of stream states: least recently used goes first, and nothing depends on it.

It is filled after a commit with what was committed, dropped on any error, and correct when
switched off. The locks serialise deciding within this process, so that callers on one
stream do not waste each other's work; between processes the expected version decides.

What was read for packs before: a hint, which whoever uses it compares with the journal first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from holdfast.records.events.frames import GoalContent
from holdfast.records.frames import StreamState
from holdfast.system import renew_in_child

STRIPES = 4096
PLACES = 10


class StateCache:
    """At most `capacity` states; 0 keeps none."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[tuple[str, str], StreamState] = OrderedDict()
        self._places: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._goals: OrderedDict[tuple[str, str, int], GoalContent] = OrderedDict()
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Locks that another thread of the parent may have held."""
        self._mutex = threading.Lock()
        # At most so many locks, made when they are first needed: streams that share one wait for each other.
        self._stripes: dict[int, threading.Lock] = {}

    def get(self, tenant: str, stream: str) -> StreamState | None:
        """A state that may be out of date, or None."""
        with self._mutex:
            state = self._kept.get((tenant, stream))
            if state is not None:
                self._kept.move_to_end((tenant, stream))
            return state

    def put(self, tenant: str, stream: str, state: StreamState) -> None:
        """Remember a committed state, unless a newer one is known."""
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
        """Forget one state."""
        with self._mutex:
            self._kept.pop((tenant, stream), None)

    def clear(self) -> None:
        """Forget everything."""
        with self._mutex:
            self._kept.clear()
            self._places.clear()
            self._goals.clear()

    def place(self, tenant: str, frame: str) -> str | None:
        """The stream that a frame lives in, for ever, if it is remembered."""
        return self._places.get((tenant, frame))

    def note_place(self, tenant: str, frame: str, stream: str) -> None:
        """Remember where a frame lives."""
        if self._capacity:
            with self._mutex:
                self._places[tenant, frame] = stream
                while len(self._places) > self._capacity * PLACES:
                    self._places.popitem(last=False)

    def note_goal(self, tenant: str, stream: str, version: int, goal: GoalContent) -> None:
        """Remember what a frame was pushed for, until it is asked for: most frames end where they were pushed."""
        if self._capacity:
            with self._mutex:
                self._goals[tenant, stream, version] = goal
                while len(self._goals) > self._capacity:
                    self._goals.popitem(last=False)

    def take_goal(self, tenant: str, stream: str, version: int) -> GoalContent | None:
        """What was remembered, once."""
        with self._mutex:
            return self._goals.pop((tenant, stream, version), None)

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def locked(self, tenant: str, streams: Iterable[str]) -> Iterator[None]:
        """Decide about these streams alone; always taken in the same order, so never in a circle."""
        with ExitStack() as stack:
            for stripe in sorted({hash((tenant, stream)) % STRIPES for stream in streams}):
                stack.enter_context(self._stripes.get(stripe) or self._stripes.setdefault(stripe, threading.Lock()))
            yield


Known = tuple[str, str, str]
"""Tenant, stream, and the name that counts are kept under."""


class RecentCache:
    """Ends of lines in memory, those that were longest not asked for forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Known, Any] = OrderedDict()
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    def get(self, place: Known) -> Any:
        """What is known, or None."""
        with self._lock:
            if place in self._kept:
                self._kept.move_to_end(place)
            return self._kept.get(place)

    def put(self, place: Known, window: Any) -> None:
        """What is known now."""
        with self._lock:
            self._kept[place] = window
            self._kept.move_to_end(place)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
