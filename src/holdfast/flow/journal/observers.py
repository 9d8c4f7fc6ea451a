"""`hf.on`: callbacks for events that this process has just committed.

Callbacks run after the commit. A failing callback undoes nothing and does not disturb the writer: it raises a
warning. Code that must not miss an event subscribes to the journal instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.catalogue import APP_PREFIX, CATALOGUE
from holdfast.records.events.envelope import Event
from holdfast.system import warn_caller

Callback = Callable[[Event], object]


class _Waiting(threading.local):
    """The events that a thread holds back, if it does."""

    events: list[Event] | None = None


class DeferredEvents(msgspec.Struct):
    """A block whose events are announced when it ends; within another one, when that one ends."""

    callbacks: EventCallbacks
    waiting: _Waiting
    outermost: bool = False

    def __enter__(self) -> None:
        if self.waiting.events is None:
            self.outermost, self.waiting.events = True, []

    def __exit__(self, *error: object) -> None:
        if self.outermost:
            events, self.waiting.events = self.waiting.events or (), None
            for event in events:
                self.callbacks.notify(event)


class EventCallbacks:
    """The registered callbacks, by tenant and pattern of event types."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, str, Callback]] = []
        self._wanted: dict[str, dict[str, bool]] = {}
        """By tenant with callbacks and by type: True if one wants such events. Replaced when the callbacks change."""
        self._waiting = _Waiting()

    def add(self, tenant: str, pattern: str, callback: Callback) -> Callable[[], None]:
        """Call `callback` for each event of a type (`frame.*` matches a group); return a function that undoes it."""
        known = isinstance(pattern, str) and (
            pattern in CATALOGUE
            or pattern.startswith(APP_PREFIX)
            or (pattern.endswith("*") and any(name.startswith(pattern[:-1]) for name in CATALOGUE))
        )
        if not known:
            raise InvalidValue(f"{pattern!r} is not an event of the catalogue. Write frame.suspended, frame.* or *.")
        if not callable(callback):
            raise InvalidValue("The second argument must be a function that takes the event.")
        entry = (tenant, pattern, callback)
        self._kept.append(entry)
        self._forget_wanted()

        def undo() -> None:
            if entry in self._kept:
                self._kept.remove(entry)
                self._forget_wanted()

        return undo

    def list_callbacks(self, tenant: str, type_name: str) -> list[Callback]:
        """Return the callbacks that want events of this type."""
        return [
            callback
            for wanted, pattern, callback in list(self._kept)
            if wanted == tenant
            and (type_name.startswith(pattern[:-1]) if pattern.endswith("*") else type_name == pattern)
        ]

    def list_wanted(self, tenant: str, types: Iterable[str]) -> list[bool]:
        """Return for each of these types if a callback wants events of it; nothing if the tenant has no callbacks."""
        known = self._wanted.get(tenant)  # Asked for once: an answer must not get among those for other callbacks.
        if known is None:
            return []
        found = []
        for name in types:
            if name not in known:
                known[name] = bool(self.list_callbacks(tenant, name))
            found.append(known[name])
        return found

    def _forget_wanted(self) -> None:
        self._wanted = {tenant: {} for tenant, _, _ in list(self._kept)}

    def defer(self) -> DeferredEvents:
        """Queue this thread's notifications until the block ends: callbacks must not run while a lock is held."""
        return DeferredEvents(self, self._waiting)

    def notify(self, event: Event) -> None:
        """Call every callback that listens for this event."""
        waiting = self._waiting.events
        if waiting is not None:
            waiting.append(event)
            return
        for callback in self.list_callbacks(event.tenant, event.type):
            try:
                callback(event)
            except Exception as error:  # noqa: BLE001
                warn_caller(f"A callback for {event.type} failed: {error!r}")
