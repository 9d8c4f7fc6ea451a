"""The contract of reading: pages, bounds, tenants, states, rows by declared columns, streams with work, and leases."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.fold import fold_events
from holdfast.core.journal.tables import PROJECTIONS
from holdfast.errors import Closed, NotFound, StaleEpoch
from holdfast.flow.journal import artifacts
from holdfast.ports.capabilities import ARTIFACTS, require
from holdfast.ports.journal import Journal
from holdfast.records.batches import HeadQuery, RowQuery
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import LeaseReleased, LeaseTaken
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_bytes, ulid_text
from holdfast.records.reports import EventQuery
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.journal_contract.fixtures import ACTOR, OTHER, STREAM, JournalFixtures, make_push, read_events
from holdfast.testing.writer import Writer, make_note


class ReadContract(JournalFixtures):
    """The contract of reading: pages, bounds, tenants, states."""

    def test_pages_run_both_ways_to_the_end(self, writer: Writer, journal: Journal) -> None:
        for number in range(25):
            writer.append(STREAM if number % 2 else OTHER, make_note(str(number)))
        forwards = [event for after in (0, 5, 10) for event in read_events(journal, after=after, limit=5)]
        backwards = read_events(journal, backwards=True, limit=100)
        assert [event.version for event in forwards] == list(range(1, 13))
        assert backwards == forwards[::-1]
        everything = journal.read(EventQuery(tenant="default", limit=100))
        assert [event.seq for event in everything] == list(range(1, 26))
        assert journal.read(EventQuery(tenant="default", limit=100, backwards=True)) == everything[::-1]
        assert journal.read(EventQuery(tenant="default", after=20, until=22)) == everything[20:22]
        assert read_events(journal, after=3, until=4) == forwards[3:4]

    def test_types_can_be_asked_for(self, writer: Writer, journal: Journal) -> None:
        for _ in range(3):
            writer.append(ACTOR, make_push(writer), make_note())
        for types, count in ((("app.noted",), 3), (("frame.pushed", "app.noted"), 6), (("frame.popped",), 0)):
            for backwards in (False, True):
                of_tenant = journal.read(EventQuery(tenant="default", types=types, backwards=backwards))
                assert len(of_tenant) == count
                assert read_events(journal, ACTOR, types=types, backwards=backwards) == of_tenant

    def test_tenants_see_nothing_of_each_other(self, writer: Writer, journal: Journal) -> None:
        other = Writer(journal, tenant="acme", user="bob")
        placed = artifacts.prepare_artifact(other.env, b"body")
        other.append(ACTOR, make_push(other), make_note(artifacts=[placed.name.hex()]), artifacts=[placed], key="k")
        before = _read_as_default_tenant(journal)
        writer.append(STREAM, make_note())
        assert _read_as_default_tenant(journal)[1:] == before[1:]
        assert before == ([], None, StreamState(), [], [], [])
        with pytest.raises(NotFound):
            require(journal, ARTIFACTS).artifact("default", placed.name)
        assert journal.tenants() == ["acme", "default"]

    def test_streams_are_listed_in_order_of_name(self, writer: Writer, journal: Journal) -> None:
        for name in ("c", "a", "b"):
            writer.append(f"session/{name}", make_note())
        for after, names in (("", ["session/a", "session/b"]), ("session/b", ["session/c"])):
            assert [head.stream for head in journal.heads("default", HeadQuery(after=after, limit=2))] == names

    def test_a_commit_moves_the_cursor_and_wakes_the_watchers(self, writer: Writer, journal: Journal) -> None:
        calls: list[int] = []
        unwatch = journal.watch(lambda: calls.append(1))
        assert journal.position() == 0
        writer.append(STREAM, make_note())
        assert journal.position() == 1
        unwatch()
        writer.append(STREAM, make_note())
        assert (journal.position(), len(calls)) == (2, 1)

    @pytest.mark.parametrize("seed", range(5))
    def test_loading_gives_what_folding_gives(self, writer: Writer, journal: Journal, seed: int) -> None:
        story = FrameGenerator(Random(seed), writer.env.ids)  # noqa: S311
        for _ in range(120):
            writer.append(ACTOR, *story.step())
        events = [decode_event(event) for event in read_events(journal, ACTOR, limit=10_000)]
        assert journal.load("default", ACTOR) == fold_events(events)
        assert journal.load("default", "actor/nobody") == StreamState()

    def test_a_closed_journal_says_so(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, make_note())
        journal.close()
        journal.close()
        for call in (
            lambda: writer.append(STREAM, make_note()),
            lambda: read_events(journal),
            journal.position,
            journal.tenants,
        ):
            with pytest.raises(Closed):
                call()


def _read_as_default_tenant(journal: Journal) -> tuple[Any, ...]:
    """Return what the default tenant reads of things that exist only for another tenant."""
    return (
        journal.read(EventQuery(tenant="default")),
        journal.head("default", ACTOR),
        journal.load("default", ACTOR),
        journal.events_by_key("default", ACTOR, "k"),
        journal.subjects("default"),
        [head for head in journal.heads("default", HeadQuery(after="", limit=10)) if head.stream == ACTOR],
    )


class FindContract(JournalFixtures):
    """The contract of lookups: rows without knowing their stream, and owners without asking them."""

    def test_a_row_is_found_by_each_column_that_its_table_declares(self, writer: Writer, journal: Journal) -> None:
        frame, question, token = _suspend_frame(writer, ACTOR)
        _suspend_frame(writer, "actor/other")
        for column, value in (("frame_id", frame), ("question_id", question), ("token_id", token)):
            query = RowQuery(table="suspended_frames", column=column, value=value, limit=10)
            ((stream, row),) = journal.select("default", query)
            assert stream == ACTOR
            assert (row["frame_id"], row["question_id"], row["token_id"]) == (frame, question, token)
            assert journal.select("acme", query) == []
            assert journal.select("default", replace(query, value=bytes(len(value)))) == []

    def test_rows_are_found_in_pages_in_order_of_key(self, writer: Writer, journal: Journal) -> None:
        made = sorted(_suspend_frame(writer, f"actor/a{number % 3}")[0] for number in range(7))
        found, after = [], b""
        while page := journal.select("default", RowQuery(table="suspended_frames", after_key=after, limit=3)):
            found += [row["frame_id"] for _, row in page]
            after = page[-1][1]["frame_id"]  # type: ignore[assignment]
        assert found == made

    def test_a_lookup_that_would_read_a_whole_table_is_a_defect(self, journal: Journal) -> None:
        for table in PROJECTIONS:
            for column in table.columns:
                if column not in table.lookup_columns:
                    with pytest.raises(AssertionError):
                        journal.select("default", RowQuery(table=table.name, column=column, value=1, limit=1))
                if column not in (table.stream_columns or ()):
                    with pytest.raises(AssertionError):
                        journal.select("default", RowQuery(table=table.name, stream=ACTOR, column=column, value=1))

    def test_streams_with_live_frames_are_listed_with_their_ends(self, writer: Writer, journal: Journal) -> None:
        for name in ("actor/c", "actor/a", "actor/b"):
            writer.append(name, make_push(writer), make_push(writer))
        for _ in range(2):
            _pop_frame(writer, "actor/b")
        _pop_frame(writer, "actor/a")
        writer.append(STREAM, make_note())
        Writer(journal, tenant="acme").append("actor/theirs", make_push(writer))
        first, second = journal.heads("default", HeadQuery(live=True, after_id=0, limit=10))
        assert [first, second] == [journal.head("default", name) for name in ("actor/c", "actor/a")]
        assert first.id < second.id
        assert journal.heads("default", HeadQuery(live=True, after_id=0, limit=1)) == [first]
        assert journal.heads("default", HeadQuery(live=True, after_id=first.id, limit=10)) == [second]
        assert journal.heads("default", HeadQuery(live=True, after_id=second.id, limit=10)) == []
        assert journal.heads("nobody", HeadQuery(live=True, after_id=0, limit=10)) == []

    def test_tenants_with_live_frames_are_listed_in_order_of_name(self, writer: Writer, journal: Journal) -> None:
        assert journal.tenants(live=True) == []
        for name in ("b", "a", "idle", "done"):
            other = Writer(journal, tenant=name)
            for stream in ("actor/one", "actor/two"):
                other.append(stream, make_note() if name == "idle" else make_push(writer))
        for stream in ("actor/one", "actor/two"):
            _pop_frame(writer, stream, "done")
        _pop_frame(writer, "actor/one", "a")
        assert journal.tenants(live=True) == ["a", "b"]

    def test_the_versions_of_some_streams_are_those_of_their_heads(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, make_note(), make_note())
        writer.append(OTHER, make_note())
        writer.append(ACTOR, make_note(), make_note(), make_note())
        Writer(journal, tenant="acme").append(STREAM, make_note())
        assert _versions(journal, "default", STREAM, "session/none", ACTOR) == {STREAM: 2, ACTOR: 3}
        assert _versions(journal, "acme", OTHER, STREAM) == {STREAM: 1}
        assert _versions(journal, "nobody", STREAM) == {}
        assert _versions(journal, "default") == {}

    def test_the_head_says_who_holds_the_lease(self, writer: Writer, journal: Journal) -> None:
        writer.append(ACTOR, _make_lease_taken(1, "w1"), make_push(writer), expected=0)
        assert [event.epoch for event in read_events(journal, ACTOR)] == [None, 1]
        _check_owner(journal, 1, "w1")
        writer.append(ACTOR, _make_lease_taken(2, "w2"))
        _check_owner(journal, 2, "w2")
        with pytest.raises(StaleEpoch):
            writer.append(ACTOR, _make_lease_released(1, "w1"), epoch=1)
        writer.append(ACTOR, _make_lease_released(2, "w2"), epoch=2)
        _check_owner(journal, 2, None)

    def test_only_the_present_owner_gives_signs_of_life(
        self, make_journal: Callable[[], Journal], writer: Writer, journal: Journal
    ) -> None:
        assert not journal.renew_lease("default", ACTOR, 0)
        writer.append(ACTOR, _make_lease_taken(1, "w1"))
        before = (journal.position(), journal.head("default", ACTOR))
        assert journal.renewals("default", ACTOR) == 0
        assert journal.renew_lease("default", ACTOR, 1)
        assert journal.renew_lease("default", ACTOR, 1)
        assert journal.renewals("default", ACTOR) == 2
        assert (journal.position(), journal.head("default", ACTOR)) == before
        assert not journal.renew_lease("acme", ACTOR, 1)
        writer.append(ACTOR, _make_lease_taken(2, "w2"))
        assert not journal.renew_lease("default", ACTOR, 1)
        assert journal.renew_lease("default", ACTOR, 2)
        writer.append(ACTOR, _make_lease_released(2, "w2"), epoch=2)
        assert not journal.renew_lease("default", ACTOR, 2)
        assert journal.renewals("default", ACTOR) == 3
        assert journal.renewals("default", "actor/unknown") == 0
        assert journal.is_writable(1_000)


def _check_owner(journal: Journal, epoch: int, holder: str | None) -> None:
    head, state = journal.head("default", ACTOR), journal.load("default", ACTOR)
    assert head is not None
    assert (head.epoch, head.holder) == (state.epoch, state.holder) == (epoch, holder)


def _make_lease_taken(epoch: int, owner: str) -> Draft:
    return Draft(type="lease.taken", facts=LeaseTaken(epoch=epoch, owner=owner))


def _make_lease_released(epoch: int, owner: str) -> Draft:
    return Draft(type="lease.released", facts=LeaseReleased(epoch=epoch, owner=owner))


def _suspend_frame(writer: Writer, stream: str) -> tuple[bytes, bytes, bytes]:
    frame, question, token = writer.env.ids.ulid(), writer.env.ids.ulid(), secrets.token_bytes(32)
    push = Draft(type="frame.pushed", facts=frames.FramePushed(frame=ulid_text(frame)))
    facts = frames.FrameSuspendedFacts(
        frame=ulid_text(frame), question=ulid_text(question), kind="input", prior="active", token=token.hex()
    )
    writer.append(stream, push, Draft(type="frame.suspended", facts=facts))
    return frame, question, token


def _pop_frame(writer: Writer, stream: str, tenant: str = "default") -> None:
    frame = next(iter(writer.env.journal.load(tenant, stream).frames))
    assert ulid_bytes(frame)
    facts = frames.FramePopped(frame=frame, status="completed")
    Writer(writer.env.journal, tenant=tenant).append(stream, Draft(type="frame.popped", facts=facts))


def _versions(journal: Journal, tenant: str, *streams: str) -> dict[str, int]:
    return {head.stream: head.version for head in journal.heads(tenant, HeadQuery(streams=streams))}
