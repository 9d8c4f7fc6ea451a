"""Files under attack: links that are planted, writers that are killed at any call, writers that race."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.errors import Corrupt, Refused
from holdfast.store.fs import files as fs_files
from holdfast.store.fs.store import FsStore
from tests.forked import in_child
from tests.scale import seeded, volume
from tests.stores.fs_kit import entry, files, listed
from tests.stores.fs_process import count_up, killed, together

# links

PLACES = ["session", "session/s1", "session/s1/a", "session/s1/a/b.json", "session/s1/a/b.md"]
"""A kind's folder, a scope's, a key's, the file itself, and the file in its other format."""


def no_link_is_followed(folder: Path, place: str) -> None:
    """Whatever is asked of the key behind it, the link is named, and what it leads to is neither read nor changed."""
    outside, store = folder / "outside", FsStore(folder / "state")
    FsStore(outside).put("session/s1", "a/b", entry("secret"))
    before = {path: path.read_bytes() for path in outside.rglob("*.json")}
    link = store.root / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside / place.replace(".md", ".json"))
    works: list[Callable[[], Any]] = [
        lambda: store.get("session/s1", "a/b"),
        lambda: store.put("session/s1", "a/b", entry("mine")),
        lambda: store.put("session/s1", "a/b", entry("mine"), expected=0),
        lambda: store.drop("session/s1", "a/b"),
        lambda: listed(store, "session/s1"),
    ]
    for work in works:
        with pytest.raises(Refused, match=re.escape(f"{link} is a symbolic link")):
            work()
    assert {path: path.read_bytes() for path in outside.rglob("*.json")} == before
    link.unlink()
    assert store.put("session/s1", "a/b", entry("mine"))


@pytest.mark.parametrize("place", PLACES)
def test_a_planted_link_is_named_and_never_followed(place: str, tmp_path: Path) -> None:
    no_link_is_followed(tmp_path, place)


@pytest.mark.parametrize(("flags", "place"), [("_FOLDER_FLAGS", "session/s1"), ("_READ_FLAGS", "session/s1/a/b.json")])
def test_following_a_link_is_noticed(flags: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs_files, flags, getattr(fs_files, flags) & ~os.O_NOFOLLOW)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        no_link_is_followed(tmp_path, place)


def test_nothing_is_written_through_a_link_in_place_of_the_lock(tmp_path: Path) -> None:
    store = FsStore(tmp_path / "state")
    (store.root / ".lock").symlink_to(tmp_path / "outside")
    with pytest.raises(Refused):
        store.put("global", "a", entry(1))
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_named_and_nobody_waits_for_it(make: Callable[[Path], None], tmp_path: Path) -> None:
    store = FsStore(tmp_path)
    store.put("global", "b", entry(1))
    make(tmp_path / "global/a.json")
    for work in (lambda: store.get("global", "a"), lambda: store.drop("global", "a")):
        with pytest.raises(Refused, match=re.escape(str(tmp_path / "global/a.json") + " is not a file")):
            work()


# kills


def old_or_new(root: Path, chance: Random, call: str | None) -> bool:
    """One writer is killed: every key has its old value or its new one, and writing goes on."""
    store = FsStore(root)
    known = {key: store.get("session/s1", key).value for key in listed(store, "session/s1")}  # type: ignore[union-attr]
    key = chance.choice(["a", "b/c", f"new/{chance.random()}/d"])
    value = "x" * chance.choice([1, 100_000]) + str(chance.random())
    drops = call is None and key in known and chance.random() < 0.3
    put, drop = partial(store.put, "session/s1", key, entry(value)), partial(store.drop, "session/s1", key)
    dead = killed(drop if drops else put, call=call, number=1 if call else chance.randint(1, 30))
    now = {key: store.get("session/s1", key).value for key in listed(store, "session/s1")}  # type: ignore[union-attr]
    after = {**known, key: entry(value).value}
    if drops:
        del after[key]
    assert now in ((known, after) if dead else (after,)), "old or new, and never half"
    assert all(name.endswith(".json") or "/.new-" in name for name in files(root))
    assert store.put("session/s1", "a", entry(chance.random())), "the dead hold no lock"
    return dead


def test_a_writer_killed_before_the_rename_leaves_the_old_value(tmp_path: Path) -> None:
    chance = seeded("killed before the rename")
    assert all(old_or_new(tmp_path, chance, "replace") for _ in range(volume(20, 250)))
    left = list(tmp_path.rglob(".new-*"))
    assert left, "it was killed where it should have been"
    for path in left[1:]:
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    listed(FsStore(tmp_path), "session/s1")
    assert list(tmp_path.rglob(".new-*")) == left[:1], "what is old goes; what is new may be somebody's"


def test_a_writer_killed_at_any_call_leaves_the_old_value_or_the_new_one(tmp_path: Path) -> None:
    chance = seeded("killed at any call")
    dead = [old_or_new(tmp_path, chance, None) for _ in range(volume(20, 250))]
    assert any(dead)


