"""Finding files below a folder: every one that may be asked for, no link followed, and what the dead left removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence

from holdfast.store.fs_errors import in_the_way
from holdfast.store.fs_files import UNFINISHED, Tree

ABANDONED_SECONDS = 3600
"""An unfinished file of this age belongs to nobody any more."""

Names = tuple[str, ...]


def walk(tree: Tree, home: Sequence[str], enter: Callable[[Names], bool], now: float) -> list[Names]:
    """Paths of all files below a folder, as seen from there; only folders that are to be entered."""
    found: list[Names] = []
    waiting: list[Names] = [()]
    at: Names = ()
    handle: int | None = None
    try:
        while waiting:
            path = waiting.pop()
            names = (*home, *path)
            # From the folder above it where that is still open: keys can be hundreds of folders deep.
            near = handle is not None and path and path[:-1] == at
            child = tree.step(handle, names, len(names) - 1) if near and handle is not None else tree.open(names)
            if handle is not None:
                os.close(handle)
            at, handle = path, child
            if handle is not None:
                files, folders = _listed(tree, handle, names, now)
                found += ((*path, name) for name in files)
                waiting += (below for name in folders if enter(below := (*path, name)))
    finally:
        if handle is not None:
            os.close(handle)
    return found


def _listed(tree: Tree, folder: int, names: Sequence[str], now: float) -> tuple[list[str], list[str]]:
    files, folders = [], []
    with os.scandir(folder) as items:
        for item in items:
            if item.name.startswith("."):
                _forget(folder, item, now)
            elif item.is_symlink():
                raise in_the_way(tree.path((*names, item.name)), stat.S_IFLNK, "")
            elif item.is_dir(follow_symlinks=False):
                folders.append(item.name)
            else:
                files.append(item.name)
    return files, folders


def _forget(folder: int, item: os.DirEntry[str], now: float) -> None:
    """Remove what a killed writer left, once nobody can be writing it."""
    try:
        if item.name.startswith(UNFINISHED) and item.stat(follow_symlinks=False).st_mtime < now - ABANDONED_SECONDS:
            os.unlink(item.name, dir_fd=folder)
    except OSError:
        pass  # Somebody else was first, or this is no place to write.


def may_hold(text: str | None, prefix: str, after: str | None) -> bool:
    """Whether a folder whose keys begin like this can have any of a page. Where its names do not say, look."""
    if text is None:
        return True
    if not (text.startswith(prefix) or prefix.startswith(text)):
        return False
    return after is None or text > after or after.startswith(text)
