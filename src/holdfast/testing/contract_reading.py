"""The contract of reading: pages, bounds, tenants, states."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.core.codec import decode_event
from holdfast.core.fold import fold_all
from holdfast.errors import Closed, NotFound
from holdfast.flow import artifacts
from holdfast.journal_port import Journal
from holdfast.records.frames import StreamState
from holdfast.records.reports import Query
from holdfast.testing.contract_kit import ACTOR, OTHER, STREAM, Fixtures, pushed, stored
from holdfast.testing.stories import Story
from holdfast.testing.writer import Writer, note


class ReadContract(Fixtures):
    """Reading: pages, bounds, tenants, states."""

    def test_pages_run_both_ways_to_the_end(self, writer: Writer, journal: Journal) -> None:
        for number in range(25):
            writer.append(STREAM if number % 2 else OTHER, note(str(number)))
        forwards = stored(journal, limit=5) + stored(journal, after=5, limit=5) + stored(journal, after=10, limit=5)
        backwards = stored(journal, backwards=True, limit=100)
        assert [event.version for event in forwards] == list(range(1, 13))
        assert backwards == forwards[::-1]
        everything = journal.read(Query(tenant="default", limit=100))
        assert [event.seq for event in everything] == list(range(1, 26))
        assert journal.read(Query(tenant="default", limit=100, backwards=True)) == everything[::-1]
        assert journal.read(Query(tenant="default", after=20, until=22)) == everything[20:22]
        assert stored(journal, after=3, until=4) == forwards[3:4]

    def test_types_can_be_asked_for(self, writer: Writer, journal: Journal) -> None:
        for _ in range(3):
            writer.append(ACTOR, pushed(writer), note())
        for types, count in ((("app.noted",), 3), (("frame.pushed", "app.noted"), 6), (("frame.popped",), 0)):
            for backwards in (False, True):
                of_tenant = journal.read(Query(tenant="default", types=types, backwards=backwards))
                assert len(of_tenant) == count
                assert stored(journal, ACTOR, types=types, backwards=backwards) == of_tenant

    def test_tenants_see_nothing_of_each_other(self, writer: Writer, journal: Journal) -> None:
        other = Writer(journal, tenant="acme", user="bob")
        placed = artifacts.prepare(other.ports, other.acting, b"body")
        other.append(ACTOR, pushed(other), note(artifacts=[placed.name.hex()]), artifacts=[placed], key="k")
        before = _answers(journal)
        writer.append(STREAM, note())
        assert _answers(journal)[1:] == before[1:]
        assert before == ([], None, StreamState(), [], [], [])
        with pytest.raises(NotFound):
            journal.artifact("default", placed.name)
        assert journal.tenants() == ["acme", "default"]

    def test_streams_are_listed_in_order_of_name(self, writer: Writer, journal: Journal) -> None:
        for name in ("c", "a", "b"):
            writer.append(f"session/{name}", note())
        assert [head.stream for head in journal.heads("default", "", 2)] == ["session/a", "session/b"]
        assert [head.stream for head in journal.heads("default", "session/b", 2)] == ["session/c"]

    def test_a_commit_moves_the_cursor_and_wakes_the_watchers(self, writer: Writer, journal: Journal) -> None:
        calls: list[int] = []
        unwatch = journal.watch(lambda: calls.append(1))
        assert journal.position() == 0
        writer.append(STREAM, note())
        assert journal.position() == 1
        unwatch()
        writer.append(STREAM, note())
        assert (journal.position(), len(calls)) == (2, 1)

    @pytest.mark.parametrize("seed", range(5))
    def test_loading_gives_what_folding_gives(self, writer: Writer, journal: Journal, seed: int) -> None:
        story = Story(Random(seed), writer.ports.ids)  # noqa: S311
        for _ in range(120):
            writer.append(ACTOR, *story.step())
        events = [decode_event(event) for event in stored(journal, ACTOR, limit=10_000)]
        assert journal.load("default", ACTOR) == fold_all(events)
        assert journal.load("default", "actor/nobody") == StreamState()

    def test_a_closed_journal_says_so(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, note())
        journal.close()
        journal.close()
        for call in (lambda: writer.append(STREAM, note()), lambda: stored(journal), journal.position, journal.tenants):
            with pytest.raises(Closed):
                call()


def _answers(journal: Journal) -> tuple[Any, ...]:
    """What the default tenant is told about things of which there are some elsewhere."""
    return (
        journal.read(Query(tenant="default")),
        journal.head("default", ACTOR),
        journal.load("default", ACTOR),
        journal.by_key("default", ACTOR, "k"),
        journal.subjects("default"),
        [head for head in journal.heads("default", "", 10) if head.stream == ACTOR],
    )
