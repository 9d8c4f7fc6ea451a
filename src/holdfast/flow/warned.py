"""Warnings that point at the caller's own line, also where what is warned about runs in another thread."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, NamedTuple

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