def test_writing_in_place_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_place(self: fs_files.FileTree, folder: int, name: str, body: bytes) -> None:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
        os.write(handle, body[: len(body) // 2])
        os.fsync(handle)
        os.write(handle, body[len(body) // 2 :])

    monkeypatch.setattr(fs_files.FileTree, "write", in_place)
    chance = seeded("in place")
    with pytest.raises((AssertionError, Corrupt), match=r"old or new|is damaged"):
        any(not old_or_new(tmp_path, chance, "fsync") for _ in range(20))


# order on the way to the disk


def everything_is_synced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file before it is renamed, a folder after a name in it changed, all before the write returns."""
    store = FsStore(root)
    log: list[tuple[str, int]] = []
    real = {name: getattr(os, name) for name in ("fsync", "mkdir", "replace", "unlink")}

    def inode(handle: int) -> int:
        return os.fstat(handle).st_ino

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (log.append(("sync", inode(handle))), real["fsync"](handle)))
        for name in ("mkdir", "replace", "unlink"):

            def changing(*given: Any, name: str = name, **named: Any) -> None:
                folder = inode(named.get("dir_fd", named.get("dst_dir_fd")))
                if name == "replace":
                    written = os.stat(given[0], dir_fd=named["src_dir_fd"]).st_ino
                    assert ("sync", written) in log, "the file is not on disk when it gets its name"
                real[name](*given, **named)
                log.append(("changed", folder))

            patch.setattr(os, name, changing)
        store.put("session/s1", "a/b", entry(1))
        store.put("session/s1", "a/b", entry(2))
        store.drop("session/s1", "a/b")
    assert [what for what, _ in log].count("changed") == 6
    for at, (what, folder) in enumerate(log):
        assert what == "sync" or ("sync", folder) in log[at:], "a name in a folder is not on disk"


def test_files_and_folders_are_on_disk_when_a_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything_is_synced(tmp_path, monkeypatch)


@pytest.mark.parametrize("kept", [stat.S_ISREG, stat.S_ISDIR], ids=["files only", "folders only"])
def test_a_sync_that_is_left_out_is_noticed(
    kept: Callable[[int], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes(handle: int) -> None:
        if kept(os.fstat(handle).st_mode):
            os.fsync(handle)

    monkeypatch.setattr(fs_files, "sync_handle", sometimes)
    with pytest.raises(AssertionError, match="on disk"):
        everything_is_synced(tmp_path, monkeypatch)


def synced_by_the_next(root: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    store = FsStore(root)
    store.put("session/s1", "a", entry(1))
    folder = (root / "session/s1").stat().st_ino
    assert killed(lambda: FsStore(root).put("session/s1", "a", entry(2)), call="fsync", number=2)
    assert store.get("session/s1", "a").value == b"2", "it can be seen, and may not be on disk"  # type: ignore[union-attr]
    seen, real = [], os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (seen.append(os.fstat(handle).st_ino), real(handle)))
        store.put("global", "b", entry(1))
    return folder in seen


def test_what_a_dead_writer_left_is_synced_before_anything_is_built_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert synced_by_the_next(tmp_path / "kept", monkeypatch)
    monkeypatch.setattr(fs_files.FolderWriter, "_sync_unfinished", lambda self, names: None)
    assert not synced_by_the_next(tmp_path / "broken", monkeypatch), "leaving it out is noticed"


# races


def count_together(root: Path, times: int) -> bytes:
    store = FsStore(root)
    together([partial(count_up, root, "n", times)] * 3)
    return store.get("global", "n").value  # type: ignore[union-attr]


def test_processes_that_race_lose_nothing(tmp_path: Path) -> None:
    times = volume(30, 1_000)
    assert count_together(tmp_path, times) == str(3 * times).encode()


def test_racing_without_the_lock_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs_files, "_wait_for_lock", lambda handle: None)
    # A disk takes its time. Files in memory are synced at once, so that writers may happen never to meet.
    monkeypatch.setattr(fs_files, "sync_handle", lambda handle: (os.fsync(handle), time.sleep(0.001)))
    assert any(count_together(tmp_path / str(each), 40) != b"120" for each in map(_made(tmp_path), range(25)))


def _made(folder: Path) -> Callable[[int], int]:
    def make(number: int) -> int:
        (folder / str(number)).mkdir()
        return number

    return make


def test_a_child_that_is_forked_during_a_write_waits_for_its_turn(tmp_path: Path) -> None:
    store = FsStore(tmp_path)
    holding, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        holding.set()
        go_on.wait(5)

    thread = threading.Thread(target=store._turns.write, args=(hold,))
    thread.start()
    holding.wait(5)
    threading.Timer(0.05, go_on.set).start()
    assert int(in_child(lambda: store.put("global", "a", entry(1)))) > 0
    thread.join()
    assert listed(store, "global") == ["a"]
