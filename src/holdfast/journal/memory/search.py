"""The text index of the journal in memory: the same as on disk, in its own in-memory database."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import apsw

from holdfast.core.journal.codec import decode_facts
from holdfast.core.search.documents import Hit, TextSearch
from holdfast.journal import text_index
from holdfast.journal.text_index import IndexedEvent, IndexLookups
from holdfast.records.events.envelope import StoredEvent
from holdfast.sqlite.fts import TextIndex


def _tenant_index(connection: apsw.Connection, tenant: int) -> TextIndex:
    return TextIndex(connection, f"search_{tenant}")


class MemoryTextIndex:
    """The text index in an in-memory database. Used under the journal's lock."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        self._tenants: dict[str, int] = {}
        self._streams: dict[tuple[str, str], int] = {}

    def _locate(self, event: StoredEvent) -> IndexedEvent:
        tenant = self._tenants.setdefault(event.tenant, len(self._tenants) + 1)
        stream = self._streams.setdefault((event.tenant, event.stream), len(self._streams) + 1)
        facts = decode_facts(event.type, event.schema, event.facts)
        return IndexedEvent(tenant, stream, event, facts, event.content)

    def begin(self) -> None:
        """Begin a transaction, which `roll_back` undoes; the previous one is committed."""
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")

    def roll_back(self) -> None:
        """Undo all indexing since `begin`. A no-op if that was already done."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def index(self, events: Iterable[StoredEvent], lookups: IndexLookups) -> None:
        """Index the events that were written."""
        placed = [self._locate(event) for event in events if event.type in text_index.INDEXED_TYPES]
        for tenant, gone, rows in text_index.index_events(placed, lookups):
            _tenant_index(self._connection, tenant).apply(gone, rows)

    def search(self, tenant: str, search: TextSearch, hit: Callable[[int, float], Hit]) -> list[Hit]:
        """Return the hits of one tenant."""
        number = self._tenants.get(tenant, 0)
        known = (self._streams.get((tenant, stream)) for stream in search.streams)
        places = None if search.everywhere else [place for place in known if place is not None]
        index = _tenant_index(self._connection, number)
        if not index.exists():
            return []
        named = None if places is None else [str(place) for place in places]

        def best(limit: int) -> list[tuple[int, float]]:
            return index.match(search.terms, named, limit)

        return text_index.find_hits(best, search, lambda rows: [hit(seq, score) for seq, score in rows])

    def remove(self, tenant: str, seqs: Iterable[int]) -> None:
        """Remove events from the index."""
        index = _tenant_index(self._connection, self._tenants.get(tenant, 0))
        if index.exists():
            index.remove(seqs)
            index.scrub()
