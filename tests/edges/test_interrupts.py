"""Ctrl-C at any moment, any number of times: no lock stays held, in this process or in another."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.flow.journal import append as changing
from holdfast.journal.sqlite.transaction import GroupCommit, GroupMember
from holdfast.records.batches import Batch
from holdfast.records.entries import StoredEntry
from holdfast.sqlite.pool import SqlitePool
from holdfast.store.fs import files
from holdfast.store.fs.store import FsStore
from holdfast.store.sqlite import SqliteStore
from tests.edges import interrupts
from tests.edges.interrupts import Operation, count_points, interrupt
from tests.forked import in_child
from tests.scale import seeded, volume

JOBS = itertools.count()


def append_event(hf: holdfast.Holdfast, number: int) -> object:
    return hf.journal.append("s", "app.noted", {"n": number})


def append_message(hf: holdfast.Holdfast, number: int) -> object:
    return hf.session("s").append(f"message {number}")


def append_new_session(hf: holdfast.Holdfast, number: int) -> object:
    return hf.session(f"s{number}", system="Be brief.").append("hello")


def write_state(hf: holdfast.Holdfast, number: int) -> object:
    return hf.state("user/u").write("key", number)


def collect(hf: holdfast.Holdfast, number: int) -> object:
    return hf.journal.collect() + 1


def renew_lease(hf: holdfast.Holdfast, number: int) -> object:
    return not hf.env.journal.renew_lease("default", "actor/nobody", 1)


def run_frame(hf: holdfast.Holdfast, number: int) -> object:
    with hf.frame("job", key=f"job {next(JOBS)}") as frame:
        return frame.run(lambda: "done", key="step")


OPERATIONS: list[Operation] = [
    append_event,
    append_message,
    append_new_session,
    write_state,
    collect,
    renew_lease,
    run_frame,
]


def interrupt_everywhere(hf: holdfast.Holdfast, path: Path | None, operation: Operation, tries: int) -> None:
    """Interrupt an operation at points of its course, mostly once more while it cleans up."""
    random = seeded(f"interrupts of {operation.__name__}")
    operation(hf, -2)
    points = count_points(hf, operation)
    places = random.sample(range(1, points + 1), min(tries, points))
    for point in sorted(places):
        interrupt(hf, path, operation, point, random.randint(0, 5))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_interruption_leaves_no_lock_held(tmp_path: Path, operation: Operation) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        interrupt_everywhere(hf, path, operation, volume(60, 5_000))
        assert hf.journal.verify().findings == ()


@pytest.mark.parametrize("operation", [append_message, write_state])
def test_an_interruption_leaves_no_lock_of_a_journal_in_memory_held(operation: Operation) -> None:
    with holdfast.open("memory:") as hf:
        interrupt_everywhere(hf, None, operation, volume(40, 5_000))


@pytest.mark.parametrize("backend", [SqliteStore, FsStore])
def test_an_interruption_leaves_no_lock_of_a_store_held(
    tmp_path: Path, backend: type[SqliteStore | FsStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_TIMEOUT", 0.3)
    path = tmp_path / "s"
    store = backend(path)

    def put(hf: holdfast.Holdfast, number: int) -> object:
        return store.put("user/u", "key", StoredEntry(value=b"%d" % number, written_at=1))

    with holdfast.open("memory:") as hf:
        interrupt_everywhere(hf, path if backend is SqliteStore else None, put, volume(60, 5_000))
    store.close()


def test_real_signals_beside_busy_threads_leave_no_lock_held(tmp_path: Path) -> None:
    signals = volume(300, 20_000)
    seed = seeded("signals").randrange(2**32)
    command = [sys.executable, "-m", "tests.edges.interrupts", str(tmp_path / "a.db"), str(signals), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + signals / 20, check=False)
    assert done.stdout.startswith(f"ok {signals} "), done.stdout + done.stderr


# tests that can fail


def lead_taken_before_its_try(patch: pytest.MonkeyPatch) -> None:
    def submit(self: GroupCommit, batch: Batch) -> Any:
        own = GroupMember(batch)
        joined = self._join(own)
        self._leading.acquire()
        try:
            self._commit(self._take_members(joined))
        finally:
            self._leading.release()
        return own.outcome

    patch.setattr(GroupCommit, "submit", submit)


def locks_on_a_stack(patch: pytest.MonkeyPatch) -> None:
    def run_locked(locks: Sequence[Any], work: Callable[[], Any]) -> Any:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            return work()

    patch.setattr(changing, "run_locked", run_locked)


def write_lock_in_a_context_manager(patch: pytest.MonkeyPatch) -> None:
    write = SqlitePool.write

    @contextmanager
    def lock(pool: SqlitePool) -> Iterator[None]:
        with pool.locked:  # type: ignore[attr-defined]
            yield

    def write_locked(self: SqlitePool, *given: Any) -> Any:
        with lock(self):
            return write(self, *given)

    patch.setattr(SqlitePool, "locked", threading.Lock(), raising=False)
    patch.setattr(SqlitePool, "write", write_locked)


def transaction_left_open(patch: pytest.MonkeyPatch) -> None:
    """Without the last resort, a second signal in the code that rolls back leaves SQLite's lock."""

    def write(self: SqlitePool, work: Callable[..., Any], *given: Any) -> Any:
        with self.write_lock.lock:
            return work(self._prepare_writer(), *given)

    patch.setattr(SqlitePool, "write", write)


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], Operation, str]] = [
    (lead_taken_before_its_try, append_event, "another thread waits for a lock"),
    (locks_on_a_stack, append_new_session, "another thread waits for a lock"),
    (write_lock_in_a_context_manager, renew_lease, "another thread waits for a lock"),
    (transaction_left_open, renew_lease, "another process waits for a lock"),
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(("plant", "operation", "found"), PLANTED)
def test_planted_bugs_are_caught(
    tmp_path: Path, plant: Callable[[pytest.MonkeyPatch], None], operation: Operation, found: str
) -> None:
    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            patch.setattr(interrupts, "PATIENCE", 0.3)
            hf = holdfast.open(tmp_path / "a.db")
            for second in (0, 1, 2):
                operation(hf, -2)
                for point in range(1, count_points(hf, operation) + 1):
                    interrupt(hf, tmp_path / "a.db", operation, point, second)

    assert found in in_child(run)  # In a child, because its threads hang for ever.
