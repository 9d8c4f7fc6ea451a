"""Entries in files: what every store does, private files, and errors of the operating system by holdfast's names."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from holdfast.client.state import open_store
from holdfast.errors import Closed, Conflict, Corrupt, OutcomeUnknown, Refused, StorageFull, Unsupported
from holdfast.records.entries import Edge, EdgeQuery, EntrySearchQuery
from holdfast.store.fs import files
from holdfast.store.fs.store import FsStore
from holdfast.store.memory import MemoryStore
from holdfast.testing.store_contract.fixtures import SCOPE
from tests.forked import as_nobody
from tests.scale import seeded, volume
from tests.stores.fs_kit import entry
from tests.stores.stories import same_as_memory


@pytest.fixture(params=["json", "markdown"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FsStore:
    return FsStore(tmp_path / "state", format=request.param, search=True)


# behaviour


def test_it_does_what_the_store_in_memory_does(store: FsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "sync_handle", lambda handle: None)  # Nobody cuts the power here.
    same_as_memory(store, seeded("fs as memory"), volume(150, 5_000))


def test_it_finds_what_the_store_in_memory_finds(store: FsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "sync_handle", lambda handle: None)
    chance, plain = seeded("fs finds as memory"), MemoryStore(search=True)
    for key in map(str, range(40)):
        words = " ".join(chance.choices(["crab", "crabs", "river", "the", "Fluss", "日本"], k=3))
        made = entry(1, words=words, expires_at=chance.choice([None, 5]))
        store.put("user/1", key, made)
        plain.put("user/1", key, made)
    for terms in (("crab",), ("crab", "river"), ("日本", "flu"), ("absent",)):
        for limit in (3, 100):
            wanted = EntrySearchQuery(now=10, terms=terms, limit=limit)
            found, known = store.search("user/1", wanted), plain.search("user/1", wanted)
            assert [(match.key, match.text) for match in found] == [(match.key, match.text) for match in known]
    assert store.search("user/2", EntrySearchQuery(now=10, terms=("crab",))) == []


def test_versions_grow_whatever_the_clock_does_and_come_never_twice(
    store: FsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [store.put("global", "a", entry(1))]
    monkeypatch.setattr(files.SystemClock, "now_ms", lambda self: 1_000)
    for _ in range(3):
        seen.append(store.put("global", "a", entry(1)))
        store.drop("global", "a")
    assert all(before < after for before, after in itertools.pairwise(seen))  # type: ignore[operator]


def test_files_and_folders_are_private_and_empty_folders_go(store: FsStore) -> None:
    before = os.umask(0)
    try:
        store.put("session/s1", "a/b/c", entry(1))
        store.put("session/s1", "a/d", entry(1))
    finally:
        os.umask(before)
    for path in [store.root, *store.root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    store.drop("session/s1", "a/b/c")
    assert [path.name for path in (store.root / "session/s1/a").iterdir() if path.is_dir()] == []
    store.drop("session/s1", "a/d")
    assert [path.name for path in store.root.iterdir()] == [".lock"]
    assert len((store.root / ".lock").read_bytes().split()) == 1, "it names no key that is gone"


def test_it_declares_what_it_offers(tmp_path: Path) -> None:
    store = FsStore(tmp_path)
    assert store.capabilities == {"durable", "shared"}
    store.put("global", "a", entry(1, words="a"))
    assert store.search("global", EntrySearchQuery(now=0, terms=("a",))) == []
    edge = Edge(scope="global", source="a", kind="to", target_scope="global", target="b")
    for work in (
        lambda: store.link(edge),
        lambda: store.unlink(edge),
        lambda: store.edges(EdgeQuery(scope="global", keys=("a",))),
    ):
        with pytest.raises(Unsupported):
            work()
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.get("global", "a")


# what the operating system refuses


def test_a_full_disk_leaves_the_old_value(store: FsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("global", "a", entry("old"))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StorageFull):
        store.put("global", "a", entry("new"))
    assert store.get("global", "a").value == b'"old"'  # type: ignore[union-attr]
    assert len(list((store.root / "global").iterdir())) == 1


def test_a_folder_that_cannot_be_synced_leaves_the_outcome_open(
    store: FsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("global", "a", entry("old"))
    real = os.fsync

    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(5, "Input/output error")
        real(handle)

    monkeypatch.setattr(files.os, "fsync", failing)
    with pytest.raises(OutcomeUnknown):
        store.put("global", "a", entry("new"))


def test_a_folder_of_somebody_else_is_read_and_not_written() -> None:
    above = Path(tempfile.mkdtemp(prefix="holdfast-readonly-"))
    try:
        store = FsStore(above / "state")
        store.put("global", "a", entry(1))
        for path in (above, store.root, store.root / "global"):
            path.chmod(0o755)
        (store.root / "global/a.json").chmod(0o644)
        assert as_nobody(lambda: store.put("global", "a", entry(2))).startswith("ReadOnly: ")
        assert as_nobody(lambda: FsStore(store.root).get("global", "a").value) == "b'1'"  # type: ignore[union-attr]
        assert as_nobody(lambda: FsStore(above / "other")).startswith("ReadOnly: ")
    finally:
        shutil.rmtree(above)


def test_a_path_that_can_be_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="Create it first"):
        FsStore(tmp_path / "no" / "such")
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="is a file"):
        FsStore(tmp_path / "file")


def test_files_that_somebody_else_put_there_are_entries_until_they_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "fs/session/sess-001"
    (folder / "history").mkdir(parents=True)
    (folder / "notes.md").write_text("# buy milk\n")
    (folder / "user_preference.json").write_text('{"theme": "dark", "size": 12}')
    (folder / "history/turn-1.json").write_text('["hello", null]\n')
    with open_store(f"fs:///{tmp_path}/fs") as store:
        state = store("session/sess-001")
        assert state.list() == ["history/turn-1", "notes", "user_preference"]
        assert [state.read(key) for key in state.list()] == [
            ["hello", None],
            "# buy milk\n",
            {"theme": "dark", "size": 12},
        ]
        first = state.entry("user_preference")
        os.utime(folder / "user_preference.json", ns=(0, 10**15))
        with pytest.raises(Conflict):
            state.write("user_preference", {}, expected_version=first.version)
        changed = state.entry("user_preference")
        assert state.write("user_preference", {}, expected_version=changed.version) > changed.version
        state.write("notes", "milk is here")
        assert state.read("notes") == "milk is here"
        assert sorted(path.name for path in folder.iterdir()) == ["history", "notes.json", "user_preference.json"]
        (folder / "torn.json").write_text('{"theme": ')
        with pytest.raises(Corrupt, match=r"torn\.json is damaged"):
            state.read("torn")


def test_a_damaged_file_can_be_deleted_as_its_error_says(tmp_path: Path) -> None:
    with open_store(f"fs:///{tmp_path}/fs") as store:
        state = store(SCOPE)
        state.write("a", 1)
        damaged = tmp_path / "fs/user/42/todo.md"
        damaged.write_text('---\nkey: "todo"\n')
        with pytest.raises(Corrupt, match="delete the entry"):
            state.list()
        with pytest.raises(Corrupt):
            state.delete("todo", expected_version=1)
        assert damaged.exists()
        assert state.delete("todo")
        assert not state.delete("todo")
        assert state.list() == ["a"]
