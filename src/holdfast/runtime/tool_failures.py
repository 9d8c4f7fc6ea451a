"""What goes wrong with a tool, and what a model is told of it: enough to act on, and no traceback."""

from __future__ import annotations

from typing import Final

from holdfast.core.values import words
from holdfast.errors import EffectFailed, InvalidValue

MOST_SHOWN: Final = 500
"""Characters of an exception that a model is shown. More is rarely news, and may be somebody's secret."""
MOST_SAID: Final = 4_000
"""Characters of what a tool says on purpose."""


class ArgumentsUnfit(InvalidValue):
    """The arguments that a model wrote do not fit the tool. It is told what is wrong and may call again."""


class ToolFailed(EffectFailed):
    """A tool could not do it. Raise this in a tool to tell the model in your own words what went wrong."""


class ToolTimedOut(EffectFailed):
    """A tool did not end in its time, so whether it took effect is not known. Raise `timeout`, or look."""


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
