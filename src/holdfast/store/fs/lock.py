"""The write lock of a folder: one writer at a time, among all threads and processes of a machine.

The lock file records the newest version given out, so that none is given twice, and the folder being changed. If
a writer is killed, its change may be visible but not on disk: the next writer syncs that folder before building
on it.

"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.errors import Busy, Unavailable
from holdfast.store.fs.files import Tree, reporting, sync
from holdfast.system import SystemClock, renew_in_child

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
"""The name of the lock file. No scope's folder begins with a dot."""

PATIENCE = 30.0
"""The seconds to wait for other writers, as long as for a journal's lock."""

_MOST_BYTES = 1 << 16
_DIGITS = 19


class Turn:
    """The right to change files. Each change is recorded in the lock file first."""

    def __init__(self, tree: Tree, handle: int) -> None:
        self._tree = tree
        self._handle = handle
        self._newest, self._unfinished = _noted(handle)

    def version(self, previous: int) -> int:
        """Return the next version: larger than any before, including deleted entries' and other folders'."""
        self._newest = max(previous, self._newest, SystemClock().now_ms() * 1000) + 1
        return self._newest

    @contextmanager
    def changing(self, names: Sequence[str]) -> Iterator[None]:
        """Record a folder while it is changed. An error leaves the record behind, as a killed process does."""
        if self._unfinished:
            self._finish(self._unfinished.split("/"))
            self._unfinished = ""
        self._note("/".join(names))
        yield
        try:
            self._note("")
        except OSError:
            pass  # The change is done; the next writer syncs it once more.

    def _finish(self, names: Sequence[str]) -> None:
        """Sync every folder on the path that a killed writer left."""
        for depth in range(len(names) + 1):
            with self._tree.folder(names[:depth]) as folder:
                if folder is None:
                    return
                sync(folder)

    def _note(self, unfinished: str) -> None:
        # A line, read up to its end: bytes behind it may briefly remain of an earlier, longer line.
        line = f"{self._newest} {unfinished}\n".encode()
        os.pwrite(self._handle, line, 0)
        os.ftruncate(self._handle, len(line))


def _noted(handle: int) -> tuple[int, str]:
    line, end, _ = os.pread(handle, _MOST_BYTES, 0).partition(b"\n")
    newest, space, unfinished = line.partition(b" ")
    if not (end and space and newest.isdigit() and len(newest) < _DIGITS and unfinished.isascii()):
        return 0, ""  # New or foreign: versions go on from the clock.
    return int(newest), unfinished.decode("ascii")


class Turns:
    """The write lock. Threads wait on a mutex, processes on the lock file."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._lock = threading.Lock()
        self._handle: int | None = None
        renew_in_child(self)

    def after_fork(self) -> None:
        """Release the lock in a child, which must not keep its parent's alive."""
        self._tree.after_fork()
        self._lock = threading.Lock()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @contextmanager
    def take(self) -> Iterator[Turn]:
        """Wait for the lock and yield the right to write; release it at the end."""
        if not self._lock.acquire(timeout=PATIENCE):
            raise Busy
        try:
            with reporting(self._tree.root):
                self._handle = self._open()
                _wait(self._handle)
                yield Turn(self._tree, self._handle)
        finally:
            if self._handle is not None:
                handle, self._handle = self._handle, None
                # Explicitly: if a child was forked meanwhile, closing the file would not release the lock.
                fcntl.flock(handle, fcntl.LOCK_UN)
                os.close(handle)
            self._lock.release()

    def _open(self) -> int:
        top = self._tree.top()
        try:
            return os.open(NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=top)
        finally:
            os.close(top)


def _wait(handle: int) -> None:
    deadline = time.monotonic() + PATIENCE
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
