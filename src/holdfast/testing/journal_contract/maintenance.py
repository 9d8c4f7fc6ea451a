"""The contract of maintenance: rebuild, verify, artifacts, erasure, copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from holdfast.core.journal.chain import link_hash, new_head
from holdfast.core.journal.codec import decode_event
from holdfast.errors import KeyReused, NotFound, Refused, Unsupported
from holdfast.flow.journal import artifacts, transfer
from holdfast.flow.journal.verify import verify
from holdfast.ports.capabilities import ARTIFACTS, BACKUP, MAINTENANCE, require
from holdfast.ports.journal import Journal
from holdfast.records.ids import ulid_text
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.journal_contract.fixtures import STREAM, JournalFixtures, dump_projections, read_events
from holdfast.testing.writer import Writer, make_note


class MaintenanceContract(JournalFixtures):
    """The contract of maintenance: rebuild, verify, artifacts, erasure, copies."""

    def test_rebuilt_equals_live(self, writer: Writer, journal: Journal) -> None:
        for number in range(4):
            story = FrameGenerator(Random(number), writer.env.ids, subjects=("alice", "bob"))  # noqa: S311
            for _ in range(60):
                writer.append(f"actor/a{number}", *story.step())
        live = dump_projections(journal)
        assert any(rows for _, rows in live)
        assert require(journal, MAINTENANCE).rebuild() == journal.position()
        assert dump_projections(journal) == live
        assert verify(writer.env).findings == ()

    def test_a_rebuild_since_a_cursor_replays_the_streams_that_changed(self, writer: Writer, journal: Journal) -> None:
        self._fill_journal(writer)
        since = journal.position()
        assert require(journal, MAINTENANCE).rebuild(since=since) == 0
        writer.append(STREAM, make_note())
        live, head = dump_projections(journal), journal.head("default", STREAM)
        assert head is not None
        for _ in range(2):
            assert require(journal, MAINTENANCE).rebuild(since=since) == head.version
            assert dump_projections(journal) == live
        assert require(journal, MAINTENANCE).rebuild(since=0) == journal.position()
        assert verify(writer.env).findings == ()

    def test_artifacts_are_kept_once_and_read_back(self, writer: Writer, journal: Journal) -> None:
        small, large = b"s" * 100, b"L" * 300_000
        for _ in range(2):
            placed = [artifacts.prepare_artifact(writer.env, body) for body in (small, large)]
            writer.append(STREAM, make_note(artifacts=[one.name.hex() for one in placed]), artifacts=placed)
        assert [require(journal, ARTIFACTS).artifact("default", one.name) for one in placed] == [small, large]
        assert sorted(one.size for _, one in require(journal, ARTIFACTS).artifacts()) == [100, 300_000]
        with pytest.raises(NotFound):
            require(journal, ARTIFACTS).artifact("default", bytes(32))
        assert require(journal, ARTIFACTS).collect(2**60) == 0
        assert verify(writer.env).artifacts == 2

    def test_erasing_removes_content_and_keeps_the_chain(self, writer: Writer, journal: Journal) -> None:
        placed = [artifacts.prepare_artifact(writer.env, body) for body in (b"own", b"shared")]
        names = [one.name.hex() for one in placed]
        writer.append(STREAM, make_note("secret", subject="alice", artifacts=names), artifacts=placed, key="k")
        writer.append(STREAM, make_note("public", subject="bob", artifacts=names[1:]))
        before = dump_projections(journal)
        erasure = artifacts.erase_subject(writer.env, "alice")
        assert (erasure.events, erasure.artifacts) == (1, 1)
        first, second = read_events(journal)
        assert first.erased
        assert (first.content, first.salt) == (None, None)
        assert second.content is not None
        assert require(journal, ARTIFACTS).artifact("default", placed[0].name) is None
        assert require(journal, ARTIFACTS).artifact("default", placed[1].name) == b"shared"
        assert [subject.name for subject in journal.subjects("default")] == [None, "bob"]
        assert [subject.name for subject in journal.subjects("default", 2)] == ["bob"]
        assert journal.subjects("default", 3) == journal.subjects("other", 2) == []
        assert dump_projections(journal) == before
        assert verify(writer.env).findings == ()
        require(journal, MAINTENANCE).rebuild()
        assert dump_projections(journal) == before
        (marker,) = read_events(journal, "global")
        assert marker.type == "subject.erased"

    def test_after_erasure_a_key_is_compared_by_facts_alone(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, make_note("secret", subject="alice", n=1), key="k")
        artifacts.erase_subject(writer.env, "alice")
        assert writer.append(STREAM, make_note("anything", subject="alice", n=1), key="k").repeated
        with pytest.raises(KeyReused):
            writer.append(STREAM, make_note("anything", subject="alice", n=2), key="k")

    def test_who_comes_back_after_erasure_is_somebody_else(self, writer: Writer, journal: Journal) -> None:
        writer.append(STREAM, make_note(subject="alice"))
        artifacts.erase_subject(writer.env, "alice")
        writer.append(STREAM, make_note(subject="alice"))
        assert [event.subject for event in read_events(journal)] == [1, 2]
        with pytest.raises(NotFound):
            artifacts.erase_subject(writer.env, "nobody")
        assert verify(writer.env).findings == ()

    def test_an_exact_copy_verifies_and_equals(self, writer: Writer, make_journal: Callable[[], Journal]) -> None:
        journal = writer.env.journal
        self._fill_journal(writer)
        copy = make_journal()
        lines = list(transfer.export_lines(writer.env))
        assert require(copy, MAINTENANCE).restore(*transfer.parse_lines(lines)) == journal.position()
        twin = Writer(copy)
        assert dump_projections(copy) == dump_projections(journal)
        assert verify(twin.env).findings == ()
        assert list(transfer.export_lines(twin.env)) == lines
        writer.append(STREAM, make_note("later"))
        twin.append(STREAM, make_note("later"))
        with pytest.raises(Refused):
            require(copy, MAINTENANCE).restore(*transfer.parse_lines(lines))
        copy.close()

    def test_a_copy_ends_where_it_is_told_to(self, writer: Writer, make_journal: Callable[[], Journal]) -> None:
        self._fill_journal(writer)
        for until in (1, 20, 50):
            copy = make_journal()
            require(copy, MAINTENANCE).restore(writer.env.journal.secret, transfer.read_items(writer.env, until))
            assert copy.position() == until
            assert verify(Writer(copy).env).findings == ()
            copy.close()

    def test_a_copy_that_breaks_off_leaves_nothing(self, writer: Writer, make_journal: Callable[[], Journal]) -> None:
        self._fill_journal(writer)
        copy = make_journal()
        lines = [*transfer.export_lines(writer.env), b"{broken"]
        with pytest.raises(Refused):
            require(copy, MAINTENANCE).restore(*transfer.parse_lines(lines))
        assert (copy.position(), copy.tenants()) == (0, [])
        require(copy, MAINTENANCE).restore(*transfer.parse_lines(lines[:-1]))
        copy.close()

    def test_unknown_event_types_are_kept(self, writer: Writer, make_journal: Callable[[], Journal]) -> None:
        writer.append(STREAM, make_note())
        (event,) = read_events(writer.env.journal)
        later = replace(event, type="future.happened", facts=b'{"what":"ever"}', content=None, salt=None)
        later = replace(later, hash=link_hash(new_head("default", STREAM, 1).hash, later))
        copy = make_journal()
        require(copy, MAINTENANCE).restore(bytes(32), [("default", later)])
        assert decode_event(read_events(copy)[0]).facts == {"what": "ever"}
        assert require(copy, MAINTENANCE).rebuild() == 1
        assert verify(Writer(copy).env).findings == ()
        Writer(copy).append(STREAM, make_note())
        copy.close()

    def test_backup_is_declared_or_unsupported(self, writer: Writer, journal: Journal, tmp_path: Path) -> None:
        writer.append(STREAM, make_note())
        target = tmp_path / "backup.db"
        if "backup" in journal.capabilities:
            require(journal, BACKUP).backup(target)
            assert target.stat().st_size > 0
            with pytest.raises(Refused):
                require(journal, BACKUP).backup(target)
        else:
            with pytest.raises(Unsupported):
                require(journal, BACKUP).backup(target)

    def _fill_journal(self, writer: Writer) -> None:
        other = Writer(writer.env.journal, tenant="acme", user="carol", ids=writer.env.ids)
        for number in range(3):
            story = FrameGenerator(Random(number), writer.env.ids, subjects=("alice", "bob"))  # noqa: S311
            for _ in range(20):
                writer.append(f"actor/a{number}", *story.step(), key=ulid_text(writer.env.ids.ulid()))
            other.append(STREAM, make_note(str(number)))
        for size in (10, 300_000):
            body = artifacts.prepare_artifact(writer.env, b"x" * size)
            writer.append(STREAM, make_note(subject="alice", artifacts=[body.name.hex()]), artifacts=[body])
        artifacts.erase_subject(writer.env, "bob")
