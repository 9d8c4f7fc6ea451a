"""The file pulled away: no append is acknowledged into a file that nobody else can open."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.errors import FileMoved, OutcomeUnknown, Unavailable
from holdfast.journal.sqlite import transaction
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.sqlite import pool
from tests.forked import in_child
from tests.scale import seeded, volume


def delete_database(path: Path) -> None:
    path.unlink()


def move_database(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def replace_database(path: Path) -> None:
    shutil.copyfile(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def delete_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def replace_log(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    shutil.copyfile(log, log.with_name("copied"))
    log.with_name("copied").replace(log)


def read_with_another_library(path: Path) -> None:
    """Read and close with the standard library, whose SQLite knows nothing of apsw's and drops the process's locks."""
    connection = sqlite3.connect(path)
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    connection.close()
    assert not path.with_name(path.name + "-wal").exists()


PULLS = [
    *(delete_database, move_database, move_folder, replace_database),
    *(delete_log, replace_log, read_with_another_library),
]
pulled = pytest.mark.parametrize("pull", PULLS, ids=lambda pull: pull.__name__)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder / "a.db"


def read_elsewhere(path: Path) -> str:
    """The keys that another process finds."""

    def read() -> str:
        with holdfast.open(path) as hf:
            assert hf.journal.verify().findings == ()
            return " ".join(str(event.key) for event in hf.journal.events("s"))

    return in_child(read)


@pulled
def test_an_append_to_a_file_that_was_pulled_away_is_refused_and_says_why(
    pull: Callable[[Path], None], path: Path
) -> None:
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", key="before")
        pull(path)
        for _ in range(2):
            with pytest.raises(FileMoved, match="Close this client, and open the journal again"):
                hf.journal.append("s", "app.noted", key="after")
        # Fail stop: what is read from it would be as wrong.
        with pytest.raises(FileMoved):
            list(hf.journal.events("s"))


@pulled
def test_a_commit_to_a_file_that_is_being_pulled_away_is_unknown(
    pull: Callable[[Path], None], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = transaction.SqlitePlan.write

    def pull_then_write(self: transaction.SqlitePlan) -> None:
        write(self)
        if pull is not read_with_another_library:
            pull(path)
        else:
            delete_log(path)  # The other library would wait for this transaction.

    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", key="before")
        monkeypatch.setattr(transaction.SqlitePlan, "write", pull_then_write)
        with pytest.raises(OutcomeUnknown, match="a file without a name"):
            hf.journal.append("s", "app.noted", key="during")
        with pytest.raises(FileMoved):
            hf.journal.append("s", "app.noted", key="after")


@pulled
def test_a_store_whose_file_was_pulled_away_takes_no_more_writes(pull: Callable[[Path], None], path: Path) -> None:
    with holdfast.open_store(f"sqlite:///{path}") as store:
        store("user/u").write("k", 1)
        pull(path)
        with pytest.raises(FileMoved):
            store("user/u").write("k", 2)


def test_another_library_in_the_process_costs_no_acknowledged_event(path: Path) -> None:
    hf = holdfast.open(path)
    hf.journal.append("s", "app.noted", key="one")
    read_with_another_library(path)
    with pytest.raises(FileMoved):
        hf.journal.append("s", "app.noted", key="lost")
    # Another process goes on with a log of its own, and ours must not be folded over it.
    append_and_die(path, "two")
    hf.close()
    assert read_elsewhere(path) == "one two"
    with holdfast.open(path) as again:
        again.journal.append("s", "app.noted", key="three")
    assert read_elsewhere(path) == "one two three"


def append_and_die(path: Path, *keys: str) -> None:
    """Append in a process that leaves its log behind. Not a fork: before one, this process's connections are closed."""
    program = """if True:
        import os, sys, holdfast
        hf = holdfast.open(sys.argv[1])
        for key in sys.argv[2:]:
            hf.journal.append("s", "app.noted", key=key)
        os._exit(0)
    """
    subprocess.run([sys.executable, "-c", program, str(path), *keys], check=True)
    assert path.with_name(path.name + "-wal").exists()


def test_closing_a_client_harms_no_log_that_took_its_name(path: Path) -> None:
    """Nothing was appended since, so nothing was noticed before the end."""
    hf = holdfast.open(path)
    hf.journal.append("s", "app.noted", key="one")
    read_with_another_library(path)
    append_and_die(path, "two", "three")
    hf.close()
    assert read_elsewhere(path) == "one two three"


