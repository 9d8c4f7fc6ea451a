"""The write lock in other hands for longer than a lease: an owner that cannot write is not silent.

The holder of the lock is a connection that belongs to nobody. An owner gives signs of life when it can; whether it
lives is what the watchers have to find out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.connect import assemble_env
from holdfast.errors import ActorBusy, Busy
from holdfast.flow.frames.leases import StreamLeases
from holdfast.journal.sqlite import SqliteJournal
from holdfast.journal.sqlite import rebuild as sqlite_rebuild
from holdfast.journal.sqlite import search as sqlite_search
from holdfast.journal.sqlite.segments import TextSegments
from holdfast.journal.sqlite.statements import queries
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from tests.crash.lease_process import SCOPE
from tests.crash.test_leases import LEASE_MS, Other, here, others  # noqa: F401  a fixture
from tests.scale import volume

LEASE = 0.2
SIGNS_PER_LEASE = 3


class Hog:
    """A connection that takes the write lock and gives it back at given times, in leases."""

    def __init__(self, path: Path, *held: tuple[float, float]) -> None:
        self._connection = apsw.Connection(str(path))
        self._held = held

    def set(self, now: float) -> None:
        """Hold the lock, or not, as it is at this time."""
        wanted = any(first <= now < last for first, last in self._held)
        if wanted and not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        elif not wanted and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close(True)


class SharedClock(FrozenClock):
    """The time of one lease after the other, in which the lock changes hands and the owner gives signs."""

    def __init__(self, hog: Hog, sign: Callable[[], object] | None) -> None:
        super().__init__()
        self._hog, self._sign = hog, sign
        self._began = self.monotonic()
        self._next_sign = 0.1

    @property
    def leases(self) -> float:
        """The time that has passed, in leases."""
        return (self.monotonic() - self._began) / LEASE

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._hog.set(self.leases)
        if self._sign is not None and self.leases >= self._next_sign:
            self._next_sign += 1 / SIGNS_PER_LEASE
            with suppress(Busy):
                self._sign()


def open_owner(path: Path) -> holdfast.Holdfast:
    """An owner that gives no signs by itself."""
    owner = open_journal(path, FrozenClock())
    owner.env.leases.close()
    return owner


def open_journal(path: Path, clock: FrozenClock) -> holdfast.Holdfast:
    settings = Settings(lease_ms=round(LEASE * 1000), busy_ms=0)
    return holdfast.Holdfast(assemble_env(SqliteJournal(path, settings=settings), settings, clock))


def watch_owner(folder: Path, *held: tuple[float, float], alive: bool = True) -> tuple[str, float]:
    """Enter an owner's block while the lock is held at times; return what came of it, and after how many leases."""
    path = folder / f"{len(list(folder.iterdir()))}.db"
    owner = open_owner(path)
    block = owner.frame("job", key="job")
    block.open()
    hog = Hog(path, *held)
    clock = SharedClock(hog, (lambda: owner.env.journal.renew_lease("default", SCOPE, 1)) if alive else None)
    second = open_journal(path, clock)
    try:
        second.frame("job", key="job").open()
        came = "taken"
    except (ActorBusy, Busy) as error:
        came = type(error).__name__
    hog.close()
    if came != "taken":
        assert block.run(lambda: "mine", key="a") == "mine"
    for one in (second, owner):
        one.env.journal.close()
    return came, clock.leases


HELD = [
    ((0.0, 0.9),),
    ((0.0, 1.2),),
    ((0.0, 1.6),),
    ((0.05, 0.95), (1.05, 1.3)),
    ((0.05, 0.55), (0.65, 1.15), (1.25, 1.6)),
]


@pytest.mark.parametrize("held", HELD)
def test_an_owner_that_waits_for_the_lock_is_not_deposed(tmp_path: Path, held: tuple[tuple[float, float], ...]) -> None:
    came, _ = watch_owner(tmp_path, *held)
    assert came == "ActorBusy"


def test_a_dead_owner_is_followed_half_a_lease_after_the_lock_is_free(tmp_path: Path) -> None:
    for held, wanted in (((0.0, 0.0), 1.0), ((0.0, 0.4), 1.0), ((0.0, 1.2), 1.7), ((0.7, 0.9), 1.4)):
        came, after = watch_owner(tmp_path, held, alive=False)
        assert (came, wanted <= after <= wanted + 0.15) == ("taken", True), (held, after)


def test_a_lock_that_is_never_free_is_reported_as_such(tmp_path: Path) -> None:
    assert watch_owner(tmp_path, (0.0, 99.0))[0] == "Busy"


