"""Hard cases: interrupts, races, leftovers and views, each of which once went wrong."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.journal.sqlite import SqliteJournal, erase, rebuild
from holdfast.journal.sqlite.transaction import CommitRound, GroupCommit, GroupMember
from holdfast.records.batches import AppendResult, Batch, BatchPart, PartPlacement
from holdfast.records.events.envelope import SealedEvent
from holdfast.sqlite import pool
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.writer import Writer, make_note

BIG = b"big" * 100_000


def _journal(hf: holdfast.Holdfast) -> SqliteJournal:
    journal = hf.env.journal
    assert isinstance(journal, SqliteJournal)
    return journal


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*-artifacts/*/*") if path.is_file()]


def _batch(name: str) -> Batch:
    event = SealedEvent(
        id=bytes(16),
        at=0,
        type="app.x",
        schema=1,
        facts=b"{}",
        content=None,
        salt=None,
        digest=None,
        subject=None,
        facts_record=None,
        content_record=None,
    )
    return Batch(tenant="t", parts=(BatchPart(stream=name, events=(event,)),))


def _settle(members: Sequence[GroupMember]) -> None:
    for member in members:
        member.outcome = AppendResult(parts=(PartPlacement(stream="s", first=1, last=1, seq=1),))


@pytest.mark.parametrize("where", ["_wait_for_callers", "_take_members"])
def test_a_leader_interrupted_before_its_commit_leaves_nobody_waiting(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = GroupCommit(_settle, members=8, size=10**6)

    def interrupted(self: GroupCommit, joined: CommitRound) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GroupCommit, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.submit(_batch("a"))
    assert not group._leading.locked()
    assert group.submit(_batch("b")).version == 1


def test_an_interrupt_after_the_commit_leaves_others_in_doubt_and_not_in_the_wrong(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "a.db")
    writer = Writer(journal)
    writer.append("session/s", make_note())
    members = [GroupMember(writer.build_batch("session/s", make_note(str(number)))) for number in range(2)]
    original = GroupMember.__setattr__

    class Interrupting(GroupMember):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "outcome" and isinstance(value, AppendResult):
                raise KeyboardInterrupt
            original(self, name, value)

    members[0].__class__ = Interrupting
    with pytest.raises(KeyboardInterrupt):
        journal.writer.commit(members)
    assert isinstance(members[1].outcome, holdfast.OutcomeUnknown)
    assert journal.position() == 3
    assert journal.append(members[1].batch).repeated
    journal.close()


def test_the_older_of_two_rebuilds_stops_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "REBUILD_BATCH", 10)
    with holdfast.open(tmp_path / "a.db") as hf:
        for number in range(60):
            hf.journal.append("s", "app.noted", files=[b"%d" % number])
        before = dump_projections(hf.env.journal)
        calls = itertools.count()
        original = rebuild._ProjectionRebuild._newest_seq

        def overtaken(self: Any) -> int:
            if not self._connection.in_transaction and next(calls) == 2:
                assert _journal(hf).rebuild() == 60
            return original(self)

        monkeypatch.setattr(rebuild._ProjectionRebuild, "_newest_seq", overtaken)
        with pytest.raises(holdfast.errors.Busy, match="Another rebuild"):
            hf.journal.rebuild()
        assert dump_projections(hf.env.journal) == before
        assert hf.journal.verify().findings == ()


def test_a_copy_is_never_put_beside_an_old_log_or_old_files(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("s", "app.noted", files=[BIG])
        hf.journal.backup(tmp_path / "b.db")
        for end in ("-wal", "-artifacts"):
            left = tmp_path / f"new.db{end}"
            left.mkdir() if end == "-artifacts" else left.write_bytes(b"old log")
            for copy in (
                lambda: hf.journal.backup(tmp_path / "new.db"),
                lambda: holdfast.restore(tmp_path / "b.db", tmp_path / "new.db"),
                lambda: holdfast.restore(tmp_path / "b.db", tmp_path / "new.db", seq=1),
            ):
                with pytest.raises(holdfast.Refused, match="Move it away"):
                    copy()
            assert left.exists()
            left.rmdir() if end == "-artifacts" else left.unlink()
        assert not (tmp_path / "new.db").exists()


def test_a_user_s_files_are_erased_also_where_nothing_was_said(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.as_user("alice").journal.append("s", "app.scanned", files=[BIG])
        assert len(_files(tmp_path)) == 1
        assert hf.journal.erase("alice").artifacts == 1
        assert _files(tmp_path) == []


def test_one_erasure_does_not_call_another_one_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        for name in ("alice", "bob"):
            hf.as_user(name).journal.append("s", "app.noted", {"of": name}, files=[BIG + name.encode()])
        original = pool.SqlitePool.truncate_log

        def meanwhile(connections: pool.SqlitePool) -> None:
            original(connections)
            monkeypatch.setattr(pool.SqlitePool, "truncate_log", original)
            with monkeypatch.context() as patch:
                patch.setattr(erase, "finish_erasures", lambda journal: (_ for _ in ()).throw(holdfast.Unavailable))
                with pytest.raises(holdfast.errors.Busy, match="committed"):
                    hf.journal.erase("bob")

        monkeypatch.setattr(pool.SqlitePool, "truncate_log", meanwhile)
        hf.journal.erase("alice")
        assert [finding.kind for finding in hf.journal.verify().findings] == ["erasures"]
        assert hf.journal.erase("bob").events == 1
        assert hf.journal.verify().ok
        assert _files(tmp_path) == []
        assert b"bob" not in (tmp_path / "a.db").read_bytes()


def test_a_body_kept_as_a_file_stays_one_and_goes_when_it_is_erased(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, settings=holdfast.Settings(inline_artifact_bytes=10)) as hf:
        hf.as_user("alice").journal.append("s", "app.noted", files=[b"x" * 100])
    with holdfast.open(path) as hf:
        hf.as_user("alice").journal.append("s", "app.noted", files=[b"x" * 100])
        assert hf.journal.verify().ok
        hf.journal.erase("alice")
        assert _files(tmp_path) == []
        assert hf.journal.verify().ok


def test_a_retry_after_an_erasure_brings_no_file_back(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        alice = hf.as_user("alice").journal
        alice.append("s", "app.noted", key="k", files=[BIG])
        hf.journal.erase("alice")
        assert alice.append("s", "app.noted", key="k", files=[BIG]).repeated
        with pytest.raises(holdfast.errors.VersionConflict):
            alice.append("s", "app.noted", expected=9, files=[BIG + b"other"])
        assert _files(tmp_path) == []
        assert hf.journal.verify().ok


def test_a_fork_during_a_rebuild_is_refused_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "FORK_WAIT_SECONDS", 0.05)
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("s", "app.noted")
        said: list[str] = []

        def fork(*_: object) -> None:
            reading, writing_end = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                child = os.fork()
            if child == 0:
                try:
                    hf.journal.append("s", "app.noted")
                    os.write(writing_end, b"went on")
                except BaseException as error:
                    os.write(writing_end, str(error).encode())
                os._exit(0)
            os.close(writing_end)
            with os.fdopen(reading) as pipe:
                said.append(pipe.read())
            os.waitpid(child, 0)

        hf.journal.rebuild(progress=fork)
        assert said[0].startswith("This process was forked")
        hf.close()
        with pytest.raises(holdfast.errors.Closed):
            hf.journal.rebuild()


def test_a_fork_while_another_thread_holds_the_cache_does_no_harm() -> None:
    with holdfast.open("memory:") as hf:
        hf.journal.append("s", "app.noted")
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            states = hf.env.states
            with states.streams._guard.lock, hf.env.journal._lock.lock:  # type: ignore[attr-defined]
                held.set()
                go.wait(20)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            hf.journal.append("s", "app.noted")
            os._exit(7)
        go.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_async_client_can_be_closed_twice_and_says_that_it_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        hf = await holdfast.open_async(tmp_path / "a.db")
        await hf.close()
        await hf.close()
        with pytest.raises(holdfast.errors.Closed):
            await hf.journal.position()

    asyncio.run(main())


def test_a_client_that_was_open_before_an_import_does_no_damage(tmp_path: Path) -> None:
    with holdfast.open("memory:") as source:
        source.journal.append("s", "app.noted", {"n": 1}, subject="alice")
        source.journal.export(tmp_path / "a.jsonl")
    with holdfast.open(tmp_path / "a.db") as early, holdfast.open(tmp_path / "a.db") as late:
        late.journal.import_(tmp_path / "a.jsonl")
        early.journal.append("s", "app.noted", {"n": 2}, subject="bob")
        early.journal.append("s", "app.noted", files=[b"body"])
        assert early.journal.verify().ok
        assert late.journal.verify().ok


def test_looking_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted")
        blocker = apsw.Connection(str(path))
        blocker.execute("BEGIN IMMEDIATE")
        with holdfast.open(path, settings=holdfast.Settings(busy_ms=0)) as other:
            assert [event.version for event in other.journal.events("s")] == [1]
            with pytest.raises(holdfast.errors.Busy):
                other.journal.append("s", "app.noted")
        blocker.execute("ROLLBACK")
        blocker.close()


def test_a_tenant_s_view_shows_nothing_of_the_whole(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        acme = hf.tenant("acme")
        acme.journal.append("s", "app.noted", {"n": 1})
        whole = (
            acme.journal.verify,
            acme.journal.rebuild,
            acme.journal.collect,
            acme.journal.tenants,
            lambda: acme.journal.export(tmp_path / "x"),
            lambda: acme.journal.backup(tmp_path / "x"),
            lambda: acme.journal.import_(tmp_path / "x"),
        )
        for call in whole:
            with pytest.raises(holdfast.Refused, match="as a whole"):
                call()
        assert hf.journal.tenants() == ["acme"]
        assert hf.as_user("alice").journal.verify().ok


def test_odd_arguments_are_refused_by_name(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        journal: Any = hf.journal
        for call in (
            lambda: journal.append("s", "app.noted", facts=[1]),
            lambda: journal.append("s", "app.noted", files=None),
            lambda: list(journal.events(after=2**70)),
            lambda: list(journal.events(until=2**64)),
            lambda: list(journal.events(types=None)),
            lambda: next(journal.subscribe(timeout="soon")),
            lambda: journal.export(tmp_path / "x", until=-1),
            lambda: journal.export(tmp_path / "x", until="x"),
            lambda: journal.backup(None),
            lambda: journal.backup("/"),
            lambda: journal.backup("memory:"),
            lambda: holdfast.open(None),  # type: ignore[arg-type]
            lambda: holdfast.open("sqlite:///a.db?mode=ro"),
            lambda: holdfast.open(tmp_path / "b.db", settings={"busy_ms": 1}),  # type: ignore[arg-type]
            lambda: holdfast.open(tmp_path / "b.db", settings=holdfast.Settings(group_members=0)),
            lambda: holdfast.open(tmp_path / "b.db", settings=holdfast.Settings(busy_ms="x")),  # type: ignore[arg-type]
        ):
            with pytest.raises(holdfast.errors.InvalidValue):
                call()
        assert hf.journal.position() == 0
        assert not (tmp_path / "x").exists()


def test_a_stranger_s_file_among_the_artifacts_is_left_alone(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("s", "app.noted", files=[BIG])
        (folder,) = (tmp_path / "a.db-artifacts").iterdir()
        for name in (".DS_Store", ".new-crashed", "ab" * 32):
            (folder / name).write_bytes(b"x")
            os.utime(folder / name, (1, 1))
        assert hf.journal.collect() == 2
        assert (folder / ".DS_Store").exists()
        assert hf.journal.verify().ok


def test_two_copies_to_one_place_do_not_mix(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        for number in range(50):
            hf.journal.append("s", "app.noted", {"n": number})
        outcomes: list[object] = []

        def copy(target: Path, make: Any) -> None:
            try:
                make(target)
                outcomes.append("made")
            except holdfast.Refused:
                outcomes.append("refused")

        for target, make in ((tmp_path / "b.db", hf.journal.backup), (tmp_path / "b.jsonl", hf.journal.export)):
            threads = [threading.Thread(target=copy, args=(target, make)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(outcomes) == 8
        assert outcomes.count("made") >= 2
    assert holdfast.restore(tmp_path / "b.db", tmp_path / "c.db") == 50
    with holdfast.open("memory:") as other:
        assert other.journal.import_(tmp_path / "b.jsonl") == 50
    assert [path for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
