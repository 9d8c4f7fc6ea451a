"""Group commit: everybody is answered, whatever happens to whoever leads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.errors import OutcomeUnknown, Refused
from holdfast.journal.sqlite import SqliteJournal, transaction
from holdfast.journal.sqlite.transaction import CommitRound, GroupCommit, GroupMember, settle_members
from holdfast.records.batches import AppendResult, Batch, BatchPart, PartPlacement
from holdfast.records.events.envelope import SealedEvent
from holdfast.sqlite import pool
from holdfast.testing.writer import Writer, make_note

WAIT = 20


def _batch(name: str, size: int = 10) -> Batch:
    event = SealedEvent(
        id=bytes(16),
        at=0,
        type="app.x",
        schema=1,
        facts=b"x" * size,
        content=None,
        salt=None,
        digest=None,
        subject=None,
        facts_record=None,
        content_record=None,
    )
    return Batch(tenant="t", parts=(BatchPart(stream=name, events=(event,)),))


def _answer(member: GroupMember) -> None:
    member.outcome = AppendResult(parts=(PartPlacement(stream=member.batch.parts[0].stream, first=1, last=1, seq=1),))


class Held:
    """A commit that waits to be let go, so that others queue behind it."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self, members: Sequence[GroupMember]) -> None:
        self.groups.append([member.batch.parts[0].stream for member in members])
        self.entered.set()
        assert self.go.wait(WAIT)
        self.settle(members)

    def settle(self, members: Sequence[GroupMember]) -> None:
        for member in members:
            _answer(member)


def _count_joins(group: GroupCommit) -> list[str]:
    """The callers that have joined a round, as they come."""
    joined: list[str] = []
    join = group._join

    def count(own: GroupMember) -> CommitRound:
        found = join(own)
        joined.append(own.batch.parts[0].stream)
        return found

    group._join = count  # type: ignore[method-assign]
    return joined


def _submit_all(group: GroupCommit, held: Held, followers: int) -> dict[str, object]:
    outcomes: dict[str, object] = {}
    joined = _count_joins(group)

    def submit(name: str) -> None:
        try:
            outcomes[name] = group.submit(_batch(name)).parts[0].stream
        except BaseException as error:
            outcomes[name] = type(error)

    threads = [threading.Thread(target=submit, args=("leader",), daemon=True)]
    threads[0].start()
    assert held.entered.wait(WAIT)
    for number in range(followers):
        threads.append(threading.Thread(target=submit, args=(f"f{number}",), daemon=True))
        threads[-1].start()
    while len(joined) <= followers:
        threads[-1].join(0.001)
    held.go.set()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive(), "somebody was never answered"
    return outcomes


def test_followers_share_the_next_commit() -> None:
    held = Held()
    outcomes = _submit_all(GroupCommit(held, members=64, size=10**6), held, 7)
    assert held.groups[0] == ["leader"]
    assert sorted(held.groups[1]) == [f"f{number}" for number in range(7)]
    assert outcomes == {name: name for name in outcomes}


def test_a_lone_caller_waits_for_nobody_however_slow_the_disk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    times = itertools.count()
    monkeypatch.setattr(transaction.time, "monotonic", lambda: next(times))
    group = GroupCommit(lambda members: [_answer(member) for member in members], members=8, size=10**6)
    take = group._take_members

    def take_members(joined: CommitRound) -> list[GroupMember]:
        waited.append(joined.wanted)
        return take(joined)

    monkeypatch.setattr(group, "_take_members", take_members)
    for name in ("a", "b", "c"):
        group.submit(_batch(name))
    assert waited == [0, 0, 0]


def test_a_group_has_a_limit_of_members_and_of_bytes() -> None:
    for limits, sizes in (
        ({"members": 3, "size": 10**6}, [1, 1, 3, 3]),
        ({"members": 64, "size": 25}, [1, 1, 2, 2, 2]),
    ):
        held = Held()
        _submit_all(GroupCommit(held, **limits), held, 7)
        assert sorted(len(group) for group in held.groups) == sizes  # Rounds that wait may overtake each other.


@pytest.mark.parametrize(
    ("raised", "unknown", "expected"),
    [
        (RuntimeError, False, OutcomeUnknown),
        (KeyboardInterrupt, False, OutcomeUnknown),
        (KeyboardInterrupt, True, OutcomeUnknown),
        (MemoryError, False, OutcomeUnknown),
    ],
)
def test_followers_are_settled_when_the_leader_breaks(
    raised: type[BaseException], unknown: bool, expected: type[Exception]
) -> None:
    class Breaks(Held):
        def settle(self, members: Sequence[GroupMember]) -> None:
            if len(self.groups) == 1:
                super().settle(members)
                return
            if unknown:
                settle_members(members, OutcomeUnknown)
            raise raised

    held = Breaks()
    outcomes = _submit_all(GroupCommit(held, members=64, size=10**6), held, 5)
    assert outcomes.pop("leader") == "leader"
    kinds = list(outcomes.values())
    assert kinds.count(raised) == 1, "whoever led gets the error itself"
    assert kinds.count(expected) == 4


