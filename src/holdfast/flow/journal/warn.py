"""Warnings that point at the line of the caller's code, not at a line of the library."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, NamedTuple

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
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _module_of(frame).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    module = _module_of(frame)
    if module in _THREAD_MODULES and (known := CALL_SITE.get()) is not None:
        return known
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return CallSite(frame.f_code.co_filename, frame.f_lineno, module or "<unknown>", registry)


def warn_caller(text: str) -> None:
    """Emit a RuntimeWarning at the caller's line; dropped where warnings are errors, because the work is done."""
    place = find_call_site()
    with suppress(RuntimeWarning):
        warnings.warn_explicit(text, RuntimeWarning, place.file, place.line, place.module, place.registry)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "")
