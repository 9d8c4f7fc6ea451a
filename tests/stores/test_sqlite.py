"""The store in one SQLite file: what every store does, flat cost, versions that never come twice, forks, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.errors import Busy, Closed, NewerSchema, NotAJournal, Refused
from holdfast.records.entries import Edge, EdgeQuery, EntryPageQuery
from holdfast.records.settings import Settings
from holdfast.store import sqlite as backend
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from tests.forked import in_child
from tests.scale import seeded, volume
from tests.stores.fs_process import together
from tests.stores.stories import count_up, counted, entry, keys_of, same_as_memory

SCOPE = "user/1"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "state.db", durability="fast")
    yield opened
    opened.close()


def rows(store: SqliteStore, sql: str, *values: Any) -> list[Any]:
    with store._connections.reader() as connection:
        return connection.execute(sql, values).fetchall()


def test_it_does_what_the_store_in_memory_does(store: SqliteStore) -> None:
    same_as_memory(store, seeded("sqlite as memory"), volume(400, 20_000))


def test_keys_are_compared_and_never_matched(store: SqliteStore) -> None:
    keys = ["user_%", "user_1", "userx1", "User_1", "user", "usf", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffffx", "ü"]
    for key in keys:
        store.put(SCOPE, key, entry())
    for prefix in [
        "user_%",
        "user_",
        "user",
        "User",
        "\ud7ff",
        "\ue000",
        "\U0010ffff",
        "\U0010ffff\U0010ffff",
        "%",
        "x",
    ]:
        wanted = sorted(key for key in keys if key.startswith(prefix))
        assert keys_of(store, SCOPE, prefix=prefix) == wanted
        for after in keys:
            assert keys_of(store, SCOPE, prefix=prefix, after=after) == [key for key in wanted if key > after]


# cost


def steps(store: SqliteStore, work: Callable[[], object]) -> int:
    """How many steps SQLite's machine takes for it."""
    taken = 0

    def count() -> bool:
        nonlocal taken
        taken += 1
        return False

    with store._connections.reader() as connection:
        connection.set_progress_handler(count, 1)
    work()
    with store._connections.reader() as connection:
        connection.set_progress_handler(None, 1)
    return taken


def fill(store: SqliteStore, count: int, start: int = 0) -> None:
    """Entries in one transaction, by the statements of the store itself."""

    def write(connection: apsw.Connection) -> None:
        for number in range(start, count):
            place, version = connection.execute(backend.queries()["count_on"], (SCOPE, False)).fetchall()[0]
            made = entry(lifetime="session" if number % 1_000 == 7 else None)
            values = (place, f"k{number:06}", *backend._entry_values(made, version))
            connection.execute(backend.queries()["insert"], values).fetchall()

    store._connections.transact(write)


def cost_follows_the_answer(store: SqliteStore) -> None:
    """A page at 20 000 entries takes the steps that it takes at 200."""
    pages: list[dict[str, Any]] = [
        {"prefix": "k0000", "limit": 20},
        {"prefix": "k00001", "limit": 1_000},
        {"after": "k000100", "limit": 20},
        {"prefix": "k0001", "after": "k000120", "limit": 20},
        {"prefix": "k", "lifetime": "session", "limit": 1},
    ]
    works = [partial(keys_of, store, SCOPE, **page) for page in pages] + [partial(store.get, SCOPE, "k000100")]
    fill(store, 200)
    few = [steps(store, work) for work in works]
    fill(store, 20_000, start=200)
    many = [steps(store, work) for work in works]
    assert all(after <= before * 1.1 for before, after in zip(few, many, strict=True)), (few, many)


def test_cost_follows_the_answer(store: SqliteStore) -> None:
    cost_follows_the_answer(store)


