"""The connections of a journal's file, and reads of one moment over several statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from holdfast.core.journal.chain import content_mac
from holdfast.journal.sqlite.artifacts import row_digest
from holdfast.journal.sqlite.schema import prepare_schema, recognise_schema
from holdfast.journal.sqlite.statements import queries
from holdfast.records.batches import Head
from holdfast.sqlite.connection import Durability, FileFormat, fetch_rows
from holdfast.sqlite.pool import SqlitePool

JOURNAL_FILE = FileFormat(
    recognise_schema,
    prepare_schema,
    functions={"holdfast_mac": (cast(Any, content_mac), 2), "holdfast_row": (row_digest, -1)},
)


class JournalConnections(SqlitePool):
    """A journal's connections, which a thread can pin to one moment."""

    def __init__(self, path: Path, *, durability: Durability, busy_ms: int, vfs: str | None) -> None:
        super().__init__(path, JOURNAL_FILE, durability=durability, busy_ms=busy_ms, vfs=vfs)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Open a snapshot: all reads of this thread see one moment. It keeps the log from being reset: be brief."""
        if self.pinned is not None:
            yield  # A nested snapshot shares the outer one's moment.
            return
        with self.reader() as connection:
            # A snapshot begins with its first read; the position is needed anyway.
            ((self._pinned.position,),) = fetch_rows(connection, queries()["position"])
            self._pinned.connection, self._pinned.heads = connection, {}
            try:
                yield
            finally:
                self._pinned.connection = self._pinned.heads = None

    @property
    def position(self) -> int:
        """The cursor at which this thread's snapshot was taken."""
        found: int = self._pinned.position
        return found

    @property
    def heads(self) -> dict[tuple[str, str], Head | None] | None:
        """The ends of streams read within this thread's snapshot; None outside of one."""
        found: dict[tuple[str, str], Head | None] | None = getattr(self._pinned, "heads", None)
        return found
