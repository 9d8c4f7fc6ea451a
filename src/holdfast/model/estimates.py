"""Upper estimates, for models whose tokenizer is not public or not here: named so, and never below.

An estimate is what OpenAI's two encodings make of a text, the larger of both, times a factor, and
something on top for what other tokenizers split further:

    digits         many have one token for each digit, OpenAI's one for three
    not ASCII      smaller vocabularies fall back to bytes in scripts and emoji they know less
    long runs      of one character, which OpenAI's encodings merge as few others do

The name has the factor and stands for this rule: a changed rule needs another name, since counts
are stored under it.
"""

from __future__ import annotations

import math
import re

from holdfast.errors import InvalidValue
from holdfast.ports import Tokenizer

USUAL = 1.5
"""For models nothing is known of: above nine tokenizers of other families on all kinds of text."""
PREFIX = "estimate:"
_LARGEST = 10.0
_PER_DIGIT = 2 / 3
_PER_BYTE_NOT_ASCII = 0.45
_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)


class Estimate:
    """Counts high, by two exact tokenizers."""

    __slots__ = ("_factor", "_first", "_second", "name")
    exact = False

    def __init__(self, factor: float, first: Tokenizer, second: Tokenizer) -> None:
        self._factor, self._first, self._second = factor, first, second
        self.name = f"{PREFIX}{factor:g}"

    def count(self, text: str) -> int:
        """At least as many tokens as the model makes of it."""
        least = max(self._first.count(text), self._second.count(text))
        found = self._factor * least + _PER_DIGIT * sum(map(text.count, "0123456789"))
        if not text.isascii():
            found += _PER_BYTE_NOT_ASCII * (len(text.encode()) - len(text))
        # Looked for in every text: dense words around a run hide it from any average.
        found += sum(map(_run, _RUN.finditer(text)))
        return math.ceil(found)


def factor_of(name: str) -> float:
    """The factor in a name such as `estimate:1.5`; `estimate` alone has the usual one."""
    given = name.removeprefix(PREFIX.rstrip(":")).removeprefix(":")
    try:
        factor = float(given) if given else USUAL
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor <= _LARGEST:
        raise InvalidValue(f"{name!r} is not an estimate: write estimate:1.5, with a factor from 1 to {_LARGEST:g}.")
    return factor


def _run(found: re.Match[str]) -> float:
    """What a run of one character may take beyond what was counted, at the most that was seen for its kind."""
    length, character = len(found[0]), found[1]
    if not character.isascii():
        return float(length * len(character.encode()))
    if character == " ":
        return length / 16
    return length / (2 if character.isalnum() else 4)
