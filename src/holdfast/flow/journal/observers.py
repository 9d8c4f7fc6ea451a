"""`hf.on`: callbacks for events that this process has just committed, and warnings that point at the caller's line.

Callbacks run after the commit. A failing callback undoes nothing and does not disturb the writer: it raises a
warning. Code that must not miss an event subscribes to the journal instead.

"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, NamedTuple

from holdfast.errors import InvalidValue
from holdfast.records.catalogue import APP_PREFIX, CATALOGUE
from holdfast.records.events.envelope import Event

Callback = Callable[[Event], object]


class EventCallbacks:
    """The registered callbacks, by tenant and pattern of event types."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, str, Callback]] = []
        self._waiting = threading.local()

    def add(self, tenant: str, pattern: str, callback: Callback) -> Callable[[], None]:
        """Call `callback` for each event of a type (`frame.*` matches a group); return a function that undoes it."""
        if not isinstance(pattern, str) or not _is_known(pattern):
            raise InvalidValue(f"{pattern!r} is not an event of the catalogue. Write frame.suspended, frame.* or *.")
        if not callable(callback):
            raise InvalidValue("The second argument must be a function that takes the event.")
        entry = (tenant, pattern, callback)
        self._kept.append(entry)

        def undo() -> None:
            if entry in self._kept:
                self._kept.remove(entry)

        return undo

    def has_listener(self, tenant: str, type_name: str) -> bool:
        """Return True if a callback wants this type."""
        return bool(self._kept) and any(_matches(entry, tenant, type_name) for entry in self._kept)

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Queue this thread's notifications until the block ends: callbacks must not run while a lock is held."""
        if getattr(self._waiting, "events", None) is not None:
            yield
            return
        self._waiting.events = []
        try:
            yield
        finally:
            events, self._waiting.events = self._waiting.events, None
            for event in events:
                self.notify(event)

    def notify(self, event: Event) -> None:
        """Call every callback that listens for this event."""
        waiting = getattr(self._waiting, "events", None)
        if waiting is not None:
            waiting.append(event)
            return
        for entry in list(self._kept):
            if _matches(entry, event.tenant, event.type):
                try:
                    entry[2](event)
                except Exception as error:  # noqa: BLE001
                    warnings.warn(f"A callback for {event.type} failed: {error!r}", RuntimeWarning, stacklevel=2)


def _is_known(pattern: str) -> bool:
    if pattern.endswith("*"):
        return pattern.startswith(APP_PREFIX) or any(name.startswith(pattern[:-1]) for name in CATALOGUE)
    return pattern in CATALOGUE or pattern.startswith(APP_PREFIX)


def _matches(entry: tuple[str, str, Callback], tenant: str, type_name: str) -> bool:
    wanted, pattern, _ = entry
    if wanted != tenant:
        return False
    return type_name.startswith(pattern[:-1]) if pattern.endswith("*") else type_name == pattern


_PACKAGE: Final = "holdfast"
_THREAD_MODULES: Final = frozenset({"threading", "concurrent.futures.thread"})


class CallSite(NamedTuple):
    """A line of the caller's code."""

    file: str
    line: int
    module: str
    registry: dict[Any, Any]
    """The module's registry of warnings already shown."""


CALL_SITE: Final[ContextVar[CallSite | None]] = ContextVar("holdfast_caller", default=None)
"""The call site of the work that this thread now runs."""


def find_call_site() -> CallSite:
    """Return the line that called the library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None and _is_library_frame(frame):
        frame = frame.f_back
    assert frame is not None, "somebody called this"
    beyond = _call_site(frame)
    return CALL_SITE.get() or beyond if beyond.module in _THREAD_MODULES else beyond


def warn_caller(text: str) -> None:
    """Emit a RuntimeWarning at the caller's line; dropped where warnings are errors, because the work is done."""
    place = find_call_site()
    with suppress(RuntimeWarning):
        warnings.warn_explicit(text, RuntimeWarning, place.file, place.line, place.module, place.registry)


def _is_library_frame(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE


def _call_site(frame: FrameType) -> CallSite:
    known = frame.f_globals
    module = str(known.get("__name__") or "<unknown>")
    return CallSite(frame.f_code.co_filename, frame.f_lineno, module, known.setdefault("__warningregistry__", {}))
