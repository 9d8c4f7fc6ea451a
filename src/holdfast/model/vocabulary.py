"""Exact counts of short texts before splintr is loaded, which takes longer than everything else at a start together.

A vocabulary is a file beside this module: a hash table from tokens to ranks that is read, not parsed, so that it is
ready within a millisecond; `tools/generate_vocabularies.py` describes and writes it. A text is split into pieces by
the encoding's pattern, and a piece that is no token is merged pair by pair, lowest rank first. In Python this is slow
for much text, so a vocabulary counts a limited number of characters in a process.

Counting is exact or refused. Python's patterns know no Unicode categories, so every character beyond ASCII is replaced
by one that stands for its category before a text is split. Characters newer than Unicode 3.2, which Python and splintr
may place in different categories, are refused, but for the common emoji.
"""

from __future__ import annotations

import re
import struct
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path

EARLY_CHARACTERS = 32_768
"""Characters that are counted here at most: this takes a fifth of the time that splintr takes to load."""
LONGEST_PIECE = 96
"""The bytes of a piece that are merged at most: merging takes time by their square."""
CHECKSUMS = {"o200k_base": (2_459_810, 0x6BCFF6BF), "cl100k_base": (1_307_002, 0x365A6F81)}
"""The size and the CRC-32 of each file."""
_FOLDER = Path(__file__).with_name("vocabularies")
_BUCKETS = 1 << 16
_read_bounds = struct.Struct("<II").unpack_from
_HEADER = 4
"""The bytes before a token: its length and its rank."""
_NO_RANK = 1 << 24

_UPPER, _LOWER, _LETTER, _MARK, _NUMBER, _SPACE, _OTHER = "Àà\u00aa\u00a8²\u00a0§"
"""The characters that stand for the categories, each a member of its own but for the mark: the diaeresis is none."""
_REFUSED = "\ue000"
_STANDS_FOR = {
    "Lu": _UPPER,
    "Lt": _UPPER,
    "Ll": _LOWER,
    "Lm": _LETTER,
    "Lo": _LETTER,
    "M": _MARK,
    "N": _NUMBER,
    "P": _OTHER,
    "S": _OTHER,
    "Cc": _OTHER,
    "Cf": _OTHER,
    "Z": _SPACE,
}
"""By category, or by its first letter."""
_NEXT_LINE = 0x85
"""The one character beyond ASCII that is white space without a category that says so."""
_UNSETTLED = frozenset(map(ord, "\u017f\u212a\u0295"))
"""Two equal an ASCII letter where case is ignored, as in an English ending; one has lately become another letter."""
_EMOJI = range(0x1F300, 0x1F650)

_L, _N, _S = "A-Za-zÀàª", "0-9²", r" \t\n\x0b\x0c\r\xa0"
_ENDING = r"(?:'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL]))?"
_PATTERNS = {
    "o200k_base": (
        rf"[^\r\n{_L}{_N}]?[A-ZÀª¨]*[a-zàª¨]+{_ENDING}|[^\r\n{_L}{_N}]?[A-ZÀª¨]+[a-zàª¨]*{_ENDING}"
        rf"|[{_N}]{{1,3}}| ?[^{_S}{_L}{_N}]+[\r\n/]*|[{_S}]*[\r\n]+|[{_S}]+(?![^{_S}])|[{_S}]+"
    ),
    "cl100k_base": (
        rf"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n{_L}{_N}]?[{_L}]+|[{_N}]{{1,3}}"
        rf"| ?[^{_S}{_L}{_N}]+[\r\n]*|[{_S}]+\Z|[{_S}]*[\r\n]|[{_S}]+(?![^{_S}])|[{_S}]"
    ),
}


class _Categories(dict[int, str]):
    """The characters that stand for those of a text, found when they are first met."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _stand_in(code)
        return found


def _stand_in(code: int) -> str:
    character = chr(code)
    if code < 0x80:
        return character
    category = unicodedata.category(character)
    if code in _EMOJI:
        return _OTHER
    if code in _UNSETTLED or category != unicodedata.ucd_3_2_0.category(character):
        return _REFUSED
    if code == _NEXT_LINE:
        return _SPACE
    return _STANDS_FOR.get(category) or _STANDS_FOR.get(category[0], _REFUSED)


class Vocabulary:
    """One of OpenAI's encodings as a table of ranks. Threads may share it."""

    __slots__ = ("_categories", "_find", "_known", "_room", "_table")

    def __init__(self, encoding: str, table: bytes) -> None:
        self._table, self._find = table, re.compile(_PATTERNS[encoding]).finditer
        self._categories, self._known = _Categories(), dict[str, int]()
        self._room = EARLY_CHARACTERS

    def count(self, text: str) -> int | None:
        """Return the number of tokens in a text; None if this cannot be told here, or not any longer."""
        # Threads may lose a subtraction to each other: then a little more is counted here.
        self._room -= len(text)
        pieces = None if self._room < 0 else self.split(text)
        if pieces is None:
            return None
        total, known = 0, self._known
        for piece in pieces:
            tokens = known.get(piece)
            if tokens is None:
                tokens = known[piece] = self._count_piece(piece.encode())
            if not tokens:
                return None
            total += tokens
        return total

    def split(self, text: str) -> list[str] | None:
        """Split a text as the encoding does; None if it holds a character of an unknown category."""
        if text.isascii():
            return [found[0] for found in self._find(text)]
        standing = text.translate(self._categories)
        if _REFUSED in standing:
            return None
        return [text[found.start() : found.end()] for found in self._find(standing)]

    def _count_piece(self, piece: bytes) -> int:
        """Return the tokens of a piece, 0 if it is too long to merge here."""
        rank = self._rank
        if rank(piece) < _NO_RANK:
            return 1
        if len(piece) > LONGEST_PIECE:
            return 0
        return _merge(piece, rank)

    def _rank(self, token: bytes) -> int:
        table, length = self._table, len(token)
        at, end = _read_bounds(table, 4 * (zlib.crc32(token) % _BUCKETS))
        while at < end:
            size = table[at]
            if size == length and table.startswith(token, at + _HEADER):
                return int.from_bytes(table[at + 1 : at + _HEADER], "little")
            at += _HEADER + size
        return _NO_RANK


def _merge(piece: bytes, rank: Callable[[bytes], int]) -> int:
    """Merge the neighbours whose token has the lowest rank, the first of equals, until none are a token."""
    starts = list(range(len(piece) + 1))
    ranks = [rank(piece[at : at + 2]) for at in range(len(piece) - 1)]
    while ranks and (lowest := min(ranks)) < _NO_RANK:
        at = ranks.index(lowest)
        del starts[at + 1], ranks[at]
        if at < len(ranks):
            ranks[at] = rank(piece[starts[at] : starts[at + 2]])
        if at:
            ranks[at - 1] = rank(piece[starts[at - 1] : starts[at + 1]])
    return len(starts) - 1


def load_vocabulary(encoding: str) -> Vocabulary | None:
    """Return the vocabulary of an encoding; None if its file is missing or damaged."""
    try:
        table = (_FOLDER / f"{encoding}.ranks").read_bytes()
    except OSError:
        return None
    if (len(table), zlib.crc32(table)) != CHECKSUMS[encoding]:
        return None
    return Vocabulary(encoding, table)
