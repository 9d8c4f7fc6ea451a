"""One owner at a time: threads share a lease, processes watch each other, a fork owns nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.connect import assemble_env
from holdfast.errors import ActorBusy, StaleEpoch
from holdfast.flow.frames import takeover
from holdfast.flow.frames.leases import StreamLeases
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.testing.clock import FrozenClock
from tests.forked import in_child
from tests.frames.blocks import SCOPE, Holdfast, Watched, client, holder, kinds, name, never
from tests.frames.conftest import ACTOR


def test_threads_share_the_lease_and_the_last_one_gives_it_back() -> None:
    hf = client()
    inside, done = threading.Barrier(3), threading.Event()

    def work() -> None:
        with hf.frame("job") as frame:
            inside.wait(10)
            done.wait(10)
            frame.run(lambda: 1, key="a")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    assert (hf.env.leases.count_users(), holder(hf)) == (2, name(hf))
    done.set()
    for thread in threads:
        thread.join(10)
    assert (kinds(hf).count("lease.taken"), kinds(hf).count("lease.released")) == (1, 1)
    assert (holder(hf), list(hf.index.stack(SCOPE))) == (None, [])


def test_a_thread_that_enters_while_another_leaves_gets_a_lease_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = client()
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            with hf.frame("second") as frame:
                assert holder(hf) == name(hf)
                frame.run(lambda: 1, key="a")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    original = StreamLeases.remove_user

    def left(self: StreamLeases, tenant: str, stream: str, epoch: int) -> None:
        if not thread.ident:
            thread.start()
            thread.join(0.2)  # It must not get in between giving the lease back and noting that.
        original(self, tenant, stream, epoch)

    monkeypatch.setattr(StreamLeases, "remove_user", left)
    with hf.frame("first"):
        pass
    thread.join(10)
    assert errors == []
    assert (holder(hf), hf.env.leases.count_users()) == (None, 0)


def test_two_threads_that_leave_at_once_leave_no_lease_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = client()
    together, inside = threading.Barrier(2), threading.Barrier(2)
    original = StreamLeases.remove_user

    def left(self: StreamLeases, tenant: str, stream: str, epoch: int) -> None:
        try:
            together.wait(0.2)
        except threading.BrokenBarrierError:
            pass
        original(self, tenant, stream, epoch)

    def work() -> None:
        try:
            with hf.frame("job"):
                inside.wait(10)
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass

    monkeypatch.setattr(StreamLeases, "remove_user", left)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert holder(hf) is None


def test_the_second_client_of_a_file_waits_for_signs_of_life(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    journals = [SqliteJournal(path) for _ in range(3)]
    first = client(journals[0])
    block = first.frame("job", key="job")
    block.open()
    alive = client(journals[1], Watched(lambda: journals[0].renew_lease("default", SCOPE, 1)))
    busy = client(journals[1], Watched(lambda: block.run(lambda: 1, key="a")))
    for watcher in (alive, busy):
        with pytest.raises(ActorBusy):
            watcher.frame("job", key="job").open()
        assert holder(first) == name(first)
    clock = FrozenClock()
    second = client(journals[2], clock)
    with second.frame("job", key="job") as mine:
        assert clock.monotonic() >= 10, "it watched for as long as a lease lasts"
        with pytest.raises(StaleEpoch):
            block.run(never, key="b")
        assert mine.run(never, key="a") == 1
    block.leave(StaleEpoch(SCOPE, 1, 2))
    assert mine.status == "completed"
    for hf in (first, alive, busy, second):
        hf.close()


@contextmanager
def open_twice(kind: str, folder: Path) -> Iterator[list[Any]]:
    """A journal in the hands of two processes."""
    memory = MemoryJournal()
    journals: list[Any] = [memory if kind == "memory" else SqliteJournal(folder / "a.db") for _ in range(2)]
    yield journals
    for journal in journals:
        journal.close()


def take_over(journals: list[Any], *, held_ms: int, taken_ms: int, sign_after: float | None = None) -> float | None:
    """Enter another owner's block; return after how many seconds, or None if the owner was found alive."""
    owner = client(journals[0], lease_ms=held_ms)
    owner.env.leases.close()  # It gives no sign but this one.
    block = owner.frame("job", key="job")
    block.open()

    def sign() -> None:
        if sign_after is not None and clock.monotonic() - began >= sign_after:
            journals[0].renew_lease("default", SCOPE, 1)

    clock = Watched(sign)
    began = clock.monotonic()
    taker = client(journals[1], clock, lease_ms=taken_ms)
    try:
        taker.frame("job", key="job").open()
    except ActorBusy:
        assert block.run(lambda: "mine", key="a") == "mine"
        return None
    return clock.monotonic() - began


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_holders_lease_counts_and_not_the_takers(kind: str, tmp_path: Path) -> None:
    with open_twice(kind, tmp_path) as journals:
        assert take_over(journals, held_ms=10_000, taken_ms=1_000, sign_after=10 / 3) is None
    for held, taken in ((10_000, 1_000), (1_000, 10_000)):
        folder = tmp_path / str(held)
        folder.mkdir()
        with open_twice(kind, folder) as journals:
            after = take_over(journals, held_ms=held, taken_ms=taken)
            assert after is not None
            assert held / 1000 <= after <= held / 1000 + taken / 10_000


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_holder_judged_by_the_takers_lease_is_caught(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = StreamLeases._begin_watch
    by_ours = lambda leases, head, signs: begin(leases, replace(head, lease_ms=0), signs)  # noqa: E731
    monkeypatch.setattr(StreamLeases, "_begin_watch", by_ours)
    with pytest.raises(AssertionError):
        test_the_holders_lease_counts_and_not_the_takers(kind, tmp_path)


def test_whoever_was_quicker_is_not_robbed(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal()
    quick, slow = client(journal), client(journal)
    block = quick.frame("job")
    original = takeover.await_free_stream

    def overtaken(env: Any, stream: str) -> None:
        original(env, stream)
        if env is slow.env:
            block.open()  # Both saw that nobody was there; this one came first.

    monkeypatch.setattr(takeover, "await_free_stream", overtaken)
    with pytest.raises(ActorBusy):
        slow.frame("job").open()
    block.run(lambda: 1, key="a")
    block.leave()
    assert block.status == "completed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_dead_process_is_followed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holdfast.open(path).close()

    def die() -> str:
        block = holdfast.open(path).frame("job", key="job")
        block.open()
        return block.id

    frame = in_child(die)
    clock = FrozenClock()
    with holdfast.open(path, clock=clock) as hf:
        assert holder(hf) is not None
        with hf.frame("job", key="job") as taken:
            assert taken.id == frame
        assert clock.monotonic() == 0, "nobody waits for the dead"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_owns_nothing_of_its_parent_s(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        with hf.frame("job") as frame:
            _check_child(hf, frame)
        assert (frame.status, kinds(hf).count("lease.taken")) == ("completed", 1)


def _check_child(hf: Holdfast, frame: holdfast.Frame) -> None:
    assert in_child(lambda: hf.env.leases.count_users()) == "0"
    assert in_child(lambda: frame.run(never, key="a")).startswith("NotOwner")
    assert in_child(lambda: frame.leave()).startswith("NotOwner")
    assert frame.run(lambda: 1, key="a") == 1


def test_the_sweep_works_where_the_last_owner_is_gone(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    env: Any = hf.env
    dead = holdfast.Holdfast(assemble_env(env.journal, env.settings, env.clock), owner=False)
    timer = dead.index.push_frame("timer", scope=ACTOR)
    late = dead.index.push_frame("late", scope=ACTOR)
    dead.index.suspend_frame(timer, "later", kind="timer", until=clock.now_ms() + 10)
    dead.index.suspend_frame(late, "?", expires_ms=10, on_expiry="fail")
    dead.index.resume_actor(ACTOR, incarnation="gone")
    clock.advance(11)
    swept = hf.index.sweep()
    assert (swept.resumed, swept.expired, swept.skipped) == ((timer,), (late,), ())
    assert hf.index.resume_actor(ACTOR).holder is None


def test_closing_gives_back_what_was_taken_for_good(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.index.resume_actor(ACTOR, incarnation="a")
        assert hf.drain(0) == 0
    with holdfast.open(tmp_path / "a.db") as hf:
        assert hf.index.resume_actor(ACTOR).holder is None
