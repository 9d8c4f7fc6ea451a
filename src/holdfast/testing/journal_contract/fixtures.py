"""Fixtures and helpers shared by the parts of the journal's contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.core.journal.tables import PROJECTIONS
from holdfast.ports.capabilities import MAINTENANCE, require
from holdfast.ports.journal import Journal
from holdfast.records.events.envelope import Draft, StoredEvent
from holdfast.records.events.frames import FramePushed, GoalContent
from holdfast.records.ids import ulid_text
from holdfast.records.reports import EventQuery
from holdfast.testing.writer import Writer

STREAM = "session/s1"
OTHER = "session/s2"
ACTOR = "actor/main"


def dump_projections(journal: Journal) -> list[tuple[str, list[Any]]]:
    """Dump every projection completely: two journals are equal if their dumps are."""
    return [(table.name, list(require(journal, MAINTENANCE).rows(table.name))) for table in PROJECTIONS]


def read_events(journal: Journal, stream: str = STREAM, tenant: str = "default", **query: Any) -> list[StoredEvent]:
    """Read one page of a stream's events."""
    return journal.read(EventQuery(tenant=tenant, stream=stream, **query))


def make_push(writer: Writer, **facts: Any) -> Draft:
    """Make a draft that pushes a root frame."""
    frame = ulid_text(writer.env.ids.ulid())
    return Draft(type="frame.pushed", facts=FramePushed(frame=frame, **facts), content=GoalContent(goal="g"))


class JournalFixtures:
    """Fixtures for a new journal and a writer on it."""

    @pytest.fixture
    def make_journal(self) -> Callable[[], Journal]:
        """Return a function that makes a new, empty journal. The subclass overrides this."""
        raise NotImplementedError("Give your subclass of JournalContract a fixture make_journal.")

    @pytest.fixture
    def journal(self, make_journal: Callable[[], Journal]) -> Iterator[Journal]:
        """Yield one new journal, and close it at the end."""
        made = make_journal()
        yield made
        made.close()

    @pytest.fixture
    def writer(self, journal: Journal) -> Writer:
        """Return a writer on that journal."""
        return Writer(journal)
