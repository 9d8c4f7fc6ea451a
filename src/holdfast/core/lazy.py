"""Work that waits for its first use: patterns are compiled then, and types prepared for msgspec, one thread at a time.

Both keep the import of holdfast fast. msgspec analyses a type when it is first used, and two threads that do so at once
for the same type can crash the process, so every type that is decoded or converted to goes through here first. The lock
is set from above: this module does not know about threads.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, cast

import msgspec


class _LazyPattern:
    """A stand-in that behaves like the pattern it compiles on first use."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)  # Found without a call from now on.
        return found


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled when it is first used."""
    return cast(re.Pattern[str], _LazyPattern(text, flags))


_type_lock: list[AbstractContextManager[Any]] = [nullcontext()]


def set_type_lock(lock: AbstractContextManager[Any]) -> None:
    """Analyse types under this lock from now on."""
    _type_lock[0] = lock


@cache
def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the JSON decoder of a type, created once."""
    with _type_lock[0]:
        return msgspec.json.Decoder(kind)


def convert(value: Any, kind: Any, **how: Any) -> Any:
    """Convert plain data to a type."""
    try:
        decoder(kind)  # Let msgspec analyse the type, if it can; a faulty type raises below.
    except TypeError:
        pass  # Not hashable, or with parts that need a hook.
    return msgspec.convert(value, kind, **how)
