"""Files below one folder: no symbolic link is followed, and after a power cut a file is whole or absent.

Every folder is opened from its parent, so a path that is planted or swapped meanwhile leads nowhere
else. A file is written under a temporary name, synced, and renamed; then the folder is synced. Errors
of the operating system become holdfast's own, and each names the file or folder.

One writer at a time changes a folder, among all threads and processes of a machine. The lock file records the newest
version given out, so that none is given twice, and the folder being changed. If a writer is killed, its change may be
visible but not on disk: the next writer syncs that folder before building on it.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from holdfast.errors import Busy, Closed, HoldfastError, OutcomeUnknown, ReadOnly, Refused, StorageFull, Unavailable
from holdfast.system import ForkLock, SystemClock, renew_in_child

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SAFE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _SAFE_FLAGS
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _SAFE_FLAGS
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS
UNFINISHED_PREFIX = ".new-"
"""The prefix of unfinished files' names. No key's file begins with a dot."""

_numbers = itertools.count()
ABANDONED_SECONDS = 3600
"""The age in seconds from which an unfinished file counts as abandoned."""
Names = tuple[str, ...]


def sync_handle(handle: int) -> None:
    """Flush a file's bytes, or a folder's names, to disk."""
    os.fsync(handle)


class FileTree:
    """A folder and everything below it. Paths are tuples of names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._gate = ForkLock()
        with translate_os_errors(root):
            self._handle: int | None = os.open(root, _FOLDER_FLAGS)

    def close(self) -> None:
        """Close the folder. Operations under way in other threads complete."""
        with self._gate.lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def open_root(self) -> int:
        """Return a handle of the root folder, which the caller closes."""
        with self._gate.lock:
            if self._handle is None:
                raise Closed
            return os.dup(self._handle)

    def path(self, names: Sequence[str]) -> Path:
        """Return the full path, for messages."""
        return self.root.joinpath(*names)

    # folders

    @contextmanager
    def folder(self, names: Sequence[str], *, make: bool = False) -> Iterator[int | None]:
        """Yield a folder's handle, or None if it does not exist and `make` is False."""
        handle = self.open(names, make=make)
        try:
            yield handle
        finally:
            if handle is not None:
                os.close(handle)

    def open(self, names: Sequence[str], *, make: bool = False) -> int | None:
        """Return a folder's handle, which the caller closes, or None as `folder` does."""
        handle = self.open_root()
        for depth in range(len(names)):
            try:
                child = self.open_child(handle, names, depth, make=make)
            finally:
                os.close(handle)
            if child is None:
                return None
            handle = child
        return handle

    def open_child(self, above: int, names: Sequence[str], depth: int, *, make: bool = False) -> int | None:
        """Open the folder at this depth of the path from its parent's handle."""
        name = names[depth]
        for _ in range(2):
            try:
                return os.open(name, _FOLDER_FLAGS, dir_fd=above)
            except FileNotFoundError:
                if not make:
                    return None
            except OSError as error:
                self._refuse(above, names[: depth + 1], error, "a folder")
            try:
                os.mkdir(name, 0o700, dir_fd=above)
            except FileExistsError:
                pass  # Another process has just made it.
            sync_handle(above)
        raise Unavailable(f"{self.path(names)} vanishes as soon as it is made. Nothing was written.")

    def _refuse(self, above: int, names: Sequence[str], error: OSError, wanted: str) -> NoReturn:
        """Raise an error that names the obstacle, if there is one."""
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            try:
                mode = os.stat(names[-1], dir_fd=above, follow_symlinks=False).st_mode
            except OSError:
                raise error from None
            raise obstacle_error(self.path(names), mode, wanted) from None
        raise error

    def remove_empty(self, names: Sequence[str]) -> None:
        """Remove a folder and its parents, as long as they are empty."""
        for depth in range(len(names), 0, -1):
            with self.folder(names[: depth - 1]) as above:
                try:
                    if above is not None:
                        os.rmdir(names[depth - 1], dir_fd=above)
                except FileNotFoundError:
                    pass
                except OSError:
                    return  # Not empty.

    # files

    def read(self, folder: int, names: Sequence[str]) -> bytes | None:
        """Return a file's bytes, or None if it does not exist. The last of the names is the file's."""
        try:
            handle = os.open(names[-1], _READ_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._refuse(folder, names, error, "a file")
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                raise obstacle_error(self.path(names), mode, "a file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)

    def has_file(self, folder: int, names: Sequence[str]) -> bool:
        """Return True if the file exists."""
        try:
            mode = os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise obstacle_error(self.path(names), mode, "a file")
        return True

    def write(self, folder: int, name: str, body: bytes) -> None:
        """Write a whole file and return once it is on disk."""
        handle, unfinished = _create_unfinished(folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body)
                file.flush()
                sync_handle(handle)
            os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            try:
                os.unlink(unfinished, dir_fd=folder)
            except OSError:
                pass  # An unfinished file that stays behind is removed when it is old.
            raise
        sync_names(folder)

    def unlink(self, folder: int, name: str) -> None:
        """Delete a file durably."""
        os.unlink(name, dir_fd=folder)
        sync_names(folder)


def _create_unfinished(folder: int) -> tuple[int, str]:
    while True:
        name = f"{UNFINISHED_PREFIX}{os.getpid()}-{next(_numbers)}"
        try:
            return os.open(name, _CREATE_FLAGS, 0o600, dir_fd=folder), name
        except FileExistsError:
            pass  # Left by a killed process with the same id.


def sync_names(folder: int) -> None:
    """Sync a folder whose names changed. On an error it is unknown whether the change survives."""
    try:
        sync_handle(folder)
    except OSError as error:
        raise OutcomeUnknown(
            f"The folder could not be synced ({error.strerror}), so the change may be lost with the power. "
            "Read the key again, and write it again if need be."
        ) from error


def make_private_folder(folder: Path) -> None:
    """Create a private folder unless it exists; its parent must exist."""
    with translate_os_errors(folder):
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
            sync_handle(handle)
        finally:
            os.close(handle)


def walk_files(tree: FileTree, home: Sequence[str], enter: Callable[[Names], bool], now: float) -> list[Names]:
    """Return the relative paths of all files below a folder, entering only folders that `enter` accepts."""
    found: list[Names] = []
    waiting: list[Names] = [()]
    at: Names = ()
    handle: int | None = None
    try:
        while waiting:
            path = waiting.pop()
            names = (*home, *path)
            # From the parent's handle where that is still open: keys can be hundreds of folders deep.
            near = handle is not None and path and path[:-1] == at
            child = tree.open_child(handle, names, len(names) - 1) if near and handle is not None else tree.open(names)
            if handle is not None:
                os.close(handle)
            at, handle = path, child
            if handle is not None:
                files, folders = _list_folder(tree, handle, names, now)
                found += ((*path, name) for name in files)
                waiting += (below for name in folders if enter(below := (*path, name)))
    finally:
        if handle is not None:
            os.close(handle)
    return found


def _list_folder(tree: FileTree, folder: int, names: Sequence[str], now: float) -> tuple[list[str], list[str]]:
    files, folders = [], []
    with os.scandir(folder) as items:
        for item in items:
            if item.name.startswith("."):
                _remove_abandoned(folder, item, now)
            elif item.is_symlink():
                raise obstacle_error(tree.path((*names, item.name)), stat.S_IFLNK, "")
            elif item.is_dir(follow_symlinks=False):
                folders.append(item.name)
            else:
                files.append(item.name)
    return files, folders


def _remove_abandoned(folder: int, item: os.DirEntry[str], now: float) -> None:
    """Remove a killed writer's unfinished file, once it is too old to be in use."""
    try:
        oldest = now - ABANDONED_SECONDS
        if item.name.startswith(UNFINISHED_PREFIX) and item.stat(follow_symlinks=False).st_mtime < oldest:
            os.unlink(item.name, dir_fd=folder)
    except OSError:
        pass  # Another process removed it, or the folder is read-only.


def may_hold_keys(text: str | None, prefix: str, after: str | None) -> bool:
    """Return True if a folder whose keys begin with `text` can hold keys of a page; None means unknown."""
    if text is None:
        return True
    if not (text.startswith(prefix) or prefix.startswith(text)):
        return False
    return after is None or text > after or after.startswith(text)


@contextmanager
def translate_os_errors(place: Path) -> Iterator[None]:
    """Translate errors of the operating system into holdfast's own."""
    try:
        yield
    except OSError as error:
        raise _translate_os_error(error, place) from error


def _translate_os_error(error: OSError, place: Path) -> HoldfastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull()
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnly(
            f"{place} cannot be used ({error.strerror}). Check the permissions of the folder and its files."
        )
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG):
        return Refused(f"{place} cannot be used ({error.strerror}). Nothing was written.")
    return Unavailable(f"{place} cannot be used ({error.strerror}). Nothing was written; try again later.")


def obstacle_error(place: Path, mode: int, wanted: str) -> Refused:
    """Return the error for something that is in the place of a file or folder of the store."""
    what = "a symbolic link, and none is followed" if stat.S_ISLNK(mode) else f"not {wanted}"
    return Refused(f"{place} is {what}. Remove it; nothing was read or written through it.")


LOCK_FILE = ".lock"
"""The name of the lock file. No scope's folder begins with a dot."""

ResultT = TypeVar("ResultT")
LOCK_TIMEOUT = 30.0
"""The seconds to wait for other writers, as long as for a journal's lock."""

_MAX_NOTE_BYTES = 1 << 16
_MAX_DIGITS = 19


class FolderWriter:
    """The right to change files. Each change is recorded in the lock file first."""

    def __init__(self, tree: FileTree, handle: int) -> None:
        self._tree = tree
        self._handle = handle
        self._newest, self._unfinished = 0, ""  # A new or foreign file: versions go on from the clock.
        line, end, _ = os.pread(handle, _MAX_NOTE_BYTES, 0).partition(b"\n")
        newest, space, unfinished = line.partition(b" ")
        if end and space and newest.isdigit() and len(newest) < _MAX_DIGITS and unfinished.isascii():
            self._newest, self._unfinished = int(newest), unfinished.decode("ascii")

    def next_version(self, previous: int) -> int:
        """Return the next version: larger than any before, including deleted entries' and other folders'."""
        self._newest = max(previous, self._newest, SystemClock().now_ms() * 1000) + 1
        return self._newest

    @contextmanager
    def record_change(self, names: Sequence[str]) -> Iterator[None]:
        """Record a folder while it is changed. An error leaves the record behind, as a killed process does."""
        if self._unfinished:
            self._sync_unfinished(self._unfinished.split("/"))
            self._unfinished = ""
        self._write_note("/".join(names))
        yield
        try:
            self._write_note("")
        except OSError:
            pass  # The change is done; the next writer syncs it once more.

    def _sync_unfinished(self, names: Sequence[str]) -> None:
        """Sync every folder on the path that a killed writer left."""
        for depth in range(len(names) + 1):
            with self._tree.folder(names[:depth]) as folder:
                if folder is None:
                    return
                sync_handle(folder)

    def _write_note(self, unfinished: str) -> None:
        # A line, read up to its end: bytes behind it may briefly remain of an earlier, longer line.
        line = f"{self._newest} {unfinished}\n".encode()
        os.pwrite(self._handle, line, 0)
        os.ftruncate(self._handle, len(line))


class FolderLock:
    """The write lock. Threads wait on a mutex, processes on the lock file."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree
        self._lock = ForkLock()
        self._handle: int | None = None
        renew_in_child(self)

    def after_fork(self) -> None:
        """Release the lock in a child, which must not keep its parent's alive."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def write(self, work: Callable[[FolderWriter], ResultT]) -> ResultT:
        """Wait for the lock, call `work` with the right to write, and release the lock, whatever interrupts it."""
        with self._lock.lock:
            try:
                with translate_os_errors(self._tree.root):
                    top = self._tree.open_root()
                    try:
                        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                        self._handle = os.open(LOCK_FILE, flags, 0o600, dir_fd=top)
                    finally:
                        os.close(top)
                    _wait_for_lock(self._handle)
                    return work(FolderWriter(self._tree, self._handle))
            finally:
                # Nothing is called before it, so that a signal cannot come between.
                handle = self._handle
                if handle is not None:
                    self._handle = None
                    # Explicitly: if a child was forked meanwhile, closing the file would not release the lock.
                    fcntl.flock(handle, fcntl.LOCK_UN)
                    os.close(handle)


def _wait_for_lock(handle: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Busy from None
            time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311  only to keep waiters out of step
        except OSError as error:
            raise Unavailable(f"This file system does not lock files ({error.strerror}). Use a local disk.") from error
        else:
            return
