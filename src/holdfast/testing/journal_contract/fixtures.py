"""What the parts of the journal's contract share: fixtures, names, and ways to look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.core.journal.tables import PROJECTIONS
from holdfast.ports.journal import Journal
from holdfast.records.events.envelope import Draft, StoredEvent
from holdfast.records.events.frames import FramePushed, GoalContent
from holdfast.records.ids import ulid_text
from holdfast.records.reports import Query
from holdfast.testing.writer import Writer

STREAM = "session/s1"
OTHER = "session/s2"
ACTOR = "actor/main"


def dump(journal: Journal) -> list[tuple[str, list[Any]]]:
    """Every projection from end to end: two journals are equal when their dumps are."""
    return [(table.name, list(journal.rows(table.name))) for table in PROJECTIONS]


def stored(journal: Journal, stream: str = STREAM, tenant: str = "default", **query: Any) -> list[StoredEvent]:
    """One page of a stream's events."""
    return journal.read(Query(tenant=tenant, stream=stream, **query))


def pushed(writer: Writer, **facts: Any) -> Draft:
    """A root frame."""
    frame = ulid_text(writer.ports.ids.ulid())
    return Draft(type="frame.pushed", facts=FramePushed(frame=frame, **facts), content=GoalContent(goal="g"))


class Fixtures:
    """A new journal and a writer on it."""

    @pytest.fixture
    def make_journal(self) -> Callable[[], Journal]:
        """Overridden by the subclass: makes a new, empty journal."""
        raise NotImplementedError("Give your subclass of JournalContract a fixture make_journal.")

    @pytest.fixture
    def journal(self, make_journal: Callable[[], Journal]) -> Iterator[Journal]:
        """One new journal, closed at the end."""
        made = make_journal()
        yield made
        made.close()

    @pytest.fixture
    def writer(self, journal: Journal) -> Writer:
        """A writer on that journal."""
        return Writer(journal)
