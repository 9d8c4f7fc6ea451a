"""A text index in SQLite's FTS5: it stores words and row numbers, but no text.

One table is one collection. The rarity of a word is counted over the whole table, so collections that must not
affect each other's ranking, such as those of tenants, need a table each. Within a table, rows are grouped by place.

A query is data: only its letters and digits reach the index, quoted.

Driver errors are not translated here: the owner of the connection does that.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import cast

import apsw

from holdfast.core.search.documents import TextRow
from holdfast.core.search.words import index_text, space_letters
from holdfast.errors import Corrupt

_TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2"])
_DEFINITION = """text, prev, date, place,
content='', contentless_delete=1, tokenize='porter unicode61 remove_diacritics 2'"""
_SCORE = "bm25(1.0, 0.5, 2.0, 0.0)"
_NAME = re.compile("[a-z][a-z0-9_]*")
_TOKEN = re.compile("[A-Za-z0-9]+")
AUTOMERGE = 2
"""Index segments merged at a time. Every commit adds a segment, and many small ones take more space."""


class TextIndex:
    """One collection: a table on a connection. Its writes belong to the caller's transaction."""

    def __init__(self, connection: apsw.Connection, table: str) -> None:
        if not _NAME.fullmatch(table):  # Named by the code, after the number of a tenant, and never by anybody's text.
            raise Corrupt(f"A text index is named {table!r:.80}. Run `holdfast verify` and restore from a backup.")
        self._connection = connection
        self._table = table

    def exists(self) -> bool:
        """Return True if this connection sees the table."""
        found = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
        return self._connection.execute(found, (self._table,)).fetchone() is not None

    def create(self) -> None:
        """Create the table unless it exists."""
        if not self.exists():
            self._connection.execute(f"CREATE VIRTUAL TABLE {self._table} USING fts5({_DEFINITION})")
            for setting in (("automerge", AUTOMERGE), ("rank", _SCORE)):
                sql = f"INSERT INTO {self._table}({self._table}, rank) VALUES (?, ?)"  # noqa: S608
                self._connection.execute(sql, setting)

    def drop(self) -> None:
        """Drop the table with all its rows, if it exists."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self._table}")

    def add(self, passages: Iterable[TextRow]) -> None:
        """Index rows, each replacing an earlier row of the same number."""
        rows = (
            (
                one.rowid,
                *map(index_text, (one.text, one.prev, one.date)),
                " ".join(map(_quote_place, one.place.split())),
            )
            for one in passages
        )
        sql = f"REPLACE INTO {self._table}(rowid, text, prev, date, place) VALUES (?, ?, ?, ?, ?)"  # noqa: S608
        self._connection.executemany(sql, rows)

    def remove(self, rowids: Iterable[int]) -> None:
        """Remove rows. Their words stay in the file until a merge: for erasure, also call `scrub`."""
        sql = f"DELETE FROM {self._table} WHERE rowid = ?"  # noqa: S608
        self._connection.executemany(sql, ((rowid,) for rowid in rowids))

    def apply(self, gone: Sequence[int], rows: Sequence[TextRow]) -> None:
        """Remove some rows and add others; create the table with its first row."""
        try:
            if gone:
                self.remove(gone)
            self.add(rows)
        except apsw.SQLError:
            # The first text: the table does not exist. Checking for it before every append would cost more.
            self.create()
            self.remove(gone)
            self.add(rows)

    def scrub(self) -> None:
        """Rewrite the index without the words of removed rows; the cost follows its size.

        The old pages are overwritten if the connection has `secure_delete` on. FTS5's own secure-delete
        does nothing for a table without text: it would have to know which words to look for.
        """
        self._connection.execute(f"INSERT INTO {self._table}({self._table}) VALUES ('optimize')")  # noqa: S608

    def rowids(self) -> list[int]:
        """Return the number of every indexed row, in order."""
        sql = f"SELECT rowid FROM {self._table} ORDER BY rowid"  # noqa: S608
        return [rowid for (rowid,) in self._connection.execute(sql)]

    def is_sound(self) -> bool:
        """Return True if the index is consistent in itself. It cannot know whether its content is complete."""
        try:
            # A query first: FTS5 would check what this connection has cached of the index, not what others made of it.
            self.match(["x"], None, 1)
            found = self._connection.execute(f"PRAGMA integrity_check('{self._table}')")
            return [problem for (problem,) in found] == ["ok"]
        except (apsw.CorruptError, apsw.SQLError):
            return False

    def match(self, terms: Sequence[str], places: Collection[str] | None, limit: int) -> list[tuple[int, float]]:
        """Return (row, score) of rows with any of the terms, best first; of equal scores the larger row first.

        Only rows of these places are searched: with an empty collection none, with None all. The cost grows with the
        number of places: beyond about fifty, give rows a token for the group. Terms are as `words.terms` makes them;
        the letters and digits of any other term must occur in the text in sequence.
        """
        wanted = [quoted for term in terms if (quoted := _quote_term(term))]
        if not wanted or limit < 1 or (places is not None and not places):
            return []
        question = f"{{text prev date}} : ({' OR '.join(wanted)})"
        if places is not None:
            question = f"place : ({' OR '.join(map(_quote_place, places))}) AND {question}"
        sql = f"SELECT rowid, -rank FROM {self._table} WHERE {self._table} MATCH ? ORDER BY rank, rowid DESC LIMIT ?"  # noqa: S608
        return list(self._connection.execute(sql, (question, limit)))


class _Tokenizer(threading.local):
    """FTS5's own tokenizer, on a connection of each thread."""

    def __init__(self) -> None:
        self._split = apsw.Connection(":memory:").fts5_tokenizer(*_TOKENIZER)

    def stem(self, word: str) -> str:
        parts = self._split(
            word.encode(errors="replace"),
            apsw.FTS5_TOKENIZE_DOCUMENT,
            None,
            include_offsets=False,
            include_colocated=False,
        )
        return "".join(cast(list[str], parts)) or word


class _Stems(dict[str, str]):
    """The stems of words of letters and digits, as tables of this module store them; found once for each word."""

    def __init__(self) -> None:
        super().__init__()
        self._tokenizer: _Tokenizer | None = None

    def __missing__(self, word: str) -> str:
        if len(self) >= MAX_STEMS:
            self.clear()
        if self._tokenizer is None:
            self._tokenizer = _Tokenizer()
        stem = self[word] = self._tokenizer.stem(word)
        return stem


STEMS = _Stems()
MAX_STEMS = 20_000


def _quote_place(token: str) -> str:
    if not _TOKEN.fullmatch(token):  # Named by the code, after the number of a stream or scope.
        raise Corrupt(f"A place of a text index is named {token!r:.80}. Run `holdfast verify`.")
    return f'"{token}"'


def _quote_term(term: str) -> str:
    """Return a term as a quoted phrase of letters and digits, or "" if it has none."""
    clean = "".join(letter if letter.isalnum() else " " for letter in space_letters(term))
    return f'"{clean}"' if clean.strip() else ""
