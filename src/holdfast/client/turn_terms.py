"""What somebody wants of a turn, checked, and how one waits for it: in line within a process, or for some seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.frames import Limits
from holdfast.records.messages import Message

IF_BUSY = ("queue", "reject", "interrupt", "join")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants of a turn. No messages: go on with the one that is live."""

    messages: tuple[Message, ...] = ()
    key: str | None = None
    if_busy: str = "queue"
    wait: float | None = None
    """Seconds to wait for others, at most."""
    tokens: int | None = None
    limits: Limits | None = None
    agent: str | None = None
    loops: int | None = None
    """Model calls that the turn may make, if that is to be looked at before something is said in it."""
    cost: int | None = None
    """What it may cost, in billionths of a US dollar, likewise."""


class Lined:
    """Wait until it is our turn in this process."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.then: Callable[[], object] | None = None
        self._mutex = threading.Lock()

    def wake(self) -> None:
        """It is our turn."""
        with self._mutex:
            self.event.set()
            then = self.then
        if then is not None:
            then()

    def tell(self, then: Callable[[], object]) -> None:
        """Call this when it is our turn, at once if it is already."""
        with self._mutex:
            self.then = then
            ready = self.event.is_set()
        if ready:
            then()


Wait = Lined | float
"""What an opening waits for: its place in the line, or some seconds."""


def check_terms(terms: Terms) -> None:
    """Refuse what cannot be meant."""
    if terms.if_busy not in IF_BUSY:
        raise InvalidValue(f"if_busy must be one of {', '.join(IF_BUSY)}, not {terms.if_busy!r}.")
    wait: object = terms.wait
    number = isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= threading.TIMEOUT_MAX
    if wait is not None and not number:
        raise InvalidValue(f"wait must be seconds, 0 or more, or None for as long as it takes, not {wait!r:.40}.")
