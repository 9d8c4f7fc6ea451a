"""Regular expressions that are compiled on first use, to keep the import of holdfast fast."""

from __future__ import annotations

import re
from typing import Any, cast


class _LazyPattern:
    """A stand-in that behaves like the pattern it compiles on first use."""

    __slots__ = ("_flags", "_known", "_text")

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags
        self._known: re.Pattern[str] | None = None

    def __getattr__(self, name: str) -> Any:
        if self._known is None:
            self._known = re.compile(self._text, self._flags)
        return getattr(self._known, name)


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled when it is first used."""
    return cast(re.Pattern[str], _LazyPattern(text, flags))
