"""The text index of a journal: every current message and entry, by the number of its event.

It follows the events: appending writes nothing to it, and a search indexes what is still pending first. There is one
collection per tenant, so the rarity of words in one tenant's texts does not affect another's results. It holds no text
and can be rebuilt. A backend passes in the index itself, as functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from holdfast.core.search.documents import (
    MESSAGE_APPENDED,
    STATE_DELETED,
    STATE_WRITTEN,
    Hit,
    TextRow,
    TextSearch,
    is_match,
)
from holdfast.core.search.words import SELF_CONTAINED_CHARS, context_before, searchable_text
from holdfast.records.events.envelope import StoredEvent

INDEXED_TYPES = frozenset({MESSAGE_APPENDED, STATE_WRITTEN, STATE_DELETED})
LIMIT_GROWTH = 4
MAX_ROWS = 1_000_000
IndexChange = tuple[int, list[int], list[TextRow]]
"""A tenant, the numbers of rows to remove from its index, and the rows to add."""
RankTexts = Callable[[int], list[tuple[int, float]]]
"""A function from a limit to (row, score) of the rows that a search found, best first."""
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


class IndexedEvent(msgspec.Struct, frozen=True):
    """An event with the numbers of its tenant and stream, its decoded facts, and its content, decoded or as bytes."""

    tenant: int
    stream: int
    event: StoredEvent
    facts: Any
    content: Any


class IndexLookups(msgspec.Struct, frozen=True):
    """The lookups that indexing makes in its journal: the message before an event, the event that held a key
    before it, and the beginning of a large text in an artifact."""

    previous: Callable[[IndexedEvent], str]
    replaced: Callable[[IndexedEvent, str], int | None]
    beginning: Callable[[IndexedEvent, str], str]


def index_events(written: Iterable[IndexedEvent], around: IndexLookups) -> list[IndexChange]:
    """Return the changes to the index of each tenant for events that are not indexed yet, in their order."""
    changes: dict[int, tuple[list[int], dict[int, TextRow]]] = {}
    said: dict[int, tuple[int, str]] = {}
    for placed in written:
        gone, passages = changes.setdefault(placed.tenant, ([], {}))
        event, previous = placed.event, ""
        if event.type != MESSAGE_APPENDED:
            before = around.replaced(placed, placed.facts.key)
            if before is not None and passages.pop(before, None) is None:
                gone.append(before)
        text = searchable_text(event.type, placed.facts, placed.content, partial(around.beginning, placed))
        if event.type == MESSAGE_APPENDED:
            if needs_context(placed, text):
                # Only of neighbouring events the first is surely the message before the second: between others,
                # messages may have been retracted.
                version, before_it = said.get(placed.stream, (0, ""))
                previous = before_it if version == event.version - 1 else around.previous(placed)
            said[placed.stream] = (event.version, text)
        if text:
            passages[event.seq] = make_text_row(placed, text, previous)
    return [(tenant, gone, list(passages.values())) for tenant, (gone, passages) in changes.items()]


def needs_context(placed: IndexedEvent, text: str) -> bool:
    """Return True if a message is so short that the end of the one before it is indexed with it.

    The first message of a conversation has none before it: after a reset, the stream still holds an earlier one.
    """
    return placed.event.type == MESSAGE_APPENDED and placed.facts.position != 1 and len(text) <= SELF_CONTAINED_CHARS


def make_text_row(placed: IndexedEvent, text: str, previous: str) -> TextRow:
    """Return a text as an index row: with the end of the message before it, its date in words and its place."""
    day = time.gmtime(placed.event.at / 1000)
    return TextRow(
        rowid=placed.event.seq,
        text=text,
        prev=context_before(text, previous),
        date=f"{day.tm_mday} {_MONTHS[day.tm_mon - 1]} {day.tm_year}",
        place=str(placed.stream),
    )


def find_hits(best: RankTexts, search: TextSearch, hits: Callable[[list[tuple[int, float]]], list[Hit]]) -> list[Hit]:
    """Return the best admissible hits of one tenant, looking further as long as found texts are no longer current."""
    looked = 2 * search.limit
    while True:
        rows, found = best(looked), list[Hit]()
        for first in range(0, len(rows), search.limit):
            found += [hit for hit in hits(rows[first : first + search.limit]) if is_match(search, hit)]
            if len(found) >= search.limit:
                return found[: search.limit]
        if len(rows) < looked or looked >= MAX_ROWS:
            return found
        looked *= LIMIT_GROWTH