def test_a_client_whose_journal_was_restored_under_it_stops(path: Path) -> None:
    hf = holdfast.open(path)
    hf.journal.append("s", "app.noted", key="old")
    hf.journal.backup(path.with_name("backup.db"))
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).rename(path.with_name("away.db" + end))
    holdfast.restore(path.with_name("backup.db"), path)
    with pytest.raises(FileMoved):
        hf.journal.append("s", "app.noted", key="lost")
    with holdfast.open(path) as new:
        new.journal.append("s", "app.noted", key="new")
        hf.close()
        new.journal.append("s", "app.noted", key="newer")
    assert read_elsewhere(path) == "old new newer"


def test_a_file_replaced_across_a_fork_is_noticed(path: Path) -> None:
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", key="one")

        def append_to_another_file() -> object:
            replace_database(path)
            return hf.journal.append("s", "app.noted", key="two")

        # Every connection was closed for the fork, so the child opens the file again by its name.
        assert in_child(append_to_another_file).startswith("FileMoved")
        with pytest.raises(FileMoved):
            hf.journal.append("s", "app.noted", key="three")


def test_a_writer_that_was_dropped_opens_its_own_file_again(path: Path) -> None:
    journal = SqliteJournal(path)
    with holdfast.open(path) as other:
        for _ in range(3):
            journal.connections.drop_writer(suspect=True)
            other.journal.append("s", "app.noted")
            journal.connections.drop_writer(suspect=False)
            assert journal.renew_lease("default", "session/s", 0) is False
    journal.close()


def test_whatever_was_acknowledged_is_there_whenever_the_log_is_dropped(path: Path) -> None:
    random = seeded("pulled away")
    total = 0
    for number in range(volume(4, 200)):
        place = path.with_name(f"{number}.db")
        acknowledged = append_while_dropped(place, random.randrange(1, 30))
        assert set(acknowledged) <= set(read_elsewhere(place).split())
        total += len(acknowledged)
    print(f"{total} acknowledged")


def append_while_dropped(path: Path, wanted: int) -> list[str]:
    """Append in two threads, drop the log under them after some appends, and return the acknowledged keys."""
    acknowledged: list[str] = []
    enough = threading.Event()

    def work(name: int) -> None:
        for count in itertools.count():
            try:
                hf.journal.append("s", "app.noted", key=f"{name}-{count}")
            except (Unavailable, OutcomeUnknown):
                return
            acknowledged.append(f"{name}-{count}")
            if len(acknowledged) >= wanted:
                enough.set()

    with holdfast.open(path) as hf:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
        for thread in threads:
            thread.start()
        enough.wait()
        journal = hf.env.journal
        assert isinstance(journal, SqliteJournal)

        def pull(connection: apsw.Connection) -> None:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            for end in ("-wal", "-shm"):
                path.with_name(path.name + end).unlink()

        # Between two commits, as another library does it: the log is folded into the database and deleted.
        journal.connections.write(pull)
        for thread in threads:
            thread.join()
    return acknowledged


def never_compares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool.SqlitePool, "check_files", lambda self, *, committed=False: None)


def compares_before_only(patch: pytest.MonkeyPatch) -> None:
    original = pool.SqlitePool.check_files

    def check(self: pool.SqlitePool, *, committed: bool = False) -> None:
        if not committed:
            original(self)

    patch.setattr(pool.SqlitePool, "check_files", check)


def folds_its_log_when_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool.SqlitePool, "_discard", lambda self, connection: connection and connection.close(True))


def looks_at_the_database_alone(patch: pytest.MonkeyPatch) -> None:
    original = pool.find_file_id
    patch.setattr(pool, "find_file_id", lambda path: None if path.endswith(b"-wal") else original(path))


def _pull_during_commit(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_a_commit_to_a_file_that_is_being_pulled_away_is_unknown(delete_log, path, patch)


@pytest.mark.parametrize(
    ("plant", "caught"),
    [
        (never_compares, test_another_library_in_the_process_costs_no_acknowledged_event),
        (looks_at_the_database_alone, test_another_library_in_the_process_costs_no_acknowledged_event),
        (folds_its_log_when_closed, test_closing_a_client_harms_no_log_that_took_its_name),
        (
            compares_before_only,
            _pull_during_commit,
        ),
    ],
)
def test_an_append_into_a_lost_file_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    caught: Callable[[Path], None],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, holdfast.HoldfastError)):
        caught(path)
