"""The journal on SQLite through apsw: one file, several processes, nothing acknowledged is lost."""

from holdfast.journal.sqlite.journal import SqliteJournal

__all__ = ["SqliteJournal"]
