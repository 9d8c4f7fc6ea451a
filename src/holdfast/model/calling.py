"""Calling a tokenizer that is somebody else's: what it gives is checked, what it raises becomes a refusal."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.values import words
from holdfast.errors import InvalidValue

LONGEST_NAME = 128


class Counter:
    """Any function from text to a number of tokens, with the name that its counts are stored under."""

    __slots__ = ("_function", "exact", "name")

    def __init__(self, name: str, function: Callable[[str], int], *, exact: bool = False) -> None:
        self.name, self._function, self.exact = name, function, exact

    def count(self, text: str) -> int:
        """What the function says, if it is a number of tokens."""
        if not isinstance(text, str) or not _is_unicode(text):
            raise refusal(self.name, text, None)
        try:
            found = self._function(text)
        except BaseException as error:
            if stray(error):
                raise
            raise refusal(self.name, text, error) from None
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise InvalidValue(
                f"The tokenizer {self.name} gave {found!r:.60} for a text of {len(text):,} characters. "
                "It must give a number of tokens: an int of 0 or more."
            )
        return int(found)


def stray(error: BaseException) -> bool:
    """Whether an error has nothing to do with counting: an interruption. A panic in compiled code is a failed count."""
    return not isinstance(error, Exception) and type(error).__name__ != "PanicException"


def refusal(name: str, text: object, error: BaseException | None) -> InvalidValue:
    """Why a text was not counted."""
    if not isinstance(text, str):
        return InvalidValue(f"Only text has tokens, not {type(text).__name__}. Give a str.")
    if not _is_unicode(text):
        return InvalidValue("Text holds a lone surrogate, which is not Unicode. Clean the text first.")
    said = "" if error is None else f": {words(error)[:300]}"
    return InvalidValue(
        f"The tokenizer {name} failed on a text of {len(text):,} characters{said}. Correct it, or use another."
    )


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