def test_those_who_come_again_and_again_do_not_depose_it_either(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    owner = open_owner(path)
    owner.frame("job", key="job").open()
    hog = Hog(path, (0.0, 1.5))
    clock = SharedClock(hog, lambda: owner.env.journal.renew_lease("default", SCOPE, 1))
    second = open_journal(path, clock)
    while clock.leases < 3:
        assert not second.env.leases.seems_free("default", SCOPE)
        clock.sleep(LEASE / 20)
    hog.close()
    for one in (second, owner):
        one.env.journal.close()


def test_a_sign_between_the_watch_and_the_takeover_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    owner = open_owner(path)
    owner.frame("job", key="job").open()
    watched = StreamLeases.await_free

    def sign_late(leases: StreamLeases, tenant: str, stream: str, state: object) -> None:
        watched(leases, tenant, stream, state)  # type: ignore[arg-type]
        assert owner.env.journal.renew_lease(tenant, stream, 1)

    monkeypatch.setattr(StreamLeases, "await_free", sign_late)
    second = open_journal(path, FrozenClock())
    with pytest.raises(ActorBusy):
        second.frame("job", key="job").open()
    for one in (second, owner):
        one.env.journal.close()


@pytest.mark.usefixtures("others")
def test_a_live_process_keeps_its_actor_while_the_lock_is_held(
    tmp_path: Path,
    others: Callable[..., Other],  # noqa: F811
) -> None:
    owner = others()
    assert owner.hear() == "ok ready"
    for number in range(volume(1, 30)):
        owner.do(f"enter job-{number}")
        hog = apsw.Connection(str(tmp_path / "a.db"))
        with here(tmp_path) as hf:
            came: list[str] = []

            def enter(hf: holdfast.Holdfast = hf, key: str = f"job-{number}", came: list[str] = came) -> None:
                try:
                    hf.frame("job", key=key).open()
                    came.append("taken")
                except (ActorBusy, Busy) as error:
                    came.append(type(error).__name__)

            hog.execute("BEGIN IMMEDIATE")
            watcher = threading.Thread(target=enter, daemon=True)
            watcher.start()
            time.sleep(1.6 * LEASE_MS / 1000)
            hog.execute("ROLLBACK")
            hog.close()
            watcher.join(60)
            assert came == ["ActorBusy"]
        assert owner.do("run a") == "ok done"
        assert owner.do("leave") == "ok completed"


def drop_segments(connection: apsw.Connection) -> None:
    """Remove the segments of the text index, as damage would."""
    index = TextSegments(connection, 1)
    index.drop([one.id for one in index.segments()])


def rebuild_beside_others(path: Path, patch: pytest.MonkeyPatch, since: int = 0) -> None:
    """Rebuild a journal that lost its text index, while others write whenever the lock is free."""
    patch.setattr(sqlite_rebuild, "REBUILD_BATCH", 20)
    patch.setattr(sqlite_search, "FOLLOWED_AT_ONCE", 5)
    patch.setattr(sqlite_search, "REPAIRED_AT_ONCE", 5)
    patch.setattr(sqlite_search, "SEARCHED_IN_MEMORY", 1)
    with holdfast.open(path) as hf:
        hf.session("s").append([{"role": "user", "content": f"word{number}"} for number in range(60)])
        for number in range(20):
            hf.state("user/u").write(f"k{number}", f"entry{number}")
        journal = hf.env.journal
        assert isinstance(journal, SqliteJournal)
        assert hf.search("word1")
        journal.connections.write(drop_segments)
        pieces: list[int] = []

        def write(seconds: float) -> None:
            number = len(pieces)
            pieces.append(journal.position())
            hf.state("user/u").write(f"k{number % 20}", f"later{number}")
            hf.session("s").append(f"late{number}")
            hf.search("late")  # It indexes what is pending, beside the repair.

        with patch.context() as inner:
            inner.setattr(sqlite_rebuild, "time", SimpleNamespace(sleep=write, monotonic=time.monotonic))
            hf.journal.rebuild(since=since)
        assert len(pieces) >= 12, "the lock was held for long"
        assert hf.journal.verify().findings == ()
        sqlite_search.follow_events(journal, 1)
        with journal.connections.reader() as connection:
            there = TextSegments(connection, 1).seqs(hidden=False)
            wanted = {seq for (seq,) in connection.execute(queries()["texts"], (1,))}
        assert there == wanted, "the index does not hold the current texts"


@pytest.mark.parametrize("since", [0, 70])
def test_a_rebuild_leaves_the_lock_to_others_after_every_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: int
) -> None:
    rebuild_beside_others(tmp_path / "a.db", monkeypatch, since)


# tests that can fail


def lock_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteJournal, "is_writable", lambda journal, within_ms: True)


def no_time_after_the_lock(patch: pytest.MonkeyPatch) -> None:
    def is_silent(leases: StreamLeases, watch: object) -> bool:
        over = leases._clock.monotonic() - watch.since >= watch.lease  # type: ignore[attr-defined]
        return over and leases._journal.is_writable(1)

    patch.setattr(StreamLeases, "_is_silent", is_silent)


@pytest.mark.parametrize("plant", [lock_not_looked_at, no_time_after_the_lock])
def test_a_deposed_owner_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    assert "taken" in [watch_owner(tmp_path, *held)[0] for held in HELD]


def texts_in_one_piece(patch: pytest.MonkeyPatch) -> None:
    repair = sqlite_search.repair_indexes

    def at_once(connection: apsw.Connection, files: Any, run: Callable[[Callable[[], object]], object]) -> None:
        run(lambda: repair(connection, files, lambda step: step()))

    patch.setattr(sqlite_search, "repair_indexes", at_once)


def replaced_entries_indexed(patch: pytest.MonkeyPatch) -> None:
    known = queries()
    sql = "SELECT version FROM state_history WHERE tenant = ?1 AND stream = ?2 AND key = ?3 ORDER BY version LIMIT 1"
    patch.setattr(sqlite_search, "queries", lambda: {**known, "state_version": sql})


def later_events_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_rebuild._ProjectionRebuild, "_apply", lambda rebuild, limit: 0)


def other_streams_emptied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_rebuild._ProjectionRebuild, "_merge_shadows", sqlite_rebuild._ProjectionRebuild._swap_shadows)


@pytest.mark.parametrize(
    ("plant", "since", "found"),
    [
        (texts_in_one_piece, 0, "held for long"),
        (replaced_entries_indexed, 0, "current texts"),
        (later_events_forgotten, 70, "a row is missing"),
        (other_streams_emptied, 70, "a row is missing"),
    ],
)
def test_a_rebuild_that_goes_wrong_beside_others_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], since: int, found: str
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        rebuild_beside_others(tmp_path / "a.db", monkeypatch, since)
