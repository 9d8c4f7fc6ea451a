"""The store in Cozo: entries on disk and in memory, processes that are killed, and files that are something else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cozo_embedded import CozoDbPy

from holdfast.errors import Busy, Closed, Corrupt, HoldfastError, InvalidValue, NewerSchema, NotFound, ReadOnly, Refused
from holdfast.records.entries import EntrySearchQuery
from holdfast.store import cozo as backend
from holdfast.store.cozo import CozoStore
from tests.forked import as_nobody, in_child
from tests.scale import seeded, volume
from tests.stores.stories import count_up, counted, entry, keys_of, same_as_memory


@pytest.fixture(params=["mem", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CozoStore]:
    """One of each engine."""
    opened = CozoStore(":memory:" if request.param == "mem" else tmp_path / "a.cozo", engine=request.param)
    yield opened
    opened.close()


@pytest.fixture
def quick() -> Iterator[CozoStore]:
    """In memory."""
    opened = CozoStore(":memory:", engine="mem")
    yield opened
    opened.close()


def test_it_does_what_the_store_in_memory_does(quick: CozoStore) -> None:
    same_as_memory(quick, seeded("cozo"), volume(300, 10_000))


def test_on_disk_it_does_the_same(tmp_path: Path) -> None:
    store = CozoStore(tmp_path / "a.cozo")
    same_as_memory(store, seeded("cozo on disk"), volume(40, 2_000))
    store.close()


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("_VERSIONS", "?[version, last] := version = 0, *about{name: 'version', value: last}"),
        ("_PUT", backend._PUT.replace("$version]]", "1]]")),
        ("_DROP", "{?[name] <- [[$key]] :rm about {name}}"),
        ("_prefix_bounds", lambda prefix: (prefix, None)),
        ("_prefix_bounds", lambda prefix: ("", None)),
    ],
)
def test_a_planted_bug_is_seen(quick: CozoStore, monkeypatch: pytest.MonkeyPatch, name: str, planted: object) -> None:
    monkeypatch.setattr(backend, name, planted)
    with pytest.raises(AssertionError):
        same_as_memory(quick, seeded("planted in cozo"), 300)


def test_what_is_written_survives_closing_and_versions_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.cozo"
    first = CozoStore(path)
    whole = entry(
        b'{"n":1}',
        written_at=7,
        expires_at=10**13,
        lifetime="session",
        tier="hot",
        content_kind="episodic",
        salience=0.5,
        schema="prefs@2",
        words="some words",
        vector=b"\x7f\x00",
        embedder="two",
        applied=("01",),
    )
    first.put("user/1", "gone", entry())
    version = first.put("user/1", "k", whole)
    first.drop("user/1", "gone")
    before = first.get("user/1", "k")
    first.close()
    again = CozoStore(path)
    assert again.get("user/1", "k") == before
    assert again.put("user/1", "gone", entry()) == version + 1
    wanted = EntrySearchQuery(now=0, terms=("words",), vector=b"\x7f\x00", embedder="two")
    (match,) = again.search("user/1", wanted)
    assert match.cosine == pytest.approx(1.0)
    again.close()


def test_a_page_costs_what_it_shows(quick: CozoStore) -> None:
    """The engine stops when it has enough: it is asked to, and sorts nothing."""
    scripts: list[str] = []
    read = quick._engine.read
    quick._engine.read = lambda script, **params: scripts.append(script) or read(script, **params)
    keys = [f"k{number:04}" for number in range(1_200)]
    for key in keys:
        quick.put("user/1", key, entry())
    scripts.clear()
    assert keys_of(quick, "user/1", limit=5, prefix="k", after="k0600") == keys[601:606]
    assert keys_of(quick, "user/1", limit=1_000) == keys[:1_000]
    assert not [script for script in scripts if ":order" in script]


def test_threads_that_count_together_lose_nothing(store: CozoStore) -> None:
    times = volume(8, 500)
    threads = [threading.Thread(target=count_up, args=(store, times)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(store) == 4 * times


def test_a_killed_process_leaves_what_it_was_told_is_written(tmp_path: Path) -> None:
    script = (
        "import sys; from holdfast.store.cozo import CozoStore; from holdfast.records.entries import StoredEntry\n"
        "store = CozoStore(sys.argv[1])\n"
        "for n in range(100_000):\n"
        "    print(store.put('user/1', f'k{n:06}', StoredEntry(value=b'1', words=f'word {n}')), flush=True)\n"
    )
    path = tmp_path / "a.cozo"
    for turn in range(1, volume(1, 20) + 1):
        with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            told = [int(process.stdout.readline()) for _ in range(12)]
            process.kill()
            told += [int(line) for line in process.stdout.read().splitlines()]
        store = CozoStore(path)
        versions = [store.get("user/1", f"k{number:06}").version for number in range(len(told))]
        assert versions == told, turn
        found = {match.key for match in store.search("user/1", EntrySearchQuery(now=0, terms=("word",), limit=5_000))}
        assert found == set(keys_of(store, "user/1", limit=5_000)), "and what is found is what is there"
        store.close()


def test_one_process_at_a_time_and_no_forks(tmp_path: Path) -> None:
    path = tmp_path / "a.cozo"
    store = CozoStore(path)
    store.put("user/1", "k", entry())
    with pytest.raises(Busy):
        CozoStore(path)
    assert in_child(lambda: CozoStore(path)).startswith("Busy: ")
    assert in_child(lambda: store.get("user/1", "k")).startswith("Closed: This store was opened before a fork")
    assert in_child(store.close) == "None"
    assert store.get("user/1", "k") is not None, "and the parent goes on"
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.get("user/1", "k")
    with pytest.raises(Closed):
        store.datalog("?[a] <- [[1]]")
    CozoStore(path).close()


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"this is not a database " * 500)
    (tmp_path / "folder").mkdir()
    other = CozoDbPy("sqlite", str(tmp_path / "other"), "{}")
    other.run_script(":create theirs {a}", {}, False)
    other.close()
    newer = CozoStore(tmp_path / "newer")
    newer._engine.write("?[name, value] <- [['format', 2]] :put about {name => value}")
    newer.close()
    for path, kind in {
        "junk": Corrupt,
        "folder": HoldfastError,
        "other": Refused,
        "newer": NewerSchema,
        "no/such/folder": NotFound,
    }.items():
        with pytest.raises(kind):
            CozoStore(tmp_path / path)
    for arguments in (
        ("a", "rocksdb"),
        (tmp_path / "a", "mem"),
        (":memory:", "sqlite"),
        ("", "sqlite"),
        (b"a", "sqlite"),
    ):
        with pytest.raises(InvalidValue):
            CozoStore(arguments[0], engine=arguments[1])
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    assert as_nobody(lambda: CozoStore(closed / "a")).startswith(f"{ReadOnly.__name__}: ")


def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.cozo"
    store = CozoStore(path)
    for number in range(60):
        store.put("user/1", f"k{number}", entry(b'"' + b"x" * 500 + b'"'))
    store.close()
    body = bytearray(path.read_bytes())
    body[4096:] = bytes(byte ^ 0x5A for byte in body[4096:])
    path.write_bytes(body)
    with pytest.raises(Corrupt):
        keys_of(CozoStore(path), "user/1")


@pytest.mark.parametrize("made", range(len(backend._RELATIONS) + 1))
def test_a_store_that_was_half_made_is_made_whole(tmp_path: Path, made: int) -> None:
    raw = CozoDbPy("sqlite", str(tmp_path / "a"), "{}")
    for script in list(backend._RELATIONS.values())[:made]:
        raw.run_script(script, {}, False)
    raw.close()
    store = CozoStore(tmp_path / "a")
    assert store.put("user/1", "k", entry(words="hello")) == 1
    assert len(store.search("user/1", EntrySearchQuery(now=0, terms=("hello",)))) == 1
    store.close()


def test_values_that_cannot_be_kept_are_refused_and_nothing_is_written(store: CozoStore) -> None:
    with pytest.raises(InvalidValue):
        store.put("user/1", "k", entry(b"\xff"))
    with pytest.raises(InvalidValue):
        store.put("user/1", "\ud800", entry())
    assert keys_of(store, "user/1") == []
    assert store.capabilities >= {"text", "vectors", "graph", "datalog"}
    assert ("durable" in store.capabilities) == store._engine.durable
