"""Finding files of entries whose time is over: every file is looked at, and what is damaged is passed over."""

from __future__ import annotations

from holdfast.ambient import SystemClock
from holdfast.store import fs_format
from holdfast.store.fs_files import Tree
from holdfast.store.fs_names import KINDS_OF_FILE, homes_of, key_path
from holdfast.store.fs_walk import Names, walk

Place = tuple[tuple[Names, ...], str]
"""The folders that a scope may be in, and a key."""


def expired(tree: Tree, now: int) -> set[Place]:
    """Where there may be entries whose time is over: whoever removes them looks again, in a turn."""
    paths = walk(tree, (), lambda _: True, SystemClock().now_ms() / 1000)
    places = (_place(tree, path, now) for path in paths)
    return {place for place in places if place is not None}


def _place(tree: Tree, path: Names, now: int) -> Place | None:
    stem, dot, suffix = path[-1].rpartition(".")
    kind = KINDS_OF_FILE.get(dot + suffix)
    if kind is None:
        return None
    with tree.folder(path[:-1]) as folder:
        data = None if folder is None else tree.read(folder, path)
    try:
        key, entry = fs_format.read(kind, data or b"")
    except fs_format.Damaged:
        return None
    names = key_path(key)
    home = path[: -len(names)]
    ours = home and (*path[:-1], stem)[len(home) :] == names
    return (homes_of(home), key) if ours and not entry.live(now) else None
