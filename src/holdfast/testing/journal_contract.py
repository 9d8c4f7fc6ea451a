"""The journal's contract as a pytest suite: what every backend promises, base and declared capabilities.

Subclass `JournalContract` in a test module and give it a fixture `make_journal`, a function
without arguments that returns a new, empty journal each time it is called:

    class TestMyJournal(JournalContract):
        @pytest.fixture
        def make_journal(self, tmp_path):
            numbers = itertools.count()
            return lambda: MyJournal(tmp_path / f"{next(numbers)}.db")

Nothing is skipped: a capability is declared, and then it works, or it is refused as unsupported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.chain import genesis, link
from holdfast.core.codec import decode_event, encode
from holdfast.core.fold import fold_all
from holdfast.core.place import new_head
from holdfast.core.tables import PROJECTIONS
from holdfast.errors import (
    Closed,
    Conflict,
    KeyReused,
    NotFound,
    Refused,
    StaleEpoch,
    StreamClosed,
    Unsupported,
    VersionConflict,
)
from holdfast.flow import artifacts, erasing, transfer
from holdfast.flow.change import Decided
from holdfast.flow.verify import verify
from holdfast.ports import Journal
from holdfast.records.events import journal as journal_events
from holdfast.records.events.envelope import Draft, StoredEvent
from holdfast.records.events.frames import FramePushed, GoalContent, QuestionAnswered
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.reports import Query
from holdfast.testing.stories import Story
from holdfast.testing.writer import Writer, note

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


class _Fixtures:
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


class AppendContract(_Fixtures):
    """Writing: versions, keys, epochs, atomicity."""

    def test_versions_are_dense_from_one(self, writer: Writer, journal: Journal) -> None:
        first = writer.append(STREAM, note("a"), note("b"))
        second = writer.append(STREAM, note("c"))
        assert (first.parts[0].first, first.parts[0].last, second.version) == (1, 2, 3)
        assert [event.version for event in stored(journal)] == [1, 2, 3]
        head = journal.head("default", STREAM)
        assert head is not None
        assert head.version == 3

    def test_events_come_back_byte_for_byte(self, writer: Writer, journal: Journal) -> None:
        batch = writer.batch(STREAM, note("née 東京 🙂", n=1.5, big=2**63 - 1, flag=None))
        journal.append(batch)
        (event,), wanted = stored(journal), batch.parts[0].events[0]
        assert (event.facts, event.content, event.salt) == (wanted.facts, wanted.content, wanted.salt)
        assert (event.id, event.at, event.type, event.schema) == (wanted.id, wanted.at, wanted.type, wanted.schema)
        assert event.content == encode({"data": {"text": "née 東京 🙂"}})

    def test_each_hash_continues_the_one_before(self, writer: Writer, journal: Journal) -> None:
        for text in "abc":
            writer.append(STREAM, note(text))
        previous = genesis("default", STREAM)
        for event in stored(journal):
            previous = link(previous, event)
            assert event.hash == previous
        head = journal.head("default", STREAM)
        assert head is not None
        assert head.hash == previous

    def test_a_stale_version_is_refused_and_nothing_is_written(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, note(), expected=0)
        with pytest.raises(VersionConflict) as caught:
            writer.append(STREAM, note("late"), expected=0)
        assert (caught.value.expected, caught.value.actual) == (0, 1)
        with pytest.raises(VersionConflict):
            writer.append(OTHER, note("early"), expected=3)
        assert len(stored(journal)) == 1
        assert journal.head("default", OTHER) is None

    def test_several_streams_are_written_together_or_not_at_all(self, writer: Writer, journal: Journal) -> None:
        writer.append(OTHER, note())
        good = Decided(stream=STREAM, events=(note("a"),), expected=0)
        with pytest.raises(VersionConflict):
            writer.write(good, Decided(stream=OTHER, events=(note("b"),), expected=5))
        assert stored(journal) == []
        appended = writer.write(good, Decided(stream=OTHER, events=(note("b"),), expected=1))
        assert [(part.stream, part.last) for part in appended.parts] == [(STREAM, 1), (OTHER, 2)]

    def test_the_same_key_and_content_happen_once(self, writer: Writer, journal: Journal) -> None:
        first = writer.append(STREAM, note("a"), note("b"), key="k")
        writer.append(STREAM, note("c"))
        again = writer.append(STREAM, note("a"), note("b"), key="k")
        assert again.repeated
        assert again.parts == first.parts
        assert len(stored(journal)) == 3
        assert [event.version for event in journal.by_key("default", STREAM, "k")] == [1, 2]

    def test_the_same_key_with_other_content_is_a_conflict(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, note("a"), key="k")
        for other in ((note("b"),), (note("a"), note("a")), (note("a", n=1),), (pushed(writer),)):
            with pytest.raises(KeyReused):
                writer.append(STREAM, *other, key="k")
        assert len(stored(journal)) == 1

    def test_a_key_holds_for_one_stream_of_one_tenant(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, note("a"), key="k")
        assert not writer.append(OTHER, note("b"), key="k").repeated
        assert not Writer(journal, tenant="acme").append(STREAM, note("c"), key="k").repeated

    def test_what_holdfast_mints_is_not_compared_under_a_key(self, writer: Writer, journal: Journal) -> None:
        first, second = pushed(writer, granted=5), pushed(writer, granted=5)
        assert first.facts != second.facts
        writer.append(ACTOR, first, key="push")
        assert writer.append(ACTOR, second, key="push").repeated
        with pytest.raises(KeyReused):
            writer.append(ACTOR, pushed(writer, granted=6), key="push")
        assert len(stored(journal, ACTOR)) == 1

    def test_half_known_keys_are_a_conflict(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, note("a"), key="k")
        with pytest.raises(Conflict):
            writer.write(
                Decided(stream=STREAM, events=(note("a"),), key="k"),
                Decided(stream=OTHER, events=(note("b"),), key="new"),
            )
        assert journal.head("default", OTHER) is None

    def test_the_very_same_batch_is_recognised_without_a_key(self, writer: Writer, journal: Journal) -> None:
        for expected in (None, 1):
            batch = writer.batch(STREAM, note("a"), note("b"), expected=expected and 2)
            first = journal.append(batch)
            again = journal.append(batch)
            assert again.repeated
            assert again.parts == first.parts
        assert len(stored(journal)) == 4

    def test_only_the_owner_of_the_newest_epoch_may_write_owner_events(self, writer: Writer, journal: Journal) -> None:
        writer.append(ACTOR, pushed(writer))
        writer.append(ACTOR, _lease(1))
        with pytest.raises(StaleEpoch) as caught:
            writer.append(ACTOR, pushed(writer))
        assert (caught.value.held, caught.value.current) == (0, 1)
        writer.append(ACTOR, pushed(writer), epoch=1)
        writer.append(ACTOR, _lease(2))
        with pytest.raises(StaleEpoch):
            writer.append(ACTOR, pushed(writer), epoch=1, expected=4)
        assert [event.epoch for event in stored(journal, ACTOR)] == [0, None, 1, None]

    def test_inbox_events_need_no_epoch(self, writer: Writer, journal: Journal) -> None:
        writer.append(ACTOR, _lease(1))
        facts = QuestionAnswered(frame=ulid_text(bytes(16)), question=ulid_text(bytes(16)), via="id")
        writer.append(ACTOR, Draft(type="question.answered", facts=facts))
        assert len(stored(journal, ACTOR)) == 2

    def test_a_lease_takes_exactly_the_next_epoch(self, writer: Writer, journal: Journal) -> None:
        writer.append(ACTOR, _lease(1))
        for wrong in (1, 3):
            with pytest.raises(Conflict):
                writer.append(ACTOR, _lease(wrong))
        assert len(stored(journal, ACTOR)) == 1

    def test_a_closed_stream_takes_nothing_more(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, Draft(type="stream.closed", facts=journal_events.StreamClosed()))
        with pytest.raises(StreamClosed):
            writer.append(STREAM, note())
        assert len(stored(journal)) == 1

    def test_rows_that_refer_to_nothing_are_refused(self, writer: Writer, journal: Journal) -> None:
        missing = ulid_text(writer.ports.ids.ulid())
        with pytest.raises(Refused):
            writer.append(ACTOR, pushed(writer, parent=missing, depth=1))
        with pytest.raises(Refused):
            writer.append(STREAM, note(artifacts=["ab" * 32]))
        assert journal.position() == 0
        assert dump(journal) == [(table.name, []) for table in PROJECTIONS]

    def test_a_frame_that_exists_is_not_pushed_again(self, writer: Writer, journal: Journal) -> None:
        draft = pushed(writer)
        writer.append(ACTOR, draft)
        with pytest.raises(Refused):
            writer.append(ACTOR, draft)
        assert len(stored(journal, ACTOR)) == 1

    def test_many_threads_lose_nothing(self, writer: Writer, journal: Journal) -> None:
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for count in range(20):
                    writer.append(STREAM, note(f"{number}/{count}"))
                    writer.append(f"session/t{number}", note(), expected=count)
            except BaseException as error:  # noqa: BLE001  shown in the main thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert [event.version for event in stored(journal, limit=1000)] == list(range(1, 161))
        assert verify(writer.ports).findings == ()

    def test_one_refused_caller_does_not_spoil_the_others(self, writer: Writer, journal: Journal) -> None:
        refused: list[int] = []

        def work(number: int) -> None:
            for count in range(15):
                try:
                    if number % 2:
                        writer.append(ACTOR, pushed(writer, parent=ulid_text(bytes(16)), depth=1))
                    else:
                        writer.append(f"session/t{number}", note(), expected=count)
                except Refused:
                    refused.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 45
        assert [len(stored(journal, f"session/t{number}")) for number in (0, 2, 4)] == [15, 15, 15]


class ReadContract(_Fixtures):
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


class WholeContract(_Fixtures):
    """The whole: rebuild, verify, artifacts, erasure, copies."""

    def test_rebuilt_equals_live(self, writer: Writer, journal: Journal) -> None:
        for number in range(4):
            story = Story(Random(number), writer.ports.ids, subjects=("alice", "bob"))  # noqa: S311
            for _ in range(60):
                writer.append(f"actor/a{number}", *story.step())
        live = dump(journal)
        assert any(rows for _, rows in live)
        assert journal.rebuild() == journal.position()
        assert dump(journal) == live
        assert verify(writer.ports).findings == ()

    def test_artifacts_are_kept_once_and_read_back(self, writer: Writer, journal: Journal) -> None:
        small, large = b"s" * 100, b"L" * 300_000
        for _ in range(2):
            placed = [artifacts.prepare(writer.ports, writer.acting, body) for body in (small, large)]
            writer.append(STREAM, note(artifacts=[one.name.hex() for one in placed]), artifacts=placed)
        assert [journal.artifact("default", one.name) for one in placed] == [small, large]
        assert sorted(one.size for _, one in journal.artifacts()) == [100, 300_000]
        with pytest.raises(NotFound):
            journal.artifact("default", bytes(32))
        assert journal.collect(2**60) == 0
        assert verify(writer.ports).artifacts == 2

    def test_erasing_removes_content_and_keeps_the_chain(self, writer: Writer, journal: Journal) -> None:
        placed = [artifacts.prepare(writer.ports, writer.acting, body) for body in (b"own", b"shared")]
        names = [one.name.hex() for one in placed]
        writer.append(STREAM, note("secret", subject="alice", artifacts=names), artifacts=placed, key="k")
        writer.append(STREAM, note("public", subject="bob", artifacts=names[1:]))
        before = dump(journal)
        erasure = erasing.erase(writer.ports, writer.acting, "alice")
        assert (erasure.events, erasure.artifacts) == (1, 1)
        first, second = stored(journal)
        assert first.erased
        assert (first.content, first.salt) == (None, None)
        assert second.content is not None
        assert journal.artifact("default", placed[0].name) is None
        assert journal.artifact("default", placed[1].name) == b"shared"
        assert [subject.name for subject in journal.subjects("default")] == [None, "bob"]
        assert dump(journal) == before
        assert verify(writer.ports).findings == ()
        journal.rebuild()
        assert dump(journal) == before
        (marker,) = stored(journal, "global")
        assert marker.type == "subject.erased"

    def test_after_erasure_a_key_is_compared_by_facts_alone(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, note("secret", subject="alice", n=1), key="k")
        erasing.erase(writer.ports, writer.acting, "alice")
        assert writer.append(STREAM, note("anything", subject="alice", n=1), key="k").repeated
        with pytest.raises(KeyReused):
            writer.append(STREAM, note("anything", subject="alice", n=2), key="k")

    def test_who_comes_back_after_erasure_is_somebody_else(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, note(subject="alice"))
        erasing.erase(writer.ports, writer.acting, "alice")
        writer.append(STREAM, note(subject="alice"))
        assert [event.subject for event in stored(journal)] == [1, 2]
        with pytest.raises(NotFound):
            erasing.erase(writer.ports, writer.acting, "nobody")
        assert verify(writer.ports).findings == ()

    def test_an_exact_copy_verifies_and_equals(self, writer: Writer, make_journal: Callable[[], Journal]) -> None:
        journal = writer.ports.journal
        self._live_a_little(writer)
        copy = make_journal()
        lines = list(transfer.export_lines(writer.ports))
        assert copy.restore(*transfer.parse_lines(lines)) == journal.position()
        twin = Writer(copy)
        assert dump(copy) == dump(journal)
        assert verify(twin.ports).findings == ()
        assert list(transfer.export_lines(twin.ports)) == lines
        writer.append(STREAM, note("later"))
        twin.append(STREAM, note("later"))
        with pytest.raises(Refused):
            copy.restore(*transfer.parse_lines(lines))
        copy.close()

    def test_a_copy_ends_where_it_is_told_to(self, writer: Writer, make_journal: Callable[[], Journal]) -> None:
        self._live_a_little(writer)
        for until in (1, 20, 50):
            copy = make_journal()
            copy.restore(writer.ports.journal.secret, transfer.items(writer.ports, until))
            assert copy.position() == until
            assert verify(Writer(copy).ports).findings == ()
            copy.close()

    def test_a_copy_that_breaks_off_leaves_nothing(self, writer: Writer, make_journal: Callable[[], Journal]) -> None:
        self._live_a_little(writer)
        copy = make_journal()
        lines = [*transfer.export_lines(writer.ports), b"{broken"]
        with pytest.raises(Refused):
            copy.restore(*transfer.parse_lines(lines))
        assert (copy.position(), copy.tenants()) == (0, [])
        copy.restore(*transfer.parse_lines(lines[:-1]))
        copy.close()

    def test_unknown_event_types_are_kept(self, writer: Writer, make_journal: Callable[[], Journal]) -> None:
        writer.append(STREAM, note())
        (event,) = stored(writer.ports.journal)
        later = replace(event, type="future.happened", facts=b'{"what":"ever"}', content=None, salt=None)
        later = replace(later, hash=link(new_head("default", STREAM, 1).hash, later))
        copy = make_journal()
        copy.restore(bytes(32), [("default", later)])
        assert decode_event(stored(copy)[0]).facts == {"what": "ever"}
        assert copy.rebuild() == 1
        assert verify(Writer(copy).ports).findings == ()
        Writer(copy).append(STREAM, note())
        copy.close()

    def test_backup_is_declared_or_unsupported(self, writer: Writer, journal: Journal, tmp_path: Path) -> None:
        writer.append(STREAM, note())
        target = tmp_path / "backup.db"
        if "backup" in journal.capabilities:
            journal.backup(target)
            assert target.stat().st_size > 0
            with pytest.raises(Refused):
                journal.backup(target)
        else:
            with pytest.raises(Unsupported):
                journal.backup(target)

    def _live_a_little(self, writer: Writer) -> None:
        """Frames, notes, artifacts, two tenants and an erasure."""
        other = Writer(writer.ports.journal, tenant="acme", user="carol", ids=writer.ports.ids)
        for number in range(3):
            story = Story(Random(number), writer.ports.ids, subjects=("alice", "bob"))  # noqa: S311
            for _ in range(20):
                writer.append(f"actor/a{number}", *story.step(), key=ulid_text(writer.ports.ids.ulid()))
            other.append(STREAM, note(str(number)))
        for size in (10, 300_000):
            body = artifacts.prepare(writer.ports, writer.acting, b"x" * size)
            writer.append(STREAM, note(subject="alice", artifacts=[body.name.hex()]), artifacts=[body])
        erasing.erase(writer.ports, writer.acting, "bob")


class JournalContract(AppendContract, ReadContract, WholeContract):
    """Everything a journal promises."""


def _lease(epoch: int) -> Draft:
    return Draft(type="lease.taken", facts=journal_events.LeaseTaken(epoch=epoch, owner="w1"))


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
