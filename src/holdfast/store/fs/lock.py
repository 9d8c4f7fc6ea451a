"""Whose turn it is to write: one writer at a time in a folder, among all threads and processes of a machine.

The lock file notes the newest version that was given, so that none is given twice, and what is being changed. If
a writer is killed, what it changed can be seen and may not be on disk: the next one syncs it before
anything is built on it.
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
"""No scope's folder begins with a dot."""

PATIENCE = 30.0
"""Seconds that one waits for others, as long as for a journal's lock."""

_MOST_BYTES = 1 << 16
_DIGITS = 19


class Turn:
    """The right to change files. What is changed is noted first."""

    def __init__(self, tree: Tree, handle: int) -> None:
        self._tree = tree
        self._handle = handle
        self._newest, self._unfinished = _noted(handle)

    def version(self, previous: int) -> int:
        """The next version: larger than any before, also than those of entries that are gone and other folders'."""
        self._newest = max(previous, self._newest, SystemClock().now_ms() * 1000) + 1
        return self._newest

    @contextmanager
    def changing(self, names: Sequence[str]) -> Iterator[None]:
        """While a folder is changed. An error leaves the note behind, as a killed process does."""
        if self._unfinished:
            self._finish(self._unfinished.split("/"))
            self._unfinished = ""
        self._note("/".join(names))
        yield
        try:
            self._note("")
        except OSError:
            pass  # It is done all the same; the next writer syncs it once more.

    def _finish(self, names: Sequence[str]) -> None:
        """Sync every folder on the way to what a writer left."""
        for depth in range(len(names) + 1):
            with self._tree.folder(names[:depth]) as folder:
                if folder is None:
                    return
                sync(folder)

    def _note(self, unfinished: str) -> None:
        # A line, read up to its end: what may be behind it for a moment is of an earlier and longer one.
        line = f"{self._newest} {unfinished}\n".encode()
        os.pwrite(self._handle, line, 0)
        os.ftruncate(self._handle, len(line))


def _noted(handle: int) -> tuple[int, str]:
    line, end, _ = os.pread(handle, _MOST_BYTES, 0).partition(b"\n")
    newest, space, unfinished = line.partition(b" ")
    if not (end and space and newest.isdigit() and len(newest) < _DIGITS and unfinished.isascii()):
        return 0, ""  # New, or not ours: the clock goes on for it.
    return int(newest), unfinished.decode("ascii")


class Turns:
    """Gives turns. Threads wait for each other here, processes in the file."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._lock = threading.Lock()
        self._handle: int | None = None
        renew_in_child(self)

    def after_fork(self) -> None:
        """A child has no turn, and must not keep its parent's alive."""
        self._tree.after_fork()
        self._lock = threading.Lock()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @contextmanager
    def take(self) -> Iterator[Turn]:
        """Wait for the turn, and give it back at the end."""
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
                # Said aloud: where a child was forked meanwhile, closing would not be enough.
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