def test_a_page_that_looks_at_every_entry_is_noticed(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_prefix_end", lambda prefix: b"")
    with pytest.raises(AssertionError):
        cost_follows_the_answer(store)


# versions and time


def test_versions_are_not_given_again_when_a_scope_begins_anew(store: SqliteStore) -> None:
    seen = []
    for _ in range(3):
        seen += [store.put(SCOPE, "a", entry()), store.put(SCOPE, "b", entry())]
        store.drop(SCOPE, "a")
        store.drop(SCOPE, "b")
        assert rows(store, "SELECT name FROM scopes") == [], "a scope without entries leaves no name"
        seen.append(store.put(SCOPE, "a", entry(expires_at=5)))
        assert store.purge(10) == 1
    assert seen == sorted(set(seen))  # type: ignore[type-var]


def test_purging_removes_what_is_over_and_nothing_else(store: SqliteStore) -> None:
    for number in range(1_200):
        store.put(f"user/{number % 3}", f"k{number}", entry(expires_at=[None, 10, 20][number % 3], words="word"))
    assert store.purge(10) == 400
    assert store.purge(10) == 0
    assert rows(store, "SELECT count(*), count(expires_at), min(expires_at) FROM entries") == [(800, 400, 20)]
    assert rows(store, "SELECT count(*) FROM entry_words") == [(800,)]


def test_writing_takes_a_few_expired_entries_along(store: SqliteStore) -> None:
    for number in range(100):
        store.put(SCOPE, f"short{number}", entry(written_at=1, expires_at=10, words="word"))
    for _ in range(200):
        store.put(SCOPE, "busy", entry(written_at=50))
    assert rows(store, "SELECT key FROM entries") == [("busy",)]


# the graph


def test_edges_are_found_as_in_memory(store: SqliteStore) -> None:
    chance, plain = seeded("sqlite edges"), MemoryStore()
    for _ in range(volume(300, 5_000)):
        edge = Edge(
            scope=chance.choice(["user/1", "user/2"]),
            source=chance.choice("abC"),
            kind=chance.choice(["knows", "owns", "%"]),
            target_scope=chance.choice(["user/1", "user/2"]),
            target=chance.choice("abC"),
            weight=chance.choice([None, 0.5]),
            data=chance.choice([None, {"since": [1, 2.5]}, "x"]),
        )
        if chance.random() < 0.6:
            store.link(edge)
            plain.link(edge)
        else:
            assert store.unlink(edge) == plain.unlink(edge)
        query = EdgeQuery(
            scope=edge.scope,
            keys=tuple(chance.sample(["a", "b", "C", '"', "absent"], k=2)),
            direction=chance.choice(["out", "in"]),
            kinds=chance.choice([(), ("knows",), ("%", "owns")]),
            limit=chance.choice([1, 3, 100]),
        )
        assert store.edges(query) == plain.edges(query)


# files, processes, forks


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    with_all = entry(
        b'{"a":1}', words="crab", vector=b"\x01\x7f", embedder="e", applied=("1",), salience=0.5, tier="hot"
    )
    store = SqliteStore(tmp_path / "state.db")
    version = store.put(SCOPE, "a", with_all)
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.get(SCOPE, "a")
    again = SqliteStore(tmp_path / "state.db")
    found = again.get(SCOPE, "a")
    assert found is not None
    assert (found.version, found.applied, found.vector) == (version, ("1",), b"\x01\x7f")
    pragmas = ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
    found = again._connections.write(lambda connection: [connection.pragma(name) for name in pragmas])
    assert found == ["wal", 2, 1, 1]
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600
    again.close()


def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    holdfast.open(tmp_path / "journal.db").close()
    with apsw.Connection(str(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE theirs (x)")
    (tmp_path / "text.db").write_text("This is not a database, and long enough to say so. " * 40)
    for name, words in {
        "journal.db": "is a journal",
        "other.db": "something else",
        "text.db": "no database",
        ".": "folder",
    }.items():
        path = tmp_path / name
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(NotAJournal, match=words):
            SqliteStore(path)
        assert path.is_dir() or path.read_bytes() == before
    with pytest.raises(Refused, match="Create it first"):
        SqliteStore(tmp_path / "no" / "such.db")
    SqliteStore(tmp_path / "store.db").close()
    with pytest.raises(NotAJournal):
        holdfast.open(tmp_path / "store.db")
    with apsw.Connection(str(tmp_path / "store.db")) as newer:
        newer.pragma("user_version", 99)
    with pytest.raises(NewerSchema):
        SqliteStore(tmp_path / "store.db")


def test_processes_and_threads_that_race_lose_nothing(tmp_path: Path) -> None:
    path, times = tmp_path / "state.db", volume(40, 2_000)
    together([lambda: count_up(SqliteStore(path, durability="fast"), times)] * 2)
    store = SqliteStore(path, durability="fast")
    threads = [threading.Thread(target=count_up, args=(store, times)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(store) == 4 * times
    store.close()


def test_a_forked_child_and_its_parent_go_on(store: SqliteStore) -> None:
    store.put(SCOPE, "a", entry(b'"before"', words="crab"))
    assert int(in_child(lambda: store.put(SCOPE, "a", entry(b'"child"', words="crab")))) > 0
    assert store.get(SCOPE, "a").value == b'"child"'  # type: ignore[union-attr]
    store.put(SCOPE, "a", entry(b'"parent"'))
    assert in_child(lambda: store.get(SCOPE, "a").value) == "b'\"parent\"'"  # type: ignore[union-attr]


def test_a_lock_that_is_kept_too_long_is_busy_and_nothing_is_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db", settings=Settings(busy_ms=20))
    store.put(SCOPE, "a", entry(b"1"))
    other = apsw.Connection(str(store.path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Busy):
        store.put(SCOPE, "a", entry(b"2"))
    assert store.page(SCOPE, EntryPageQuery(now=0))[0][1].value == b"1"
    other.close()
    assert store.put(SCOPE, "a", entry(b"2"))
    store.close()
