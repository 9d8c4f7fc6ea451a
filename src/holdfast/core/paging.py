"""A page of what was said: as much as fits a number of tokens, each piece behind its label, and where to read on.

Pieces are data of others. They stand between marks, so that none can pretend to be a label, or the end of the page.
Only as many pieces are looked at as the page can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from holdfast.core.fencing import Mark, fenced
from holdfast.errors import InvalidValue

CHARACTERS_PER_TOKEN: Final = 8
"""More than this is data without words, and need not be shown at its shortest."""
LONGEST_NAME: Final = 64

Count = Callable[[str], int]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One text with its name, and who said it. `onwards` names it and all that follows, if there is such a name."""

    name: str
    who: str
    text: str
    trust: str
    onwards: str | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of something is wanted: from a character on, within a number of tokens."""

    name: str
    offset: int
    max_tokens: int


class _Part(msgspec.Struct, frozen=True):
    """A piece from one of its characters on."""

    piece: Piece
    start: int

    @property
    def size(self) -> int:
        return len(self.piece.text) - self.start


def page(pieces: Iterable[Piece], wanted: Page, count: Count, mark: Mark) -> str:
    """The longest page that fits; it shows at least one character, and says what follows."""
    source = iter(pieces)
    parts = _from(source, wanted)
    most = wanted.max_tokens * CHARACTERS_PER_TOKEN
    size = sum(part.size for part in parts)
    while size < most and (piece := next(source, None)) is not None:
        parts.append(_Part(piece, 0))
        size += len(piece.text)
    laid_out = _Layout(parts, next(source, None), wanted, mark)
    low, high = 1, min(size, most)
    while low < high:
        # All of it, if that fits; else the middle of what may fit.
        tried = high if high == size else (low + high + 1) // 2
        fits = count(laid_out.shown(tried)) <= wanted.max_tokens
        low, high = (tried, high) if fits else (low, tried - 1)
    return laid_out.shown(low)


def _from(source: Iterator[Piece], wanted: Page) -> list[_Part]:
    """The first part of the page: the piece that has the character at the offset."""
    before = 0
    for piece in source:
        if wanted.offset < before + len(piece.text):
            return [_Part(piece, wanted.offset - before)]
        before += len(piece.text)
    raise InvalidValue(f"{plain(wanted.name)} has {before} characters, so nothing is left from {wanted.offset} on.")


class _Layout:
    """Parts of a page. `ahead` is what comes after them, if anything does."""

    def __init__(self, parts: list[_Part], ahead: Piece | None, wanted: Page, mark: Mark) -> None:
        self._parts, self._ahead, self._wanted, self._mark = parts, ahead, wanted, mark
        self._size = sum(part.size for part in parts)

    def shown(self, size: int) -> str:
        """The first `size` characters, each piece behind its label, and what to ask for to read on."""
        lines: list[str] = []
        left = size
        for number, part in enumerate(self._parts):
            end = part.start + min(left, part.size)
            lines.append(self._fenced(part, end))
            left -= end - part.start
            if left == 0:
                return "\n".join([*lines, *self._onwards(number, end, size)])
        return "\n".join(lines)

    def _fenced(self, part: _Part, end: int) -> str:
        piece = part.piece
        since = f", from character {part.start}" if part.start else ""
        label = f"{plain(piece.name)}, {piece.who} (trust {piece.trust}){since}:"
        return fenced(label, piece.text[part.start : end], self._mark(piece.name))

    def _onwards(self, number: int, end: int, size: int) -> list[str]:
        """Where to read on after a character of a part; nothing after the last one."""
        piece = self._parts[number].piece
        if end == len(piece.text):
            following = self._parts[number + 1].piece if number + 1 < len(self._parts) else self._ahead
            if following is None:
                return []
            piece, end = following, 0
        name, offset = self._wanted.name, self._wanted.offset + size
        if piece.onwards is not None:
            name, offset = piece.onwards, end
        amount = "more" if self._ahead is not None else f"{self._size - size} more characters"
        return [f"… {amount}: expand {plain(name)}" + (f" with offset {offset}" if offset else "")]


def plain(name: str) -> str:
    """A name that can stand outside the marks: printable, short and in one line."""
    fine = len(name) <= LONGEST_NAME and name.isascii() and name.isprintable() and "<" not in name
    return name if fine else "the same handle"
