"""Forked while open: parent and child both go on, each with connections of its own, or the child refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast.journal.sqlite import SqliteJournal
from holdfast.records.entries import StoredEntry
from holdfast.sqlite import pool
from holdfast.store.sqlite import SqliteStore
from tests.forked import in_child
from tests.scale import volume

WAIT = 60

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def test_parent_and_child_both_go_on(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("s", "app.noted", {"n": 0})
        list(hf.journal.events())

        def work() -> int:
            for number in range(20):
                hf.journal.append("child", "app.noted", {"n": number})
            hf.close()
            return 1

        said = []
        forked = threading.Thread(target=lambda: said.append(in_child(work)))
        forked.start()
        for number in range(20):
            hf.journal.append("parent", "app.noted", {"n": number})
        forked.join()
        assert said == ["1"]
        assert (hf.journal.version("child"), hf.journal.version("parent")) == (20, 20)
        ids = [event.id for event in hf.journal.events()]
        assert len(set(ids)) == len(ids)
        assert hf.journal.verify().findings == ()


def test_a_child_forked_in_the_middle_of_something_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "FORK_WAIT_SECONDS", 0.05)
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted")
        journal = hf.env.journal
        assert isinstance(journal, SqliteJournal)
        with journal.connections.reader():
            assert in_child(lambda: hf.journal.append("s", "app.noted")).startswith("Refused: This process was forked")
            assert in_child(lambda: holdfast.open(path)).startswith("Refused: This process was forked")
        hf.journal.append("s", "app.noted")
        assert hf.journal.version("s") == 2


def fork_from_threads(hf: holdfast.Holdfast, threads: int, forks: int) -> None:
    """Fork from several threads at once while another one appends: every child works, and so does the parent."""
    said: list[str] = []
    stopping = threading.Event()

    def append(stream: str, key: str) -> bool:
        return hf.journal.append(stream, "app.noted", key=key).version > 0

    def fork(name: str) -> None:
        for number in range(forks):
            key = f"{name}/{number}"
            said.append(in_child(partial(append, "child", key)))
            append("parent", key)

    def write() -> None:
        while not stopping.is_set():
            hf.journal.append("busy", "app.noted")

    forking = [threading.Thread(target=fork, args=(str(number),), daemon=True) for number in range(threads)]
    busy = threading.Thread(target=write, daemon=True)
    for thread in (*forking, busy):
        thread.start()
    for thread in forking:
        thread.join(WAIT)
        assert not thread.is_alive(), "a fork, or an append after it, hangs"
    stopping.set()
    busy.join(WAIT)
    assert not busy.is_alive(), "an append hangs"
    assert said == ["True"] * (threads * forks), set(said)
    assert (hf.journal.version("child"), hf.journal.version("parent")) == (threads * forks, threads * forks)
    assert hf.journal.verify().findings == ()


def test_threads_that_fork_at_the_same_time_all_go_on(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        fork_from_threads(hf, threads=4, forks=volume(10, 500))


def test_stores_survive_threads_that_fork_at_the_same_time(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    said: list[str] = []

    def put(key: str) -> bool:
        return store.put("user/u", key, StoredEntry(value=b"1", written_at=1)) is not None

    def fork(name: str) -> None:
        for number in range(volume(5, 200)):
            said.append(in_child(partial(put, f"{name}/{number}")))
            put(name)

    threads = [threading.Thread(target=fork, args=(name,), daemon=True) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive(), "a fork, or a write after it, hangs"
    assert set(said) == {"True"}
    store.close()


def begin_between_closing_and_forking(hf: holdfast.Holdfast, patch: pytest.MonkeyPatch, wait: float = 0.2) -> None:
    """Start an append in another thread once the connections are closed: it waits until the fork is done."""
    close, done = pool.SqlitePool.close_before_fork, threading.Event()
    journal = hf.env.journal
    assert isinstance(journal, SqliteJournal)
    own = journal.connections

    def append() -> None:
        hf.journal.append("s", "app.noted")
        done.set()

    def close_and_append(one: pool.SqlitePool) -> None:
        close(one)
        if one is own:  # There may be pools of clients that nobody closed.
            threading.Thread(target=append, daemon=True).start()
            done.wait(wait)

    with patch.context() as inner:
        inner.setattr(pool.SqlitePool, "close_before_fork", close_and_append)
        said = in_child(lambda: hf.journal.append("child", "app.noted").version)
    assert done.wait(WAIT), "the append hangs"
    assert said == "1", said


def fork_together(hf: holdfast.Holdfast, patch: pytest.MonkeyPatch) -> None:
    """Fork from two threads: the second closes nothing before the first is done."""
    close, both = pool.SqlitePool.close_before_fork, threading.Barrier(2)
    inside: list[pool.SqlitePool] = []
    most: list[int] = []

    def close_slowly(one: pool.SqlitePool) -> None:
        inside.append(one)
        most.append(len(inside))
        time.sleep(0.05)
        close(one)
        inside.pop()

    def fork() -> None:
        both.wait(WAIT)
        said.append(in_child(lambda: hf.journal.append("child", "app.noted").version > 0))

    said: list[str] = []
    with patch.context() as inner:
        inner.setattr(pool.SqlitePool, "close_before_fork", close_slowly)
        threads = [threading.Thread(target=fork, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive(), "a fork hangs"
    assert (said, max(most)) == (["True", "True"], 1), "two threads forked at once"


SITUATIONS = (begin_between_closing_and_forking, fork_together)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_nothing_begins_while_a_thread_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, situation: Callable[[holdfast.Holdfast, pytest.MonkeyPatch], None]
) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("s", "app.noted")
        situation(hf, monkeypatch)


def operations_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool.SqlitePool, "_enter", pool.SqlitePool._admit)


def connections_stay_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool.SqlitePool, "_close_all", lambda one: None)


@pytest.mark.parametrize("plant", [operations_do_not_wait, connections_stay_open])
def test_planted_bugs_of_forking_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("s", "app.noted")
        with monkeypatch.context() as patch:
            plant(patch)
            with pytest.raises(AssertionError, match="Refused: This process was forked"):
                begin_between_closing_and_forking(hf, patch, wait=2)  # Long enough on a busy machine.


FORKS_OVERLAP = """
import os
register = os.register_at_fork
os.register_at_fork = lambda **hooks: getattr(hooks.get("before"), "__name__", "") == "acquire" or register(**hooks)
import pytest, holdfast, sys
from tests.edges.test_forking import fork_together
with holdfast.open(sys.argv[1]) as hf:
    hf.journal.append("s", "app.noted")
    fork_together(hf, pytest.MonkeyPatch())
"""


def test_forks_that_overlap_are_caught(tmp_path: Path) -> None:
    """In a process of its own, because hooks of a fork cannot be taken back."""
    command = [sys.executable, "-c", FORKS_OVERLAP, str(tmp_path / "a.db")]
    caught = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert "AssertionError: two threads forked at once" in caught.stderr
