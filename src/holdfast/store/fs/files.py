"""Files below one folder: never through a symbolic link, never half written, gone or there after a power cut.

Every folder is opened from the one above it, so nothing that is planted or swapped meanwhile leads
elsewhere. A file is written beside its place, synced, and renamed into it; then the folder is synced.

Finding files below a folder: every one that may be asked for, no link followed, and what the dead left removed.

What the operating system says about files, as holdfast's own errors. Each names the file or folder.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from holdfast.errors import Closed, HoldfastError, OutcomeUnknown, ReadOnly, Refused, StorageFull, Unavailable

_ONLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _ONLY
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _ONLY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ONLY
UNFINISHED = ".new-"
"""How names of unfinished files begin. No key's file begins with a dot."""

_numbers = itertools.count()


def sync(handle: int) -> None:
    """Have a file's bytes, or a folder's names, on disk."""
    os.fsync(handle)


class Tree:
    """A folder and what is below it. Paths are tuples of names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._gate = threading.Lock()
        with reporting(root):
            self._handle: int | None = os.open(root, _FOLDER)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self._gate = threading.Lock()

    def close(self) -> None:
        """Let go of the folder. What is being done in other threads is finished."""
        with self._gate:
            handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def top(self) -> int:
        """The folder itself, as a handle for the caller to close."""
        with self._gate:
            if self._handle is None:
                raise Closed
            return os.dup(self._handle)

    def path(self, names: Sequence[str]) -> Path:
        """Where it is, to be shown to people."""
        return self.root.joinpath(*names)

    # folders

    @contextmanager
    def folder(self, names: Sequence[str], *, make: bool = False) -> Iterator[int | None]:
        """A folder's handle; None if it does not exist and is not to be made."""
        handle = self.open(names, make=make)
        try:
            yield handle
        finally:
            if handle is not None:
                os.close(handle)

    def open(self, names: Sequence[str], *, make: bool = False) -> int | None:
        """The same for the caller to close."""
        handle = self.top()
        for depth in range(len(names)):
            try:
                child = self.step(handle, names, depth, make=make)
            finally:
                os.close(handle)
            if child is None:
                return None
            handle = child
        return handle

    def step(self, above: int, names: Sequence[str], depth: int, *, make: bool = False) -> int | None:
        """One folder further down: the one of this depth in the path, from the one above it."""
        name = names[depth]
        for _ in range(2):
            try:
                return os.open(name, _FOLDER, dir_fd=above)
            except FileNotFoundError:
                if not make:
                    return None
            except OSError as error:
                self._refuse(above, names[: depth + 1], error, "a folder")
            try:
                os.mkdir(name, 0o700, dir_fd=above)
            except FileExistsError:
                pass  # Made by somebody just now.
            sync(above)
        raise Unavailable(f"{self.path(names)} vanishes as soon as it is made. Nothing was written.")

    def _refuse(self, above: int, names: Sequence[str], error: OSError, wanted: str) -> NoReturn:
        """Say what is in the way, if something is."""
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            try:
                mode = os.stat(names[-1], dir_fd=above, follow_symlinks=False).st_mode
            except OSError:
                raise error from None
            raise in_the_way(self.path(names), mode, wanted) from None
        raise error

    def remove_empty(self, names: Sequence[str]) -> None:
        """Remove a folder and those above it, as long as they are empty."""
        for depth in range(len(names), 0, -1):
            with self.folder(names[: depth - 1]) as above:
                try:
                    if above is not None:
                        os.rmdir(names[depth - 1], dir_fd=above)
                except FileNotFoundError:
                    pass
                except OSError:
                    return  # It is in use again, or still.

    # files

    def read(self, folder: int, names: Sequence[str]) -> bytes | None:
        """A file's bytes, or None if there is none. The last of the names is the file's."""
        try:
            handle = os.open(names[-1], _READ, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._refuse(folder, names, error, "a file")
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                raise in_the_way(self.path(names), mode, "a file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)

    def has(self, folder: int, names: Sequence[str]) -> bool:
        """Whether there is such a file."""
        try:
            mode = os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise in_the_way(self.path(names), mode, "a file")
        return True

    def write(self, folder: int, name: str, body: bytes) -> None:
        """Put a file in place, whole. Returns once it is on disk."""
        handle, unfinished = _create(folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body)
                file.flush()
                sync(handle)
            os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            try:
                os.unlink(unfinished, dir_fd=folder)
            except OSError:
                pass  # What cannot be removed now is removed when it is old.
            raise
        settle(folder)

    def unlink(self, folder: int, name: str) -> None:
        """Remove a file for good."""
        os.unlink(name, dir_fd=folder)
        settle(folder)


def _create(folder: int) -> tuple[int, str]:
    while True:
        name = f"{UNFINISHED}{os.getpid()}-{next(_numbers)}"
        try:
            return os.open(name, _CREATE, 0o600, dir_fd=folder), name
        except FileExistsError:
            pass  # Left by a process of the same number that was killed.


def settle(folder: int) -> None:
    """Have a folder's names on disk. They changed already, so an error leaves it open whether they stay."""
    try:
        sync(folder)
    except OSError as error:
        raise unsettled(error) from error


def make_private(folder: Path) -> None:
    """Make a folder for nobody else, unless it is there; the one above it must be."""
    with reporting(folder):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if not folder.is_dir():
                raise Refused(f"{folder} is a file. Give the path of a folder.") from None
            return
        except FileNotFoundError:
            raise Refused(f"The folder {folder.parent} does not exist. Create it first.") from None
        handle = os.open(folder.parent, os.O_RDONLY)
        try:
            sync(handle)
        finally:
            os.close(handle)


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


@contextmanager
def reporting(place: Path) -> Iterator[None]:
    """Errors of the operating system as holdfast's own."""
    try:
        yield
    except OSError as error:
        raise _translated(error, place) from error


def _translated(error: OSError, place: Path) -> HoldfastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull()
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnly(
            f"{place} cannot be used ({error.strerror}). Check the permissions of the folder and its files."
        )
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG):
        return Refused(f"{place} cannot be used ({error.strerror}). Nothing was written.")
    return Unavailable(f"{place} cannot be used ({error.strerror}). Nothing was written; try again later.")


def in_the_way(place: Path, mode: int, wanted: str) -> Refused:
    """Something is where a file or folder of ours should be."""
    what = "a symbolic link, and none is followed" if stat.S_ISLNK(mode) else f"not {wanted}"
    return Refused(f"{place} is {what}. Remove it; nothing was read or written through it.")


def unsettled(error: OSError) -> OutcomeUnknown:
    """A change was made, and is perhaps not on disk."""
    return OutcomeUnknown(
        f"The folder could not be synced ({error.strerror}), so the change may be lost with the power. "
        "Read the key again, and write it again if need be."
    )
