"""`hf.on`: callbacks for what this process has just committed. Told after the commit, never instead of it.

A callback that fails does not undo anything and does not disturb who wrote: it is warned
about. What must not be missed belongs into a subscriber, which reads the journal itself.

Warnings that point at the caller's own line, also where what is warned about runs in another thread.
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


class Observers:
    """Who wants to hear of which events of which tenant."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, str, Callback]] = []
        self._waiting = threading.local()

    def add(self, tenant: str, pattern: str, callback: Callback) -> Callable[[], None]:
        """Tell `callback` of each event of this type; returns what undoes it. `frame.*` means all of a kind."""
        if not isinstance(pattern, str) or not _known(pattern):
            raise InvalidValue(f"{pattern!r} is not an event of the catalogue. Write frame.suspended, frame.* or *.")
        if not callable(callback):
            raise InvalidValue("The second argument must be a function that takes the event.")
        entry = (tenant, pattern, callback)
        self._kept.append(entry)

        def undo() -> None:
            if entry in self._kept:
                self._kept.remove(entry)

        return undo

    def wanted(self, tenant: str, type_name: str) -> bool:
        """Whether anybody listens."""
        return any(_matches(entry, tenant, type_name) for entry in self._kept)

    @contextmanager
    def later(self) -> Iterator[None]:
        """Within it this thread only notes what to tell: a callback must not run while a lock is held."""
        if getattr(self._waiting, "events", None) is not None:
            yield
            return
        self._waiting.events = []
        try:
            yield
        finally:
            events, self._waiting.events = self._waiting.events, None
            for event in events:
                self.tell(event)

    def tell(self, event: Event) -> None:
        """Tell everybody who listens."""
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


def _known(pattern: str) -> bool:
    if pattern.endswith("*"):
        return pattern.startswith(APP_PREFIX) or any(name.startswith(pattern[:-1]) for name in CATALOGUE)
    return pattern in CATALOGUE or pattern.startswith(APP_PREFIX)


def _matches(entry: tuple[str, str, Callback], tenant: str, type_name: str) -> bool:
    wanted, pattern, _ = entry
    if wanted != tenant:
        return False
    return type_name.startswith(pattern[:-1]) if pattern.endswith("*") else type_name == pattern


_OURS: Final = "holdfast"
_THREADS: Final = frozenset({"threading", "concurrent.futures.thread"})


class Where(NamedTuple):
    """A line of somebody's code."""

    file: str
    line: int
    module: str
    registry: dict[Any, Any]
    """Of warnings that were shown already."""


CALLER: Final[ContextVar[Where | None]] = ContextVar("holdfast_caller", default=None)
"""Who began what is now done in a thread."""


def caller() -> Where:
    """Where the library was called from."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    assert frame is not None, "somebody called this"
    beyond = _place(frame)
    return CALLER.get() or beyond if beyond.module in _THREADS else beyond


def warn(text: str) -> None:
    """Say that something went wrong. Also where warnings are made errors, what was done is done."""
    place = caller()
    with suppress(RuntimeWarning):
        warnings.warn_explicit(text, RuntimeWarning, place.file, place.line, place.module, place.registry)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS


def _place(frame: FrameType) -> Where:
    known = frame.f_globals
    module = str(known.get("__name__") or "<unknown>")
    return Where(frame.f_code.co_filename, frame.f_lineno, module, known.setdefault("__warningregistry__", {}))
