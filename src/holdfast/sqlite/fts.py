"""A text index in SQLite's FTS5: it knows words and row numbers, and keeps no text.

One table is one collection. How rare a word is, is counted over the whole table, so collections that must not
change each other's order, such as those of tenants, need a table each. Within one, rows are told apart by place.

A question is data: only letters and digits of it reach the index, and those are quoted.

Errors of the driver are left as they are: whoever owns the connection translates them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache

import apsw
import msgspec

from holdfast.core.search.words import indexed, spaced

_DEFINITION = """text, prev, date, place,
content='', contentless_delete=1, tokenize='porter unicode61 remove_diacritics 2'"""
_SCORE = "bm25(1.0, 0.5, 2.0, 0.0)"
_NAME = re.compile("[a-z][a-z0-9_]*")
_TOKEN = re.compile("[A-Za-z0-9]+")
AUTOMERGE = 2
"""Pieces of the index that are merged at a time. Every commit adds a piece, and many small ones take more room."""


class Passage(msgspec.Struct, frozen=True):
    """A row to be found again: its text, the end of what came before it, its date in words, and where it belongs.

    `place` is a token of letters and digits, or several with spaces between: one for each group it may be asked for by.
    """

    rowid: int
    text: str
    prev: str = ""
    date: str = ""
    place: str = ""


class _Statements(msgspec.Struct, frozen=True):
    exists: str
    create: tuple[str, ...]
    drop: str
    add: str
    remove: str
    rowids: str
    match: str
    scrub: str
    check: str


@cache
def _statements(table: str) -> _Statements:
    assert _NAME.fullmatch(table), "the table is named by the code, never by anybody's text"
    return _Statements(
        exists=f"SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '{table}'",  # noqa: S608
        create=(
            f"CREATE VIRTUAL TABLE {table} USING fts5({_DEFINITION})",
            f"INSERT INTO {table}({table}, rank) VALUES ('automerge', {AUTOMERGE})",  # noqa: S608
            f"INSERT INTO {table}({table}, rank) VALUES ('rank', '{_SCORE}')",  # noqa: S608
        ),
        drop=f"DROP TABLE IF EXISTS {table}",
        add=f"REPLACE INTO {table}(rowid, text, prev, date, place) VALUES (?, ?, ?, ?, ?)",  # noqa: S608
        remove=f"DELETE FROM {table} WHERE rowid = ?",  # noqa: S608
        rowids=f"SELECT rowid FROM {table} ORDER BY rowid",  # noqa: S608
        match=f"SELECT rowid, -rank FROM {table} WHERE {table} MATCH ? ORDER BY rank, rowid DESC LIMIT ?",  # noqa: S608
        scrub=f"INSERT INTO {table}({table}) VALUES ('optimize')",  # noqa: S608
        check=f"INSERT INTO {table}({table}) VALUES ('integrity-check')",  # noqa: S608
    )


class TextIndex:
    """One collection: a table on a connection. What it writes belongs to the caller's transaction."""

    def __init__(self, connection: apsw.Connection, table: str) -> None:
        self._connection = connection
        self._sql = _statements(table)

    def exists(self) -> bool:
        """Whether the table was created, as this connection sees it."""
        return self._connection.execute(self._sql.exists).fetchone() is not None

    def create(self) -> None:
        """Make the table, unless it is there."""
        if not self.exists():
            for statement in self._sql.create:
                self._connection.execute(statement)

    def drop(self) -> None:
        """Remove the table and all that is in it, if it is there."""
        self._connection.execute(self._sql.drop)

    def add(self, passages: Iterable[Passage]) -> None:
        """Index rows, each in place of what was there under its number."""
        self._connection.executemany(self._sql.add, map(_row, passages))

    def remove(self, rowids: Iterable[int]) -> None:
        """Find these rows no more. Their words stay in the file until it is merged: for erasure, also `scrub`."""
        self._connection.executemany(self._sql.remove, ((rowid,) for rowid in rowids))

    def scrub(self) -> None:
        """Write the index anew, without a word of what was removed; at a cost that follows its size.

        The old pages are overwritten if the connection has `secure_delete` on. FTS5's own secure-delete
        does nothing for a table that keeps no text: it would have to know which words to look for.
        """
        self._connection.execute(self._sql.scrub)

    def rowids(self) -> list[int]:
        """Every row of the index, in order."""
        return [rowid for (rowid,) in self._connection.execute(self._sql.rowids)]

    def sound(self) -> bool:
        """Whether the index is whole in itself. It cannot know whether it holds what it should."""
        try:
            self._connection.execute(self._sql.check)
        except apsw.CorruptError:
            return False
        return True

    def match(self, terms: Sequence[str], places: Collection[str] | None, limit: int) -> list[tuple[int, float]]:
        """Rows that have any of the terms, with a score above 0: the best first, of equals the one with the larger row.

        Only rows of these places are looked at, none if there are no places; with None, of all. The cost grows with the
        number of places: beyond about fifty, give rows a token for the group. Terms are as `words.terms` makes them;
        of anything else, its letters and digits must stand in the text one after the other.
        """
        wanted = [quoted for term in terms if (quoted := _quoted(term))]
        if not wanted or limit < 1 or (places is not None and not places):
            return []
        question = f"{{text prev date}} : ({' OR '.join(wanted)})"
        if places is not None:
            question = f"place : ({' OR '.join(map(_place, places))}) AND {question}"
        return list(self._connection.execute(self._sql.match, (question, limit)))


def _row(passage: Passage) -> tuple[int, str, str, str, str]:
    place = " ".join(map(_place, passage.place.split()))
    return passage.rowid, indexed(passage.text), indexed(passage.prev), indexed(passage.date), place


def _place(token: str) -> str:
    assert _TOKEN.fullmatch(token), "a place is named by the code, in letters and digits"
    return f'"{token}"'


def _quoted(term: str) -> str:
    """A term as a phrase, of which nothing but letters and digits is left."""
    clean = "".join(letter if letter.isalnum() else " " for letter in spaced(term))
    return f'"{clean}"' if clean.strip() else ""
