"""Which conversations the code that runs now works for.

A tool may talk to other agents, and they to others. What none of them can do is wait for a conversation that waits
for them: that would be for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.errors import Refused

Place = tuple[str, str]
"""A tenant and a line of conversation."""


class _Work:
    """A turn that is worked on. Code that outlives it is no longer within it."""

    __slots__ = ("going_on", "place")

    def __init__(self, place: Place) -> None:
        self.place, self.going_on = place, True


_within: ContextVar[tuple[_Work, ...]] = ContextVar("holdfast_within", default=())


@contextmanager
def working_for(place: Place) -> Iterator[None]:
    """Whatever is called in this block works for a conversation, also in threads and tasks that it starts."""
    work = _Work(place)
    token = _within.set((*_within.get(), work))
    try:
        yield
    finally:
        work.going_on = False
        _within.reset(token)


def depth() -> int:
    """How many turns work within each other here."""
    return sum(work.going_on for work in _within.get())


def check_outside(place: Place, if_busy: str) -> None:
    """Refuse to wait for a conversation from within its own turn. Whoever does not wait is told that it is busy."""
    if if_busy != "reject" and any(work.going_on and work.place == place for work in _within.get()):
        raise Refused(
            f"This runs within a turn of {place[1]}, which would wait for itself. Send to another conversation, give "
            "back from the tool what you want said, or send with if_busy='reject' once the turn has ended."
        )
