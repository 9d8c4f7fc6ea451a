"""The contract of appending: versions, keys, epochs, atomicity."""

from __future__ import annotations

import pytest

from holdfast.core.journal.chain import genesis_hash, link_hash
from holdfast.core.journal.codec import encode
from holdfast.core.journal.tables import PROJECTIONS
from holdfast.errors import Conflict, KeyReused, Refused, StaleEpoch, StreamClosed, VersionConflict
from holdfast.flow.journal.append import StreamWrite
from holdfast.flow.journal.verify import verify
from holdfast.ports.journal import Journal
from holdfast.records.events import journal as journal_events
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import QuestionAnswered
from holdfast.records.ids import ulid_text
from holdfast.testing.journal_contract.fixtures import (
    ACTOR,
    OTHER,
    STREAM,
    JournalFixtures,
    dump_projections,
    make_push,
    read_events,
)
from holdfast.testing.store_contract.fixtures import run_in_threads
from holdfast.testing.writer import Writer, make_note


class AppendContract(JournalFixtures):
    """The contract of appending: versions, keys, epochs, atomicity."""

    def test_versions_are_dense_from_one(self, writer: Writer, journal: Journal) -> None:
        first = writer.append(STREAM, make_note("a"), make_note("b"))
        second = writer.append(STREAM, make_note("c"))
        assert (first.parts[0].first, first.parts[0].last, second.version) == (1, 2, 3)
        assert [event.version for event in read_events(journal)] == [1, 2, 3]
        head = journal.head("default", STREAM)
        assert head is not None
        assert head.version == 3

    def test_events_come_back_byte_for_byte(self, writer: Writer, journal: Journal) -> None:
        batch = writer.build_batch(STREAM, make_note("née 東京 🙂", n=1.5, big=2**63 - 1, flag=None))
        journal.append(batch)
        (event,), wanted = read_events(journal), batch.parts[0].events[0]
        assert (event.facts, event.content, event.salt) == (wanted.facts, wanted.content, wanted.salt)
        assert (event.id, event.at, event.type, event.schema) == (wanted.id, wanted.at, wanted.type, wanted.schema)
        assert event.content == encode({"data": {"text": "née 東京 🙂"}})

    def test_each_hash_continues_the_one_before(self, writer: Writer, journal: Journal) -> None:
        for text in "abc":
            writer.append(STREAM, make_note(text))
        previous = genesis_hash("default", STREAM)
        for event in read_events(journal):
            previous = link_hash(previous, event)
            assert event.hash == previous
        head = journal.head("default", STREAM)
        assert head is not None
        assert head.hash == previous

    def test_a_stale_version_is_refused_and_nothing_is_written(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, make_note(), expected=0)
        with pytest.raises(VersionConflict) as caught:
            writer.append(STREAM, make_note("late"), expected=0)
        assert (caught.value.expected, caught.value.actual) == (0, 1)
        with pytest.raises(VersionConflict):
            writer.append(OTHER, make_note("early"), expected=3)
        assert len(read_events(journal)) == 1
        assert journal.head("default", OTHER) is None

    def test_several_streams_are_written_together_or_not_at_all(self, writer: Writer, journal: Journal) -> None:
        writer.append(OTHER, make_note())
        good = StreamWrite(stream=STREAM, events=(make_note("a"),), expected=0)
        with pytest.raises(VersionConflict):
            writer.write(good, StreamWrite(stream=OTHER, events=(make_note("b"),), expected=5))
        assert read_events(journal) == []
        appended = writer.write(good, StreamWrite(stream=OTHER, events=(make_note("b"),), expected=1))
        assert [(part.stream, part.last) for part in appended.parts] == [(STREAM, 1), (OTHER, 2)]

    def test_the_same_key_and_content_happen_once(self, writer: Writer, journal: Journal) -> None:
        first = writer.append(STREAM, make_note("a"), make_note("b"), key="k")
        writer.append(STREAM, make_note("c"))
        again = writer.append(STREAM, make_note("a"), make_note("b"), key="k")
        assert again.repeated
        assert again.parts == first.parts
        assert len(read_events(journal)) == 3
        assert [event.version for event in journal.events_by_key("default", STREAM, "k")] == [1, 2]

    def test_the_same_key_with_other_content_is_a_conflict(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, make_note("a"), key="k")
        one = make_note("a")
        for other in ([make_note("b")], [one, one], [make_note("a", n=1)], [make_push(writer)]):
            with pytest.raises(KeyReused):
                writer.append(STREAM, *other, key="k")
        assert len(read_events(journal)) == 1

    def test_a_key_holds_for_one_stream_of_one_tenant(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, make_note("a"), key="k")
        assert not writer.append(OTHER, make_note("b"), key="k").repeated
        assert not Writer(journal, tenant="acme").append(STREAM, make_note("c"), key="k").repeated

    def test_what_holdfast_mints_is_not_compared_under_a_key(self, writer: Writer, journal: Journal) -> None:
        first, second = make_push(writer, granted=5), make_push(writer, granted=5)
        assert first.facts != second.facts
        writer.append(ACTOR, first, key="push")
        assert writer.append(ACTOR, second, key="push").repeated
        with pytest.raises(KeyReused):
            writer.append(ACTOR, make_push(writer, granted=6), key="push")
        assert len(read_events(journal, ACTOR)) == 1

    def test_half_known_keys_are_a_conflict(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, make_note("a"), key="k")
        with pytest.raises(Conflict):
            writer.write(
                StreamWrite(stream=STREAM, events=(make_note("a"),), key="k"),
                StreamWrite(stream=OTHER, events=(make_note("b"),), key="new"),
            )
        assert journal.head("default", OTHER) is None

    def test_the_very_same_batch_is_recognised_without_a_key(self, writer: Writer, journal: Journal) -> None:
        for expected in (None, 1):
            batch = writer.build_batch(STREAM, make_note("a"), make_note("b"), expected=expected and 2)
            first = journal.append(batch)
            again = journal.append(batch)
            assert again.repeated
            assert again.parts == first.parts
        assert len(read_events(journal)) == 4

    def test_only_the_owner_of_the_newest_epoch_may_write_owner_events(self, writer: Writer, journal: Journal) -> None:
        writer.append(ACTOR, make_push(writer))
        writer.append(ACTOR, _make_lease(1))
        with pytest.raises(StaleEpoch) as caught:
            writer.append(ACTOR, make_push(writer))
        assert (caught.value.held, caught.value.current) == (0, 1)
        writer.append(ACTOR, make_push(writer), epoch=1)
        writer.append(ACTOR, _make_lease(2))
        with pytest.raises(StaleEpoch):
            writer.append(ACTOR, make_push(writer), epoch=1, expected=4)
        assert [event.epoch for event in read_events(journal, ACTOR)] == [0, None, 1, None]

    def test_inbox_events_need_no_epoch(self, writer: Writer, journal: Journal) -> None:
        writer.append(ACTOR, _make_lease(1))
        facts = QuestionAnswered(frame=ulid_text(bytes(16)), question=ulid_text(bytes(16)), via="id")
        writer.append(ACTOR, Draft(type="question.answered", facts=facts))
        assert len(read_events(journal, ACTOR)) == 2

    def test_a_lease_takes_exactly_the_next_epoch(self, writer: Writer, journal: Journal) -> None:
        writer.append(ACTOR, _make_lease(1))
        for wrong in (1, 3):
            with pytest.raises(Conflict):
                writer.append(ACTOR, _make_lease(wrong))
        assert len(read_events(journal, ACTOR)) == 1

    def test_a_closed_stream_takes_nothing_more(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, Draft(type="stream.closed", facts=journal_events.StreamClosedFacts()))
        with pytest.raises(StreamClosed):
            writer.append(STREAM, make_note())
        assert len(read_events(journal)) == 1

    def test_rows_that_refer_to_nothing_are_refused(self, writer: Writer, journal: Journal) -> None:
        missing = ulid_text(writer.env.ids.ulid())
        with pytest.raises(Refused):
            writer.append(ACTOR, make_push(writer, parent=missing, depth=1))
        with pytest.raises(Refused):
            writer.append(STREAM, make_note(artifacts=["ab" * 32]))
        assert journal.position() == 0
        assert dump_projections(journal) == [(table.name, []) for table in PROJECTIONS]

    def test_a_frame_that_exists_is_not_pushed_again(self, writer: Writer, journal: Journal) -> None:
        draft = make_push(writer)
        writer.append(ACTOR, draft)
        with pytest.raises(Refused):
            writer.append(ACTOR, draft)
        assert len(read_events(journal, ACTOR)) == 1

    def test_many_threads_lose_nothing(self, writer: Writer, journal: Journal) -> None:
        def work(number: int) -> None:
            for count in range(20):
                writer.append(STREAM, make_note(f"{number}/{count}"))
                writer.append(f"session/t{number}", make_note(), expected=count)

        run_in_threads(8, work)
        assert [event.version for event in read_events(journal, limit=1000)] == list(range(1, 161))
        assert verify(writer.env).findings == ()

    def test_one_refused_caller_does_not_spoil_the_others(self, writer: Writer, journal: Journal) -> None:
        refused: list[int] = []

        def work(number: int) -> None:
            for count in range(15):
                try:
                    if number % 2:
                        writer.append(ACTOR, make_push(writer, parent=ulid_text(bytes(16)), depth=1))
                    else:
                        writer.append(f"session/t{number}", make_note(), expected=count)
                except Refused:
                    refused.append(number)

        run_in_threads(6, work)
        assert len(refused) == 45
        assert [len(read_events(journal, f"session/t{number}")) for number in (0, 2, 4)] == [15, 15, 15]


def _make_lease(epoch: int) -> Draft:
    return Draft(type="lease.taken", facts=journal_events.LeaseTaken(epoch=epoch, owner="w1"))
