"""One contract over every backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.testing.journal_contract import JournalContract


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def make_journal(self) -> Callable[[], Journal]:
        return MemoryJournal


class TestSqliteJournal(JournalContract):
    @pytest.fixture
    def make_journal(self, tmp_path: Path) -> Callable[[], Journal]:
        numbers = itertools.count()
        return lambda: SqliteJournal(tmp_path / f"{next(numbers)}.db")


class TestFastSqliteJournal(JournalContract):
    """The named choice that may lose the newest on power loss keeps every other promise."""

    @pytest.fixture
    def make_journal(self, tmp_path: Path) -> Callable[[], Journal]:
        numbers = itertools.count()
        return lambda: SqliteJournal(tmp_path / f"{next(numbers)}.db", durability="fast")
