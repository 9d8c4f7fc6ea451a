"""What goes wrong with a tool, and what a model is told of it: enough to act on, and no traceback."""

from __future__ import annotations

from typing import Final

from holdfast.core.values import words
from holdfast.errors import ArgumentsUnfit, ToolFailed, ToolTimedOut

MOST_SHOWN: Final = 500
"""Characters of an exception that a model is shown. More is rarely news, and may be somebody's secret."""
MOST_SAID: Final = 4_000
"""Characters of what a tool says on purpose."""


def failure_text(error: BaseException) -> str:
    """An exception in a tool as the text of an error result: its type and message, shortened."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(words(error).split())
    if isinstance(error, ArgumentsUnfit | ToolFailed | ToolTimedOut):
        # These were written to be read: the name of a class would add nothing.
        return _cut(text.removeprefix(f"{type(error).__name__}: "), MOST_SAID)
    return _cut(text, MOST_SHOWN)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 2]} …"
