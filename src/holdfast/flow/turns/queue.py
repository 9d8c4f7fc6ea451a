"""A queue within one process: one turn at a time per conversation, first come, first served.

Between processes leases decide; within one, threads and tasks share a lease, so they queue here before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from holdfast.system import renew_in_child

QueuePlace = tuple[str, str]


class Ticket:
    """A position in the queue. `wake` is called once, from whichever thread lets the waiter go on."""

    __slots__ = ("ahead", "called", "place", "wake")

    def __init__(self, place: QueuePlace, wake: Callable[[], None], ahead: bool) -> None:
        self.place, self.wake, self.ahead, self.called = place, wake, ahead, False


class TurnQueue:
    """The conversations that are worked on in this process, and their waiters."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Reset: nothing runs in a child yet."""
        self._waiting: dict[QueuePlace, deque[Ticket]] = {}
        self._mutex = threading.Lock()

    def enter(self, place: QueuePlace) -> bool:
        """Return True if the place was free; then it is the caller's until `leave`."""
        with self._mutex:
            if place in self._waiting:
                return False
            self._waiting[place] = deque()
            return True

    def wait(self, place: QueuePlace, wake: Callable[[], None], *, ahead: bool = False) -> Ticket:
        """Queue, with `ahead` before all others without it. When `wake` is called, the place is the caller's."""
        ticket = Ticket(place, wake, ahead)
        with self._mutex:
            thread = self._waiting.get(place)
            if thread is not None:
                thread.insert(sum(one.ahead for one in thread) if ahead else len(thread), ticket)
                return ticket
            self._waiting[place] = deque()
            ticket.called = True
        wake()
        return ticket

    def give_up(self, ticket: Ticket) -> None:
        """Withdraw a ticket; a place that was already the caller's goes to the next waiter."""
        with self._mutex:
            if not ticket.called:
                thread = self._waiting.get(ticket.place)
                if thread is not None and ticket in thread:
                    thread.remove(ticket)
                return
        self.leave(ticket.place)

    def dismiss(self) -> None:
        """Wake every waiter without giving it the place: the client is shutting down."""
        with self._mutex:
            waiting = [ticket for thread in self._waiting.values() for ticket in thread]
            for thread in self._waiting.values():
                thread.clear()
        for ticket in waiting:
            ticket.wake()

    def leave(self, place: QueuePlace) -> None:
        """Give the place to the next waiter."""
        with self._mutex:
            thread = self._waiting.get(place)
            if thread is None:
                return
            if not thread:
                del self._waiting[place]
                return
            following = thread.popleft()
            following.called = True
        following.wake()