def test_after_a_broken_leader_the_group_goes_on() -> None:
    calls = []

    def commit(members: Sequence[GroupMember]) -> None:
        calls.append(len(members))
        if len(calls) == 1:
            raise RuntimeError
        for member in members:
            _answer(member)

    group = GroupCommit(commit, members=64, size=10**6)
    with pytest.raises(RuntimeError):
        group.submit(_batch("a"))
    assert group.submit(_batch("b")).version == 1


class Interrupted:
    """A lock that somebody waits for when the signal comes."""

    def __enter__(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None: ...


def test_a_follower_that_is_interrupted_takes_nothing_along(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    group = GroupCommit(held, members=64, size=10**6)
    join = GroupCommit._join

    def interrupt(self: GroupCommit, own: GroupMember) -> Any:
        joined = join(self, own)
        return SimpleNamespace(lock=Interrupted()) if own.batch.parts[0].stream == "f1" else joined

    monkeypatch.setattr(GroupCommit, "_join", interrupt)
    outcomes = _submit_all(group, held, 3)
    assert outcomes == {"leader": "leader", "f0": "f0", "f1": KeyboardInterrupt, "f2": "f2"}
    assert (held.groups[0], sorted(held.groups[1])) == (["leader"], ["f0", "f2"])
    assert group.submit(_batch("later")).version == 1


def test_a_leader_that_is_interrupted_before_its_commit_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    group = GroupCommit(held, members=64, size=10**6)
    take, interrupted = GroupCommit._take_members, []

    def interrupt(self: GroupCommit, joined: CommitRound) -> list[GroupMember]:
        if len(joined.members) == 3 and not interrupted:
            interrupted.append(joined)
            raise KeyboardInterrupt
        return take(self, joined)

    monkeypatch.setattr(GroupCommit, "_take_members", interrupt)
    outcomes = _submit_all(group, held, 3)
    assert sorted(map(str, outcomes.values())) == sorted([str(KeyboardInterrupt), "leader", *held.groups[1]])
    assert len(held.groups[1]) == 2


def test_threads_share_commits_on_a_real_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    journal = SqliteJournal(tmp_path / "a.db")
    writer = Writer(journal)
    groups: list[int] = []
    commit = journal._group._commit
    journal._group._commit = lambda members: (groups.append(len(members)), commit(members))  # type: ignore[assignment, func-returns-value]

    def work(number: int) -> None:
        for _ in range(30):
            writer.append(f"session/{number}", make_note())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(groups) == 240
    assert max(groups) > 1
    journal.close()


def test_a_row_that_is_too_big_is_refused_alone_and_the_rest_of_its_group_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for planted in (False, True):
        if planted:  # The connection is dropped after such an error.
            monkeypatch.setattr(pool, "ROW_ERRORS", (apsw.ConstraintError,))
        journal = SqliteJournal(tmp_path / f"{planted}.db")
        writer = Writer(journal)
        writer.append("session/0", make_note())
        notes = [make_note(), make_note("x" * 200_000), make_note()]
        members = [GroupMember(writer.build_batch(f"session/{at}", note)) for at, note in enumerate(notes, 1)]
        journal.connections.write(lambda connection: connection.limit(apsw.SQLITE_LIMIT_LENGTH, 100_000))
        journal.writer.commit(members)
        found = [type(member.outcome) for member in members]
        assert (found == [AppendResult, Refused, AppendResult]) is not planted
        assert journal.position() == (1 if planted else 3)
        journal.close()


def test_no_operation_leaves_a_lock_or_a_transaction_behind(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import apsw

    path = tmp_path / "a.db"
    outsider = None

    def free(what: str) -> None:
        """Another connection can write at once, without any patience."""
        assert outsider is not None
        try:
            outsider.execute("BEGIN IMMEDIATE")
            outsider.execute("ROLLBACK")
            outsider.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            raise AssertionError(f"{what} left a lock behind") from None

    with holdfast.open(path) as hf:
        outsider = apsw.Connection(str(path))
        journal = hf.as_user("alice").journal
        journal.append("s", "app.noted", {"n": 1}, key="k", files=[b"x" * 300_000])
        free("append")
        journal.append("s", "app.noted", {"n": 1}, key="k", files=[b"x" * 300_000])
        free("a repeated append")
        for bad in ({"expected": 9}, {"key": "k"}):
            with pytest.raises(holdfast.Conflict):
                journal.append("s", "app.noted", {"n": 2}, **bad)  # type: ignore[arg-type]
            free("a refused append")
        following = journal.subscribe(after=0, timeout=30)
        next(following)
        free("a subscriber that waits")
        events = journal.events()
        next(events)
        free("a reader in the middle of a page")
        for name, call in (
            ("verify", journal.verify),
            ("rebuild", journal.rebuild),
            ("collect", journal.collect),
            ("backup", lambda: journal.backup(tmp_path / "b.db")),
            ("export", lambda: journal.export(tmp_path / "b.jsonl")),
            ("erase", lambda: journal.erase("alice")),
        ):
            call()
            free(name)
        outsider.close()
