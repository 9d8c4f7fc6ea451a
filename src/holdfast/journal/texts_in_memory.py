"""The text index of the journal in memory: the same index as on disk, in a database of its own in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import apsw

from holdfast.core.codec import decode
from holdfast.core.search.searchable import Hit, TextSearch, said
from holdfast.fts import TextIndex
from holdfast.journal import texts
from holdfast.journal.texts import Around, Placed
from holdfast.records.events.conversations import MessageContent
from holdfast.records.events.envelope import StoredEvent


class MemoryTexts:
    """One database in memory. Used under the journal's lock."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        self._tenants: dict[str, int] = {}
        self._streams: dict[tuple[str, str], int] = {}

    def _place(self, event: StoredEvent) -> Placed:
        tenant = self._tenants.setdefault(event.tenant, len(self._tenants) + 1)
        stream = self._streams.setdefault((event.tenant, event.stream), len(self._streams) + 1)
        return Placed(tenant, stream, event)

    def begin(self) -> None:
        """What is indexed from here on can be taken back, until the next time."""
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")

    def take_back(self) -> None:
        """As it was. Nothing more is to be taken back if this was done already."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def index(
        self,
        events: Iterable[StoredEvent],
        previous: Callable[[StoredEvent], bytes | None],
        replaced: Callable[[StoredEvent, str], int | None],
        beginning: Callable[[str, str], str],
    ) -> None:
        """Take in what was written."""

        def before(placed: Placed) -> str:
            content = previous(placed.event)
            return "" if content is None else said(decode(content, MessageContent), partial(begins, placed))

        def begins(placed: Placed, name: str) -> str:
            return beginning(placed.event.tenant, name)

        placed = [self._place(event) for event in events if event.type in texts.TYPES]
        texts.index(self._connection, placed, Around(before, lambda one, key: replaced(one.event, key), begins))

    def search(self, tenant: str, search: TextSearch, hit: Callable[[int, float], Hit]) -> list[Hit]:
        """Hits of one tenant."""
        number = self._tenants.get(tenant, 0)
        known = (self._streams.get((tenant, stream)) for stream in search.streams)
        places = None if search.everywhere else [place for place in known if place is not None]
        return texts.find(
            self._connection, number, places, search, lambda rows: [hit(seq, score) for seq, score in rows]
        )

    def forget(self, tenant: str, seqs: Iterable[int]) -> None:
        """Find these no more."""
        index: Any = TextIndex(self._connection, texts.table(self._tenants.get(tenant, 0)))
        if index.exists():
            index.remove(seqs)
            index.scrub()
